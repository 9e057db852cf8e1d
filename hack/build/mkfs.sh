#!/bin/sh
# Unpacks mke2fs and mkfs.xfs for the image, from the packages in THIRD-PARTY.txt: the programs, the loader, the libraries
# that they need, and the licences. A missing library is an error. Downloads only packages that are not there yet.
#
# Usage: mkfs.sh [amd64|arm64]...   default: this machine's architecture
# Needs: apt, dpkg; readelf (binutils), which reads every architecture.
# Env:   CARGO_TARGET_DIR  absolute; the files are in mkfs/amd64 and mkfs/arm64 below it, the packages in tools/debian
#        DEBIAN_MIRROR     a server with Debian's archives, debian and debian-security; default: http://deb.debian.org
set -eu
umask 022
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
packages=$target/tools/debian
fail() {
    echo "mkfs: $*" >&2
    exit 1
}
fetch() { # SHA256 PATH FILE
    ! echo "$1  $3" | sha256sum --check --status 2>/dev/null || return 0
    echo "mkfs: downloading ${3##*/}"
    url=${DEBIAN_MIRROR:-http://deb.debian.org}/$2
    # APT's client uses the proxies that are set up for apt-get. Its own user cannot write below root's home.
    output=$(/usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file "$url" "$3.$$" "SHA256:$1" 2>&1) || {
        rm -f "$3.$$" "$3.$$.FAILED"
        echo "$output" >&2
        fail "cannot download $url; set DEBIAN_MIRROR to a server that has it, or see THIRD-PARTY.txt"
    }
    mv "$3.$$" "$3"
}

[ $# -gt 0 ] || set -- "$(dpkg --print-architecture)"
mkdir -p "$packages"
for arch in "$@"; do
    case $arch in
    amd64) triple=x86_64-linux-gnu ;;
    arm64) triple=aarch64-linux-gnu ;;
    *)
        echo "mkfs: $arch is neither amd64 nor arm64" >&2
        exit 2
        ;;
    esac
    root=$target/mkfs/$arch all=$target/mkfs/packages-$arch
    rm -rf "$root" "$all"
    mkdir -p "$root" "$all"
    grep "_$arch\.deb " THIRD-PARTY.txt >"$all.txt"
    while read -r sum path _; do
        file=$packages/${path##*/} name=${path##*/}
        fetch "$sum" "$path" "$file"
        dpkg-deb --extract "$file" "$all"
        install -D --mode 0644 "$all/usr/share/doc/${name%%_*}/copyright" "$root/licenses/debian/${name%%_*}/copyright"
    done <"$all.txt"
    for text in GPL-2 LGPL-2 LGPL-2.1; do
        install -D --mode 0644 -t "$root/licenses/common-licenses" "$all/usr/share/common-licenses/$text"
    done
    install --mode 0644 THIRD-PARTY.txt "$root/licenses"
    # The notices name the texts by their path in Debian, and scanners look for the notices there.
    mkdir -p "$root/usr/share"
    ln -s ../../licenses/debian "$root/usr/share/doc"
    ln -s ../../licenses/common-licenses "$root/usr/share/common-licenses"

    files="sbin/mke2fs sbin/mkfs.xfs"
    while [ -n "$files" ]; do
        needed=
        for file in $files; do
            [ ! -e "$root/$file" ] || continue
            install -D --mode 0755 "$all/$file" "$root/$file"
            for library in $(readelf --wide --dynamic "$all/$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]$/\1/p'); do
                found=$(cd "$all" && find "lib/$triple" "usr/lib/$triple" -maxdepth 1 -name "$library")
                [ -n "$found" ] || fail "$file of $arch needs $library, which no package in THIRD-PARTY.txt has"
                needed="$needed $found"
            done
        done
        files=$needed
    done
    # A link to the loader, which the libraries need too.
    loader=$(readelf --wide --segments "$root/sbin/mke2fs" | sed -n 's/.*program interpreter: \(.*\)\]$/\1/p')
    mkdir -p "$root${loader%/*}"
    cp --no-dereference "$all$loader" "$root$loader"
    rm -rf "$all" "$all.txt"
    echo "$root: mke2fs and mkfs.xfs for $arch, $(du --bytes --summarize "$root" | cut -f1) bytes"
done
