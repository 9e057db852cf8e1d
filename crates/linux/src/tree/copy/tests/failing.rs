//! Copies that cannot be made, or are to stop.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

use super::*;
use crate::os::{Observer, Step};

/// Fails one of the steps.
#[derive(Debug)]
struct Trouble {
    made: AtomicUsize,
    at: usize,
}

impl Observer for Trouble {
    fn before(&self, _step: Step, _name: &OsStr) -> Result<(), Errno> {
        if self.made.fetch_add(1, Ordering::Relaxed) == self.at {
            return Err(Errno::IO);
        }
        Ok(())
    }

    fn after(&self, _step: Step, _name: &OsStr) {}
}

/// The copy ends with the fault of any step that fails.
#[test]
fn every_step_that_fails_is_reported() {
    require!(loop_devices);
    for (filesystem, transfer) in [("xfs", Transfer::Share), ("ext4", Transfer::Copy)] {
        let place = Place::new(filesystem);
        nasty(&place.path("source"), SMALL);
        let attempt = |at| {
            let made = AtomicUsize::new(0);
            let trouble = Arc::new(Trouble { made, at });
            let (os, count) = (Os::observed(trouble.clone()), Count::default());
            let outcome = place.copy("target", &copying(&os, transfer, &count));
            place.remove("target");
            (outcome, trouble.made.load(Ordering::Relaxed))
        };
        let (outcome, steps) = attempt(usize::MAX);
        outcome.unwrap();
        assert!(steps > 300, "{steps}");
        for at in 0..steps {
            let (outcome, made) = attempt(at);
            // Threads do not always meet, and then need fewer.
            if made <= at {
                outcome.unwrap();
                continue;
            }
            let fault = outcome.expect_err("a step failed");
            let Reason::Step(fault) = fault.reason else {
                panic!("{filesystem}, step {at}: {fault}");
            };
            assert_eq!(fault.errno, Errno::IO, "{filesystem}, step {at}: {fault}");
        }
    }
}

#[test]
fn a_full_disk_is_reported_with_the_file() {
    require!(loop_devices);
    let place = Place::new("ext4");
    let mut file = fs::File::create(place.path("source/large")).unwrap();
    for _ in 0..150 {
        file.write_all(&vec![1; 1 << 20]).unwrap();
    }
    file.sync_all().unwrap();
    let (os, count) = (Os::default(), Count::default());
    let fault = place.copy("target", &copying(&os, Transfer::Copy, &count));
    let fault = fault.unwrap_err();
    assert_eq!(fault.path, "large");
    let Reason::Step(step) = fault.reason else {
        panic!("{fault}");
    };
    assert!(step.is_full(), "{fault}");
}

/// A tree may be so deep that the names above take no descriptor more, and no deeper.
#[test]
fn what_is_too_deep_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let top = os::open_path(dir.path()).unwrap();
        os::open_dir(top, name).unwrap()
    };
    for (levels, fits) in [(MAX_LEVELS, true), (MAX_LEVELS + 1, false)] {
        let path = vec!["d"; levels].join("/");
        fs::create_dir_all(dir.path().join("source").join(&path)).unwrap();
        let target = format!("target {levels}");
        fs::create_dir(dir.path().join(&target)).unwrap();
        let (os, count) = (Os::default(), Count::default());
        let copying = copying(&os, Transfer::Copy, &count);
        let copied = copying.copy(&open("source"), &open(&target));
        if fits {
            assert_eq!(copied.unwrap().entries, levels as u64);
            continue;
        }
        let fault = copied.unwrap_err();
        assert_eq!(fault.reason, Reason::TooDeep);
        assert_eq!(fault.path, format!("{}…", &path[..200]));
    }
}

#[test]
fn a_copy_needs_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("something")).unwrap();
    let top = os::open_path(dir.path()).unwrap();
    let top = os::open_dir(top, ".").unwrap();
    let (os, count) = (Os::default(), Count::default());
    let copied = copying(&os, Transfer::Copy, &count).copy(&top, &top);
    let Reason::Step(fault) = copied.unwrap_err().reason else {
        panic!("another reason");
    };
    assert_eq!(fault.errno, Errno::NOTEMPTY);
}

#[test]
fn a_copy_stops_when_it_is_asked_to() {
    require!(loop_devices);
    let place = Place::new("ext4");
    nasty(&place.path("source"), SMALL);
    let file = fs::File::create(place.path("source/large")).unwrap();
    file.write_all_at(&vec![1; 48 << 20], 0).unwrap();
    let (os, count) = (Os::default(), Count::default());
    place
        .copy("target", &copying(&os, Transfer::Copy, &count))
        .unwrap();
    place.remove("target");
    let asked = count.asked.into_inner();
    assert!(asked > 100, "{asked}");
    for stops_at in 0..asked {
        let count = Count {
            stops_at,
            ..Count::default()
        };
        let stopped = place.copy("target", &copying(&os, Transfer::Copy, &count));
        let Reason::Step(fault) = stopped.unwrap_err().reason else {
            panic!("another reason");
        };
        assert_eq!(fault.errno, Errno::CANCELED, "at {stops_at}");
        place.remove("target");
    }
    let count = Count::default();
    fs::remove_file(place.path("source/large")).unwrap();
    place
        .copy("target", &copying(&os, Transfer::Copy, &count))
        .unwrap();
    let pieces = asked - count.asked.into_inner();
    assert_eq!(
        pieces, 4,
        "asked twice before the content, and twice within it"
    );
}

/// Panics at an entry.
#[derive(Debug)]
struct Panic(Count);

impl CopyWatch for Panic {
    fn copied(&self, bytes: u64) {
        self.0.copied(bytes);
    }

    fn stopped(&self) -> bool {
        assert!(self.0.asked.fetch_add(1, Ordering::Relaxed) != 100);
        false
    }
}

#[test]
fn a_thread_that_panics_ends_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["source", "target"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    for count in 0..1000 {
        fs::write(dir.path().join(format!("source/{count}")), "").unwrap();
    }
    let top = os::open_path(dir.path()).unwrap();
    let open = |name: &str| os::open_dir(&top, name).unwrap();
    let (os, watch) = (Os::default(), Panic(Count::default()));
    let copied = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        copying(&os, Transfer::Copy, &watch).copy(&open("source"), &open("target"))
    }));
    assert!(copied.is_err());
}

const PIECES: u32 = 1000;

#[test]
fn a_file_in_too_many_pieces_is_refused_beforehand() {
    require!(loop_devices);
    let place = Place::new("xfs");
    fs::create_dir(place.path("source/dir")).unwrap();
    let file = fs::File::create(place.path("source/dir/pieces")).unwrap();
    for piece in 0..PIECES {
        file.write_all_at(&[1; 4096], u64::from(piece) * 8192)
            .unwrap();
    }
    file.sync_all().unwrap();
    let (os, count) = (Os::default(), Count::default());
    let attempt = |milliseconds| Copying {
        max_stall: Some(std::time::Duration::from_millis(milliseconds)),
        ..copying(&os, Transfer::Share, &count)
    };
    let fault = place.copy("target", &attempt(0)).unwrap_err();
    assert_eq!(fault.path, "dir/pieces");
    let Reason::WouldStall { extents } = fault.reason else {
        panic!("{fault}");
    };
    // XFS may have filled the gaps beforehand.
    assert!((PIECES..=2 * PIECES).contains(&extents), "{extents}");
    assert!(!place.path("target/dir/pieces").try_exists().unwrap());
    place.remove("target");
    let stall = u64::from(extents) * 110 / 1000;
    place.copy("target", &attempt(stall)).unwrap_err();
    place.remove("target");
    place.copy("target", &attempt(stall + 1)).unwrap();
}

#[test]
fn a_file_whose_blocks_cannot_be_shared_is_named() {
    require!(loop_devices);
    let place = Place::new("ext4");
    fs::write(place.path("source/file"), "content").unwrap();
    let (os, count) = (Os::default(), Count::default());
    let fault = place.copy("target", &copying(&os, Transfer::Share, &count));
    let fault = fault.unwrap_err();
    assert_eq!(fault.path, "file");
    assert_eq!(fault.reason, Reason::NotShareable(Errno::OPNOTSUPP));
    assert!(fault.to_string().contains("\"file\""), "{fault}");
}

#[test]
fn a_fault_names_the_entry_the_errno_and_the_way_out() {
    let step = Fault::new("make a file", Errno::NOSPC);
    let cases: [(&str, Reason, &[&str]); 5] = [
        ("", step.into(), &["cannot make a file: No space left"]),
        ("a/b", step.into(), &["cannot make a file", "at \"a/b\""]),
        (
            "a/b",
            Reason::TooDeep,
            &["\"a/b\"", "200", "to a higher directory"],
        ),
        (
            "a/b",
            Reason::WouldStall { extents: 100_000 },
            &["\"a/b\"", "100000 extents", "for 11000 ms", "rewrite it"],
        ),
        (
            "a\nb",
            Reason::NotShareable(Errno::TXTBSY),
            &["\"a\\nb\"", "swap", "move it out"],
        ),
    ];
    for (path, reason, parts) in cases {
        let path = path.to_owned();
        let text = CopyFault { path, reason }.to_string();
        for part in parts {
            assert!(text.contains(part), "{text}");
        }
    }
}
