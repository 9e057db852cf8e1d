package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestExtractsComments(t *testing.T) {
	for _, c := range []struct{ name, source, want string }{
		{"src/a.rs", "//! Module.\nlet a = '\"'; // Alone.\n/// `b` of\n/// two lines.\nfn f<'a>(b: &'a str) {}", "Module.|- Alone.|`b` of|two lines.|"},
		{"src/a.rs", `#[error("pool {pool} is not on this node")]`, "- pool `x` is not on this node"},
		{"src/a.rs", "\"one two \\\n   three four\" \"three words only\"", "- one two three four|"},
		{"src/a.rs", "r#\"// \"no comment in here\" \"# // Yes.", "- Yes."},
		{"src/a/tests.rs", `"no message of the driver" /* Block. */`, "- Block."},
		{"e2e/a.go", "//go:build linux\n// told is\n// a.\nx := `// no` // B.\n/* C\n   D. */", "|`told` is|a.|- B.|C|D."},
		{"hack/a.sh", "#!/bin/sh\n# A\n# b.\n# Needs: root\necho '# no' \"# no\" $# # C.\n# shellcheck disable=SC1 # D.", "|A|b.|- Needs: root|- C.|- D."},
		{"deploy/a.yaml", "a: b#c # D\n{{- /* E\nf. */ -}}", "- D|E|f."},
	} {
		if got := strings.Join(markdown(c.name, c.source), "|"); got != c.want {
			t.Errorf("%s %q\n got %q\nwant %q", c.name, c.source, got, c.want)
		}
	}
}

func TestFindsLines(t *testing.T) {
	freeRelatives := func(lines []string) []finding {
		found, _ := relatives(lines)
		return found
	}
	for _, c := range []struct {
		rule  func([]string) []finding
		text  string
		lines string
	}{
		{freeRelatives, "What is this? It is\nwhatever.", "[2]"},
		{freeRelatives, "Say `what` it does.\n\n    what\n\n```\nwhat\n```\n- a\n\n  what it is", "[10]"},
		{freeRelatives, "| what | who |", "[1]"},
		{freeRelatives, "<!-- what --> A [link](what.md).", "[]"},
		{lineBreaks, "One.\nTwo, e.g. `this`.\n\n- Three 1.5 GiB.\n  `Four` is one.\n\n**Five.** Six ... Seven.", "[]"},
		{lineBreaks, "One. Two.\nThree\nfour.", "[1 2]"},
		{lineBreaks, "- One. `two` is\n  three.", "[1]"},
		{lineBreaks, "| One. Two. |\n\n# One. Two.\n\n    One. Two.\n\n```\nOne. Two.\n```\n[a]: b. C", "[]"},
	} {
		if got := fmt.Sprint(linesOf(c.rule(strings.Split(c.text, "\n")))); got != c.lines {
			t.Errorf("%q: got %s, want %s", c.text, got, c.lines)
		}
	}
}

func linesOf(findings []finding) []int {
	lines := []int{}
	for _, f := range findings {
		lines = append(lines, f.line)
	}
	slices.Sort(lines)
	return lines
}

// Each rule of Vale finds its example, and nothing in plain English.
func TestRulesOfVale(t *testing.T) {
	if os.Getenv("VALE") == "" {
		t.Skip("VALE names no binary")
	}
	t.Setenv("VALE_CONFIG_PATH", absolute(t, "../../.vale.ini"))
	found, err := vale([]page{{"a.rs", []string{
		"Free space is told.",
		"",
		strings.Repeat("word ", 36) + ".",
		"",
		"- Not even this.",
		"- Whoever asks.",
		"- The driver reports the size that the kernel enforces, and `told` is a name.",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found["a.rs"] {
		rule, _, _ := strings.Cut(f.message, ":")
		got = append(got, fmt.Sprint(f.line, " ", rule))
	}
	slices.Sort(got)
	want := []string{"1 Terms", "3 SentenceLength", "5 Inversion", "6 FreeRelative"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func absolute(t *testing.T, path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
