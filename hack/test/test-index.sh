#!/bin/sh
# Prints the tests of each promise in docs/semantics.md, as Markdown.
# A promise is a list entry or a table row of semantics.md that begins with its id in bold.
# A test names its promises in the last line of its comment: `/// Proves: R4, R7.` in Rust, `// Proves: K2.` above a
# scenario of e2e/suites/scenarios or e2e/suites/fleet, and `# Proves: D13.` in the header of a script in hack/test.
# Fails if a promise has no id or no test, if two promises have one id, or if a test proves an unknown id.
# Each test of tests/suite, tests/quota, tests/replay, e2e/suites/scenarios and e2e/suites/fleet must prove a promise.
#
# Needs: nothing but a POSIX shell with awk, find and sort.
set -eu
cd "$(dirname "$0")/../.."
promises=docs/semantics.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# The functions below print lines of two fields: the ids of a test, or "-" if it names none, and the name of the test.
# A line with the ids "!" is a mistake.

# Prints the tests of the Rust files below a directory; unit tests are in modules called tests.
in_rust() { # DIRECTORY
    find "$1" -name '*.rs' -exec awk -v top="$1" '
        function stray() {
            if (ids != "") print "!\t" place ": this line does not end the comment of a test"
            ids = ""
        }
        FNR == 1 {
            stray()
            module = substr(FILENAME, length(top) + 2)
            sub(/\.rs$/, "", module)
            gsub("/", "::", module)
            if (top ~ /src$/ && module !~ /(^|::)tests(::|$)/) module = module "::tests"
            is_test = 0
        }
        /^ *\/\/+!? *Proves/ {
            stray()
            place = FILENAME ":" FNR
            ids = $0
            if (!sub(/^ *\/\/\/ Proves: /, "", ids)) ids = "?"
            next
        }
        /^ *#\[(tokio::)?test[](]/ { is_test = 1 }
        /^ *#\[/ { next }
        is_test && match($0, /fn [a-z0-9_]+/) {
            print (ids == "" ? "-" : ids) "\t`" module "::" substr($0, RSTART + 3, RLENGTH - 3) "`"
            is_test = 0
            ids = ""
        }
        { stray() }
        END { stray() }' {} +
}

# Prints the scenarios, which the lists of a directory give a title and a function.
in_scenarios() { # DIRECTORY MARK
    awk -v top="$1" -v mark="$2" '
        /^\/\/ *Proves/ {
            ids = $0
            if (!sub(/^\/\/ Proves: /, "", ids)) ids = "?"
            place = FILENAME ":" FNR
            next
        }
        /^func / {
            name = $2
            sub(/\(.*/, "", name)
            if (ids != "") proves[name] = ids
        }
        ids != "" {
            if (!/^func /) print "!\t" place ": this line does not end the comment of a scenario"
            ids = ""
        }
        /^\t[{]".*", [A-Za-z0-9]+[}],$/ {
            name = $NF
            sub(/[}],$/, "", name)
            title = $0
            sub(/^\t[{]"/, "", title)
            sub(/", [A-Za-z0-9]+[}],$/, "", title)
            titles[name] = title
        }
        END {
            for (name in titles) print (name in proves ? proves[name] : "-") "\t" mark ": " titles[name]
            for (name in proves) if (!(name in titles)) print "!\t" top ": " name " is in no list of scenarios"
        }' "$1"/*_test.go
}

# Prints the scripts that prove a promise.
in_scripts() {
    awk 'sub(/^# Proves: /, "") { print $0 "\t`" FILENAME "`" }' hack/test/*.sh
}

{
    in_rust tests/suite
    in_rust tests/quota
    in_rust tests/replay
    # A unit test need not prove a promise.
    for crate in src crates/*/src; do in_rust "$crate"; done | awk '!/^-\t/'
    in_scenarios e2e/suites/scenarios e2e
    in_scenarios e2e/suites/fleet e2e-fleet
    in_scripts
} | LC_ALL=C sort -t "$(printf '\t')" -k 2 >"$work/tests"

awk -F '\t' -v promises="$promises" '
    function complain(what) {
        print "test-index: " what >"/dev/stderr"
        bad = 1
    }
    FILENAME != promises {
        if ($1 == "!") complain($2)
        else if ($1 == "-") complain($2 " proves no promise")
        else if ($1 !~ /^[A-Z]+[0-9]+(, [A-Z]+[0-9]+)*\.$/) complain($2 ": not of the form \"Proves: R4, R7.\"")
        else {
            sub(/\.$/, "", $1)
            count = split($1, ids, ", ")
            for (i = 1; i <= count; i++) {
                if (!(ids[i] in known)) complain($2 " proves " ids[i] ", which is no promise of " promises)
                tests[ids[i]] = tests[ids[i]] "| " ids[i] " | " $2 " |\n"
            }
        }
        next
    }
    /^##/ { section = $0; sub(/^#+ /, "", section) }
    /^- / || /^\| \*\*/ {
        if (!match($0, /^(-|\|) \*\*[A-Z]+[0-9]+\*\* /)) {
            complain(promises ":" FNR " begins with no id")
            next
        }
        id = substr($0, 5, RLENGTH - 7)
        if (id in known) complain(promises ":" FNR " has the id " id " of another promise")
        known[id] = section
        order[++last] = id
    }
    END {
        print "# Tests of the promises\n"
        print "A name with `tests::` is a unit test in `src` or `crates`, and `e2e:` marks a scenario that `make e2e`, `make e2e-upgrade` (K20), `make e2e-databases` (I3, B1, B2, and backups for K1), `make e2e-migration` (IM, and runbooks for K1) or `make e2e-machine` (a machine) runs, and `e2e-fleet:` one of `make e2e-fleet`."
        print "The other names are tests of `tests/suite`, `tests/quota` and `tests/replay`, by the names that `cargo test` shows."
        section = ""
        for (i = 1; i <= last; i++) {
            if (tests[order[i]] == "") complain(order[i] " of " promises " has no test")
            if (known[order[i]] != section) {
                section = known[order[i]]
                print "\n## " section "\n\n| promise | test |\n| --- | --- |"
            }
            printf "%s", tests[order[i]]
        }
        exit bad
    }' "$promises" "$work/tests"
