#!/bin/sh
# Takes each sync and each order that durability rests on out of src/, one at a time, and expects the tests to notice.
# shellcheck disable=SC2016 # the dollars are perl's
# Last line: N killed, N survived.
#
# Usage: mutants.sh [text in the names of the mutants to try]
# Needs: perl; root, for the loop mounts; no changes in src/ that are not committed, for it is restored by git.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/.."
only=${1:-} killed=0 survived=0
log=${CARGO_TARGET_DIR:-$PWD/target}/mutants.log
mkdir -p "$(dirname "$log")"
export ROOTCELLAR_REQUIRE_ALL=1
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/hack/private-ns.sh"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/hack/private-ns.sh"

if ! git diff --quiet HEAD -- src; then
    echo "mutants: src/ has changes that are not committed" >&2
    exit 1
fi
restore() { git checkout --quiet HEAD -- src; }
trap restore EXIT
trap 'exit 1' HUP INT TERM

suite() { cargo test --locked --quiet --test suite -- "$@" >"$log" 2>&1; }

# mutant NAME {FILE PERL}...: a substitution in each file, which must change it.
mutant() {
    name=$1
    shift
    case $name in *"$only"*) ;; *) return 0 ;; esac
    while [ $# -gt 0 ]; do
        perl -0777 -pi -e "$2" "src/$1"
        if git diff --quiet HEAD -- "src/$1"; then
            echo "mutants: $name does not apply to src/$1" >&2
            exit 1
        fi
        shift 2
    done
    if ! cargo test --locked --quiet --test suite --no-run >"$log" 2>&1; then
        tail -n 30 "$log" >&2
        echo "mutants: $name does not compile" >&2
        exit 1
    fi
    # The model first: it is quick.
    if suite durable:: steps:: && suite poweroff::; then
        survived=$((survived + 1))
        echo "SURVIVED  $name"
    else
        killed=$((killed + 1))
        echo "killed    $name: $(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p; s/^    \([a-z_]*::[a-z_:]*\)$/\1/p' "$log" |
            sort -u | tr '\n' ' ')"
    fi
    restore
}

mutant "init: no fsync of the pool's directory" \
    pool/marker.rs 's/    os\.fsync\(root\)[^;]*;\n//'
mutant "build: no syncfs" \
    pool/marker.rs 's/    os\.syncfs\(root\)[^;]*\?;\n//'
mutant "init: syncfs after the rename" \
    pool/marker.rs 's/    os\.syncfs\(root\)[^;]*\?;\n//; s/os\.fsync\(root\)/os.syncfs(root)/'
mutant "record::write: no fsync of the directory" \
    pool/record.rs 's/os\.fsync\(&dir\)[^;\n]*\n/Ok(())\n/'
mutant "record::write_new: no fsync of the file" \
    pool/record.rs 's/os\.fsync\(&file\)[^;\n]*\n/Ok(())\n/'
mutant "record::write: rename before the content" \
    pool/record.rs 's/    write_new\(os, &dir, &temporary, record\)\?;\n(    os\.replace.*?\?;\n)/    os.create(&dir, &temporary).during("")?;\n$1    os.unlink(&dir, name).during("")?;\n    write_new(os, &dir, name, record)?;\n/s'
mutant "recover: no syncfs" \
    pool/disk.rs 's/(cleared staging"\);\n        \}\n).*?\n    \}\n/$1        Ok(())\n    }\n/s'
mutant "recover: staging is not cleared" \
    pool/disk.rs 's/for name in &left \{/for name in left.iter().take(0) {/'
mutant "recover: only when the pool is served" \
    pool/disk.rs 's/        disk\.recover\(\)\?;\n//; s/    fn recover/    pub(crate) fn recover/' \
    pool/life.rs 's/(self\.serve\(opened\);\n)/$1                self.disk()?.recover()?;\n/'
mutant "open: remembered before what was found is durable" \
    pool/disk.rs 's/(        disk\.recover\(\)\?;\n)(.*?let remembered[^;]*;\n)/$2$1/s'
mutant "open: not remembered" \
    pool/disk.rs 's/let remembered = context\.memory\.remember[^;]*;/let remembered = crate::error::Result::Ok(true);/'
mutant "open: remembered only when the pool is served" \
    pool/disk.rs 's/let remembered = context\.memory\.remember[^;]*;/let remembered = crate::error::Result::Ok(true);/' \
    pool/life.rs 's/(self\.serve\(opened\);\n)/let id = opened.disk.id;\n$1let remembered = self.context.memory.remember(&self.options.path, id);\nremembered.map_err(|error| Sickness::Memory(error.chain()))?;\n/'
mutant "seal: no syncfs on btrfs" \
    pool/disk.rs 's/if self\.filesystem\.needs_syncfs/if false/'
mutant "seal: no syncfs of a copy" \
    pool/copies.rs 's/        disk\.sync\(\)\.map_err\(fault\)\?;\n//'
mutant "seal: a copy is shown before its content is durable" \
    pool/copies.rs 's/        disk\.sync\(\)\.map_err\(fault\)\?;\n//' \
    pool/disk.rs 's/(fn settle.*?\{\n)/$1        self.sync()?;\n/s'
mutant "settle: no fsync of volumes/" \
    pool/disk.rs 's/self\.sync_dirs\(\[self\.homes\.of::<R>\(\)\]\)/self.sync_dirs([])/'
mutant "create: settled before it is revealed" \
    pool/contents.rs 's/        let settled = disk\.settle::<R>\(\);\n//; s/(        if let Err\(fault\) = disk\.reveal)/        let settled = disk.settle::<R>();\n$1/'
mutant "create: mode and owner after the record" \
    pool/contents.rs 's/(        os\.chown.*?)        disk\.seal\(staged, record\)\n/        disk.seal(staged, record)?;\n$1        Ok(())\n/s'
mutant "create: record after the rename" \
    pool/contents.rs 's/        disk\.seal\(staged, record\)\n/        Ok(())\n/; s/(        let settled = )disk\.settle::<R>\(\);/$1match disk.seal(staged, &record) { Err(fault) if fault.errno != Errno::EXIST => Err(fault), _ => disk.settle::<R>() };/'
mutant "amend: no fsync of the volume's directory" \
    pool/disk.rs 's/        self\.sync_dirs\(\[&dir\]\)/        Ok(())/'
mutant "amend: no syncfs on btrfs" \
    pool/disk.rs 's/(fn amend.*?)if self\.filesystem\.needs_syncfs/$1if false/s'
mutant "expand: limit after the record" \
    pool/contents.rs 's/self\s*\.set_limit\(&disk, &record\)\s*\.during\("(raise[^"]*)"\)\s*\.and_then\(\|\(\)\| disk\.amend\(&entry\.directory, &record\)\)/disk.amend(&entry.directory, &record).and_then(|()| self.set_limit(&disk, &record).during("$1"))/'
mutant "bin: no fsync of trash/" \
    pool/disk.rs 's/\[&self\.trash, home\]/[home]/'
mutant "bin: no fsync of volumes/" \
    pool/disk.rs 's/\[&self\.trash, home\]/[&self.trash]/'
mutant "bin: both fsyncs before the rename" \
    pool/disk.rs 's/        self\.sync_dirs\(\[&self\.trash, home\]\)\?;\n//; s/(        let moved = self\n)/        self.sync_dirs([&self.trash, home])?;\n$1/'
mutant "quota: directory before the limit" \
    quota/fake.rs 's/(        let id = \{.*?\};\n)(        os\.mkdir\(.*?\})\)\?;\n/        os.mkdir(dir, name, 0o700)?;\n$1/s'
mutant "reclaim: number freed before the content is gone" \
    pool/trash.rs 's/(    tree::empty\(os, &dir, binned\.file, manner, &progress\)\?;\n    let entries[^\n]*\n)(.*?)(    if let Some\(file\) = binned\.file)/$2$1$3/s'
mutant "reclaim: record removed before the number is freed" \
    pool/trash.rs 's/binned\.file, manner/None, manner/'
mutant "copy: the source's limit is raised after it" \
    pool/copies.rs 's/(let pins = self\.pins_of\(disk, order\)\?;\n)        self\.pin\(disk, &pins\)\?;\n/$1/'
mutant "copy: what it pins is not recorded" \
    pool/copies.rs 's/            record\.pins\.clone_from\(&made\.pins\);\n//g'
mutant "start: what copies pin is not counted" \
    pool/limits.rs 's/record::pinned\(index\.pins\(\)\.chain\(trashed\)\)/record::pinned(trashed)/'
mutant "start: what copies in the trash pin is not counted" \
    pool/limits.rs 's/record::pinned\(index\.pins\(\)\.chain\(trashed\)\)/{ drop(trashed); record::pinned(index.pins()) }/'
mutant "reclaim: the source's limit is lowered before the copy is gone" \
    pool/trash.rs 's/(    match disk\.quota\.destroy_dir.*?)(    if !binned\.pins\.is_empty.*?\n    \}\n)/$2$1/s'
mutant "memory: no fsync of what a killed driver wrote" \
    pool/memory.rs 's/return self\.os\.fsync\(&self\.dir\)\.map_err\(failed\)/return Ok(())/'

echo "$killed killed, $survived survived"
[ "$survived" -eq 0 ]
