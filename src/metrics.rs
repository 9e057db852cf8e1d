//! The metrics for Prometheus.

use std::fmt;
use std::time::Duration;

use linux::io::Statistics;
use linux::quota::Enforcement;
use objects::{NodeName, PoolName};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric as _, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::volume::ImageStatistics;
use pool::PoolView;

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
    node: NodeName,
    registry: Registry,
    rpc: RpcTimes,
}

impl Metrics {
    /// The metrics of a driver that has had no call.
    pub(crate) fn new(node: NodeName) -> Self {
        let rpc = RpcTimes::new_with_constructor(|| Histogram::new(SECONDS));
        let mut registry = Registry::with_prefix(PREFIX);
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of the driver", build);
        let help = "How long RPCs took, by their gRPC status code";
        registry.register_with_unit("rpc", help, Unit::Seconds, rpc.clone());
        Self {
            node,
            registry,
            rpc,
        }
    }

    pub(crate) fn observe(&self, rpc: &'static str, code: &'static str, elapsed: Duration) {
        self.rpc
            .get_or_create(&RpcLabels { rpc, code })
            .observe(elapsed.as_secs_f64());
    }

    /// All metrics as text.
    pub(crate) fn text(&self, scrape: Scrape) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        let node = self.node.to_string();
        registry.register_collector(Box::new(Scraped { node, scrape }));
        let mut text = String::new();
        text::encode_registry(&mut text, &self.registry)?;
        text::encode_registry(&mut text, &registry)?;
        text::encode_eof(&mut text)?;
        Ok(text)
    }
}

/// The state of the driver at one scrape.
#[derive(Debug)]
pub(crate) struct Scrape {
    pub(crate) pools: Vec<(PoolName, PoolView)>,
    pub(crate) images: Vec<ImageStatistics>,
    /// Whether kubelet can reach the registrar; `None`: kubelet has no directory for its socket.
    pub(crate) registered: Option<bool>,
}

#[derive(Debug)]
struct Scraped {
    node: String,
    scrape: Scrape,
}

/// A metric of a pool.
struct Metric {
    /// Its name, to which [`PREFIX`] and for a counter `_total` are added.
    name: &'static str,
    kind: MetricType,
    /// `None`: there is no series.
    value: Value,
    help: &'static str,
}

type Value = fn(&PoolView) -> Option<u64>;

const fn gauge(name: &'static str, value: Value, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Gauge,
        value,
        help,
    }
}

const fn counter(name: &'static str, value: Value, help: &'static str) -> Metric {
    Metric {
        name,
        kind: Counter,
        value,
        help,
    }
}

#[rustfmt::skip]
const METRICS: &[Metric] = &[
    gauge("pool_healthy", |pool| Some(u64::from(pool.why_unusable().is_none())),
        "Whether the pool can be used."),
    gauge("pool_answering", |pool| Some(u64::from(pool.silence.is_none())),
        "Whether the pool's disk answers; 0 after an operation on it has not returned for 30 seconds."),
    gauge("pool_cordoned", |pool| Some(u64::from(pool.cordoned)),
        "Whether the pool gets no new volumes, snapshots and copies."),
    gauge("pool_total_bytes", |pool| Some(pool.total.0),
        "The size of the pool's filesystem; 0 while the pool is unavailable or its disk does not answer."),
    gauge("pool_available_bytes", |pool| Some(pool.available.0),
        "The largest size of the next volume; 0 while the pool is unavailable or cordoned, or its disk does not answer."),
    gauge("pool_reserved_bytes", |pool| Some(pool.reserved.0),
        "The bytes reserved for the pool's volumes and snapshots."),
    gauge("pool_volumes", |pool| Some(pool.volumes as u64),
        "How many volumes the pool has."),
    gauge("pool_snapshots", |pool| Some(pool.snapshots as u64),
        "How many snapshots the pool has."),
    gauge("pool_copies", |pool| Some(pool.copies as u64),
        "How many snapshots, restores and clones are being copied file by file."),
    gauge("pool_copies_waiting", |pool| Some(pool.copies_waiting as u64),
        "How many snapshots, restores and clones wait for their turn to be copied file by file."),
    gauge("pool_enforces", |pool| Some(u64::from(pool.enforcement != Enforcement::None)),
        "Whether the kernel enforces the sizes of the pool's volumes; 0 while the pool is unavailable."),
    gauge("pool_volumes_not_enforced", |pool| Some(pool.not_enforced as u64),
        "How many volumes have a size that is not enforced."),
    gauge("pool_quarantined", |pool| Some(pool.quarantined as u64),
        "How many records and directories are quarantined."),
    gauge("pool_trash", |pool| Some(pool.trash as u64),
        "How many deleted volumes and snapshots wait to be reclaimed."),
    gauge("pool_trash_resisting", |pool| Some(pool.resisting as u64),
        "How many deleted volumes and snapshots could not be reclaimed at the last attempt."),
    gauge("pool_kept", |pool| Some(pool.kept as u64),
        "How many deleted volumes and snapshots can come back."),
    gauge("pool_kept_bytes", |pool| Some(pool.kept_space.0),
        "How many of the available bytes are those of deleted volumes and snapshots that can come back."),
    counter("pool_kept_ended_early", |pool| Some(pool.purged_early),
        "How many kept volumes and snapshots were deleted for good since start, because their space was needed."),
    counter("reclaimed_entries", |pool| Some(pool.reclaimed),
        "How many files and directories were reclaimed since start."),
    counter("pool_copied_entries", |pool| Some(pool.copied_entries),
        "How many files and directories were copied since start."),
    counter("pool_copied_bytes", |pool| Some(pool.copied_bytes.0),
        "How many bytes the copied files and directories occupied at their source."),
    counter("pool_limits_restored", |pool| Some(pool.limits_restored),
        "How many limits differed from their records and were restored since start."),
    counter("pool_io_errors", |pool| pool.backing.errors,
        "How many errors the kernel has counted on the pool's filesystem (ext4) or its devices (btrfs). XFS has no such count."),
];

/// A counter of a published image.
struct ImageMetric {
    /// As in [`Metric`].
    name: &'static str,
    value: ImageValue,
    help: &'static str,
}

enum ImageValue {
    Count(fn(&Statistics) -> u64),
    Time(fn(&Statistics) -> Duration),
}

#[rustfmt::skip]
const IMAGE_METRICS: &[ImageMetric] = &[
    ImageMetric { name: "volume_read_bytes", value: ImageValue::Count(|done| done.read.bytes),
        help: "The bytes read from the device of a published image or block volume. `volume` is the end of its id." },
    ImageMetric { name: "volume_written_bytes", value: ImageValue::Count(|done| done.written.bytes),
        help: "The bytes written to the device of a published image or block volume." },
    ImageMetric { name: "volume_reads", value: ImageValue::Count(|done| done.read.operations),
        help: "How many times the device was read." },
    ImageMetric { name: "volume_writes", value: ImageValue::Count(|done| done.written.operations),
        help: "How many times the device was written." },
    ImageMetric { name: "volume_read_seconds", value: ImageValue::Time(|done| done.read.time),
        help: "How long reads took in the device, all together, without the time that they waited for a limit." },
    ImageMetric { name: "volume_write_seconds", value: ImageValue::Time(|done| done.written.time),
        help: "How long writes took in the device, all together, without the time that they waited for a limit." },
];

/// Encodes the counters of images. A volume may have several devices, each with series of its own, because a sum would
/// become smaller when a device is detached.
fn encode_images(encoder: &mut DescriptorEncoder<'_>, images: &[ImageStatistics]) -> fmt::Result {
    for ImageMetric { name, value, help } in IMAGE_METRICS {
        let mut metric = encoder.encode_descriptor(name, help, None, Counter)?;
        for image in images {
            let (major, minor) = image.device;
            let labels = [
                ("volume", image.volume.to_string()),
                ("device", format!("{major}:{minor}")),
            ];
            let mut family = metric.encode_family(&labels)?;
            match value {
                ImageValue::Count(count) => {
                    family.encode_counter::<NoLabelSet, _, u64>(&count(&image.done), None)?;
                }
                ImageValue::Time(time) => {
                    let seconds = time(&image.done).as_secs_f64();
                    family.encode_counter::<NoLabelSet, _, u64>(&seconds, None)?;
                }
            }
        }
    }
    Ok(())
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Scrape {
            pools,
            images,
            registered,
        } = &self.scrape;
        if let Some(registered) = registered {
            let help = "Whether the registrar's socket for kubelet accepts connections.";
            let metric = encoder.encode_descriptor("registered", help, None, Gauge)?;
            ConstGauge::new(u64::from(*registered)).encode(metric)?;
        }
        let help = "1, with the node, the filesystem and the block devices of the pool; without devices while it is unavailable.";
        let mut metric = encoder.encode_descriptor("pool_info", help, None, Gauge)?;
        for (name, pool) in pools {
            let filesystem = pool.backing.filesystem.map(|it| it.to_string());
            let device = pool.devices().join(",");
            let filesystem = filesystem.unwrap_or_default();
            let place = [
                ("node", &*self.node),
                ("device", &*device),
                ("filesystem", &*filesystem),
            ];
            let labels: Vec<_> = name.labels().chain(place).collect();
            metric.encode_family(&labels)?.encode_gauge(&1_u64)?;
        }
        for Metric {
            name,
            kind,
            value,
            help,
        } in METRICS
        {
            let mut metric = encoder.encode_descriptor(name, help, None, *kind)?;
            for (name, pool) in pools {
                let Some(value) = value(pool) else { continue };
                let labels: Vec<_> = name.labels().collect();
                let mut family = metric.encode_family(&labels)?;
                match kind {
                    Counter => {
                        family.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
                    }
                    _ => family.encode_gauge(&value)?,
                }
            }
        }
        encode_images(&mut encoder, images)
    }
}

#[cfg(test)]
mod tests;
