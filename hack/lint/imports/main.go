// Imports checks the imports between the files of each crate. A module imports only from modules that the picture at the
// top of its lib.rs, or of the main.rs of a program, places below it. No files import each other in a circle. Between
// crates, Cargo allows no circle.
//
// An imported name counts for the file that defines it, so that a module may export the names of its files. Methods are not
// seen: only the names of types and functions are imports.
//
// Last line: N passed, N failed, 0 skipped.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	failed, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "imports:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

// The directories of the crates that have a picture, and of those that need none.
var (
	layered = []string{"src", "crates/pool/src", "crates/linux/src", "crates/fleet/src"}
	flat    = []string{"crates/objects/src", "crates/migrate/src", "crates/copy/src", "crates/page/src"}
)

func run() (bool, error) {
	var failed, passed int
	count := func(problems []string) {
		for _, problem := range problems {
			fmt.Println("check-imports:", problem)
		}
		if len(problems) > 0 {
			failed++
		} else {
			passed++
		}
	}
	for _, root := range layered {
		crate, err := read(root)
		if err != nil {
			return false, err
		}
		file := root + "/" + crate.top + ".rs"
		text, err := os.ReadFile(file)
		if err != nil {
			return false, err
		}
		count(checkModules(crate.graph(true), picture(string(text)), file))
		count(checkCircles(crate.graph(false)))
	}
	for _, root := range flat {
		crate, err := read(root)
		if err != nil {
			return false, err
		}
		count(checkCircles(crate.graph(false)))
	}
	fmt.Printf("%d passed, %d failed, 0 skipped\n", passed, failed)
	return failed > 0, nil
}

// A path is that of a module or of a name in it, without the crate: pool, store, disk, Disk.
type path []string

func (p path) String() string { return strings.Join(p, "/") }

// A use is a path that a file mentions, by a name of its own. A file may export that name, and need not mention it again.
type use struct {
	path      path
	name      string
	exported  bool
	mentioned bool
}

// The files of a crate by the paths of their modules.
type source struct {
	uses map[string][]use
	// The file that has all modules: lib, or main if the crate is a program alone.
	top string
}

func read(root string) (*source, error) {
	s := &source{uses: map[string][]use{}, top: "lib"}
	if _, err := os.Stat(root + "/lib.rs"); errors.Is(err, fs.ErrNotExist) {
		s.top = "main"
	}
	texts := map[string]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == "tests" {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".rs") || name == "tests.rs" || name == "main.rs" && s.top != "main" {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		module, err := filepath.Rel(root, strings.TrimSuffix(file, ".rs"))
		if module == "lib" {
			module = "" // Only its exports count.
		}
		texts[module] = string(text)
		s.uses[module] = nil
		return err
	})
	for module, text := range texts {
		s.uses[module] = s.mentioned(module, text)
	}
	return s, err
}

// The modules of the picture in their order, the highest first.
func picture(lib string) map[string]int {
	lines := strings.Split(lib, "```")
	rank := map[string]int{}
	if len(lines) < 2 {
		return rank
	}
	for _, line := range strings.Split(lines[1], "\n") {
		names, _, _ := strings.Cut(strings.TrimPrefix(line, "//! "), "   ")
		for _, name := range strings.Split(strings.TrimSpace(names), ", ") {
			rank[name] = len(rank)
		}
	}
	return rank
}

var (
	scope     = regexp.MustCompile(`pub\(in [^)]*\)`)
	tests     = regexp.MustCompile(`(?s)#\[cfg\(test\)\]\s*mod \w+ \{.*`)
	comments  = regexp.MustCompile(`//.*`)
	statement = regexp.MustCompile(`(?m)^\s*(pub(?:\([^)]*\))? )?use\s+([^;]+);`)
	inline    = regexp.MustCompile(`\b(?:crate|super|self)(?:::\w+)+`)
	child     = regexp.MustCompile(`(^|[^:\w])([a-z_]+)::(\w+)`)
	renamed   = regexp.MustCompile(`\s+as\s+(\w+)`)
	group     = regexp.MustCompile(`(?s)^([\w:]*?)(?:::)?\{(.*)\}$`)
)

// The paths that the text of a module mentions.
func (s *source) mentioned(module, text string) []use {
	for _, left := range []*regexp.Regexp{tests, comments, scope} {
		text = left.ReplaceAllString(text, "")
	}
	var all []use
	add := func(parts []string, name string, exported, mentioned bool) {
		if found, ok := s.absolute(parts, segments(module)); ok {
			all = append(all, use{found, name, exported, mentioned})
		}
	}
	rest := statement.ReplaceAllString(text, "")
	modules := map[string][]string{}
	for _, found := range statement.FindAllStringSubmatch(text, -1) {
		for _, tree := range expand(nil, found[2]) {
			mentioned := regexp.MustCompile(`\b` + tree.name + `\b`).MatchString(rest)
			add(tree.parts, tree.name, found[1] != "", mentioned)
			modules[tree.name] = tree.parts
		}
	}
	for _, found := range inline.FindAllString(rest, -1) {
		add(strings.Split(found, "::"), "", false, true)
	}
	// By a module of its own, or by one that it imports.
	for _, found := range child.FindAllStringSubmatch(rest, -1) {
		add(found[2:], "", false, true)
		if parts, ok := modules[found[2]]; ok {
			add(slices.Concat(parts, found[3:]), "", false, true)
		}
	}
	return all
}

func segments(module string) path {
	if module == "main" {
		return nil // The modules of a program are its children.
	}
	return slices.DeleteFunc(strings.Split(module, "/"), func(name string) bool { return name == "" })
}

// An imported path and the name that it has in the file.
type imported struct {
	parts []string
	name  string
}

// The paths of a tree of imports, such as a::{b, c::d}.
func expand(prefix []string, tree string) []imported {
	var all []imported
	depth, start := 0, 0
	for at, letter := range tree + "," {
		switch letter {
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth > 0 {
				continue
			}
			part := strings.TrimSpace(tree[start:at])
			start = at + 1
			if found := group.FindStringSubmatch(part); found != nil {
				all = append(all, expand(slices.Concat(prefix, names(found[1])), found[2])...)
			} else if part != "" {
				parts := slices.Concat(prefix, names(renamed.ReplaceAllString(part, "")))
				if parts[len(parts)-1] == "self" {
					parts = parts[:len(parts)-1]
				}
				name := parts[len(parts)-1]
				if found := renamed.FindStringSubmatch(part); found != nil {
					name = found[1]
				}
				all = append(all, imported{parts, regexp.QuoteMeta(name)})
			}
		}
	}
	return all
}

func names(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "::"), func(name string) bool { return name == "" })
}

// The path in the crate of one that a module mentions; false for another crate's.
func (s *source) absolute(parts []string, module path) (path, bool) {
	switch parts[0] {
	case "crate":
		return parts[1:], len(parts) > 1
	case "self":
		return slices.Concat(module, parts[1:]), true
	case "super":
		for len(parts) > 0 && parts[0] == "super" && len(module) > 0 {
			module, parts = module[:len(module)-1], parts[1:]
		}
		return slices.Concat(module, parts), true
	}
	if _, ok := s.uses[append(slices.Clone(module), parts[0]).String()]; ok {
		return slices.Concat(module, parts), true
	}
	return nil, false
}

// The module that defines the name at a path.
func (s *source) defining(at path, depth int) string {
	for length := len(at); length >= 0; length-- {
		module := at[:length].String()
		uses, ok := s.uses[module]
		if !ok {
			continue
		}
		if length < len(at) && depth < 8 {
			for _, exported := range uses {
				if exported.exported && exported.name == at[length] && exported.path.String() != at.String() {
					return s.defining(slices.Concat(exported.path, at[length+1:]), depth+1)
				}
			}
		}
		return module
	}
	if _, ok := s.uses["main"]; ok {
		return "main"
	}
	return ""
}

// The modules that each module imports from. `exports`: also those whose names it only exports.
func (s *source) graph(exports bool) map[string][]string {
	graph := map[string][]string{}
	for module, uses := range s.uses {
		if module == "" {
			continue
		}
		graph[module] = nil
		for _, one := range uses {
			if one.exported && !one.mentioned && !exports {
				continue
			}
			if to := s.defining(one.path, 0); to != "" && to != module && !slices.Contains(graph[module], to) {
				graph[module] = append(graph[module], to)
			}
		}
		slices.Sort(graph[module])
	}
	return graph
}

func top(module string) string {
	name, _, _ := strings.Cut(module, "/")
	return name
}

func checkModules(graph map[string][]string, picture map[string]int, file string) (problems []string) {
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		rank, ok := picture[top(from)]
		if !ok {
			problems = append(problems, "the picture in "+file+" does not place "+top(from))
		}
		for _, to := range graph[from] {
			if other, ok := picture[top(to)]; ok && other < rank {
				problems = append(problems, from+" imports from "+to+", which the picture in "+file+" places above it")
			}
		}
	}
	return problems
}

// Finds circles by removing, again and again, the files that import from no other file that is left, and those from which
// none imports.
func checkCircles(graph map[string][]string) (problems []string) {
	left := map[string]bool{}
	for from := range graph {
		left[from] = true
	}
	into := func(from string) []string {
		return slices.DeleteFunc(slices.Clone(graph[from]), func(to string) bool { return !left[to] })
	}
	for removed := true; removed; {
		removed = false
		imported := map[string]bool{}
		for from := range left {
			for _, to := range into(from) {
				imported[to] = true
			}
		}
		for from := range left {
			if len(into(from)) == 0 || !imported[from] {
				delete(left, from)
				removed = true
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(left)) {
		problems = append(problems, "a circle: "+from+" imports from "+strings.Join(into(from), ", "))
	}
	return problems
}
