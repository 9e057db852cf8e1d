#!/bin/sh
# Swaps steps whose order durability depends on, one pair at a time, and expects a test to fail. The tests in
# durable::skipped do the same for the syncs.
# shellcheck disable=SC2016 # the dollars are perl's
# Last line: N killed, N survived; with `apply`: N passed, N failed, 0 skipped.
#
# Usage: mutants.sh [run [TEXT]]   the mutants whose names contain TEXT; default: all
#        mutants.sh apply          only checks that each mutant still changes the source; takes seconds
# Needs: perl; to run, root for the loop mounts, and no uncommitted changes in src/ and tests/support, because git restores them.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/.."
goal=${1:-run} only=${2:-} good=0 bad=0
log=${CARGO_TARGET_DIR:-$PWD/target}/mutants.log
work=$(mktemp -d)
case $goal in
run)
    mkdir -p "$(dirname "$log")"
    export ROOTCELLAR_REQUIRE_ALL=1
    if ! git diff --quiet HEAD -- src tests/support; then
        echo "mutants: src/ or tests/support has uncommitted changes; commit or stash them first" >&2
        exit 1
    fi
    src=src
    restore() { git checkout --quiet HEAD -- src tests/support; }
    trap 'restore; rm -rf "$work"' EXIT
    ;;
apply)
    trap 'rm -rf "$work"' EXIT
    src=$work/src
    mkdir -p "$work/tests"
    restore() { rm -rf "$src" "$work/tests/support" && cp -R src "$src" && cp -R tests/support "$work/tests/support"; }
    restore
    ;;
*)
    echo "usage: mutants.sh [run [TEXT]|apply]" >&2
    exit 64
    ;;
esac
trap 'exit 1' HUP INT TERM

suite() { cargo test --locked --quiet --test suite -- "$@" >"$log" 2>&1; }

# Makes the change; fails if it leaves a file as it was.
change() { # {FILE PERL}...
    while [ $# -gt 0 ]; do
        perl -0777 -pe "$2" "$src/$1" >"$work/changed"
        if cmp -s "$work/changed" "$src/$1"; then
            echo "mutants: $name: the pattern for src/$1 matches nothing there" >&2
            return 1
        fi
        cat "$work/changed" >"$src/$1"
        shift 2
    done
}

# Runs the tests on the changed source; fails if none fails.
is_killed() {
    if ! cargo test --locked --quiet --test suite --no-run >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "mutants: $name does not compile" >&2
        return 1
    fi
    # The model first, because it is quick.
    if suite durable:: steps:: --skip durable::skipped:: && suite poweroff::; then
        echo "SURVIVED  $name"
        return 1
    fi
    echo "killed    $name: $(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p; s/^    \([a-z_]*::[a-z_:]*\)$/\1/p' "$log" |
        sort -u | tr '\n' ' ')"
}

mutant() { # NAME {FILE PERL}...
    name=$1
    shift
    case $name in *"$only"*) ;; *) return 0 ;; esac
    if change "$@" && { [ "$goal" = apply ] || is_killed; }; then
        good=$((good + 1))
    else
        bad=$((bad + 1))
    fi
    restore
}

mutant "init: syncfs after the rename" \
    pool/store/marker.rs 's/    os\.syncfs\(root\)[^;]*\?;\n//; s/os\.fsync\(root\)/os.syncfs(root)/'
mutant "record::write: rename before the content" \
    pool/store/record/file.rs 's/    write_new\(os, &dir, &temporary, record\)\?;\n(    os\.replace.*?\?;\n)/    os.create(&dir, &temporary).context("")?;\n$1    os.unlink(&dir, name).context("")?;\n    write_new(os, &dir, name, record)?;\n/s'
mutant "recover: staging is not cleared" \
    pool/store/disk.rs 's/("list staging"\)\?) \{/$1.into_iter().take(0) {/'
mutant "recover: only when the pool is served" \
    pool/store/disk.rs 's/        disk\.recover\(\)\?;\n//; s/    fn recover/    pub(crate) fn recover/' \
    pool/life.rs 's/(self\.serve\(disk, index, &marker\);\n)        Ok\(\(\)\)/$1        let disk = self.state.disk()?;\n        Ok(disk.recover()?)/'
mutant "open: remembered before what was found is durable" \
    pool/store/disk.rs 's/(        disk\.recover\(\)\?;\n)(.*?let remembered[^;]*;\n)/$2$1/s'
mutant "open: not remembered" \
    pool/store/disk.rs 's/let remembered = context\.memory\.remember[^;]*;/let remembered = crate::pool::Result::<bool>::Ok(true);/'
mutant "open: remembered only when the pool is served" \
    pool/store/disk.rs 's/let remembered = context\.memory\.remember[^;]*;/let remembered = crate::pool::Result::<bool>::Ok(true);/' \
    pool/life.rs 's/(self\.serve\(disk, index, &marker\);\n)/let id = disk.id;\n$1let remembered = self.context.memory.remember(&self.options.path, id);\nremembered.map_err(|error| Unavailable::Memory(error.to_string()))?;\n/'
mutant "seal: a copy is shown before its content is durable" \
    pool/copies.rs 's/        disk\.sync\(\)\.map_err\(fault\)\?;\n//' \
    pool/store/disk.rs 's/(fn sync_parent.*?\{\n)/$1        self.sync()?;\n/s'
mutant "create: mode and owner after the record" \
    pool/draft.rs 's/        os\.chown.*?set a volume.s mode"\)\?;\n/        let _ = (parameters, data);\n/s' \
    pool/contents.rs 's/        let entry = draft\.commit\(record, reservation\)\?;\n/        let parameters = record.parameters;\n        let entry = draft.commit(record, reservation)?;\n        let data = [entry.directory.as_str(), layout::DATA].join("\/");\n        let data = os::open_dir(&disk.homes.volumes, data).context("").map_err(|fault| self.classify(fault))?;\n        let _ = self.context.os.chown(&data, parameters.uid, parameters.gid);\n        let _ = self.context.os.chmod(&data, parameters.mode.bits());\n/'
mutant "create: record after the rename" \
    pool/draft.rs 's/disk\s*\.write_record\(&self\.staged, &record\)\s*\.and_then\(\|\(\)\| (disk\.rename_into_place::<R>\(&self\.staged, &directory\))\)/$1.and_then(|()| disk.write_record(&self.staged, &record))/'
mutant "image: the file is not synced before the record" \
    pool/draft.rs 's/        Ok\(os\.fsync\(&file\)\.context_sync\(SYNC_IMAGE\)\?\)/        Ok(())/'
mutant "image: the record is raised without the file" \
    pool/contents.rs 's/        let extended = self\.extend\(file, image\.allocation, record\.size_bytes\);.*?classify\(fault\)\)\?;\n(        self\.change\(disk, entry, record\))/        let _ = (image, file);\n$1/s'
mutant "expand: limit after the record" \
    pool/contents.rs 's/self\s*\.set_limit\(disk, &record\)\s*\.context\("(raise[^"]*)"\)\s*\.and_then\(\|\(\)\| disk\.amend\(&entry\.directory, &record\)\)/disk.amend(&entry.directory, &record).and_then(|()| self.set_limit(disk, &record).context("$1"))/'
mutant "quota: directory before the limit" \
    ../tests/support/src/quota.rs 's/(        let id = self\.take.*?;\n.*?;\n)(        os\.mkdir\(.*?\})\)\?;\n/        os.mkdir(dir, name, 0o700)?;\n$1/s'
mutant "reclaim: quota id released before the content is gone" \
    pool/trash/pass.rs 's/(        match disk\.quota\.destroy_dir)/        if let Some(id) = quota_id { let _ = disk.quota.release(os, id); }\n$1/'
mutant "reclaim: record removed before the quota id is released" \
    pool/trash/pass.rs 's/entry\.file, manner/None, manner/'
mutant "copy: the source's limit is raised after it" \
    pool/copies.rs 's/(        job\.reservation\.cover\(needs\(job, reserved, 0[^\n]*\n)        let _pending = self\.retain\(disk, retains\)\?;\n/$1/'
mutant "copy: the charges that it retains are not recorded" \
    pool/copies.rs 's/        record\.retains\.clone_from\(&made\.pending\.retains\);\n//g'
mutant "start: the charges that copies retain are not counted" \
    pool/state/index.rs 's/        self\.change_retained\(entry\.record\.retains\(\), Retained::add\);\n//'
mutant "start: the charges that copies in the trash retain are not counted" \
    pool/state/index.rs 's/        self\.change_retained\(&entry\.retains, Retained::add\);\n//'
mutant "reclaim: the source's limit is lowered before the copy is gone" \
    pool/trash/pass.rs 's/(        match disk\.quota\.destroy_dir)/        pool.state.remove_from_trash(name);\n        for retained in &entry.retains { let _ = pool.refresh_limit(disk, retained.volume); }\n$1/'
mutant "move: the copy is the volume before the old one is given up" \
    volume/moving.rs 's/(        )copied(\.map_err.*?\}\)\?;\n)/$1let new = copied$2        target.settle(&new)?;\n/s'
mutant "move: the old copy is deleted before the new one is the volume" \
    volume/moving.rs 's/hand_over\.commit\(\)\?;/from.delete(entry)?;/'

case $goal in
run) echo "$good killed, $bad survived" ;;
apply) echo "$good passed, $bad failed, 0 skipped" ;;
esac
[ "$bad" -eq 0 ]
