package main

import (
	"regexp"
	"strings"
	"unicode"
)

// A block is a run of lines that Markdown joins: a paragraph, a heading or a row of a table.
type block struct {
	first int // the index of its first line
	lines []string
	// Sentences of headings and tables may share a line.
	paragraph bool
}

var (
	fence    = regexp.MustCompile("^\\s*(?:>\\s*)?(?:```|~~~)")
	marker   = regexp.MustCompile(`^(?:[-*+]|\d+[.)])\s+`)
	heading  = regexp.MustCompile(`^#{1,6}\s`)
	linkline = regexp.MustCompile(`^\[[^\]]+\]:\s`)
	code     = regexp.MustCompile("(?s)``.*?``|`[^`]*`")
	remark   = regexp.MustCompile(`(?s)<!--.*?-->`)
	target   = regexp.MustCompile(`\]\([^)\s]*\)`)
	address  = regexp.MustCompile(`https?://[^\s)>]+`)
)

// blocks splits Markdown, and leaves out code blocks, comments and link definitions.
func blocks(lines []string) []block {
	var out []block
	var open *block
	fenced, indented, item := false, false, 0
	text := remark.ReplaceAllStringFunc(strings.Join(lines, "\n"), blank)
	for n, raw := range strings.Split(text, "\n") {
		if fence.MatchString(raw) {
			fenced, open = !fenced, nil
			continue
		}
		line := strings.TrimLeft(raw, " >\t")
		if fenced || line == "" {
			open = nil
			continue
		}
		indent := len(raw) - len(line)
		// Four spaces more than the text of the list item, after an empty line or other code, are code.
		if open == nil && indent >= item+4 && !strings.Contains(raw[:indent], ">") {
			indented = true
			continue
		}
		if indented && indent >= item+4 {
			continue
		}
		indented = false
		if mark := marker.FindString(line); mark != "" {
			item, open = indent+len(mark), nil
			line = line[len(mark):]
		} else if open == nil && indent < item {
			item = 0
		}
		switch {
		case linkline.MatchString(line) || strings.HasPrefix(line, "<"):
			open = nil
		case heading.MatchString(line) || strings.HasPrefix(line, "|"):
			out, open = append(out, block{n, []string{line}, false}), nil
		case open == nil:
			out = append(out, block{n, []string{line}, true})
			open = &out[len(out)-1]
		default:
			open.lines = append(open.lines, line)
		}
	}
	return out
}

// blank replaces everything but line breaks, so that positions stay.
func blank(text string) string {
	return strings.Map(func(c rune) rune {
		if c == '\n' {
			return c
		}
		return ' '
	}, text)
}

// text returns the lines as one string in which code has become `_` and a link has lost its target. The line breaks stay.
func (b block) text() string {
	text := code.ReplaceAllStringFunc(strings.Join(b.lines, "\n"), func(span string) string {
		return "`_" + strings.Repeat("\n", strings.Count(span, "\n")) + "`"
	})
	text = target.ReplaceAllString(text, "]")
	return address.ReplaceAllString(text, "_")
}

var (
	sentenceEnd  = regexp.MustCompile(`[.!?]["'”’)*_\]` + "`" + `]*\s+`)
	abbreviation = regexp.MustCompile(`(?:\b(?:e\.g|i\.e|etc|vs|cf|approx)|\.\.)\.["')*_\]]*\s+$`)
	label        = regexp.MustCompile(`^\*\*[^*]+\*\*\s*$`)
)

// boundaries returns the positions at which the second and later sentences of a text start.
func boundaries(text string) []int {
	var out []int
	for _, at := range sentenceEnd.FindAllStringIndex(text, -1) {
		next := strings.TrimLeft(text[at[1]:], `"'“‘(*_[`)
		// A bold label, "**Name.** Text", is a part of the sentence after it.
		if next == "" || unicode.IsLower([]rune(next)[0]) || abbreviation.MatchString(text[:at[1]]) || label.MatchString(text[:at[1]]) {
			continue
		}
		out = append(out, at[1])
	}
	return out
}

// sentences returns each sentence of a text with the position of its start.
func sentences(text string) map[int]string {
	out := map[int]string{}
	start := 0
	for _, end := range append(boundaries(text), len(text)) {
		out[start] = text[start:end]
		start = end
	}
	return out
}
