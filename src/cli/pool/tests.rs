use uuid::Uuid;

use super::*;
use crate::cli::inspect::tests::quarantined;

fn pools() -> Vec<Inspection> {
    let healthy = Inspection::healthy();
    let damaged = Inspection {
        name: "old".parse().unwrap(),
        quarantined: vec![quarantined("volumes/x", "no volume.json")],
        enforcement: Some(Enforcement::None),
        unenforced: Some(Cause {
            what: "it was not".into(),
            remedy: Some("do it".into()),
        }),
        ..healthy.clone()
    };
    let options = "bulk=/srv/b".parse().unwrap();
    let unavailable = Inspection {
        problem: Some(Unavailable::Absent),
        cordoned: true,
        ..Inspection::nothing_yet(&options)
    };
    let cordoned = Inspection {
        name: "next".parse().unwrap(),
        cordoned: true,
        ..healthy.clone()
    };
    vec![healthy, damaged, unavailable, cordoned]
}

/// Only the path says which pool these commands change.
#[test]
fn the_help_of_the_pools_says_what_they_do_for_a_place() {
    for name in ["init", "adopt", "list"] {
        let mut command = PoolCommand::augment_subcommands(clap::Command::new("pool"));
        let command = command.find_subcommand_mut(name).unwrap();
        let long = command.render_long_help().to_string();
        let short = command.render_help().to_string();
        let is_of_a_place = name != "list";
        assert_eq!(
            long.contains("Use the pool at this path"),
            !is_of_a_place,
            "{long}"
        );
        assert_eq!(long.contains(PLACE_POOLS_HELP), is_of_a_place, "{long}");
        assert_eq!(short.contains(PLACE_POOLS_HELP), is_of_a_place, "{short}");
        assert!(long.contains("ROOTCELLAR_POOLS"), "{long}");
    }
}

#[test]
fn the_table_is_aligned_and_says_what_is_wrong() {
    let expected = "\
NAME  STATE                  VOLUMES  SNAPSHOTS  RESERVED  FILESYSTEM  ENFORCEMENT  NODE   ID                                    PATH
fast  healthy                12       3          10 GiB    xfs         project      node1  00000000-0000-0000-0000-000000000000  /srv/fast
old   1 quarantined          12       3          10 GiB    xfs         none         node1  00000000-0000-0000-0000-000000000000  /srv/fast
bulk  unavailable, cordoned  -        -          -         -           -            -      -                                     /srv/b
next  cordoned               12       3          10 GiB    xfs         project      node1  00000000-0000-0000-0000-000000000000  /srv/fast
pool old: sizes are not enforced: it was not; do it
pool old: quarantined, not touched: volumes/x: no volume.json
pool bulk: nothing is at its path; make the directory or mount the disk";
    assert_eq!(lines(&pools()).join("\n"), expected);
    assert_eq!(lines(&[]), [NO_POOL]);
}

#[test]
fn the_json_has_stable_keys() {
    let [_, damaged, unavailable, _] = pools().try_into().unwrap();
    let expected = json!({
        "name": "old",
        "path": "/srv/fast",
        "id": "00000000-0000-0000-0000-000000000000",
        "node": "node1",
        "filesystem": "xfs",
        "enforcement": "none",
        "cordoned": false,
        "volumes": 12,
        "snapshots": 3,
        "reserved_bytes": 10_u64 << 30,
        "quarantined": [{ "path": "volumes/x", "reason": "no volume.json" }],
        "problem": null,
    });
    assert_eq!(to_json(&damaged), expected);
    let unavailable = to_json(&unavailable);
    assert_eq!(unavailable["id"], Value::Null);
    assert_eq!(unavailable["volumes"], Value::Null, "it may have some");
    assert_eq!(unavailable["cordoned"], true);
    assert_eq!(unavailable["problem"], Unavailable::Absent.to_string());
}

#[test]
fn adopt_and_retire_print_the_next_steps() {
    let id = PoolId(Uuid::nil());
    let node: NodeName = "n1".parse().unwrap();
    for (from, follows) in [("n1", false), ("n2", true)] {
        let adopted = Adopted {
            id,
            from: from.parse().unwrap(),
            volumes: 3,
        };
        let text = adopted_lines(Path::new("/srv/a"), &node, &adopted);
        assert!(text.contains("of node n1, with 3 volumes"), "{text}");
        assert_eq!(text.contains("PersistentVolumes"), follows, "{text}");
    }
    let text = retired_lines(id, &["/srv/a".into()]).join("\n");
    assert!(text.contains("/srv/a may hold another pool now"), "{text}");
}

#[test]
fn the_id_of_a_pool_or_of_a_volume_names_a_pool() {
    let id = PoolId(Uuid::from_u128(7));
    let simple = id.0.simple();
    let texts = [
        id.to_string(),
        simple.to_string(),
        format!("v1-{simple}-{simple}"),
    ];
    for text in texts {
        assert_eq!(parse_pool_id(&text).unwrap(), id, "{text}");
    }
    for text in ["", "default", "v1-7", "7"] {
        assert!(parse_pool_id(text).is_err(), "{text}");
    }
}

#[test]
fn init_prints_the_id_and_the_next_step() {
    let id = PoolId(Uuid::nil());
    let text = made(Path::new("/srv/a"), &"node1".parse().unwrap(), id);
    let first = text.lines().next();
    assert_eq!(first, Some("00000000-0000-0000-0000-000000000000"));
    assert!(text.ends_with("--pool NAME=/srv/a"), "{text}");
}

/// Proves: S4.
#[test]
fn init_reports_the_enforcement_of_sizes() {
    let unenforced = Cause {
        what: "it was not".into(),
        remedy: Some("do it".into()),
    };
    let refused = AtInit::Refused(rustix::io::Errno::INVAL);
    for (quota, found, said) in [
        (AtInit::Unchanged, Ok(None), "\nsizes are enforced"),
        (
            AtInit::OtherData,
            Ok(Some(unenforced.clone())),
            "sizes are NOT enforced: it was not; do it",
        ),
        (refused, Ok(Some(unenforced)), "NOT enforced: it was not"),
        (
            AtInit::Unchanged,
            Err(Unavailable::Absent),
            "it is unknown whether sizes are enforced: nothing is at its path",
        ),
    ] {
        let printed = enforcement_lines(quota, found);
        assert!(printed.contains(said), "{printed}");
        let is_about_quota = printed.contains("simple quota");
        assert_eq!(is_about_quota, quota != AtInit::Unchanged, "{printed}");
    }
}
