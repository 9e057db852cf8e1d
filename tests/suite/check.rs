//! The promises about `rootcellar check` in `docs/semantics.md`. The tests with quota on XFS and
//! ext4 are in `tests/quota`.

mod command;
mod extents;
mod images;
mod imports;
mod limits;
mod snapshots;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use linux::quota::Enforcement;
use objects::Bytes;
use pool::{PoolOptions, enable_quota};
use rootcellar::check::{About, Finding, Level, Report, Surroundings, check};
use rootcellar::config::Configured;
use rootcellar::volume::{EnforcementPolicy, ExpandRequest, Settings, Volume};

use crate::sizes::{QuotaRig, SIZE};
use support::disk::Disk;
use support::loops::{LoopMount, run};
use support::memory::MemorySet;
use support::picture::with_times;
use support::require;
use support::{Fakes, Node, create, eventually, publish};

const MIB: u64 = 1 << 20;

/// The reports about the pools in these options, when nothing else is known of the node.
fn reports(options: &[String]) -> Vec<Report> {
    let parse = |text: &String| text.parse::<PoolOptions>().unwrap();
    let options: Vec<PoolOptions> = options.iter().map(parse).collect();
    check(&options, SURROUNDINGS)
}

const SURROUNDINGS: Surroundings<'_> = Surroundings {
    node: None,
    known_pools: None,
    needed: &[],
    progress: &|_, _, _| {},
};

/// The report about one pool without a reserve.
fn report_on(pool: &Path) -> Report {
    reports(&[format!("default={},reserve=0", pool.display())]).remove(0)
}

/// The report about the pool of an option.
pub fn report_on_option(option: &str) -> Report {
    reports(&[option.to_owned()]).remove(0)
}

/// The findings of a level.
pub fn of_level(report: &Report, level: Level) -> Vec<&Finding> {
    let findings = report.findings.iter();
    findings.filter(|finding| finding.level == level).collect()
}

/// The only finding of this level and subject that contains these words.
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
pub fn wrong<'a>(report: &'a Report, about: About, words: &str) -> &'a Finding {
    the(report, Level::Wrong, about, words)
}

#[track_caller]
fn note<'a>(report: &'a Report, about: About, words: &str) -> &'a Finding {
    the(report, Level::Note, about, words)
}

#[track_caller]
fn ok<'a>(report: &'a Report, about: About, words: &str) -> &'a Finding {
    the(report, Level::Ok, about, words)
}

/// Asserts that every limit and every charge is correct.
#[track_caller]
fn assert_limits_are_well(report: &Report) {
    assert_well(report);
    ok(report, About::Limits, "every limit is as recorded");
    ok(report, About::Usage, "the space that the trees occupy");
}

#[track_caller]
pub fn assert_well(report: &Report) {
    assert!(!report.is_wrong(), "{:#?}", report.findings);
}

/// Runs the commands at the start of a remedy, as an operator would. The driver's program is on the
/// path.
pub fn follow(remedy: &str, commands_end: &str) {
    let commands = remedy.split(commands_end).next().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_rootcellar"));
    let path = std::env::var("PATH").unwrap();
    let path = format!(
        "{}:{path}:/usr/sbin:/sbin",
        program.parent().unwrap().display()
    );
    run(Command::new("sh").args(["-ec", commands]).env("PATH", path));
}

/// Asserts that a volume can be published, expanded and deleted, as after each remedy.
#[track_caller]
fn assert_useful(rig: &QuotaRig, volume: &Volume) {
    let target = rig.published(volume);
    let twice = Bytes(2 * SIZE.0);
    assert_eq!(rig.expand(volume, twice).unwrap(), twice);
    let id = volume.id.to_string();
    rig.driver().unpublish(&id, &target).unwrap();
    rig.driver().delete(&id).unwrap();
}

/// A disk with an empty pool on it.
fn pool_on(filesystem: &'static str, options: &'static [&'static str]) -> (Node, LoopMount) {
    let node = Node::new();
    let disk = Disk::new(filesystem).made_with(options).with_other_data();
    let disk = node.make_pool_disk(disk);
    let option = node.own_pool_option();
    drop(node.volumes_of(&[option], &Fakes::default()));
    (node, disk)
}

/// A pool whose filesystem enforces no sizes is not wrong, and the report says how to enforce them.
///
/// Proves: T5.
#[test]
fn a_filesystem_that_enforces_no_sizes_gets_a_remedy() {
    require!(loop_devices);
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
        let report = report_on(&node.pool());
        assert_well(&report);
        let found = note(&report, About::Enforcement, "sizes are not enforced");
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
        ok(&report, About::Records, "every record is sound");
        assert_eq!(with_times(&node.pool()), before, "{filesystem}");
    }
}

/// The commands that `check` gives for a btrfs make it enforce sizes, also if full qgroups were on.
/// Volumes that were made before are reported, one by one.
///
/// Proves: T5.
#[test]
fn a_btrfs_holds_sizes_after_what_check_says_was_done() {
    require!(loop_devices);
    for is_full in [false, true] {
        let node = Node::new();
        let _disk = node.make_pool_disk(Disk::new("btrfs").with_other_data());
        if is_full {
            run(Command::new("btrfs")
                .args(["quota", "enable"])
                .arg(node.pool()));
        }
        let option = node.own_pool_option();
        let driver = node.volumes_of(std::slice::from_ref(&option), &Fakes::default());
        let old = driver
            .create(&create("old", SIZE.0))
            .unwrap()
            .id
            .to_string();
        let report = report_on(&node.pool());
        assert_well(&report);
        let words = if is_full {
            "full qgroups"
        } else {
            "quota is off"
        };
        let found = note(&report, About::Enforcement, words);
        follow(found.remedy.as_ref().unwrap(), ";");
        let report = report_on(&node.pool());
        assert_well(&report);
        ok(&report, About::Enforcement, "enforced by simple quota");
        let not_enforced = note(&report, About::Sizes, "is not enforced");
        assert!(not_enforced.volume.as_ref().unwrap().starts_with("volumes"));
        eventually("the pool is served with quota", || {
            driver.check_pools();
            driver.pools()[0].enforcement() == Enforcement::Squota
        });
        let target = node.target("old");
        driver.publish(&publish(&old, &target)).unwrap();
        let larger = ExpandRequest {
            id: old.clone(),
            path: target.clone(),
            required: Bytes(2 * SIZE.0),
            limit: None,
        };
        assert_eq!(driver.expand(&larger).unwrap(), larger.required);
        driver.unpublish(&old, &target).unwrap();
        driver.delete(&old).unwrap();
    }
}

/// Volumes whose sizes were enforced are wrong if nothing enforces them any more.
///
/// Proves: T5.
#[test]
fn a_pool_that_no_longer_enforces_sizes_is_wrong() {
    let mut rig = require!(loop_devices, QuotaRig::new());
    rig.make("enforced", SIZE);
    rig.running = None;
    run(Command::new("btrfs")
        .args(["quota", "disable"])
        .arg(rig.node.pool()));
    let report = report_on(&rig.node.pool());
    let found = wrong(&report, About::Enforcement, "1 volumes promise it");
    assert!(found.remedy.as_ref().unwrap().contains("enable-quota"));
}

/// The directory of a volume, below the pool's path.
fn below(rig: &QuotaRig, volume: &str) -> PathBuf {
    let directory = rig.directory(volume);
    directory.strip_prefix(rig.node.pool()).unwrap().to_owned()
}

/// Reservations that the filesystem cannot meet any more are wrong. They are a note if the operator
/// allows more than the free space; other data next to the pool is a note, too.
///
/// Proves: T4.
#[test]
fn reservations_without_space_are_reported() {
    require!(loop_devices);
    let node = Node::new();
    let disk = node.make_pool_disk(Disk::new("ext4"));
    let option = format!(
        "default={},init,reserve=0,overcommit=1.5",
        node.pool().display()
    );
    let driver = node.volumes_of(std::slice::from_ref(&option), &Fakes::default());
    driver.create(&create("large", 150 * MIB)).unwrap();
    let report = report_on(&node.pool());
    assert_well(&report);
    ok(&report, About::Space, "are reserved");
    assert!(
        of_level(&report, Level::Note)
            .iter()
            .all(|found| found.about != About::Space)
    );

    fs::write(disk.path().join("other"), "").unwrap();
    let report = report_on(&node.pool());
    note(&report, About::Space, "other data is on its filesystem");

    driver.create(&create("more", 100 * MIB)).unwrap();
    the(
        &report_on(&node.pool()),
        Level::Wrong,
        About::Space,
        "no more than",
    );
    let report = reports(&[option]).remove(0);
    assert_well(&report);
    note(
        &report,
        About::Space,
        "up to 1.5 times the space may be reserved",
    );
    note(&report, About::Space, "no more than");
}

/// A missing pool, or a pool of another owner, is reported with the server's reason, and so are
/// pools that cannot be served together.
///
/// Proves: T4.
#[test]
fn a_pool_that_could_not_be_served_is_wrong() {
    let (node, fakes) = (Node::new(), Fakes::default());
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
        let reports = reports(&options);
        let report = reports.last().unwrap();
        let found = the(report, Level::Wrong, About::Pool, words);
        let given = found.remedy.as_deref().unwrap_or_default();
        assert!(given.contains(remedy.unwrap_or_default()), "{given}");
        assert!(report.pool.problem.is_some());
    }
    assert_well(&reports(&[pool])[0]);
}

/// A volume that was made on another member while its disk was missing is reported on both when the disk
/// is back.
///
/// Proves: PS5.
#[test]
fn an_orphan_in_a_set_is_wrong() {
    require!(mount_namespace);
    let node = MemorySet::new(&[("a", 32 * MIB), ("b", 64 * MIB)]);
    let settings = Settings {
        member_wait: Duration::ZERO,
        ..node.settings()
    };
    let request = create("pvc", MIB);
    let first = node.volumes().create(&request).unwrap();
    node.unmount("b");
    let driver = node.volumes_with(settings.clone(), &Fakes::default());
    let second = driver.create(&request).unwrap();
    assert_ne!(first.id, second.id);
    node.mount("b");
    let sets = Configured {
        pools: Vec::new(),
        sets: settings.sets,
    };
    let reports = check(&sets.expand(None).unwrap(), SURROUNDINGS);
    for (report, (own, other)) in reports.iter().zip([(&second, &first), (&first, &second)]) {
        let found = the(
            report,
            Level::Wrong,
            About::Records,
            "one of them is an orphan",
        );
        assert!(found.what.contains(&other.id.to_string()), "{}", found.what);
        let remedy = found.remedy.as_deref().unwrap();
        let delete = format!("rootcellar volume delete {}", own.id);
        assert!(remedy.ends_with(&delete), "{remedy}");
    }
}

/// A class may ask for no enforcement of a size, and that is only a note.
///
/// Proves: T5.
#[test]
fn a_size_that_need_not_be_enforced_is_a_note() {
    let rig = require!(loop_devices, QuotaRig::new());
    let mut request = create("pvc", SIZE.0);
    request.class.enforcement = EnforcementPolicy::None;
    rig.driver().create(&request).unwrap();
    let report = report_on(&rig.node.pool());
    assert_well(&report);
    let found = note(&report, About::Sizes, "is not enforced");
    assert_eq!(found.volume, Some(below(&rig, "pvc")));
    let remedy = found.remedy.as_ref().unwrap();
    assert!(
        remedy.contains("with cp --archive --reflink=never"),
        "{remedy}"
    );
    assert!(!enable_quota(&rig.node.pool()).unwrap(), "it is on");
}
