#!/bin/sh
# Holds the documents against the tree: every test that docs/semantics.md names exists, every test of tests/suite and
# tests/quota is named there, and no relative link in README.md, CHANGELOG.md, CONTRIBUTING.md, docs/ or e2e/ is dead.
#
# Needs: nothing but a POSIX shell with awk, grep and sed.
set -eu
cd "$(dirname "$0")/.."
bad=0
complain() {
    echo "check-docs: $*" >&2
    bad=1
}

# Prints module::name of every test in the Rust files below a directory; unit tests are in modules called tests.
tests_below() {
    find "$1" -name '*.rs' -exec awk -v top="$1" '
        FNR == 1 {
            module = substr(FILENAME, length(top) + 2)
            sub(/\.rs$/, "", module)
            gsub("/", "::", module)
            if (top == "src" && module !~ /(^|::)tests(::|$)/) module = module "::tests"
            is_test = 0
        }
        /^ *#\[(tokio::)?test[](]/ { is_test = 1 }
        is_test && match($0, /fn [a-z0-9_]+/) {
            print module "::" substr($0, RSTART + 3, RLENGTH - 3)
            is_test = 0
        }' {} +
}

suite=$(tests_below tests/suite && tests_below tests/quota)
known=$(printf '%s\n' "$suite" && tests_below src)
# shellcheck disable=SC2016 # the backquotes are Markdown's
named=$(grep -oE '`[a-z0-9_]+(::[a-z0-9_]+)+`' docs/semantics.md | tr -d '`' | sort -u)
for test in $named; do
    printf '%s\n' "$known" | grep -qxF "$test" || complain "docs/semantics.md names $test, which is no test"
done
for test in $suite; do
    printf '%s\n' "$named" | grep -qxF "$test" || complain "docs/semantics.md does not name $test"
done

for page in README.md CHANGELOG.md CONTRIBUTING.md docs/*.md e2e/*.md e2e/conformance/*.md deploy/chart/*.md; do
    links=$(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//; s/#.*//')
    for link in $links; do
        case $link in *://*) continue ;; esac
        [ -e "$(dirname "$page")/$link" ] || complain "$page links to $link, which does not exist"
    done
done
exit "$bad"
