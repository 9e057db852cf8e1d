#!/bin/sh
# Writes the licences of the Rust programs of an image, and the index of all its licences. The programs consist of
# rootcellar, the crates that are linked into it, Rust's standard library and musl. The same sources give the same bytes.
# A crate without a licence file is an error, unless the function instead has another file for it.
#
# Usage: licenses.sh INDEX DIRECTORY PACKAGE...   the packages that one call of Cargo builds; INDEX is in hack/build/licenses
# Needs: jq; the crates, which Cargo downloads if they are missing.
set -eu
umask 022
cd "$(dirname "$0")/../.."
fail() {
    echo "licenses: $*" >&2
    exit 1
}
index=$1 to=$2
shift 2
programs=$*
# Both architectures, so that their images have the same text.
set -- --locked
for package in $programs; do set -- "$@" --package "$package"; done
for arch in x86_64 aarch64; do set -- "$@" --target "$arch-unknown-linux-musl"; done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# Prints the file that stands in for the licence file of a crate that has none.
instead() { # NAME VERSION DIRECTORY
    case $1 in
    # They can be used under Apache-2.0, whose text is the same for everyone.
    graviola | kube | kube-client | kube-core | rustls-graviola) echo "$PWD/LICENSE" ;;
    # Another crate of the same repository has its file.
    tonic-prost) echo "${3%/*}/tonic-$2/LICENSE" ;;
    esac
}

cargo tree "$@" --edges normal,no-proc-macro --prefix none --format '{p}' >"$work/tree"
awk 'NF && !/\(proc-macro\)/ { print $1, substr($2, 2) }' "$work/tree" | LC_ALL=C sort -u >"$work/linked"
cargo metadata --locked --format-version 1 --filter-platform x86_64-unknown-linux-musl \
    --filter-platform aarch64-unknown-linux-musl >"$work/metadata"
# The packages of the workspace have no source, and the licence of the project.
jq --raw-output --rawfile linked "$work/linked" '($linked | split("\n")) as $linked | .packages[] | select(.source) |
    select("\(.name) \(.version)" | IN($linked[])) |
    [.name, .version, (.license | gsub(" */ *"; " OR ")), (.manifest_path | rtrimstr("/Cargo.toml"))] | @tsv' \
    "$work/metadata" >"$work/unsorted"
LC_ALL=C sort "$work/unsorted" >"$work/crates"

# Each line: the checksum of a text, the crate, its licences, and the path of the text.
while IFS='	' read -r name version licences directory; do
    find "$directory" -type f ! -name '*.rs' | grep -iE '/(un)?(licen[sc]e|copying|copyright|notice)[^/]*$' |
        LC_ALL=C sort >"$work/files" || :
    [ -s "$work/files" ] || instead "$name" "$version" "$directory" >"$work/files"
    [ -s "$work/files" ] || fail "$name $version has no licence file; find its text, and add it to the function instead"
    while read -r file; do
        sum=$(sha256sum <"$file") || fail "$name $version has no licence file, and $file is missing"
        printf '%s\t%s %s\t%s\t%s\n' "${sum%% *}" "$name" "$version" "$licences" "$file"
    done <"$work/files"
done <"$work/crates" >"$work/texts"

rm -rf "$to"
mkdir -p "$to"
{
    echo "The Rust crates that are linked into the programs of the packages $programs,"
    echo "each with its licences and the numbers of its licence texts, which are below the list."
    echo "Of several licences with OR between them, the programs use Apache-2.0, or MIT if there is no Apache-2.0."
    echo
    # The choice. Parentheses are always around licences with OR between them.
    printf 'All together: '
    cut -f 3 "$work/texts" | jq --raw-input --null-input --raw-output '[inputs | gsub("[()]"; "") | split(" AND ")[] |
        split(" OR ") | first((.[] | select(. == "Apache-2.0")), (.[] | select(. == "MIT")), .[0])] | unique | join(" AND ")'
    awk -F '\t' '
        !($1 in number) { number[$1] = ++count; path[count] = $4; from[count] = $2 }
        $2 != crate { list = list (crate ? "\n" : "") (crate = $2) ", " $3 ": "; comma = "" }
        { list = list comma number[$1]; comma = ", " }
        END {
            print "\n" list
            for (text = 1; text <= count; text++) {
                name = path[text]
                sub(/.*\//, "", name)
                printf "\n======== %d: %s of %s\n\n", text, name, from[text]
                while ((getline line < path[text]) > 0) print line
                close(path[text])
            }
        }' "$work/texts"
} >"$work/crates.txt"
install --mode 0644 LICENSE hack/build/licenses/musl.txt "$to"
# Uncompressed, these two would be 5 % of an image.
gzip --no-name --best <"$work/crates.txt" >"$to/crates.txt.gz"
gzip --no-name --best <"$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html" >"$to/rust.html.gz"
install --mode 0644 "hack/build/licenses/$index.txt" "$to/README.txt"
echo "$to: the licences of $(wc -l <"$work/crates") crates, $(du --bytes --summarize "$to" | cut -f1) bytes"
