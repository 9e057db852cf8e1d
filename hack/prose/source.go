package main

import (
	"go/scanner"
	"go/token"
	"path"
	"regexp"
	"strings"
	"unicode"
)

// markdown returns the prose of a source file as Markdown lines. Prose keeps its line number, and every other line is
// empty. A comment after code, a message and a line that starts a new thought become list items, so that their
// sentences end with them. It returns nil for a kind of file that it does not know.
func markdown(name, source string) []string {
	switch base := path.Base(name); path.Ext(name) {
	case ".md":
		return strings.Split(source, "\n")
	case ".rs":
		return rust(source, !isTest(name))
	case ".go":
		return golang(source)
	case ".proto", ".mod":
		return slashes(source)
	case ".sh", ".awk", ".jq", ".pl", ".py", ".toml", ".tpl", ".yaml", ".yml", ".ini", ".txt":
		if base == "NOTES.txt" {
			return nil
		}
		return hashes(source)
	default:
		if base == "Makefile" || base == "Dockerfile" || base == "run" || base == ".gitignore" || base == ".dockerignore" {
			return hashes(source)
		}
		return nil
	}
}

// isTest reports whether a Rust file is compiled for tests and benchmarks alone.
func isTest(name string) bool {
	isSource := strings.HasPrefix(name, "src/") || strings.HasPrefix(name, "crates/")
	return !isSource || strings.Contains(name, "/tests")
}

type prose []string

// add puts text on a line, as a list item if it stands alone.
func (p prose) add(line int, text string, alone bool) {
	text = strings.TrimRight(text, " \t")
	switch {
	case text == "" || line >= len(p):
	case p[line] != "":
		p[line] += ". " + text
	case alone:
		p[line] = "- " + strings.TrimSpace(text)
	default:
		p[line] = text
	}
}

// rust returns the comments and, with messages, the string literals of at least four words.
func rust(source string, messages bool) []string {
	lines := strings.Split(source, "\n")
	out := make(prose, len(lines))
	line := 0
	alone := func(at int) bool {
		return strings.TrimSpace(source[strings.LastIndexByte(source[:at], '\n')+1:at]) != ""
	}
	for i := 0; i < len(source); {
		rest := source[i:]
		end := i + 1
		switch {
		case strings.HasPrefix(rest, "//"):
			end = i + len(firstLine(rest))
			out.add(line, comment(source[i:end]), alone(i))
		case strings.HasPrefix(rest, "/*"):
			end = i + blockEnd(rest)
			for n, text := range strings.Split(source[i:end], "\n") {
				out.add(line+n, strings.Trim(text, "/* "), n == 0 && alone(i))
			}
		case rest[0] == '"':
			end = i + quoteEnd(rest)
			if messages && !strings.HasSuffix(source[:i], "b") {
				out.message(line, rest[1:max(end-i-1, 1)])
			}
		case rest[0] == 'r' && rawString.MatchString(rest) && !inWord(source, i):
			open := rawString.FindString(rest)
			closing := `"` + strings.Repeat("#", len(open)-2)
			if at := strings.Index(rest[len(open):], closing); at >= 0 {
				end = i + len(open) + at + len(closing)
			}
		case rest[0] == '\'':
			end = i + len(char.FindString(rest))
			if end == i { // a lifetime
				end++
			}
		}
		line += strings.Count(source[i:end], "\n")
		i = end
	}
	return out
}

var (
	rawString    = regexp.MustCompile(`^r#*"`)
	char         = regexp.MustCompile(`^'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])'`)
	continuation = regexp.MustCompile(`\\\n\s*`)
	placeholder  = regexp.MustCompile(`\{[^{}]*\}|<[^<>]*>`)
	escape       = regexp.MustCompile(`\\[nt"]`)
	word         = regexp.MustCompile(`\b[A-Za-z][a-z]+\b`)
)

// message adds a string literal that is a sentence or near to one. A literal with line breaks is data.
func (p prose) message(line int, literal string) {
	text := continuation.ReplaceAllString(literal, "")
	if strings.Contains(text, "\n") {
		return
	}
	text = escape.ReplaceAllString(text, " ")
	text = placeholder.ReplaceAllString(text, "`x`")
	if len(word.FindAllString(text, 4)) == 4 && strings.Count(text, " ") > 2 {
		p.add(line, text, true)
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// inWord reports whether the byte at i continues an identifier.
func inWord(source string, i int) bool {
	if i == 0 {
		return false
	}
	before := rune(source[i-1])
	// A byte string, br"...", is a string too.
	return (unicode.IsLetter(before) || unicode.IsDigit(before) || before == '_') && before != 'b'
}

func blockEnd(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(text)
}

func quoteEnd(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}

// comment returns a line comment without its slashes and the space after them.
func comment(text string) string {
	text = strings.TrimLeft(text, "/")
	text = strings.TrimPrefix(text, "!")
	return strings.TrimPrefix(text, " ")
}

// The name that a comment starts with is that of the code below it.
var documented = regexp.MustCompile(`^[a-z]\w*\b`)

// golang returns the comments of a Go file without the directives.
func golang(source string) []string {
	lines := strings.Split(source, "\n")
	out := make(prose, len(lines))
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var scan scanner.Scanner
	scan.Init(file, []byte(source), nil, scanner.ScanComments)
	for {
		at, kind, text := scan.Scan()
		if kind == token.EOF {
			return out
		}
		if kind != token.COMMENT || strings.HasPrefix(text, "//go:") {
			continue
		}
		where := files.Position(at)
		alone := strings.TrimSpace(lines[where.Line-1][:where.Column-1]) != ""
		if strings.HasPrefix(text, "//") {
			text = comment(text)
			if where.Line == 1 || out[where.Line-2] == "" {
				text = documented.ReplaceAllString(text, "`$0`")
			}
			out.add(where.Line-1, text, alone)
			continue
		}
		for n, text := range strings.Split(text, "\n") {
			out.add(where.Line-1+n, strings.Trim(text, "/* \t"), n == 0 && alone)
		}
	}
}

// slashes returns the comments that have lines of their own.
func slashes(source string) []string {
	lines := strings.Split(source, "\n")
	out := make(prose, len(lines))
	for n, text := range lines {
		if text = strings.TrimSpace(text); strings.HasPrefix(text, "//") {
			out.add(n, comment(text), false)
		}
	}
	return out
}

var (
	// The heads of a script say how to use it, in lines such as "Needs: root".
	tagged    = regexp.MustCompile(`^(?:[A-Z][a-z]+(?: [a-z]+)?:\s|\s\s)`)
	directive = regexp.MustCompile(`^(?:shellcheck|yamllint|yaml-language-server)[: ]`)
)

// hashes returns the comments that start with a number sign, and those of Helm's templates.
func hashes(source string) []string {
	lines := strings.Split(source, "\n")
	out := make(prose, len(lines))
	inside := false
	for n, text := range lines {
		if at := strings.Index(text, "/*"); strings.Contains(text, "{{") && at >= 0 {
			inside = true
			text = text[at+2:]
		}
		if inside {
			before, _, closed := strings.Cut(text, "*/")
			out.add(n, strings.TrimSpace(before), false)
			inside = !closed
			continue
		}
		at := hash(text)
		if at < 0 || n == 0 && strings.HasPrefix(text, "#!") {
			continue
		}
		alone := strings.TrimSpace(text[:at]) != ""
		text = strings.TrimPrefix(strings.TrimLeft(text[at:], "#"), " ")
		if directive.MatchString(text) {
			_, text, _ = strings.Cut(text, " # ")
			alone = true
		}
		out.add(n, text, alone || tagged.MatchString(text))
	}
	return out
}

// hash returns the position of the number sign that starts a comment, or -1.
func hash(text string) int {
	var quote byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote == 0 && c == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t'):
			return i
		case c == '\\' && quote != '\'':
			i++
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case c == quote:
			quote = 0
		}
	}
	return -1
}
