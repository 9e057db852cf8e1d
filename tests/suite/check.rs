//! `docs/semantics.md`, "Looking": `rootcellar check`. XFS and ext4 that hold sizes are in
//! `tests/quota`.

mod command;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rootcellar::pool::{
    About, Finding, Level, PoolOptions, Report, Surroundings, check, enable_quota,
};
use rootcellar::types::Bytes;
use rootcellar::volume::Hold;

use crate::common::loops::{LoopMount, obstacle, run};
use crate::common::picture::with_times;
use crate::common::{Fakes, NodeDir, create};
use crate::sizes::{Rig, SIZE};
use crate::skip;

const MIB: u64 = 1 << 20;

/// What is found of pools in these options, where nothing else is known of the node.
fn look(options: &[String]) -> Vec<Report> {
    let parse = |text: &String| text.parse::<PoolOptions>().unwrap();
    let options: Vec<PoolOptions> = options.iter().map(parse).collect();
    let surroundings = Surroundings {
        node: None,
        memory: None,
        needed: &[],
        progress: &|_, _, _| {},
    };
    check(&options, surroundings)
}

/// What is found of one pool with nothing besides.
fn look_at(pool: &Path) -> Report {
    look(&[format!("default={},reserve=0", pool.display())]).remove(0)
}

/// The findings of a level.
fn of_level(report: &Report, level: Level) -> Vec<&Finding> {
    let findings = report.findings.iter();
    findings.filter(|finding| finding.level == level).collect()
}

/// The one finding of a level about something, in which these words are.
#[track_caller]
fn the<'a>(report: &'a Report, level: Level, about: About, words: &str) -> &'a Finding {
    let findings = of_level(report, level).into_iter();
    let found: Vec<&Finding> = findings
        .filter(|finding| finding.about == about && finding.what.contains(words))
        .collect();
    assert_eq!(found.len(), 1, "{words}: {:#?}", report.findings);
    found[0]
}

#[track_caller]
fn assert_well(report: &Report) {
    assert!(!report.is_wrong(), "{:#?}", report.findings);
}

/// Runs the commands a remedy begins with, as an operator would, the driver's program among them.
fn follow(remedy: &str, commands_end: &str) {
    let commands = remedy.split(commands_end).next().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_rootcellar"));
    let path = std::env::var("PATH").unwrap();
    let path = format!(
        "{}:{path}:/usr/sbin:/sbin",
        program.parent().unwrap().display()
    );
    run(Command::new("sh").args(["-ec", commands]).env("PATH", path));
}

/// A disk with an empty pool on it.
fn pool_on(filesystem: &str, options: &[&str]) -> (NodeDir, LoopMount) {
    let node = NodeDir::new();
    let disk = LoopMount::format(filesystem, options, &node.path("image"), &node.pool());
    disk.mount(&[]);
    let option = format!("default={},init,reserve=0", node.pool().display());
    drop(node.volumes_of(&[option], &Fakes::default()));
    (node, disk)
}

/// A pool that nothing holds sizes in is well, and told how it would come to hold them.
#[test]
fn a_filesystem_that_holds_no_sizes_is_told_how_to() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let cases: [(&str, &[&str], &str, Option<bool>); 4] = [
        (
            "ext4",
            &[],
            "umount @ && tune2fs -O project,quota -Q prjquota % && mount -o prjquota % @,",
            Some(false),
        ),
        (
            "xfs",
            &["-m", "reflink=0"],
            "umount @ && mount -o prjquota % @,",
            Some(false),
        ),
        (
            "xfs",
            &["-m", "reflink=1"],
            "umount @ && mount -o prjquota % @,",
            Some(true),
        ),
        ("btrfs", &[], "rootcellar pool enable-quota @", Some(true)),
    ];
    for (filesystem, options, remedy, shares_blocks) in cases {
        let (node, disk) = pool_on(filesystem, options);
        let before = with_times(&node.pool());
        let report = look_at(&node.pool());
        assert_well(&report);
        let found = the(
            &report,
            Level::Note,
            About::Enforcement,
            "sizes are not held",
        );
        let expected = remedy
            .replace('@', node.pool().to_str().unwrap())
            .replace('%', &disk.device());
        let remedy = found.remedy.as_ref().unwrap();
        assert!(
            remedy.starts_with(&expected),
            "{filesystem}: {remedy}, not {expected}"
        );
        assert_eq!(
            report.shares_blocks, shares_blocks,
            "{filesystem} {options:?}"
        );
        let level = if shares_blocks == Some(true) {
            Level::Ok
        } else {
            Level::Note
        };
        the(&report, level, About::Snapshots, filesystem);
        the(&report, Level::Ok, About::Records, "every record is sound");
        assert_eq!(with_times(&node.pool()), before, "{filesystem}");
    }
}

/// The commands that `check` gives for a btrfs make it hold sizes, also where full qgroups were on;
/// volumes made before are told of, one by one.
#[test]
fn a_btrfs_holds_sizes_after_what_check_says_was_done() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    for is_full in [false, true] {
        let node = NodeDir::new();
        let _disk = LoopMount::make("btrfs", &node.path("image"), &node.pool());
        if is_full {
            run(Command::new("btrfs")
                .args(["quota", "enable"])
                .arg(node.pool()));
        }
        let option = format!("default={},init,reserve=0", node.pool().display());
        let driver = node.volumes_of(std::slice::from_ref(&option), &Fakes::default());
        driver.create(&create("old", SIZE.0)).unwrap();
        let report = look_at(&node.pool());
        assert_well(&report);
        let words = if is_full {
            "full qgroups"
        } else {
            "quota is off"
        };
        let found = the(&report, Level::Note, About::Enforcement, words);
        follow(found.remedy.as_ref().unwrap(), ";");
        let report = look_at(&node.pool());
        assert_well(&report);
        the(
            &report,
            Level::Ok,
            About::Enforcement,
            "held by simple quota",
        );
        let unheld = the(&report, Level::Note, About::Sizes, "nothing holds its size");
        assert!(unheld.volume.as_ref().unwrap().starts_with("volumes"));
    }
}

/// Volumes that were made to be held are wrong where nothing holds them any more.
#[test]
fn a_pool_that_does_not_hold_what_it_held_is_wrong() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let mut rig = Rig::new();
    rig.make("held", SIZE);
    rig.running = None;
    run(Command::new("btrfs")
        .args(["quota", "disable"])
        .arg(rig.node.pool()));
    let report = look_at(&rig.node.pool());
    let found = the(
        &report,
        Level::Wrong,
        About::Enforcement,
        "1 volumes were made so",
    );
    assert!(found.remedy.as_ref().unwrap().contains("enable-quota"));
}

/// Every limit that is not as its record says, and every number that no volume has, is told of; a
/// start mends what it can, and nothing is left to tell.
#[test]
fn limits_that_are_not_as_recorded_are_told_and_mended_by_a_start() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let mut rig = Rig::new();
    for volume in ["lowered", "lifted", "kept"] {
        rig.make(volume, SIZE);
    }
    rig.make("unlimited", Bytes::ZERO);
    let report = look_at(&rig.node.pool());
    assert_well(&report);
    the(
        &report,
        Level::Ok,
        About::Limits,
        "every limit is as recorded",
    );
    the(
        &report,
        Level::Ok,
        About::Usage,
        "is what the volumes' trees occupy",
    );
    rig.running = None;
    rig.qgroup(&["limit", "1M"], rig.quota_id("lowered"));
    rig.qgroup(&["limit", "none"], rig.quota_id("lifted"));
    let left = 1 << 30;
    rig.qgroup(&["create"], left);
    rig.qgroup(&["limit", "3M"], left);
    // Not one of the driver's.
    rig.qgroup(&["create"], 5);

    let before = with_times(&rig.node.pool());
    let report = look_at(&rig.node.pool());
    let lowered = the(
        &report,
        Level::Wrong,
        About::Limits,
        "limited to 1048576 bytes (1 MiB)",
    );
    assert_eq!(lowered.volume, Some(below(&rig, "lowered")));
    assert!(
        lowered
            .remedy
            .as_ref()
            .unwrap()
            .starts_with("restart the driver")
    );
    let lifted = the(&report, Level::Wrong, About::Limits, "is not limited");
    assert_eq!(lifted.volume, Some(below(&rig, "lifted")));
    the(
        &report,
        Level::Note,
        About::Limits,
        &format!("number {left} is limited"),
    );
    assert_eq!(
        of_level(&report, Level::Wrong).len(),
        2,
        "{:#?}",
        report.findings
    );
    assert_eq!(with_times(&rig.node.pool()), before, "nothing was restored");

    rig.start();
    let report = look_at(&rig.node.pool());
    the(
        &report,
        Level::Ok,
        About::Limits,
        "every limit is as recorded",
    );
}

fn below(rig: &Rig, volume: &str) -> PathBuf {
    let directory = rig.directory(volume);
    directory.strip_prefix(rig.node.pool()).unwrap().to_owned()
}

/// Numbers that cannot be trusted are told of as a start finds them; those whose data is charged
/// elsewhere are mended by the commands given.
#[test]
fn numbers_that_cannot_be_trusted_are_told_with_a_way_out_that_works() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let mut rig = Rig::new();
    for volume in ["first", "second", "third"] {
        rig.make(volume, SIZE);
    }
    rig.running = None;
    let [first, second, third] = ["first", "second", "third"].map(|volume| rig.quota_id(volume));
    let path = rig.directory("second").join("volume.json");
    let record = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        record.replace(&second.to_string(), &first.to_string()),
    )
    .unwrap();
    let root = Command::new("btrfs")
        .args(["inspect-internal", "rootid"])
        .arg(rig.data("third"))
        .output();
    let root = String::from_utf8(root.unwrap().stdout).unwrap();
    run(Command::new("btrfs")
        .args([
            "qgroup",
            "remove",
            &format!("0/{}", root.trim()),
            &format!("1/{third}"),
        ])
        .arg(rig.node.pool()));

    let report = look_at(&rig.node.pool());
    let words = format!("another volume is recorded with its quota_id, {first}");
    let findings = of_level(&report, Level::Wrong);
    let twins = findings.iter().filter(|finding| finding.what == words);
    assert_eq!(twins.count(), 2, "{findings:#?}");
    let elsewhere = the(
        &report,
        Level::Wrong,
        About::Limits,
        "charged to none of ours",
    );
    assert_eq!(elsewhere.volume, Some(below(&rig, "third")));
    assert_eq!(findings.len(), 3, "{findings:#?}");

    follow(
        elsewhere
            .remedy
            .as_ref()
            .unwrap()
            .strip_prefix("if it is a subvolume, ")
            .unwrap(),
        ";",
    );
    fs::write(&path, record).unwrap();
    rig.start();
    assert_well(&look_at(&rig.node.pool()));
    assert_eq!(rig.driver().pools()[0].status().quarantined, 0);
}

/// A subvolume in a volume that is not charged to it is found, and charged to it again by the
/// commands given.
#[test]
fn a_subvolume_that_is_not_charged_to_its_volume_is_found() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let rig = Rig::new();
    rig.make("pvc", SIZE);
    let nested = rig.data("pvc").join("a/nested");
    fs::create_dir(rig.data("pvc").join("a")).unwrap();
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "create"])
        .arg(&nested));
    fs::write(nested.join("file"), vec![1; 4 << 20]).unwrap();
    rustix::fs::syncfs(fs::File::open(rig.node.pool()).unwrap()).unwrap();
    assert_well(&look_at(&rig.node.pool()));
    let root = Command::new("btrfs")
        .args(["inspect-internal", "rootid"])
        .arg(&nested)
        .output();
    let root = String::from_utf8(root.unwrap().stdout).unwrap();
    run(Command::new("btrfs")
        .args(["qgroup", "remove", &format!("0/{}", root.trim())])
        .arg(format!("1/{}", rig.quota_id("pvc")))
        .arg(rig.node.pool()));
    let report = look_at(&rig.node.pool());
    let found = the(&report, Level::Wrong, About::Usage, "\"a/nested\"");
    assert_eq!(found.volume, Some(below(&rig, "pvc")));
    follow(
        found
            .remedy
            .as_ref()
            .unwrap()
            .strip_prefix("if it is a subvolume, ")
            .unwrap(),
        ";",
    );
    assert_well(&look_at(&rig.node.pool()));
}

/// What cannot be trusted is told of with path and reason, and a copy that is charged to a volume.
#[test]
fn what_is_quarantined_is_told_with_its_path() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let rig = Rig::new();
    rig.make("pvc", SIZE);
    rig.make("other", SIZE);
    let copy = rig.node.pool().join("volumes/copy");
    fs::create_dir(&copy).unwrap();
    fs::rename(rig.data("other"), copy.join("data")).unwrap();
    let report = look_at(&rig.node.pool());
    let strange = the(
        &report,
        Level::Wrong,
        About::Records,
        "its name is not ours",
    );
    assert_eq!(strange.volume, Some("volumes/copy".into()));
    let lost = the(&report, Level::Wrong, About::Records, "cannot look at data");
    assert_eq!(lost.volume, Some(below(&rig, "other")));
    assert!(lost.remedy.as_ref().unwrap().contains("volume.json"));

    // Of the volume whose data it is, nothing is left but the record.
    let id = rig.quota_id("pvc").to_string();
    let record = fs::read_to_string(rig.directory("pvc").join("volume.json")).unwrap();
    fs::write(
        rig.directory("pvc").join("volume.json"),
        record.replace(&id, &rig.quota_id("other").to_string()),
    )
    .unwrap();
    let report = look_at(&rig.node.pool());
    let copy = the(&report, Level::Wrong, About::Limits, "which is a volume's");
    assert_eq!(copy.volume, Some("volumes/copy".into()));
}

/// Promises that the filesystem cannot keep any more are wrong; that they may be more by the
/// operator's choice, and that other data is beside them, is worth a note.
#[test]
fn promises_that_cannot_be_kept_are_told() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let node = NodeDir::new();
    let disk = LoopMount::make("ext4", &node.path("image"), &node.pool());
    let option = format!(
        "default={},init,reserve=0,overcommit=1.5",
        node.pool().display()
    );
    let driver = node.volumes_of(std::slice::from_ref(&option), &Fakes::default());
    driver.create(&create("large", 150 * MIB)).unwrap();
    let report = look_at(&node.pool());
    assert_well(&report);
    the(&report, Level::Ok, About::Space, "are promised");
    assert!(
        of_level(&report, Level::Note)
            .iter()
            .all(|found| found.about != About::Space)
    );

    fs::write(disk.path().join("other"), "").unwrap();
    let report = look_at(&node.pool());
    the(
        &report,
        Level::Note,
        About::Space,
        "other data is on its filesystem",
    );

    driver.create(&create("more", 100 * MIB)).unwrap();
    the(
        &look_at(&node.pool()),
        Level::Wrong,
        About::Space,
        "no more than",
    );
    let report = look(&[option]).remove(0);
    assert_well(&report);
    the(
        &report,
        Level::Note,
        About::Space,
        "1.5 times the room may be promised",
    );
    the(&report, Level::Note, About::Space, "no more than");
}

/// What is not there, or is another's, is told as the server would tell it; pools that cannot be
/// served together too.
#[test]
fn a_pool_that_could_not_be_served_is_wrong() {
    let (node, fakes) = (NodeDir::new(), Fakes::default());
    drop(node.volumes(&fakes));
    let pool = node.pool_option();
    let other = node.path("other");
    fs::create_dir(&other).unwrap();
    let cases = [
        (
            vec!["a=/nowhere".to_owned()],
            "nothing is at its path",
            Some("mount the disk"),
        ),
        (
            vec![format!(
                "a={},require-mount,any-filesystem",
                node.pool().display()
            )],
            "nothing is mounted at its path",
            Some("mount the disk"),
        ),
        (
            vec![format!("a={},any-filesystem", other.display())],
            "holds no pool",
            Some("rootcellar pool init"),
        ),
        (
            vec![pool.clone(), pool.replace("default=", "copy=")],
            "same filesystem as pool default",
            None,
        ),
    ];
    for (options, words, remedy) in cases {
        let reports = look(&options);
        let report = reports.last().unwrap();
        let found = the(report, Level::Wrong, About::Pool, words);
        let given = found.remedy.as_deref().unwrap_or_default();
        assert!(given.contains(remedy.unwrap_or_default()), "{given}");
        assert!(report.pool.problem.is_some());
    }
    assert_well(&look(&[pool])[0]);
}

/// A class may say that a size is not to be held, and that is no more than a note.
#[test]
fn a_size_that_is_not_to_be_held_is_a_note() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let rig = Rig::new();
    let mut request = create("pvc", SIZE.0);
    request.class.enforcement = Hold::None;
    rig.driver().create(&request).unwrap();
    let report = look_at(&rig.node.pool());
    assert_well(&report);
    let found = the(&report, Level::Note, About::Sizes, "nothing holds its size");
    assert_eq!(found.volume, Some(below(&rig, "pvc")));
    assert!(!enable_quota(&rig.node.pool()).unwrap(), "it is on");
}
