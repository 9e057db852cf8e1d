// Prose lints the English of the project: its Markdown, the comments of every language, and the messages of the driver.
//
// Usage: prose [FILE...]
//
// Without files it reads all below the working directory that git does not ignore, and ends with
// "N passed, N failed, 0 skipped", one for each rule. With files it lists every finding in them.
//
// Vale applies the rules on words and sentences, which are in .vale.ini and .vale/styles. It reads the comments of few
// languages and no messages, so it gets a Markdown file with the prose of each source file.
//
// VALE names the vale binary, VALE_CONFIG_PATH a configuration other than .vale.ini.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Free relatives per 1,000 words at which Markdown or comments fail.
const maxRelatives = 2.0

// Neither written here nor by hand.
var excluded = regexp.MustCompile(`^(?:LICENSE|proto/csi\.proto|deploy/install/.*/rootcellar\.yaml|.*\.sum|.*\.lock)$`)

func main() {
	verdict, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if !verdict {
		os.Exit(1)
	}
}

type page struct {
	name  string
	lines []string
}

// A count is the number of free relatives in an area of the project.
type count struct{ found, words int }

func (c count) plus(found, words int) count { return count{c.found + found, c.words + words} }

func (c count) rate() float64 { return 1000 * float64(c.found) / float64(max(c.words, 1)) }

// A report collects the findings of each page, and the counts.
type report struct {
	findings map[string][]finding
	// Free relatives, by area, and in all Markdown and all comments.
	areas, kinds map[string]count
}

func run(files []string) (bool, error) {
	all := len(files) == 0
	pages, err := load(files)
	if err != nil {
		return false, err
	}
	findings, err := vale(pages)
	if err != nil {
		return false, err
	}
	r := report{findings: findings, areas: map[string]count{}, kinds: map[string]count{}}
	for _, p := range pages {
		r.read(p, !all)
	}
	rules := r.print()
	if !all {
		return len(r.findings) == 0, nil
	}
	return r.summary(rules)
}

// read applies the rules that are not Vale's to a page.
func (r *report) read(p page, list bool) {
	found, words := relatives(p.lines)
	r.areas[p.area()] = r.areas[p.area()].plus(len(found), words)
	r.kinds[p.kind()] = r.kinds[p.kind()].plus(len(found), words)
	if list {
		r.add(p, "Relatives", found)
	}
	if p.kind() == "Markdown" {
		r.add(p, "LineBreaks", lineBreaks(p.lines))
	}
}

func (r *report) add(p page, rule string, found []finding) {
	for _, f := range found {
		r.findings[p.name] = append(r.findings[p.name], finding{f.line, rule + ": " + f.message})
	}
}

// print prints the counts and then the findings. It returns the number of findings of each rule.
func (r *report) print() map[string]int {
	fmt.Printf("%-32s %7s %9s %9s\n", "free relatives", "words", "found", "per 1,000")
	for _, group := range []map[string]count{r.areas, r.kinds} {
		for _, area := range sorted(group) {
			c := group[area]
			fmt.Printf("%-32s %7d %9d %9.1f\n", area, c.words, c.found, c.rate())
		}
	}
	fmt.Println()
	rules := map[string]int{}
	for _, name := range sorted(r.findings) {
		slices.SortStableFunc(r.findings[name], func(a, b finding) int { return cmp.Compare(a.line, b.line) })
		for _, f := range r.findings[name] {
			fmt.Printf("%s:%d: %s\n", name, f.line, f.message)
			rule, _, _ := strings.Cut(f.message, ":")
			rules[rule]++
		}
	}
	return rules
}

// summary prints the result of each rule and reports whether none failed.
func (r *report) summary(rules map[string]int) (bool, error) {
	config := cmp.Or(os.Getenv("VALE_CONFIG_PATH"), ".vale.ini")
	styles, err := filepath.Glob(filepath.Join(filepath.Dir(config), ".vale/styles/Rootcellar/*.yml"))
	if err != nil || len(styles) == 0 {
		return false, fmt.Errorf("no rules beside %s", config)
	}
	passed, failed := 0, 0
	result := func(rule string, failing bool, detail string) {
		verdict := "ok"
		if failing {
			verdict = "FAIL"
			failed++
		} else {
			passed++
		}
		fmt.Printf("%-4s %-22s %s\n", verdict, rule, detail)
	}
	fmt.Println()
	for _, style := range append(styles, "LineBreaks.yml") {
		rule := strings.TrimSuffix(filepath.Base(style), ".yml")
		result(rule, rules[rule] > 0, fmt.Sprintf("%d findings", rules[rule]))
	}
	for _, kind := range sorted(r.kinds) {
		rate := r.kinds[kind].rate()
		result("Relatives in "+kind, rate >= maxRelatives, fmt.Sprintf("%.1f per 1,000 words; must be below %.1f; hack/prose.sh FILE... lists them", rate, maxRelatives))
	}
	fmt.Printf("%d passed, %d failed, 0 skipped\n", passed, failed)
	return failed == 0, nil
}

// load reads the files, or those that git does not ignore.
func load(files []string) ([]page, error) {
	explicit := len(files) > 0
	if !explicit {
		listed, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "-z").Output()
		if err != nil {
			return nil, fmt.Errorf("git ls-files: %w", err)
		}
		files = strings.Split(strings.TrimRight(string(listed), "\x00"), "\x00")
	}
	var pages []page
	for _, name := range files {
		if excluded.MatchString(name) {
			continue
		}
		source, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) && !explicit {
			continue // removed and not yet committed
		}
		if err != nil {
			return nil, err
		}
		if lines := markdown(name, string(source)); lines != nil {
			pages = append(pages, page{name, lines})
		}
	}
	return pages, nil
}

func (p page) kind() string {
	if strings.HasSuffix(p.name, ".md") {
		return "Markdown"
	}
	return "comments"
}

func (p page) area() string {
	if p.kind() == "Markdown" {
		return p.name
	}
	if top, _, found := strings.Cut(p.name, "/"); found {
		return top + "/"
	}
	return "./"
}

var alert = regexp.MustCompile(`(?m)^(.+?)\.md:(\d+):\d+:Rootcellar\.(\w+):(.*)$`)

// vale runs Vale on Markdown copies of the pages.
func vale(pages []page) (map[string][]finding, error) {
	dir, err := os.MkdirTemp("", "prose")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	arguments := []string{"--output=line", "--no-wrap", "--no-exit"}
	for _, p := range pages {
		path := filepath.Join(dir, p.name+".md")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(strings.Join(p.lines, "\n")), 0o644); err != nil {
			return nil, err
		}
		arguments = append(arguments, path)
	}
	var stderr strings.Builder
	command := exec.Command(cmp.Or(os.Getenv("VALE"), "vale"), arguments...)
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("vale: %w\n%s%s", err, output, stderr.String())
	}
	findings := map[string][]finding{}
	for _, match := range alert.FindAllStringSubmatch(string(output), -1) {
		name := strings.TrimPrefix(match[1], dir+"/")
		line, _ := strconv.Atoi(match[2])
		findings[name] = append(findings[name], finding{line, match[3] + ": " + match[4]})
	}
	return findings, nil
}

func sorted[V any](of map[string]V) []string {
	names := make([]string, 0, len(of))
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
