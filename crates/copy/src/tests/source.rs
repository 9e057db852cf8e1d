//! Sources that change, or have something unusual.

use super::*;

/// The application wrote to the source after the copy was complete; the repeat must not be a success.
#[test]
fn a_repeat_after_the_end_notices_a_change() {
    let two = Two::new();
    fs::write(two.source().join("file"), "first").unwrap();
    two.local().unwrap();
    fs::write(two.source().join("file"), "second, which is lost").unwrap();
    fs::write(two.source().join("new"), "lost as well").unwrap();
    let copied = two.local();
    two.is_equal_or_refused(copied);
}

/// A store into a page that is dirty changes no time of the file.
#[test]
fn a_store_to_mapped_memory_is_noticed() {
    const SCRIPT: &str = "
import mmap, sys
f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)
m[0:5] = b'first'; print('dirty', flush=True)
sys.stdin.readline()
m[0:5] = b'later'; print('stored', flush=True)
sys.stdin.readline()
";
    require!(loop_devices);
    // A disk of its own: a sync by somebody else protects the page, so that the store is seen.
    let two = Disks::new("ext4", "ext4");
    let file = two.source().join("database");
    fs::write(&file, [b'0'; 4096]).unwrap();
    for number in 0..2000 {
        fs::write(two.source().join(format!("z{number:04}")), "filler").unwrap();
    }
    rustix::fs::syncfs(dir(&two.source())).unwrap();
    let mut child = Command::new("python3")
        .args(["-c", SCRIPT])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap()).lines();
    from.next().unwrap().unwrap();
    let mut writes = 0;
    let mut change = || {
        writes += 1;
        if writes == 3000 {
            to.write_all(b"\n").unwrap();
            from.next().unwrap().unwrap();
        }
    };
    let mut stream = Changing(&mut change, Vec::new());
    let sent = send(&top(&two.source()), nothing(), &mut stream);
    let stream = stream.1;
    drop(to);
    child.wait().unwrap();
    assert!(writes > 3000, "{writes}");
    if sent.is_ok() {
        two.receive(&stream).unwrap();
        let copied = fs::read(two.target().join("database")).unwrap();
        let was = fs::read(&file).unwrap();
        assert_eq!(&copied[..5], &was[..5], "a success with another content");
    }
}

/// An ext4 with small inodes has times of whole seconds, and kernels before 6.13 have times of whole ticks.
#[test]
fn a_change_within_the_unit_of_time_is_noticed() {
    require!(loop_devices);
    let place = tempfile::tempdir().unwrap();
    let disk = Disk::new("ext4").made_with(&["-I", "128"]);
    let mount = disk.make(&place.path().join("image"), &place.path().join("disk"));
    let source = mount.path().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..300 {
        fs::write(source.join(format!("{number:04}")), "filler").unwrap();
    }
    // A slow machine does not do all of it within one second each time.
    let is_unnoticed = (0..10).any(|_| {
        fs::write(source.join("0000"), "before").unwrap();
        let mut writes = 0;
        let mut change = || {
            writes += 1;
            if writes == 1000 {
                fs::write(source.join("0000"), "after!").unwrap();
            }
        };
        let mut stream = Changing(&mut change, Vec::new());
        let sent = send(&top(&source), nothing(), &mut stream);
        assert!(writes > 1000, "{writes}");
        sent.is_ok()
    });
    assert!(!is_unnoticed, "a success with the content of before");
}

/// The source by mistake as the target as well: nothing is left in it.
#[test]
fn a_copy_into_itself_leaves_nothing() {
    let two = Two::new();
    local(&two.source(), &two.source(), ID).unwrap_err();
    assert_eq!(fs::read_dir(two.source()).unwrap().count(), 0);
}

/// A file that an interrupted run copied was removed from the source since.
#[test]
fn a_removed_file_does_not_come_back() {
    let two = Two::new();
    for name in ["one", "secret"] {
        fs::write(two.source().join(name), name).unwrap();
    }
    two.cut();
    fs::remove_file(two.source().join("secret")).unwrap();
    let copied = two.local();
    two.is_equal_or_refused(copied);
}

/// The directory lost an attribute in the source since the earlier run left its copy.
#[test]
fn a_removed_attribute_does_not_come_back() {
    let two = Two::new();
    let nested = two.source().join("dir");
    fs::create_dir(&nested).unwrap();
    set_attribute(&nested, "user.secret", b"value");
    two.cut();
    rustix::fs::lremovexattr(&nested, "user.secret").unwrap();
    let copied = two.local();
    two.is_equal_or_refused(copied);
}

/// An empty directory with this name belongs to the user, if it has other attributes than that of the filesystem.
#[test]
fn a_users_own_lost_and_found_is_copied() {
    let two = Two::new();
    let own = two.source().join("lost+found");
    fs::create_dir(&own).unwrap();
    rustix::fs::chownat(
        CWD,
        &own,
        Some(rustix::fs::Uid::from_raw(1000)),
        None,
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();
    set_attribute(&own, "user.name", b"kept");
    let copied = two.local();
    two.is_equal_or_refused(copied);
}

/// The deepest tree is copied, and a deeper one is refused before anything is lost.
#[test]
fn a_deep_tree_is_copied_or_refused() {
    for (levels, is_copied) in [(200, true), (205, false)] {
        let two = Two::new();
        let deep = (0..levels).fold(two.source(), |at, _| at.join("d"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "content").unwrap();
        let copied = two.local();
        assert_eq!(copied.is_ok(), is_copied, "{levels}: {copied:?}");
        two.is_equal_or_refused(copied);
    }
}

/// An entry has another type in the source since the earlier run made its copy.
#[test]
fn an_entry_of_another_type_takes_its_place() {
    for is_dir in [false, true] {
        let two = Two::new();
        let entry = two.source().join("entry");
        let make = |is_dir: bool| {
            if is_dir {
                fs::create_dir(&entry).unwrap();
            } else {
                fs::write(&entry, "content").unwrap();
            }
        };
        make(is_dir);
        two.cut();
        if is_dir {
            fs::remove_dir(&entry).unwrap();
        } else {
            fs::remove_file(&entry).unwrap();
        }
        make(!is_dir);
        let copied = two.local();
        assert!(copied.is_ok(), "{copied:?}");
        two.is_equal_or_refused(copied);
    }
}

/// A target that has nothing yet.
fn nothing() -> &'static [u8] {
    static END: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    END.get_or_init(|| {
        let mut end = Vec::new();
        record::write(&mut end, &Had::End).unwrap();
        end
    })
}

/// Changes the source when a part of the stream was written.
struct Changing<'a>(&'a mut dyn FnMut(), Vec<u8>);

impl Write for Changing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)();
        self.1.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that changes after it was sent is noticed. A repeat copies the new content.
#[test]
fn a_change_is_noticed() {
    let two = Two::new();
    for number in 0..2000 {
        fs::write(two.source().join(format!("{number:04}")), "before").unwrap();
    }
    let mut changes = 0;
    let mut change = || {
        changes += 1;
        if changes == 3000 {
            fs::write(two.source().join("0000"), "after!").unwrap();
        }
    };
    let mut stream = Changing(&mut change, Vec::new());
    let sent = send(&top(&two.source()), nothing(), &mut stream);
    assert!(matches!(sent, Err(Error::Changed { .. })), "{sent:?}");
    let received = two.receive(&stream.1);
    assert!(matches!(received, Err(Error::EndedEarly)), "{received:?}");
    fs::write(two.source().join("0001"), "later").unwrap();
    two.local().unwrap();
    two.clean();
    two.is_equal("repeated");
}

/// An earlier copy into the source was not cleaned. Its note does not come along.
#[test]
fn the_note_of_an_earlier_copy_is_not_copied() {
    let two = Two::new();
    set_attribute(&two.source(), "trusted.rootcellar.copy", b"another");
    two.local().unwrap();
    two.clean();
    rustix::fs::lremovexattr(two.source(), "trusted.rootcellar.copy").unwrap();
    two.is_equal("noted");
}

/// As many names as a file can have on ext4, and a kill in between.
#[test]
fn a_file_with_as_many_names_as_can_be_goes_on() {
    require!(loop_devices);
    let disks = Disks::new("ext4", "ext4");
    let file = disks.source().join("file");
    fs::write(&file, "content").unwrap();
    for number in 1..65_000 {
        fs::hard_link(&file, disks.source().join(format!("n{number}"))).unwrap();
    }
    disks.cut();
    disks.local().unwrap();
    disks.clean();
    disks.is_equal("names");
}
