//! Disks of their own: pairs of filesystems, power-off, full disks.

use super::*;

/// The number of the source's device is another after each mount.
#[test]
fn a_repeat_after_a_mount_knows_the_names_of_a_file() {
    require!(loop_devices);
    let disks = Disks::new("btrfs", "ext4");
    fs::write(disks.source().join("file"), "content").unwrap();
    for number in 0..1500 {
        fs::write(disks.source().join(format!("g{number:04}")), "filler").unwrap();
    }
    fs::hard_link(disks.source().join("file"), disks.source().join("last")).unwrap();
    let stream = disks.stream().unwrap();
    disks.receive(&stream[..stream.len() / 2]).unwrap_err();
    disks.one.unmount();
    // The number of this mount is free now; another takes it.
    let other = Disks::new("btrfs", "ext4");
    disks.one.mount(&[]);
    let copied = disks.local();
    drop(other);
    assert!(copied.is_ok(), "{copied:?}");
    disks.clean();
    disks.is_equal("mounted again");
}

/// ext4 has no times after 2446.
#[test]
fn a_time_that_the_target_cannot_have_is_noticed() {
    require!(loop_devices);
    let disks = Disks::new("btrfs", "ext4");
    let file = fs::File::create(disks.source().join("file")).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(20_000_000_000);
    file.set_modified(time).unwrap();
    drop(file);
    if disks.local().is_ok() {
        disks.clean();
        disks.is_equal("times");
    }
}

#[test]
fn kills_from_ext4_to_xfs() {
    cuts("ext4", "xfs");
}

#[test]
fn kills_from_xfs_to_btrfs() {
    cuts("xfs", "btrfs");
}

#[test]
fn kills_from_btrfs_to_ext4() {
    cuts("btrfs", "ext4");
}

/// A power-off after each durable position: what only the memory had is lost.
fn power_off(other: &'static str) {
    require!(loop_devices);
    let disks = Disks::new("ext4", other);
    nasty(&disks.source(), SMALL);
    let content = numbers(40 << 20);
    fs::write(disks.source().join("middle"), &content).unwrap();
    let stream = disks.stream().unwrap();
    rustix::fs::syncfs(dir(disks.other.path())).unwrap();
    disks.receive(&stream[..stream.len() / 2]).unwrap_err();
    let copy = disks.other.image().with_extension("off");
    fs::copy(disks.other.image(), &copy).unwrap();
    disks.other.unmount();
    disks.other.mount_image(&copy, &[]);
    disks.local().unwrap();
    disks.clean();
    disks.is_equal("after a power-off");
}

#[test]
fn a_power_off_of_ext4() {
    power_off("ext4");
}

#[test]
fn a_power_off_of_xfs() {
    power_off("xfs");
}

#[test]
fn a_power_off_of_btrfs() {
    power_off("btrfs");
}

/// The disk is full, and has space again later.
#[test]
fn a_full_disk_loses_nothing() {
    require!(loop_devices);
    for other in ["ext4", "xfs", "btrfs"] {
        let disks = Disks::new("ext4", other);
        let content = numbers(32 << 20);
        for name in ["a", "b", "c"] {
            fs::write(disks.source().join(name), &content).unwrap();
        }
        let filler = disks.other.path().join("filler");
        let free = rustix::fs::statvfs(disks.other.path()).unwrap();
        let bytes = free.f_bavail * free.f_frsize - (60 << 20);
        let file = fs::File::create(&filler).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
        drop(file);
        let full = disks.local();
        assert!(full.is_err(), "{other}: {full:?}");
        fs::remove_file(&filler).unwrap();
        rustix::fs::syncfs(dir(disks.other.path())).unwrap();
        let again = disks.local();
        assert!(again.is_ok(), "{other}: {again:?}");
        disks.clean();
        disks.is_equal(other);
    }
}

/// Snapshots in a volume have the same inode numbers, and files that are kept in disks stay so.
#[test]
fn subvolumes_and_files_in_disks_are_copied() {
    require!(loop_devices);
    let disks = Disks::new("btrfs", "btrfs");
    let btrfs = |arguments: &[&str]| {
        let mut command = Command::new("btrfs");
        support::loops::run(
            command
                .current_dir(disks.source())
                .arg("-q")
                .args(arguments),
        );
    };
    btrfs(&["subvolume", "create", "sub"]);
    let sub = disks.source().join("sub");
    fs::write(sub.join("file"), "before").unwrap();
    fs::hard_link(sub.join("file"), sub.join("other")).unwrap();
    btrfs(&["subvolume", "snapshot", "sub", "snapshot"]);
    fs::write(sub.join("file"), "after").unwrap();
    let dir = disks.source().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("moved"), "not in disks").unwrap();
    let opened = fs::File::open(&dir).unwrap();
    rustix::fs::ioctl_setflags(&opened, flags(&dir) | IFlags::NOCOW).unwrap();
    fs::write(dir.join("in disks"), "content").unwrap();
    disks.cut();
    disks.local().unwrap();
    disks.clean();
    // The comparison of the other tests knows a file by its inode number alone.
    for (name, content) in [("sub", "after"), ("snapshot", "before")] {
        let at = disks.target().join(name);
        assert_eq!(fs::read_to_string(at.join("file")).unwrap(), content);
        let inode =
            |file: &str| std::os::unix::fs::MetadataExt::ino(&fs::metadata(at.join(file)).unwrap());
        assert_eq!(inode("file"), inode("other"), "{name}");
    }
    for name in ["dir", "dir/in disks", "dir/moved"] {
        let is_kept = |at: PathBuf| flags(&at.join(name)).contains(IFlags::NOCOW);
        assert_eq!(is_kept(disks.source()), is_kept(disks.target()), "{name}");
    }
}

/// Flags that change how a file is written.
#[test]
fn other_flags_are_copied() {
    require!(loop_devices);
    let disks = Disks::new("ext4", "ext4");
    let flags = [IFlags::SYNC, IFlags::NOATIME, IFlags::DIRSYNC];
    for (number, flag) in flags.into_iter().enumerate() {
        let path = disks.source().join(number.to_string());
        fs::create_dir(&path).unwrap();
        let file = fs::File::open(&path).unwrap();
        let before = rustix::fs::ioctl_getflags(&file).unwrap();
        rustix::fs::ioctl_setflags(&file, before | flag).unwrap();
    }
    disks.local().unwrap();
    disks.clean();
    let mut lost = Vec::new();
    for (number, flag) in flags.into_iter().enumerate() {
        let file = fs::File::open(disks.target().join(number.to_string())).unwrap();
        if !rustix::fs::ioctl_getflags(&file).unwrap().contains(flag) {
            lost.push(flag);
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

/// Kills at many bytes of a tree with everything in it.
fn cuts(one: &'static str, other: &'static str) {
    require!(loop_devices);
    let disks = Disks::new(one, other);
    nasty(&disks.source(), SMALL);
    let whole = disks.stream().unwrap();
    let mut wrong = Vec::new();
    for cut in 1..=12 {
        let end = whole.len() * cut / 12 - cut % 5;
        disks.receive(&whole[..end]).unwrap_err();
        if let Err(error) = disks.local() {
            wrong.push(format!("cut at {end}: {error}"));
        } else {
            disks.clean();
            let differences = compare(&disks.source(), &disks.target());
            let lines = differences.into_iter();
            wrong.extend(lines.map(|line| format!("cut at {end}: {line:.120}")));
        }
        disks.renew();
    }
    assert_eq!(wrong, Vec::<String>::new());
}

/// The directory that a filesystem made is not of the user, and one in its place is, also with its inode number.
#[test]
fn a_directory_in_place_of_lost_and_found_is_copied() {
    require!(loop_devices);
    for name in ["pgdata", "lost+found"] {
        let disks = Disks::new("ext4", "ext4");
        let (one, other) = (disks.one.path(), disks.other.path());
        for top in [one, other] {
            fs::remove_dir(top.join(if top == one { "source" } else { "target" })).unwrap();
        }
        fs::remove_dir(one.join("lost+found")).unwrap();
        fs::create_dir(one.join(name)).unwrap();
        let mode = fs::Permissions::from_mode(0o750);
        fs::set_permissions(one.join(name), mode).unwrap();
        local(one, other, ID).unwrap();
        clean(&top(other), ID).unwrap();
        let found = fs::metadata(other.join(name)).unwrap();
        assert_eq!(found.permissions().mode() & 0o7777, 0o750, "{name}");
    }
}
