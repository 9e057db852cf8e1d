//! Requests for copies that are accepted, and requests that are refused.

use rootcellar::volume::{InUse, SnapshotFilter};

use super::*;
use support::publish;
use support::require;

/// Proves: V1.
#[test]
fn the_same_request_finds_its_snapshot_and_another_learns_the_difference() {
    let rig = require!(loop_devices, CopyRig::new(Kind::Xfs));
    let (one, other) = (rig.make("one", SIZE), rig.make("other", SIZE));
    let snapshot = rig.snapshot("snap", &one).unwrap();
    assert_eq!(rig.snapshot("snap", &one).unwrap(), snapshot);
    let error = rig.snapshot("snap", &other).unwrap_err();
    assert_code(&error, Operation::CreateSnapshot, Code::AlreadyExists);
    let restored = rig.restore("restored", SIZE, &snapshot).unwrap();
    assert_eq!(rig.restore("restored", SIZE, &snapshot).unwrap(), restored);
    for error in [
        rig.clone_of("restored", SIZE, &one).unwrap_err(),
        rig.driver().create(&create("restored", SIZE)).unwrap_err(),
        rig.restore("other", SIZE, &snapshot).unwrap_err(),
    ] {
        assert_code(&error, Operation::CreateVolume, Code::AlreadyExists);
    }
    // The source may be deleted by the time the call is repeated.
    rig.delete(&one);
    assert_eq!(rig.snapshot("snap", &one).unwrap(), snapshot);
}

/// Proves: SN4.
#[test]
fn a_copy_is_as_large_as_its_source_unless_more_is_asked_for_and_never_smaller() {
    let rig = require!(loop_devices, CopyRig::new(Kind::Btrfs));
    let source = rig.make("source", SIZE);
    let snapshot = rig.snapshot("snap", &source).unwrap();
    assert_eq!(snapshot.size, Bytes(SIZE));
    let sizes = [
        ("same", 0, SIZE),
        ("equal", SIZE, SIZE),
        ("more", SIZE + 1, SIZE + 1),
    ];
    for (name, asked, expected) in sizes {
        assert_eq!(
            rig.restore(name, asked, &snapshot).unwrap().size,
            Bytes(expected)
        );
        let name = format!("{name}-clone");
        assert_eq!(
            rig.clone_of(&name, asked, &source).unwrap().size,
            Bytes(expected)
        );
    }
    for error in [
        rig.restore("less", SIZE - 1, &snapshot).unwrap_err(),
        rig.clone_of("less", SIZE - 1, &source).unwrap_err(),
    ] {
        assert_code(&error, Operation::CreateVolume, Code::OutOfRange);
    }
}

/// Proves: SN6.
#[test]
fn where_files_share_no_blocks_a_copy_is_made_only_if_the_class_allows_it() {
    require!(loop_devices);
    for (kind, refused) in [(Kind::Ext4, true), (Kind::Xfs, false), (Kind::Btrfs, false)] {
        let rig = CopyRig::new(kind);
        let source = rig.make("source", SIZE);
        let mut request = support::snapshot("snap", source.id);
        request.class.copies.copy = false;
        let outcome = rig.driver().create_snapshot(&request);
        assert_eq!(outcome.is_err(), refused, "{kind:?}: {outcome:?}");
        let source = SourceId::Volume(source.id.to_string());
        let mut request = CopyRig::copy("cloned", SIZE, source);
        request.class.copies.copy = false;
        match rig.driver().create(&request) {
            Ok(_) => assert!(!refused, "{kind:?}"),
            Err(error) => {
                assert!(refused, "{kind:?}: {error}");
                assert_code(&error, Operation::CreateVolume, Code::InvalidArgument);
                assert!(error.to_string().contains("copy: allowed"), "{error}");
                assert!(names(&rig.node.pool().join(".rootcellar/staging")).is_empty());
            }
        }
    }
}

/// Proves: SN8.
#[test]
fn a_volume_in_use_is_reported_or_refused_as_the_class_says() {
    let rig = require!(loop_devices, CopyRig::new(Kind::Xfs));
    let source = rig.make("source", SIZE);
    assert!(!rig.snapshot("idle", &source).unwrap().in_use);
    let target = rig.node.target("pod");
    rig.driver()
        .publish(&publish(&source.id.to_string(), &target))
        .unwrap();
    assert!(rig.snapshot("busy", &source).unwrap().in_use);
    let mut request = support::snapshot("refused", source.id);
    request.class.in_use = InUse::Refuse;
    let error = rig.driver().create_snapshot(&request).unwrap_err();
    assert_code(&error, Operation::CreateSnapshot, Code::FailedPrecondition);
    rig.driver()
        .unpublish(&source.id.to_string(), &target)
        .unwrap();
    assert!(!rig.driver().create_snapshot(&request).unwrap().in_use);
}

/// Proves: SN4.
#[test]
fn a_copy_is_made_in_the_pool_of_its_source() {
    let rig = require!(loop_devices, CopyRig::new(Kind::Btrfs));
    let source = rig.make("source", SIZE);
    let mut request = CopyRig::copy("cloned", SIZE, SourceId::Volume(source.id.to_string()));
    request.class.pool = Some("other".parse().unwrap());
    let error = rig.driver().create(&request).unwrap_err();
    assert_code(&error, Operation::CreateVolume, Code::InvalidArgument);
    request.class.pool = Some("default".parse().unwrap());
    assert_eq!(
        rig.driver().create(&request).unwrap().pool.as_str(),
        "default"
    );
}

/// Proves: L1.
#[test]
fn lists_are_by_snapshot_and_by_source_and_in_pages() {
    let rig = require!(loop_devices, CopyRig::new(Kind::Btrfs));
    let (one, other) = (rig.make("one", SIZE), rig.make("other", SIZE));
    let mut all: Vec<Snapshot> = (0..5)
        .map(|index| {
            rig.snapshot(
                &format!("snap-{index}"),
                if index < 3 { &one } else { &other },
            )
            .unwrap()
        })
        .collect();
    all.sort_by_key(|snapshot| snapshot.id);
    let list = |filter: &SnapshotFilter, count, token: &str| {
        rig.driver().list_snapshots(filter, count, token).unwrap()
    };
    let everything = SnapshotFilter::default();
    assert_eq!(list(&everything, usize::MAX, "").objects, all);
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(&everything, 2, &token);
        paged.extend(page.objects);
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, all);
    let of = |source: &str| SnapshotFilter {
        source: Some(source.to_owned()),
        ..SnapshotFilter::default()
    };
    assert_eq!(
        list(&of(&one.id.to_string()), usize::MAX, "").objects.len(),
        3
    );
    assert_eq!(list(&of("nobody"), usize::MAX, "").objects, []);
    let mut both = of(&other.id.to_string());
    both.id = Some(all[0].id.to_string());
    let expected = usize::from(all[0].source == other.id);
    assert_eq!(list(&both, usize::MAX, "").objects.len(), expected);
    let error = rig
        .driver()
        .list_snapshots(&everything, usize::MAX, "invalid-token")
        .unwrap_err();
    assert_code(&error, Operation::Query, Code::Aborted);
}
