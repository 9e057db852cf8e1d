//! The steps of the demo, in their order.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use objects::Bytes;
use rootcellar::csi::volume_usage::Unit;
use rootcellar::csi::{
    DeleteVolumeRequest, GetCapacityRequest, GetPluginInfoRequest, ListVolumesRequest,
    NodeGetInfoRequest, NodeGetVolumeStatsRequest, NodeUnpublishVolumeRequest, ProbeRequest,
};
use tonic::Code;

use super::Demo;
use super::client::{Claim, call, refused};
use super::report::Failure;
use super::server::Server;

/// The time for the server to become ready, and for a deleted volume's space to become free.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

const FILE: &str = "ledger.txt";
const TEXT: &str = "three apples, paid\n";

/// Runs the complete story and removes all that it created.
pub(super) async fn tell(demo: &mut Demo) -> Result<(), Failure> {
    let start = Instant::now();
    let kubelet = demo.place.kubelet();
    let mut orders = Claim::new("orders", 64 << 20, &kubelet);
    let mut catalog = Claim::new("catalog", 32 << 20, &kubelet);

    demo.report.title("the driver starts")?;
    demo.introduce().await?;
    let before = demo.capacity("can be promised").await?;

    demo.report.title("two claims get their volumes")?;
    demo.create(&mut orders).await?;
    demo.create(&mut catalog).await?;
    demo.capacity_less(before, orders.size + catalog.size)
        .await?;

    demo.report.title("a pod writes")?;
    demo.publish(&orders, false).await?;
    demo.write(&orders)?;
    demo.stats(&orders).await?;

    demo.report.title("another pod may only read")?;
    demo.publish(&catalog, true).await?;
    demo.write_refused(&catalog)?;

    demo.report
        .title("the driver restarts, the pods do not notice")?;
    demo.restart(&orders).await?;
    demo.count_volumes(2).await?;
    demo.read(&orders, "after the restart")?;

    demo.report.title("the claims are deleted")?;
    demo.delete_refused(&orders).await?;
    for claim in [&orders, &catalog] {
        demo.unpublish(claim).await?;
        demo.delete(claim).await?;
    }
    demo.reclaimed().await?;
    demo.count_volumes(0).await?;
    demo.capacity("can be promised again").await?;

    demo.report.title("the end")?;
    demo.stop().await?;
    demo.clean_up()?;
    demo.report.closing(start.elapsed())
}

impl Demo {
    async fn introduce(&mut self) -> Result<(), Failure> {
        let took = self.ready().await?;
        self.report
            .step("Probe", &format!("ready, pid {}", self.server.pid()), took)?;
        let mut identity = self.clients.identity.clone();
        let (info, took) = call(
            "GetPluginInfo",
            identity.get_plugin_info(GetPluginInfoRequest {}),
        )
        .await?;
        let outcome = format!("{} {}", info.name, info.vendor_version);
        self.report.step("GetPluginInfo", &outcome, took)?;
        let mut node = self.clients.node.clone();
        let (info, took) = call("NodeGetInfo", node.node_get_info(NodeGetInfoRequest {})).await?;
        let segments = info.accessible_topology.unwrap_or_default().segments;
        let topology: Vec<String> = segments.iter().map(|(k, v)| format!("{k}={v}")).collect();
        self.report.step("NodeGetInfo", &topology.join(", "), took)
    }

    /// Waits until the server is ready; fails immediately if it has ended instead.
    async fn ready(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut identity = self.clients.identity.clone();
        while start.elapsed() < TIMEOUT {
            if let Some(status) = self.server.ended()? {
                return Err(Failure::new(
                    "Probe",
                    "a server that runs",
                    status.to_string(),
                ));
            }
            // A socket that does not exist yet gives an error.
            if let Ok(answer) = identity.probe(ProbeRequest {}).await
                && answer.get_ref().ready == Some(true)
            {
                return Ok(start.elapsed());
            }
            tokio::time::sleep(POLL).await;
        }
        let expected = format!("ready within {} s", TIMEOUT.as_secs());
        Err(Failure::new("Probe", expected, "not ready"))
    }

    async fn get_capacity(&self) -> Result<(i64, Duration), Failure> {
        let mut controller = self.clients.controller.clone();
        let request = GetCapacityRequest::default();
        let (answer, took) = call("GetCapacity", controller.get_capacity(request)).await?;
        Ok((answer.available_capacity, took))
    }

    async fn capacity(&mut self, outcome: &str) -> Result<i64, Failure> {
        let (available, took) = self.get_capacity().await?;
        let outcome = format!("{} {outcome}", bytes(available));
        self.report.step("GetCapacity", &outcome, took)?;
        Ok(available)
    }

    /// Shows that the capacity is at least `promised` bytes below `before`.
    async fn capacity_less(&mut self, before: i64, promised: i64) -> Result<(), Failure> {
        let (available, took) = self.get_capacity().await?;
        if available > before - promised {
            let expected = format!("at most {} bytes", before - promised);
            return Err(Failure::new(
                "GetCapacity",
                expected,
                format!("{available} bytes"),
            ));
        }
        let outcome = format!(
            "{}, {} less than before",
            bytes(available),
            bytes(before - available)
        );
        self.report.step("GetCapacity", &outcome, took)
    }

    async fn create(&mut self, claim: &mut Claim) -> Result<(), Failure> {
        let mut controller = self.clients.controller.clone();
        let request = controller.create_volume(claim.create_request());
        let (answer, took) = call("CreateVolume", request).await?;
        let volume = answer.volume.unwrap_or_default();
        if volume.capacity_bytes != claim.size {
            let got = bytes(volume.capacity_bytes);
            return Err(Failure::new("CreateVolume", bytes(claim.size), got));
        }
        claim.id = volume.volume_id;
        let outcome = format!(
            "{} for claim {}/{}",
            bytes(claim.size),
            Claim::NAMESPACE,
            claim.name
        );
        self.report.step("CreateVolume", &outcome, took)?;
        let directory = self.directory_of(claim)?;
        self.report.note(&directory)
    }

    /// Returns the directory of a claim's volume below the demo's. The name is for people, and ends
    /// in the same hash as the id.
    fn directory_of(&self, claim: &Claim) -> Result<String, Failure> {
        let names = self.names("pool/volumes")?;
        let hash = claim.id.rsplit('-').next().unwrap_or_default();
        match names.iter().find(|name| name.ends_with(hash)) {
            Some(name) => Ok(format!("pool/volumes/{name}")),
            None => Err(Failure::new(
                "look",
                format!("a directory of {}", claim.id),
                "none",
            )),
        }
    }

    fn names(&self, below: &str) -> Result<Vec<String>, Failure> {
        self.place
            .names(below)
            .map_err(|error| Failure::new("look", below, error.to_string()))
    }

    async fn publish(&mut self, claim: &Claim, readonly: bool) -> Result<(), Failure> {
        let parent = claim.target.parent().unwrap_or(&claim.target);
        fs::create_dir_all(parent)
            .map_err(|error| Failure::new("mkdir", parent.to_string_lossy(), error.to_string()))?;
        let mut node = self.clients.node.clone();
        let request = node.node_publish_volume(claim.publish_request(readonly));
        let (_, took) = call("NodePublishVolume", request).await?;
        let how = if readonly { "read-only" } else { "read-write" };
        self.report.step(
            "NodePublishVolume",
            &format!("{} mounted {how}", claim.name),
            took,
        )
    }

    fn write(&mut self, claim: &Claim) -> Result<(), Failure> {
        let start = Instant::now();
        write_file(&claim.target.join(FILE))
            .map_err(|error| Failure::new("write", "success", error.to_string()))?;
        let outcome = format!("{FILE}, {} bytes and fsync", TEXT.len());
        self.report.step("write", &outcome, start.elapsed())?;
        let on_disk = self.directory_of(claim)?;
        let path = self.place.root().join(&on_disk).join("data").join(FILE);
        let text = fs::read_to_string(&path)
            .map_err(|error| Failure::new("look", path.to_string_lossy(), error.to_string()))?;
        if text != TEXT {
            return Err(Failure::new("look", TEXT, text));
        }
        self.report
            .note("on the node's disk it is data/ledger.txt in the directory above")
    }

    fn write_refused(&mut self, claim: &Claim) -> Result<(), Failure> {
        let start = Instant::now();
        match write_file(&claim.target.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                let outcome = format!("refused as it should be: {error}");
                self.report.step("write", &outcome, start.elapsed())
            }
            Err(error) => Err(Failure::new("write", "EROFS", error.to_string())),
            Ok(()) => Err(Failure::new("write", "EROFS", "success")),
        }
    }

    fn read(&mut self, claim: &Claim, when: &str) -> Result<(), Failure> {
        let start = Instant::now();
        let text = fs::read_to_string(claim.target.join(FILE))
            .map_err(|error| Failure::new("read", TEXT, error.to_string()))?;
        if text != TEXT {
            return Err(Failure::new("read", TEXT, text));
        }
        let outcome = format!("{FILE} {when}: {:?}", text.trim_end());
        self.report.step("read", &outcome, start.elapsed())
    }

    async fn stats(&mut self, claim: &Claim) -> Result<(), Failure> {
        let mut node = self.clients.node.clone();
        let request = NodeGetVolumeStatsRequest {
            volume_id: claim.id.clone(),
            volume_path: target(claim),
            ..Default::default()
        };
        let (answer, took) =
            call("NodeGetVolumeStats", node.node_get_volume_stats(request)).await?;
        let available = |unit| {
            answer
                .usage
                .iter()
                .find(|usage| usage.unit() == unit)
                .map(|usage| usage.available)
        };
        let (Some(free), Some(inodes)) = (available(Unit::Bytes), available(Unit::Inodes)) else {
            return Err(Failure::new(
                "NodeGetVolumeStats",
                "bytes and inodes",
                "one missing",
            ));
        };
        let outcome = format!("{} and {inodes} inodes available", bytes(free));
        self.report.step("NodeGetVolumeStats", &outcome, took)
    }

    async fn restart(&mut self, claim: &Claim) -> Result<(), Failure> {
        self.stop().await?;
        self.read(claim, "while no driver runs")?;
        self.server = Server::start(&self.binary, &self.place)?;
        let took = self.ready().await?;
        self.report.step(
            "Probe",
            &format!("ready again, pid {}", self.server.pid()),
            took,
        )
    }

    async fn stop(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        let status = self.server.stop().await?;
        if !status.success() {
            return Err(Failure::new(
                "SIGTERM",
                "exit status: 0",
                status.to_string(),
            ));
        }
        if !self.names("run")?.is_empty() {
            return Err(Failure::new("SIGTERM", "no socket left", "a socket"));
        }
        self.report.step(
            "SIGTERM",
            "stopped, and the socket is gone",
            start.elapsed(),
        )
    }

    async fn count_volumes(&mut self, expected: usize) -> Result<(), Failure> {
        let mut controller = self.clients.controller.clone();
        let request = controller.list_volumes(ListVolumesRequest::default());
        let (answer, took) = call("ListVolumes", request).await?;
        let found = answer.entries.len();
        if found != expected {
            let expected = format!("{expected} volumes");
            return Err(Failure::new(
                "ListVolumes",
                expected,
                format!("{found} volumes"),
            ));
        }
        self.report
            .step("ListVolumes", &format!("{found} volumes"), took)
    }

    async fn delete_refused(&mut self, claim: &Claim) -> Result<(), Failure> {
        let mut controller = self.clients.controller.clone();
        let request = controller.delete_volume(delete_request(claim));
        let (message, took) = refused("DeleteVolume", Code::FailedPrecondition, request).await?;
        let outcome = format!(
            "{} refused as it should be: FAILED_PRECONDITION",
            claim.name
        );
        self.report.step("DeleteVolume", &outcome, took)?;
        let root = format!("{}/", self.place.root().display());
        self.report
            .note(&message.replace(&root, "").replace(&claim.id, "v1-..."))
    }

    async fn unpublish(&mut self, claim: &Claim) -> Result<(), Failure> {
        let mut node = self.clients.node.clone();
        let request = NodeUnpublishVolumeRequest {
            volume_id: claim.id.clone(),
            target_path: target(claim),
        };
        let (_, took) = call("NodeUnpublishVolume", node.node_unpublish_volume(request)).await?;
        if claim.target.symlink_metadata().is_ok() {
            return Err(Failure::new(
                "NodeUnpublishVolume",
                "no target left",
                target(claim),
            ));
        }
        self.report.step(
            "NodeUnpublishVolume",
            &format!("{} unmounted", claim.name),
            took,
        )
    }

    async fn delete(&mut self, claim: &Claim) -> Result<(), Failure> {
        let mut controller = self.clients.controller.clone();
        let request = controller.delete_volume(delete_request(claim));
        let (_, took) = call("DeleteVolume", request).await?;
        self.report
            .step("DeleteVolume", &format!("{} deleted", claim.name), took)
    }

    /// Waits until all deleted volumes are reclaimed in the background.
    async fn reclaimed(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            let trash = self.names("pool/.rootcellar/trash")?;
            if trash.is_empty() {
                break;
            }
            if start.elapsed() > TIMEOUT {
                let expected = format!("an empty trash within {} s", TIMEOUT.as_secs());
                return Err(Failure::new("reclaim", expected, trash.join(", ")));
            }
            tokio::time::sleep(POLL).await;
        }
        for below in ["pool/volumes", "pool/snapshots", "pool/.rootcellar/staging"] {
            let left = self.names(below)?;
            if !left.is_empty() {
                return Err(Failure::new(
                    "look",
                    format!("nothing in {below}"),
                    left.join(", "),
                ));
            }
        }
        self.report
            .step("reclaim", "the trash is empty", start.elapsed())
    }

    /// Shows that no volumes are left in the pool, and removes it.
    fn clean_up(&mut self) -> Result<(), Failure> {
        for below in [
            "pool",
            "pool/volumes",
            "pool/snapshots",
            "pool/.rootcellar/trash",
        ] {
            let names = self.names(below)?;
            self.report.listing(below, &names)?;
        }
        let start = Instant::now();
        self.place
            .remove()
            .map_err(|error| Failure::new("remove", "an empty tree", error.to_string()))?;
        self.report
            .step("remove", "everything the demo made", start.elapsed())
    }
}

fn delete_request(claim: &Claim) -> DeleteVolumeRequest {
    DeleteVolumeRequest {
        volume_id: claim.id.clone(),
        ..Default::default()
    }
}

fn target(claim: &Claim) -> String {
    claim.target.to_string_lossy().into_owned()
}

fn write_file(path: &PathBuf) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(TEXT.as_bytes())?;
    file.sync_all()
}

fn bytes(bytes: i64) -> String {
    match u64::try_from(bytes) {
        Ok(bytes) => Bytes(bytes).rounded(),
        Err(_) => format!("{bytes} B"),
    }
}
