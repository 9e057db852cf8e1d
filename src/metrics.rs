//! The metrics for Prometheus.

use std::fmt;
use std::time::Duration;

use linux::quota::Enforcement;
use objects::PoolName;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::pool::PoolStatus;

/// The media type of [`Metrics::text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The bounds of the buckets, from a bind mount to the longest wait of a client.
const SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0,
];

const PREFIX: &str = "rootcellar";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcLabels {
    rpc: &'static str,
    code: &'static str,
}

type RpcTimes = Family<RpcLabels, Histogram, fn() -> Histogram>;

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    rpc: RpcTimes,
}

impl Metrics {
    /// The metrics of a driver that has had no call.
    pub(crate) fn new() -> Self {
        let rpc = RpcTimes::new_with_constructor(|| Histogram::new(SECONDS));
        let mut registry = Registry::with_prefix(PREFIX);
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of the driver", build);
        let help = "How long RPCs took, by their gRPC status code";
        registry.register_with_unit("rpc", help, Unit::Seconds, rpc.clone());
        Self { registry, rpc }
    }

    pub(crate) fn observe(&self, rpc: &'static str, code: &'static str, elapsed: Duration) {
        self.rpc
            .get_or_create(&RpcLabels { rpc, code })
            .observe(elapsed.as_secs_f64());
    }

    /// All metrics as text, with the status of each pool.
    pub(crate) fn text(&self, pools: Vec<(PoolName, PoolStatus)>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Pools(pools)));
        let mut text = String::new();
        text::encode_registry(&mut text, &self.registry)?;
        text::encode_registry(&mut text, &registry)?;
        text::encode_eof(&mut text)?;
        Ok(text)
    }
}

/// The status of each pool at one scrape.
#[derive(Debug)]
struct Pools(Vec<(PoolName, PoolStatus)>);

/// A metric of a pool.
struct Metric {
    /// Its name, to which [`PREFIX`] and for a counter `_total` are added.
    name: &'static str,
    kind: MetricType,
    value: fn(&PoolStatus) -> u64,
    help: &'static str,
}

const fn gauge(name: &'static str, value: fn(&PoolStatus) -> u64, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Gauge,
        value,
        help,
    }
}

const fn counter(name: &'static str, value: fn(&PoolStatus) -> u64, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Counter,
        value,
        help,
    }
}

#[rustfmt::skip]
const METRICS: &[Metric] = &[
    gauge("pool_healthy", |pool| (pool.unavailable.is_none() && pool.silence.is_none()).into(),
        "Whether the pool can be used."),
    gauge("pool_answering", |pool| pool.silence.is_none().into(),
        "Whether the pool's disk answers; 0 after an operation on it has not returned for 30 seconds."),
    gauge("pool_cordoned", |pool| pool.cordoned.into(),
        "Whether the pool gets no new volumes, snapshots and copies."),
    gauge("pool_total_bytes", |pool| pool.total.0,
        "The size of the pool's filesystem; 0 while the pool is unavailable or its disk does not answer."),
    gauge("pool_available_bytes", |pool| pool.available.0,
        "The largest size of the next volume; 0 while the pool is unavailable or cordoned, or its disk does not answer."),
    gauge("pool_reserved_bytes", |pool| pool.reserved.0,
        "The bytes reserved for the pool's volumes and snapshots."),
    gauge("pool_volumes", |pool| pool.volumes as u64,
        "How many volumes the pool has."),
    gauge("pool_snapshots", |pool| pool.snapshots as u64,
        "How many snapshots the pool has."),
    gauge("pool_copies", |pool| pool.copies as u64,
        "How many snapshots, restores and clones are being copied file by file."),
    gauge("pool_enforces", |pool| (pool.enforcement != Enforcement::None).into(),
        "Whether the kernel enforces the sizes of the pool's volumes; 0 while the pool is unavailable."),
    gauge("pool_volumes_not_enforced", |pool| pool.not_enforced as u64,
        "How many volumes have a size that is not enforced."),
    gauge("pool_quarantined", |pool| pool.quarantined as u64,
        "How many records and directories are quarantined."),
    gauge("pool_trash", |pool| pool.trash as u64,
        "How many deleted volumes and snapshots wait to be reclaimed."),
    gauge("pool_trash_resisting", |pool| pool.resisting as u64,
        "How many of those could not be reclaimed at the last attempt."),
    counter("reclaimed_entries", |pool| pool.reclaimed,
        "How many files and directories were reclaimed since start."),
    counter("pool_copied_entries", |pool| pool.copied_entries,
        "How many files and directories were copied since start."),
    counter("pool_copied_bytes", |pool| pool.copied_bytes.0,
        "How many bytes those occupied at their source."),
    counter("pool_limits_restored", |pool| pool.limits_restored,
        "How many limits differed from their records and were restored since start."),
];

impl Collector for Pools {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for Metric {
            name,
            kind,
            value,
            help,
        } in METRICS
        {
            let mut metric = encoder.encode_descriptor(name, help, None, *kind)?;
            for (name, pool) in &self.0 {
                let mut labels = vec![("pool", name.in_classes())];
                labels.extend(name.member().map(|member| ("member", member)));
                let mut family = metric.encode_family(&labels)?;
                match kind {
                    Counter => {
                        family.encode_counter::<NoLabelSet, _, u64>(&value(pool), None)?;
                    }
                    _ => family.encode_gauge(&value(pool))?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::pool::Unavailable;
    use objects::Bytes;

    const OPERATIONS: &str = include_str!("../docs/operations.md");

    fn pool(
        name: &str,
        unavailable: Option<Unavailable>,
        silence: Option<Duration>,
    ) -> (PoolName, PoolStatus) {
        let status = PoolStatus {
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
            limits_restored: 5,
            quarantined: 1,
            trash: 2,
            resisting: 1,
            copies: 1,
            copied_entries: 7,
            copied_bytes: Bytes(4096),
            reclaimed: 77,
        };
        (name.parse().unwrap(), status)
    }

    /// The metrics that operations.md names; `…` stands for `rootcellar_pool`.
    fn documented() -> BTreeSet<String> {
        let quoted = OPERATIONS.split('`').skip(1).step_by(2);
        let names = quoted.filter_map(|quoted| {
            let name = quoted.strip_prefix("rootcellar_").map(str::to_owned);
            name.or_else(|| Some(format!("pool{}", quoted.strip_prefix('…')?)))
        });
        names.collect()
    }

    #[test]
    fn operations_md_has_every_metric() {
        let metrics = Metrics::new();
        metrics.observe("CreateVolume", "OK", Duration::ZERO);
        let text = metrics.text(vec![pool("fast", None, None)]).unwrap();
        let families = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE rootcellar_"));
        let names = families.map(|family| match family.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, "info") => format!("{name}_info"),
            (name, _) => name.to_owned(),
        });
        assert_eq!(documented(), names.collect());
    }

    #[test]
    fn every_figure_of_a_pool_has_its_metric() {
        let silent = pool("silent", None, Some(Duration::from_secs(31)));
        let unavailable = pool("slow", Some(Unavailable::ReadOnly), None);
        let pools = vec![pool("fast", None, None), unavailable, silent];
        let metrics = Metrics::new();
        metrics.observe("CreateVolume", "OK", Duration::from_millis(2));
        let text = metrics.text(pools).unwrap();
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
            "# TYPE rootcellar_reclaimed_entries counter",
            "rootcellar_reclaimed_entries_total{pool=\"slow\"} 77",
        ] {
            assert!(
                text.lines().any(|got| got == line),
                "{line:?} is not in\n{text}"
            );
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
