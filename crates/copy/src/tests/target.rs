//! Targets that have or get something that is not of the source.

use super::*;

/// A pod without the capabilities to set flags and capabilities.
#[test]
fn a_copy_without_capabilities_is_refused() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let two = Two::new();
    let file = two.source().join("file");
    fs::write(&file, "content").unwrap();
    let words = [0x0200_0001_u32, 1 << 10, 0, 0, 0];
    let capability: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    set_attribute(&file, "security.capability", &capability);
    let kept = two.source().join("kept");
    fs::write(&kept, "as it is").unwrap();
    let opened = fs::File::open(&kept).unwrap();
    let before = rustix::fs::ioctl_getflags(&opened).unwrap();
    rustix::fs::ioctl_setflags(&opened, before | IFlags::IMMUTABLE).unwrap();
    let all = capabilities(None).unwrap();
    let mut fewer = all;
    fewer.effective -= CapabilitySet::SETFCAP | CapabilitySet::LINUX_IMMUTABLE;
    // Of this thread alone, and of those that it starts.
    set_capabilities(None, fewer).unwrap();
    let copied = two.local();
    set_capabilities(None, all).unwrap();
    if copied.is_ok() {
        two.clean();
    }
    let differences = compare(&two.source(), &two.target());
    rustix::fs::ioctl_setflags(&opened, before).unwrap();
    assert!(copied.is_err() || differences.is_empty(), "{differences:?}");
}

/// The top of the target has a default ACL of its own.
#[test]
fn a_default_acl_of_the_target_gives_nobody_access() {
    let two = Two::new();
    fs::write(two.source().join("secret"), "for the owner").unwrap();
    fs::create_dir(two.source().join("dir")).unwrap();
    set_attribute(&two.target(), "system.posix_acl_default", &default_acl());
    let copied = two.local();
    two.is_equal_or_refused(copied);
}

/// The directory has its default ACL from the earlier run already, so what is made in it again inherits that.
#[test]
fn a_repeat_gives_nobody_access() {
    let two = Two::new();
    let nested = two.source().join("dir");
    fs::create_dir(&nested).unwrap();
    fs::create_dir(nested.join("secret dir")).unwrap();
    fs::write(nested.join("secret"), "for the owner").unwrap();
    fs::set_permissions(nested.join("secret"), fs::Permissions::from_mode(0o660)).unwrap();
    set_attribute(&nested, "system.posix_acl_default", &default_acl());
    two.cut();
    let copied = two.local();
    two.is_equal_or_refused(copied);
}

/// A change, in words and in fact.
type Change = (&'static str, &'static dyn Fn(&Path));

/// The target changed between two runs, in what is durable.
#[test]
fn a_change_of_the_target_is_noticed() {
    let changes: [Change; 7] = [
        ("symlink removed", &|at| {
            fs::remove_file(at.join("dir/symlink")).unwrap();
        }),
        ("empty directory removed", &|at| {
            fs::remove_dir(at.join("dir/empty")).unwrap();
        }),
        ("fifo removed", &|at| {
            fs::remove_file(at.join("dir/fifo")).unwrap();
        }),
        ("mode", &|at| {
            fs::set_permissions(at.join("dir/file"), fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("attribute removed", &|at| {
            rustix::fs::lremovexattr(at.join("dir/file"), "user.name").unwrap();
        }),
        ("another name removed", &|at| {
            fs::remove_file(at.join("dir/linked")).unwrap();
        }),
        ("file added", &|at| {
            fs::write(at.join("dir/extra"), "from elsewhere").unwrap();
        }),
    ];
    let mut unnoticed = Vec::new();
    for (what, change) in changes {
        let two = Two::new();
        let nested = two.source().join("dir");
        fs::create_dir(&nested).unwrap();
        fs::create_dir(nested.join("empty")).unwrap();
        symlink("nowhere", nested.join("symlink")).unwrap();
        make_node(&nested.join("fifo"), FileType::Fifo, (0, 0));
        fs::write(nested.join("file"), "content").unwrap();
        set_attribute(&nested.join("file"), "user.name", b"value");
        fs::hard_link(nested.join("file"), nested.join("linked")).unwrap();
        two.cut();
        change(&two.target());
        if two.local().is_ok() {
            two.clean();
            unnoticed.extend(compare(&two.source(), &two.target()).first().map(|_| what));
        }
    }
    assert_eq!(unnoticed, Vec::<&str>::new());
}

/// The application started in the target before the clean.
#[test]
fn a_late_clean_keeps_what_the_application_changed() {
    let two = Two::new();
    two.local().unwrap();
    let mode = || fs::metadata(two.target()).unwrap().permissions().mode() & 0o7777;
    fs::set_permissions(two.target(), fs::Permissions::from_mode(0o2775)).unwrap();
    two.clean();
    assert_eq!(format!("{:o}", mode()), "2775");
}

/// Two copies with different sources begin in the same empty target at the same moment.
#[test]
fn one_of_two_copies_is_refused() {
    for attempt in 0..40 {
        let two = Two::new();
        let other = two.dir.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(two.source().join("file"), "of the one").unwrap();
        fs::write(other.join("file"), "of the other").unwrap();
        let barrier = std::sync::Barrier::new(2);
        let copy = |source: &Path, id: &str| {
            barrier.wait();
            local(source, &two.target(), id)
        };
        let copied = std::thread::scope(|scope| {
            let one = scope.spawn(|| copy(&two.source(), "one"));
            let other = copy(&other, "other");
            [one.join().unwrap(), other]
        });
        let is_refused = copied.iter().any(std::result::Result::is_err);
        assert!(is_refused, "attempt {attempt}: {copied:?}");
    }
}

/// The target of another copy, or with files of its own, is refused, and nothing in it changes.
#[test]
fn a_target_with_something_in_it_is_refused() {
    let two = Two::new();
    fs::write(two.source().join("file"), "new").unwrap();
    fs::write(two.target().join("file"), "old").unwrap();
    let refused = two.local();
    assert!(
        matches!(refused, Err(Error::NotEmpty { ref found }) if found == "file"),
        "{refused:?}"
    );
    assert_eq!(fs::read(two.target().join("file")).unwrap(), b"old");
    fs::remove_file(two.target().join("file")).unwrap();
    two.cut();
    let incomplete = clean(&top(&two.target()), ID);
    assert!(
        matches!(incomplete, Err(Error::Incomplete)),
        "{incomplete:?}"
    );
    two.local().unwrap();
    two.cut();
    assert!(clean(&top(&two.target()), ID).is_err());
    two.local().unwrap();
    let other = local(&two.source(), &two.target(), "other");
    assert!(matches!(other, Err(Error::NotEmpty { .. })), "{other:?}");
    assert!(clean(&top(&two.target()), "other").is_err());
    two.clean();
    let again = two.local();
    assert!(matches!(again, Err(Error::NotEmpty { .. })), "{again:?}");
}

/// Flags of a file with several names, which prevent further names, and of the top.
#[test]
fn protected_files_with_several_names_are_copied() {
    let two = Two::new();
    let file = two.source().join("file");
    fs::write(&file, "content").unwrap();
    fs::hard_link(&file, two.source().join("other")).unwrap();
    let before = flags(&file);
    set_flags(&file, before | IFlags::IMMUTABLE);
    set_flags(&two.source(), before | IFlags::APPEND);
    two.cut();
    let copied = two.local();
    let again = two.local();
    two.clean();
    let differences = compare(&two.source(), &two.target());
    for at in [two.source(), two.target()] {
        set_flags(&at, before);
        set_flags(&at.join("file"), before);
    }
    assert_eq!(differences, Vec::<String>::new(), "{copied:?} {again:?}");
}

/// A directory's default ACL, which gives user 4242 everything.
fn default_acl() -> Vec<u8> {
    let none = u32::MAX;
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, access, id) in [
        (1_u16, 7_u16, none),
        (2, 7, 4242),
        (4, 5, none),
        (16, 7, none),
        (32, 0, none),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(access.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Names of one file that are those of several files since, and the other way round.
#[test]
fn names_that_parted_or_joined_are_copied() {
    for content in [["same"; 4], ["one", "two", "three", "four"]] {
        let two = Two::new();
        let at = |name: &str| two.source().join(name);
        let joined = |names: [&str; 4], content: &str| {
            for name in names {
                let _ = fs::remove_file(at(name));
            }
            fs::write(at(names[0]), content).unwrap();
            for name in &names[1..] {
                fs::hard_link(at(names[0]), at(name)).unwrap();
            }
        };
        joined(["a", "b", "c", "d"], content[0]);
        two.cut();
        for (name, other, content) in [("c", "d", content[1]), ("a", "b", content[2])] {
            fs::remove_file(at(name)).unwrap();
            fs::remove_file(at(other)).unwrap();
            fs::write(at(name), content).unwrap();
            fs::hard_link(at(name), at(other)).unwrap();
        }
        two.local().unwrap();
        fs::remove_file(at("d")).unwrap();
        fs::write(at("d"), content[1]).unwrap();
        two.local().unwrap();
        joined(["d", "c", "b", "a"], content[3]);
        two.local().unwrap();
        two.clean();
        two.is_equal("joined");
    }
}
