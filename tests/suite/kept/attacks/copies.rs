//! Byte-by-byte copies of data whose usage nothing counts, for which kept objects would end.

use super::*;

/// The bytes of a file are reserved before they are written, so that a large file ends no kept volume whose space it does not
/// need.
///
/// Proves: UD6.
#[test]
fn a_copy_of_a_large_file_needs_its_space_once() {
    require!(loop_devices);
    let pool = KeepingDisk::new(Disk::new("ext4").sized(1 << 30), &Fakes::default());
    let source = pool.make("source", 300 * MIB, 280);
    let old = pool.make("old", 300 * MIB, 200);
    pool.delete(&old);
    let copy = pool.driver().create_snapshot(&snapshot("s", source.id));
    assert!(copy.unwrap().reserved.0 >= 280 * MIB);
    assert_eq!(pool.kept(), 1);
}

/// The same after small files, which occupy more than is written into them.
///
/// Proves: UD6.
#[test]
fn a_copy_of_a_large_file_after_small_ones_needs_its_space_once() {
    const SMALL: u64 = 10_000;
    const LARGE: u64 = 250;
    require!(loop_devices);
    let pool = KeepingDisk::new(Disk::new("ext4").sized(1 << 30), &Fakes::default());
    let source = pool.make("source", MIB, 0);
    let dir = pool.file("source").parent().unwrap().to_owned();
    for n in 0..SMALL {
        fs::write(dir.join(format!("small-{n}")), "x").unwrap();
    }
    fs::create_dir(dir.join("deep")).unwrap();
    rewrite(&dir.join("deep/large"), LARGE).unwrap();
    let copy = LARGE + SMALL * 4 / 1024;
    let old = pool.make("old", MIB, pool.free() / MIB - copy - 25);
    pool.delete(&old);
    let copy = pool.driver().create_snapshot(&snapshot("s", source.id));
    assert!(copy.unwrap().reserved.0 >= LARGE * MIB);
    assert_eq!(pool.kept(), 1);
}

/// A copy that cannot fit even without the kept objects is refused before anything of it is written.
///
/// Proves: UD6.
#[test]
fn a_copy_that_cannot_fit_ends_no_kept_volumes() {
    require!(loop_devices);
    let pool = KeepingDisk::new(Disk::new("ext4").sized(1 << 30), &Fakes::default());
    let source = pool.make("source", MIB, 500);
    for n in 0..4 {
        let old = pool.make(&format!("old{n}"), MIB, 50);
        pool.delete(&old);
    }
    let free = pool.free();
    for _ in 0..2 {
        let copy = pool.driver().create_snapshot(&snapshot("s", source.id));
        assert_eq!(code(&copy.unwrap_err()), Code::ResourceExhausted);
    }
    assert_eq!(pool.kept(), 4);
    assert!(free < pool.free() + 4 * MIB);
}
