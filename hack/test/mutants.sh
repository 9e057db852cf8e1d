#!/bin/sh
# Swaps steps whose order durability depends on, one pair at a time, and expects a test to fail. The tests in
# durable::skipped do the same for the syncs. It changes a copy of the sources.
# shellcheck disable=SC2016 # the dollars are perl's
# Last line: N killed, N survived, where one that does not compile counts as survived; with `check`: N passed, N failed,
# 0 skipped.
#
# Usage: mutants.sh [run [TEXT]]   the mutants whose names contain TEXT; default: all, which takes hours
#        mutants.sh check          only checks that each mutant still changes the sources and compiles: a minute
# Needs: perl; to run, root for the loop mounts.
# Env:   CARGO_TARGET_DIR  absolute
#        PART              N/M: only each Mth of these mutants, beginning with the Nth; default: 1/1
set -eu
cd "$(dirname "$0")/../.."
goal=${1:-run} only=${2:-} part=${PART:-1/1} number=0 good=0 bad=0
target=${CARGO_TARGET_DIR:-$PWD/target}
case $goal in
run | check) ;;
*)
    echo "usage: mutants.sh [run [TEXT]|check]" >&2
    exit 64
    ;;
esac
# Each goal has its own copy, because `make lint` may be called while `run` is at work.
copy=$target/mutants/$goal log=$target/mutants/$goal.log
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/sources/crates" "$work/sources/tests" "$work/unchanged"
cp -Rp src "$work/sources/"
cp -Rp crates/pool "$work/sources/crates/"
cp -Rp tests/support "$work/sources/tests/"
rm -rf "$copy"
mkdir -p "$copy"
# With their times, so that Cargo compiles only the changes since the last run.
cp -Rp .cargo Cargo.lock Cargo.toml benches build.rs crates examples hack proto rust-toolchain.toml src tests "$copy/"
# Except these, which that run compiled with mutants in them.
find "$copy/src" "$copy/crates/pool" "$copy/tests/support" -type f -exec touch {} +

# It uses the compiled dependencies of the user. The programs go elsewhere, because mutants are in them.
cargo_on_copy() { # COMMAND [argument...]
    (cd "$copy" && CARGO_TARGET_DIR="$target/mutants" CARGO_BUILD_BUILD_DIR="$target" cargo "$@" >"$log" 2>&1)
}
files() { (cd "$1" && find . -type f); } # DIRECTORY
# Puts the files of a mutant, or of several, into the copy, and the original ones back.
put() { cp -R "$1/." "$copy/"; } # DIRECTORY
put_back() {                     # DIRECTORY
    files "$1" | while IFS= read -r file; do cp "$work/sources/$file" "$copy/$file"; done
}

# Writes the files that a mutant changes; fails if it leaves one as it was.
change() { # DIRECTORY {FILE PERL}...
    to=$1
    shift
    while [ $# -gt 0 ]; do
        mkdir -p "$(dirname "$to/$1")"
        perl -0777 -pe "$2" "$work/sources/$1" >"$to/$1" || return 1
        if cmp -s "$work/sources/$1" "$to/$1"; then
            echo "mutants: $name: the pattern for $1 matches nothing there" >&2
            return 1
        fi
        shift 2
    done
}

compiles() { # DIRECTORY
    result=0
    put "$1"
    cargo_on_copy check --locked --quiet -p rootcellar-support || result=$?
    put_back "$1"
    return "$result"
}
not_compiled() { # NAME
    echo "mutants: $1 does not compile:" >&2
    tail -n 30 "$log" >&2
}

# Adds a mutant to the first group that changes none of its files. The mutants of a group are compiled together.
group() { # NUMBER
    to=1
    while files "$work/$1" | while IFS= read -r file; do [ ! -e "$work/group$to/$file" ] || echo "$file"; done | grep -q .; do
        to=$((to + 1))
    done
    mkdir -p "$work/group$to"
    cp -R "$work/$1/." "$work/group$to/"
    echo "$1" >>"$work/members$to"
}
# Compiles the groups. If one does not compile, it compiles its mutants one by one, to name those at fault.
check_groups() {
    to=1
    while [ -e "$work/members$to" ]; do
        if compiles "$work/group$to"; then
            good=$((good + $(wc -l <"$work/members$to")))
        elif ! compiles "$work/unchanged"; then
            not_compiled "the source without a mutant"
            bad=$((bad + 1))
            return
        else
            while read -r member; do
                if compiles "$work/$member"; then
                    good=$((good + 1))
                else
                    not_compiled "$(cat "$work/$member.name")"
                    bad=$((bad + 1))
                fi
            done <"$work/members$to"
        fi
        to=$((to + 1))
    done
}

suite() { cargo_on_copy test --locked --quiet --test suite -- "$@"; }
# The model first, because it is quick.
pass() { suite durable:: steps:: --skip durable::skipped:: && suite poweroff::; }
failed_tests() {
    sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p; s/^    \([a-z_]*::[a-z_:]*\)$/\1/p' "$log" | sort -u | tr '\n' ' '
}
# Runs the tests on the changed sources; fails if none fails.
is_killed() {
    if ! cargo_on_copy test --locked --quiet --test suite --no-run; then
        not_compiled "$name"
        return 1
    fi
    if pass; then
        echo "SURVIVED  $name"
        return 1
    fi
    echo "killed    $name: $(failed_tests)"
}

mutant() { # NAME {FILE PERL}...
    name=$1
    shift
    case $name in *"$only"*) ;; *) return 0 ;; esac
    number=$((number + 1))
    [ $((number % ${part#*/})) -eq $((${part%/*} % ${part#*/})) ] || return 0
    echo "$name" >"$work/$number.name"
    result=0
    if ! change "$work/$number" "$@"; then
        bad=$((bad + 1))
    elif [ "$goal" = check ]; then
        group "$number"
    else
        put "$work/$number"
        is_killed || result=1
        put_back "$work/$number"
        good=$((good + 1 - result)) bad=$((bad + result))
    fi
}

if [ "$goal" = run ]; then
    export ROOTCELLAR_REQUIRE_ALL=1
    # Tests that fail anyway would kill every mutant.
    if ! pass; then
        tail -n 30 "$log" >&2
        echo "mutants: these tests fail without a mutant: $(failed_tests)" >&2
        exit 1
    fi
fi

pool=crates/pool/src
mutant "init: syncfs after the rename" \
    $pool/disk/marker.rs 's/    os\.syncfs\(root\)[^;]*\?;\n//; s/os\.fsync\(root\)/os.syncfs(root)/'
mutant "record::write: rename before the content" \
    $pool/disk/record/file.rs 's/    write_new\(os, &dir, &temporary, record\)\?;\n(    os\.replace.*?\?;\n)/    os.create(&dir, &temporary).context("")?;\n$1    os.unlink(&dir, name).context("")?;\n    write_new(os, &dir, name, record)?;\n/s'
mutant "recover: staging is not cleared" \
    $pool/disk/open.rs 's/("list staging"\)\?) \{/$1.into_iter().take(0) {/'
mutant "recover: only when the pool is served" \
    $pool/disk/open.rs 's/        disk\.recover\(&options\.path\)\?;\n//; s/    fn recover/    pub(crate) fn recover/' \
    $pool/op/life.rs 's/(self\.serve\(disk, index, &marker\);\n)        Ok\(\(\)\)/$1        let disk = self.state.disk()?;\n        Ok(disk.recover(&self.options.path)?)/'
mutant "open: remembered before what was found is durable" \
    $pool/disk/open.rs 's/(        disk\.recover\(&options\.path\)\?;\n)(.*?let remembered[^;]*;\n)/$2$1/s'
mutant "open: not remembered" \
    $pool/disk/open.rs 's/let remembered = known\.remember[^;]*;/let remembered = crate::Result::<bool>::Ok(known.retired().is_ok());/'
mutant "open: remembered only when the pool is served" \
    $pool/disk/open.rs 's/let remembered = known\.remember[^;]*;/let remembered = crate::Result::<bool>::Ok(known.retired().is_ok());/' \
    $pool/op/life.rs 's/(self\.serve\(disk, index, &marker\);\n)/let id = disk.id;\n$1let is_member = self.options.name.member().is_some();\nself.context.known_pools.remember(&self.options.path, id, is_member)?;\n/'
mutant "seal: a copy is shown before its content is durable" \
    $pool/op/copies.rs 's/        disk\.sync\(\)\.map_err\(fault\)\?;\n//' \
    $pool/disk/staging.rs 's/(fn sync_parent.*?\{\n)/$1        self.sync()?;\n/s'
mutant "create: mode and owner after the record" \
    $pool/op/draft.rs 's/        os\.chown.*?set a volume.s mode"\)\?;\n/        let _ = (parameters, data);\n/s' \
    $pool/op/create.rs 's/        let entry = draft\.commit\(record, reservation\)\?;\n/        let parameters = record.parameters;\n        let entry = draft.commit(record, reservation)?;\n        let data = [entry.directory.as_str(), crate::disk::layout::DATA].join("\/");\n        let data = linux::os::open_dir(&disk.homes.volumes, data).map_err(|errno| linux::fault::Fault::new("", errno)).map_err(|fault| self.classify(fault))?;\n        let _ = self.context.os.chown(&data, parameters.uid, parameters.gid);\n        let _ = self.context.os.chmod(&data, parameters.mode.bits());\n/'
mutant "create: record after the rename" \
    $pool/op/draft.rs 's/disk\s*\.write_record\(&self\.staged, &record\)\s*\.and_then\(\|\(\)\| (disk\.rename_into_place::<R>\(&self\.staged, &directory\))\)/$1.and_then(|()| disk.write_record(&self.staged, &record))/'
mutant "image: the file is not synced before the record" \
    $pool/op/draft.rs 's/        Ok\(os\.fsync\(&file\)\.context_sync\(SYNC_IMAGE\)\?\)/        Ok(())/'
mutant "image: the record is raised without the file" \
    $pool/op/change.rs 's/        let extended = self\.extend\(file, image\.allocation, record\.size_bytes\);.*?classify\(fault\)\)\?;\n(        self\.change\(disk, entry, record\))/        let _ = (image, file);\n$1/s'
mutant "expand: limit after the record" \
    $pool/op/change.rs 's/self\s*\.set_limit\(disk, &record\)\s*\.context\("(raise[^"]*)"\)\s*\.and_then\(\|\(\)\| disk\.amend\(&entry\.directory, &record\)\)/disk.amend(&entry.directory, &record).and_then(|()| self.set_limit(disk, &record).context("$1"))/'
mutant "quota: directory before the limit" \
    tests/support/src/quota.rs 's/(        let id = self\.take.*?;\n.*?;\n)(        os\.mkdir\(.*?\})\)\?;\n/        os.mkdir(dir, name, 0o700)?;\n$1/s'
mutant "reclaim: quota id released before the content is gone" \
    $pool/op/trash/pass.rs 's/(        match disk\.quota\.destroy_dir)/        self.release_id(name)?;\n$1/'
mutant "reclaim: record removed before the quota id is released" \
    $pool/op/trash/pass.rs 's/entry\.file, manner/None, manner/'
mutant "copy: the source's limit is raised after it" \
    $pool/op/copies.rs 's/(        job\.reservation\.cover\(needs\(job, reserved, 0[^\n]*\n)        let _pending = self\.retain\(disk, retains\)\?;\n/$1/'
mutant "copy: the charges that it retains are not recorded" \
    $pool/op/copies.rs 's/        record\.retains\.clone_from\(&made\.pending\.retains\);\n//g'
mutant "start: the charges that copies retain are not counted" \
    $pool/ledger/index.rs 's/        self\.change_retained\(entry\.record\.retains\(\), Retained::add\);\n//'
mutant "start: the charges that copies in the trash retain are not counted" \
    $pool/ledger/index.rs 's/        self\.change_retained\(&entry\.retains, Retained::add\);\n//'
mutant "reclaim: the source's limit is lowered before the copy is gone" \
    $pool/op/trash/pass.rs 's/(        match disk\.quota\.destroy_dir)/        pool.state.remove_from_trash(name);\n        for retained in &entry.retains { let _ = pool.refresh_limit(disk, retained.volume); }\n$1/'
mutant "move: the copy is the volume before the old one is given up" \
    src/volume/moving.rs 's/(        )copied(\.map_err.*?\}\)\?;\n)/$1let new = copied$2        target.complete_move(&new)?;\n/s'
mutant "move: the old copy is deleted before the new one is the volume" \
    src/volume/moving.rs 's/(        )copied(\.map_err.*?\}\)\?;\n)/$1let new = copied$2/s; s/hand_over\.commit\(\)\?;/from.delete(entry, Deletion::ForGood)?;\n        target.complete_move(&new)?;/'

[ "$goal" = run ] || check_groups
if [ $((good + bad)) -eq 0 ]; then
    echo "mutants: no mutant has \"$only\" in its name and is in part $part" >&2
    exit 1
fi
case $goal in
run) echo "$good killed, $bad survived" ;;
check) echo "$good passed, $bad failed, 0 skipped" ;;
esac
[ "$bad" -eq 0 ]
