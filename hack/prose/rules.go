package main

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	relative = regexp.MustCompile(`(?i)\b(?:what|whatever|whoever|whomever|whichever)\b`)
	words    = regexp.MustCompile(`[\p{L}\p{N}_][\p{L}\p{N}_'’.-]*`)
	complete = regexp.MustCompile(`[.!?]["'”’)*_\]` + "`" + `]*\s*$`)
)

// A finding is a line, counted from 1, and the reason why it is refused.
type finding struct {
	line    int
	message string
}

// relatives returns the free relatives of a text and its number of words. In a question the word is an interrogative.
func relatives(lines []string) (found []finding, count int) {
	for _, b := range blocks(lines) {
		text := b.text()
		count += len(words.FindAllString(text, -1))
		for start, sentence := range sentences(text) {
			if strings.HasSuffix(strings.TrimRight(sentence, "\n \"'”’)*_|"), "?") {
				continue
			}
			for _, at := range relative.FindAllStringIndex(sentence, -1) {
				line := b.first + 1 + strings.Count(text[:start+at[0]], "\n")
				found = append(found, finding{line, fmt.Sprintf("name the noun instead of '%s'", sentence[at[0]:at[1]])})
			}
		}
	}
	return found, count
}

// lineBreaks returns the lines of a document that hold a second sentence or end inside one.
func lineBreaks(lines []string) (found []finding) {
	for _, b := range blocks(lines) {
		if !b.paragraph {
			continue
		}
		for n, line := range strings.Split(b.text(), "\n") {
			switch {
			case len(boundaries(line)) > 0:
				found = append(found, finding{b.first + n + 1, "a second sentence on this line; one sentence per line"})
			case n+1 < len(b.lines) && !complete.MatchString(line) && !strings.HasSuffix(line, `\`):
				found = append(found, finding{b.first + n + 1, "the line ends inside a sentence; one sentence per line"})
			}
		}
	}
	return found
}
