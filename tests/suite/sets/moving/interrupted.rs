//! The copies that an interrupted move leaves.

use pool::PoolOptions;
use rootcellar::check::{
    About, Level, PoolContents, Surroundings, check, contents, hide_old_copies,
};

use super::*;

/// Writes the record of the volume "v" in a member, as an interrupted move leaves it.
fn set_move(node: &MemorySet, member: &str, state: &str, other: PoolId) {
    let mut record = record(node, member);
    record["format"] = 2.into();
    record["moved"] = serde_json::json!({ "state": state, "pool": other });
    std::fs::write(record_path(node, member), record.to_string()).unwrap();
}

/// A node with the volume in a, and a copy in b that an interrupted move left, whose file is old.
fn interrupted(state: &str) -> (MemorySet, Volume) {
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let (a, b) = (pool_id(&driver, "a"), pool_id(&driver, "b"));
    drop(driver);
    let directory = directory_of(&node.member("a").join("volumes"), "v");
    let to = node
        .member("b")
        .join("volumes")
        .join(directory.file_name().unwrap());
    copy(&directory, &to);
    set_move(&node, "b", "incoming", a);
    if state == "outgoing" {
        std::fs::write(file(&node, "a"), "old").unwrap();
        set_move(&node, "a", state, b);
    } else {
        std::fs::write(file(&node, "b"), "old").unwrap();
    }
    (node, volume)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("data")).unwrap();
    for name in ["volume.json", "data/file"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// A start deletes the copy of a move that was not committed, and finishes one that was.
///
/// Proves: MV5.
#[test]
fn a_start_finishes_or_undoes_an_interrupted_move() {
    require!(mount_namespace);
    for (state, stays) in [("plain", "a"), ("outgoing", "b")] {
        let (node, volume) = interrupted(state);
        let driver = node.volumes();
        assert_in(&node, &driver, &volume, stays);
        for member in ["a", "b"] {
            let has = usize::from(member == stays);
            assert_eq!(volumes_in(&node, member), has, "{state}: {member}");
        }
    }
}

/// A start undoes a committed move if the former volume has changed since its copy was made.
///
/// Proves: MV5, MV8.
#[test]
fn a_start_loses_no_later_write() {
    require!(mount_namespace);
    let (node, volume) = interrupted("outgoing");
    std::fs::write(file(&node, "b"), "copied").unwrap();
    let record = std::fs::metadata(record_path(&node, "a")).unwrap();
    eventually("the write is later than the record", || {
        std::fs::write(file(&node, "a"), "content").unwrap();
        let written = std::fs::metadata(file(&node, "a")).unwrap();
        written.modified().unwrap() > record.modified().unwrap()
    });
    let driver = node.volumes();
    assert_in(&node, &driver, &volume, "a");
    assert_eq!(volumes_in(&node, "b"), 0);
    moves(&driver, &volume, "b", "a");
}

/// A copy that may be out of date is never served while the other disk is missing, and stays. When the
/// disk returns, the move ends as if it had been there.
///
/// Proves: MV5, SV11.
#[test]
fn an_interrupted_move_waits_for_the_missing_disk() {
    require!(mount_namespace);
    for (state, missing, present) in [("plain", "a", "b"), ("outgoing", "b", "a")] {
        let (node, volume) = interrupted(state);
        node.unmount(missing);
        let driver = impatient(&node);
        let id = volume.id.to_string();
        let target = node.target("pod");
        for refused in [
            driver.get(&id).map(drop),
            driver.delete(&id),
            driver.publish(&publish(&id, &target)),
            driver.create(&create("v", SIZE)).map(drop),
            driver.create_snapshot(&snapshot("s", &id)).map(drop),
            driver
                .move_to(&id, present, Users::Check, &Caller::default())
                .map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(
                refused.code(Operation::Delete),
                Code::Unavailable,
                "{refused}"
            );
        }
        driver.check_pools();
        assert_eq!(volumes_in(&node, present), 1, "it is not dropped");
        let complete = |driver: &Running| {
            let inventory = driver.inventory().unwrap();
            let mut pools = inventory.pools.into_iter();
            let pool = pools.find(|pool| pool.name.as_str() == format!("set/{present}"));
            pool.unwrap().complete
        };
        assert!(!complete(&driver), "the copy may become the volume");
        node.mount(missing);
        driver.find_members();
        assert!(complete(&driver));
        assert_in(
            &node,
            &driver,
            &volume,
            if state == "plain" { "a" } else { "b" },
        );
    }
}

/// Retiring the other pool serves no copy. Only a repeated move makes the copy the volume.
///
/// Proves: MV5.
#[test]
fn a_person_decides_about_a_copy_whose_other_disk_is_lost() {
    require!(mount_namespace);
    for (state, lost, present) in [("plain", "a", "b"), ("outgoing", "b", "a")] {
        for delete in [false, true] {
            let (node, volume) = interrupted(state);
            let id = volume.id.to_string();
            let lost_id = {
                let marker = node.member(lost).join(".rootcellar/pool.json");
                let marker: Value =
                    serde_json::from_slice(&std::fs::read(marker).unwrap()).unwrap();
                PoolId::parse(marker["id"].as_str().unwrap()).unwrap()
            };
            node.unmount(lost);
            retire(&memory(&node), lost_id).unwrap();
            let driver = impatient(&node);
            let refused = driver.get(&id).unwrap_err();
            assert_eq!(code_of(&refused), Code::Unavailable, "{refused}");
            if delete {
                driver.delete(&id).unwrap();
                assert_eq!(volumes_in(&node, present), 0);
                continue;
            }
            let moved = driver
                .move_to(&id, present, Users::Check, &Caller::default())
                .unwrap();
            assert_eq!(moved, (name(&format!("set/{present}")), Moved::Recovered));
            assert_eq!(driver.get(&id).unwrap().pool.member(), Some(present));
            assert_eq!(std::fs::read(file(&node, present)).unwrap(), b"old");
            drop(driver);
            assert!(impatient(&node).get(&id).is_ok());
        }
    }
}

/// A volume that was deleted while the disk with its incoming copy was missing does not come back.
///
/// Proves: MV5.
#[test]
fn a_deleted_volume_does_not_come_back_with_a_copy() {
    require!(mount_namespace);
    let (node, volume) = interrupted("plain");
    let id = volume.id.to_string();
    node.unmount("b");
    let driver = impatient(&node);
    driver.delete(&id).unwrap();
    node.mount("b");
    driver.find_members();
    let refused = driver.get(&id).unwrap_err();
    assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
    let way_out = format!("`rootcellar volume delete {id}`");
    assert!(refused.to_string().contains(&way_out), "{refused}");
    driver.delete(&id).unwrap();
    assert_eq!(volumes_in(&node, "b"), 0);
}

/// Both members have a copy of the interrupted move, which `check` reports with the way out.
///
/// Proves: MV5, T4.
#[test]
fn check_reports_the_copies_of_an_interrupted_move() {
    require!(mount_namespace);
    for (state, expected) in [("plain", ["b"].as_slice()), ("outgoing", &["a", "b"])] {
        let (node, volume) = interrupted(state);
        let pools = ["a", "b"].map(|member| {
            let path = node.member(member);
            let option = format!("{member}={},any-filesystem", path.display());
            option.parse::<PoolOptions>().unwrap()
        });
        let surroundings = Surroundings {
            node: None,
            known_pools: None,
            needed: &[],
            progress: &|_, _, _| {},
        };
        let mut found = Vec::new();
        for report in check(&pools, surroundings) {
            // The directories that the fixture made are open to others, which is a finding about the pool.
            let findings = report.findings.into_iter();
            let of_volumes = findings.filter(|finding| finding.volume.is_some());
            for finding in of_volumes.filter(|finding| finding.level == Level::Wrong) {
                let member = report.pool.name.as_str();
                assert_eq!(finding.about, About::Records, "{finding:?}");
                let way_out = format!(
                    "rootcellar volume move {} --to {member}, which uses this copy",
                    volume.id
                );
                assert!(finding.remedy.unwrap().ends_with(&way_out));
                found.push(member.to_owned());
            }
        }
        assert_eq!(found, expected, "{state}");
        let mut all: Vec<PoolContents> = pools.iter().map(contents).collect();
        hide_old_copies(&mut all);
        let shown: usize = all.iter().map(|contents| contents.volumes.len()).sum();
        assert_eq!(shown, expected.len(), "{state}");
    }
}

/// A moved volume in quarantine keeps its name and its id: no member gets another volume with the name.
///
/// Proves: MV4.
#[test]
fn the_name_of_a_moved_volume_in_quarantine_is_not_given_again() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    moves(&driver, &volume, "b", "a");
    node.wait_for_trash_of("a");
    drop(driver);
    std::fs::write(record_path(&node, "b"), "damaged").unwrap();
    let driver = node.volumes();
    let refused = driver.create(&create("v", SIZE)).unwrap_err();
    assert!(refused.to_string().contains("quarantined"), "{refused}");
    assert_eq!((volumes_in(&node, "a"), volumes_in(&node, "b")), (0, 1));
}

/// Where two members have a volume with one id, which no driver makes, neither is served or changed.
///
/// Proves: MV5.
#[test]
fn two_volumes_of_one_id_are_refused() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    let directory = directory_of(&node.member("a").join("volumes"), "v");
    let kept = node.path("kept/v");
    copy(&directory, &kept);
    moves(&driver, &volume, "b", "a");
    node.wait_for_trash_of("a");
    drop(driver);
    copy(&kept, &directory);
    let driver = node.volumes();
    let target = node.target("pod");
    for refused in [
        driver.get(&id).map(drop),
        driver.delete(&id),
        driver.publish(&publish(&id, &target)),
        driver
            .move_to(&id, "a", Users::Check, &Caller::default())
            .map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
        assert!(
            refused.to_string().contains(" both have volume "),
            "{refused}"
        );
    }
    driver.check_pools();
    for member in ["a", "b"] {
        assert_eq!(volumes_in(&node, member), 1, "{member}");
    }
}
