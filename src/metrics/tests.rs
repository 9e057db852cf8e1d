use super::*;
use linux::filesystem::Filesystem;
use linux::io::Transfers;
use objects::{Bytes, NameHash};
use pool::{Backing, Unavailable};

fn pool(
    name: &str,
    unavailable: Option<Unavailable>,
    silence: Option<Duration>,
) -> (PoolName, PoolView) {
    let status = PoolView {
        unavailable,
        silence,
        cordoned: true,
        enforcement: Enforcement::Project,
        total: Bytes(1000),
        available: Bytes(600),
        reserved: Bytes(300),
        volumes: 3,
        snapshots: 1,
        not_enforced: 2,
        backing: Backing {
            filesystem: Some(Filesystem::Ext4),
            devices: vec!["sda1".into(), "sdb1".into()],
            errors: (name != "slow").then_some(9),
        },
        limits_restored: 5,
        quarantined: 1,
        trash: 2,
        kept: 6,
        kept_space: Bytes(200),
        purged_early: 4,
        resisting: 1,
        copies: 4,
        copies_waiting: 3,
        copied_entries: 7,
        copied_bytes: Bytes(4096),
        reclaimed: 77,
    };
    let name = match name.split_once('/') {
        Some((set, member)) => set.parse::<PoolName>().unwrap().of_member(member).unwrap(),
        None => name.parse().unwrap(),
    };
    (name, status)
}

fn scrape(pools: Vec<(PoolName, PoolView)>) -> String {
    let metrics = Metrics::new("n1".parse().unwrap());
    metrics.observe("CreateVolume", "OK", Duration::from_millis(2));
    let registered = Some(true);
    let image = ImageStatistics {
        volume: NameHash::parse("1234567890abcdef1234567890abcdef").unwrap(),
        device: (7, 2048),
        done: Statistics {
            read: transfers(1),
            written: transfers(2),
        },
    };
    let scrape = Scrape {
        pools,
        images: vec![image],
        registered,
    };
    metrics.text(scrape).unwrap()
}

fn transfers(factor: u64) -> Transfers {
    Transfers {
        operations: 3 * factor,
        bytes: 4096 * factor,
        time: Duration::from_millis(1500 * factor),
    }
}

#[test]
fn the_reference_has_every_metric() {
    let text = scrape(vec![
        pool("fast", None, None),
        pool("disks/disk1", None, None),
    ]);
    page::reference::check(&text, "driver").unwrap();
}

/// Proves: IO7.
#[test]
fn every_figure_of_an_image_has_its_metric() {
    let text = scrape(Vec::new());
    let labels = "{volume=\"1234567890abcdef1234567890abcdef\",device=\"7:2048\"}";
    for (name, value) in [
        ("read_bytes", "4096"),
        ("written_bytes", "8192"),
        ("reads", "3"),
        ("writes", "6"),
        ("read_seconds", "1.5"),
        ("write_seconds", "3.0"),
    ] {
        let line = format!("rootcellar_volume_{name}_total{labels} {value}");
        assert!(
            text.lines().any(|got| got == line),
            "{line:?} is not in\n{text}"
        );
    }
}

#[test]
fn every_figure_of_a_pool_has_its_metric() {
    let silent = pool("silent", None, Some(Duration::from_secs(31)));
    let unavailable = pool("slow", Some(Unavailable::ReadOnly), None);
    let pools = vec![pool("fast", None, None), unavailable, silent];
    let text = scrape(pools);
    for line in [
        concat!(
            "rootcellar_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        ),
        "# TYPE rootcellar_rpc_seconds histogram",
        "rootcellar_rpc_seconds_count{rpc=\"CreateVolume\",code=\"OK\"} 1",
        "rootcellar_rpc_seconds_bucket{le=\"0.001\",rpc=\"CreateVolume\",code=\"OK\"} 0",
        "rootcellar_rpc_seconds_bucket{le=\"0.0025\",rpc=\"CreateVolume\",code=\"OK\"} 1",
        "# TYPE rootcellar_pool_healthy gauge",
        "rootcellar_pool_healthy{pool=\"fast\"} 1",
        "rootcellar_pool_healthy{pool=\"slow\"} 0",
        "rootcellar_pool_healthy{pool=\"silent\"} 0",
        "rootcellar_pool_answering{pool=\"slow\"} 1",
        "rootcellar_pool_answering{pool=\"silent\"} 0",
        "rootcellar_pool_cordoned{pool=\"fast\"} 1",
        "rootcellar_pool_total_bytes{pool=\"fast\"} 1000",
        "rootcellar_pool_available_bytes{pool=\"fast\"} 600",
        "rootcellar_pool_reserved_bytes{pool=\"fast\"} 300",
        "rootcellar_pool_volumes{pool=\"fast\"} 3",
        "rootcellar_pool_enforces{pool=\"fast\"} 1",
        "rootcellar_pool_volumes_not_enforced{pool=\"fast\"} 2",
        "rootcellar_pool_limits_restored_total{pool=\"fast\"} 5",
        "rootcellar_pool_quarantined{pool=\"fast\"} 1",
        "rootcellar_pool_trash{pool=\"fast\"} 2",
        "rootcellar_pool_trash_resisting{pool=\"fast\"} 1",
        "rootcellar_pool_kept{pool=\"fast\"} 6",
        "rootcellar_pool_kept_bytes{pool=\"fast\"} 200",
        "rootcellar_pool_kept_ended_early_total{pool=\"fast\"} 4",
        "rootcellar_pool_info{pool=\"fast\",node=\"n1\",device=\"sda1,sdb1\",filesystem=\"ext4\"} 1",
        "rootcellar_pool_info{pool=\"slow\",node=\"n1\",device=\"\",filesystem=\"ext4\"} 1",
        "rootcellar_pool_io_errors_total{pool=\"fast\"} 9",
        "rootcellar_registered 1",
        "# TYPE rootcellar_reclaimed_entries counter",
        "rootcellar_reclaimed_entries_total{pool=\"slow\"} 77",
    ] {
        assert!(
            text.lines().any(|got| got == line),
            "{line:?} is not in\n{text}"
        );
    }
    assert!(!text.contains("io_errors_total{pool=\"slow\"}"), "{text}");
    assert!(text.ends_with("# EOF\n"));
}
