//! `rootcellar check` on filesystems that have project quota.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use support::Node;
use support::disk::OTHERS;
use support::disk_node::{DiskNode, MIB, append, for_each_served, for_each_started};
use support::loops::run;
use support::{kernel, require};

/// Runs `rootcellar check` on the pool at a path and returns its report.
pub fn report_on(pool: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_rootcellar"))
        .args([
            "check",
            "--json",
            "--state-dir=/nowhere",
            "--kubelet-dir=/nowhere",
        ])
        .arg(format!("--pool=default={},reserve=0", pool.display()))
        .env_remove("NODE_NAME")
        .output()
        .unwrap();
    let reports: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let is_wrong = found(&reports[0])
        .iter()
        .any(|(level, ..)| level == "wrong");
    assert_eq!(output.status.code(), Some(is_wrong.into()), "{output:?}");
    reports[0].clone()
}

/// A finding: level, subject, volume, description and remedy.
pub type Found = (String, String, String, String, String);

fn found(report: &Value) -> Vec<Found> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .map(|found| {
            let [level, about, volume, what, remedy] =
                ["level", "about", "volume", "what", "remedy"].map(|key| text(&found[key]));
            (level, about, volume, what, remedy)
        })
        .collect()
}

/// The findings of a level about a subject.
pub fn of(report: &Value, level: &str, about: &str) -> Vec<Found> {
    let mut found = found(report);
    found.retain(|found| found.0 == level && found.1 == about);
    found
}

/// The only finding of a level about a subject.
#[track_caller]
pub fn only(report: &Value, level: &str, about: &str) -> Found {
    let mut found = of(report, level, about);
    assert_eq!(found.len(), 1, "{report:#}");
    found.remove(0)
}

#[track_caller]
pub fn assert_well(report: &Value) {
    let wrong: Vec<Found> = found(report)
        .into_iter()
        .filter(|f| f.0 == "wrong")
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Every quota id that has limits, with the limits.
fn limits(node: &DiskNode) -> Vec<(u32, [u64; 2], [u64; 2])> {
    let quotas = kernel::quotas(node.at(), 1).into_iter();
    quotas
        .filter(kernel::Quota::is_limited)
        .map(|quota| (quota.id, quota.bytes, quota.inodes))
        .collect()
}

/// Runs the commands at the start of a remedy, as an operator would.
pub fn follow(remedy: &str, commands_end: &str) {
    let commands = remedy.split(commands_end).next().unwrap();
    run(Command::new("sh").args(["-ec", commands]));
}

/// `check` finds no fault in volumes whose limits match their records and whose usage matches their
/// trees, for every kind of file. It changes nothing.
///
/// Proves: T4.
#[tokio::test]
async fn a_pool_that_enforces_sizes_is_well() {
    for_each_served(async |node, served| {
        let (_, target) = node.make_published(served, 32 * MIB).await;
        append(&target.join("file"), 8 * MIB);
        fs::hard_link(target.join("file"), target.join("again")).unwrap();
        File::create(target.join("sparse"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        std::os::unix::fs::symlink("/", target.join("link")).unwrap();
        for number in 0..200 {
            fs::create_dir(target.join(format!("d{number}"))).unwrap();
            fs::write(target.join(format!("d{number}/file")), "x").unwrap();
        }
        rustix::fs::syncfs(File::open(&target).unwrap()).unwrap();
        let before = limits(node);
        let report = report_on(node.at());
        assert_well(&report);
        for about in ["enforcement", "limits", "usage", "space", "records"] {
            only(&report, "ok", about);
        }
        assert_eq!(report["enforcement"], "project");
        assert_eq!(limits(node), before);

        // A deleted file that is still open stays charged, which is no fault.
        let open = File::open(target.join("file")).unwrap();
        for name in ["file", "again"] {
            fs::remove_file(target.join(name)).unwrap();
        }
        let report = report_on(node.at());
        assert_well(&report);
        let note = only(&report, "note", "usage");
        assert!(note.3.contains("deleted and still open"), "{note:?}");
        drop(open);
    })
    .await;
}

/// `check` reports limits that differ from the records, and limits of quota ids that no volume has.
/// It changes none of them; a start restores the recorded ones.
///
/// Proves: T4.
#[tokio::test]
async fn limits_that_are_not_as_recorded_are_reported() {
    for_each_started(async |node, mut served| {
        for volume in ["lowered", "lifted", "kept"] {
            served.make(volume, 16 * MIB).await;
        }
        served.stop();
        kernel::limit(node.at(), node.project("lowered"), MIB, 7);
        kernel::limit(node.at(), node.project("lifted"), 0, 0);
        kernel::limit(node.at(), (1 << 30) + 7, MIB, 0);
        let before = limits(&node);
        let report = report_on(node.at());
        let wrong = of(&report, "wrong", "limits");
        assert_eq!(wrong.len(), 2, "{}: {report:#}", node.disk.name);
        for (volume, words) in [
            ("lowered", "(1 MiB) in 7 files"),
            ("lifted", "is not limited"),
        ] {
            let directory = node.directory(volume);
            let is_it = |found: &&Found| directory.ends_with(&found.2) && found.3.contains(words);
            assert_eq!(
                wrong.iter().filter(is_it).count(),
                1,
                "{volume}: {wrong:#?}"
            );
        }
        only(&report, "note", "limits");
        assert_eq!(limits(&node), before);
        node.serve().await.stop();
        let report = report_on(node.at());
        only(&report, "ok", "limits");
    })
    .await;
}

/// A start quarantines a volume whose data has another quota id. The remedy that `check` prints
/// repairs it.
///
/// Proves: T4.
#[tokio::test]
async fn a_volume_of_another_quota_id_is_repaired_by_the_remedy_of_check() {
    for_each_started(async |node, mut served| {
        served.make("pvc", 16 * MIB).await;
        served.stop();
        let data = node.directory("pvc").join("data");
        fs::write(data.join("file"), vec![1; 2 << 20]).unwrap();
        run(Command::new("chattr").args(["-R", "-p", "0"]).arg(&data));
        let report = report_on(node.at());
        follow(&only(&report, "wrong", "limits").4, ";");
        let served = node.serve().await;
        assert_eq!(served.metric("rootcellar_pool_quarantined"), 0);
        assert!(node.quota("pvc").used[0] >= 2 * MIB, "{}", node.disk.name);
        assert_well(&report_on(node.at()));
        served.stop();
    })
    .await;
}

/// However a filesystem was made and mounted, the commands that `check` prints make it enforce
/// sizes.
///
/// Proves: T5.
#[tokio::test]
async fn the_way_to_enforced_sizes_is_reported_and_works() {
    require!(project_quota);
    for disk in OTHERS {
        let node = Node::new();
        let disk = node.make_disk(disk);
        let at = disk.path();
        // An open descriptor retains the loop device, which the kernel would otherwise remove at
        // the unmount.
        let _device = File::open(disk.device()).unwrap();
        run(Command::new(env!("CARGO_BIN_EXE_rootcellar"))
            .args(["pool", "init", "--node=n"])
            .arg(at));
        let report = report_on(at);
        assert_well(&report);
        follow(&only(&report, "note", "enforcement").4, ", and ");
        let report = report_on(at);
        only(&report, "ok", "enforcement");
    }
}
