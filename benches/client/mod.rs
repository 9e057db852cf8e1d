//! The container orchestrator's side of a CSI driver's socket.

pub(crate) mod process;
pub(crate) mod steady;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rootcellar::csi::controller_client::ControllerClient;
use rootcellar::csi::identity_client::IdentityClient;
use rootcellar::csi::node_client::NodeClient;
use rootcellar::csi::volume_capability::access_mode::Mode;
use rootcellar::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use rootcellar::csi::{self, controller_service_capability as controller_can};
use rootcellar::csi::{VolumeCapability, node_service_capability as node_can};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

use super::common::targets;
use super::common::{Phase, Times};

/// Too large for btrfs to store it inline, so that a copy references a block.
const BLOCK: [u8; 4096] = [b'x'; 4096];

/// The requested properties of the volumes, and the directory of their targets.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) target_dir: PathBuf,
    pub(crate) size: i64,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) block: bool,
    pub(crate) timeout: Duration,
}

/// One call of the specification, on one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Probe,
    Capacity,
    Create,
    Snapshot,
    Stage,
    Publish,
    Stats,
    Unpublish,
    Unstage,
    Delete,
    /// Not a call of the specification: a pod mounts the volume, writes into it and ends.
    Pod,
}

impl Call {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Capacity => "capacity",
            Self::Create => "create",
            Self::Snapshot => "snapshot",
            Self::Stage => "stage",
            Self::Publish => "publish",
            Self::Stats => "stats",
            Self::Unpublish => "unpublish",
            Self::Unstage => "unstage",
            Self::Delete => "delete",
            Self::Pod => "pod",
        }
    }
}

/// A volume and its paths in the kubelet's directory.
#[derive(Debug)]
pub(crate) struct Volume {
    name: String,
    target: PathBuf,
    staging: PathBuf,
    made: OnceLock<csi::Volume>,
}

impl Volume {
    pub(crate) fn is_made(&self) -> bool {
        self.made.get().is_some()
    }

    /// Returns the path at which it is mounted.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Creates the directories that the kubelet creates before its calls.
    pub(crate) fn make_places(&self) -> std::io::Result<()> {
        targets::make_parent(&self.target)?;
        std::fs::create_dir_all(&self.staging)
    }

    /// Removes the directories that the kubelet removes after its calls.
    pub(crate) fn remove_places(&self) -> std::io::Result<()> {
        targets::remove_parents(&self.staging)?;
        targets::remove_parents(&self.target)
    }
}

/// A driver behind a socket, and its capabilities.
#[derive(Debug)]
pub(crate) struct Driver {
    channel: Channel,
    wanted: Wanted,
    topology: Option<csi::Topology>,
    stages: bool,
    tells_stats: bool,
    tells_capacity: bool,
}

impl Driver {
    /// Connects and reads the driver's capabilities.
    pub(crate) async fn connect(socket: &Path, wanted: Wanted) -> Result<Self, String> {
        let shown = socket.display();
        let channel = Endpoint::try_from(format!("unix://{shown}"))
            .map_err(|error| format!("cannot use {shown}: {error}"))?
            .connect()
            .await
            .map_err(|error| format!("cannot connect to {shown}: {error}"))?;
        ready(&channel, wanted.timeout).await?;
        let asked = |status: Status| format!("the driver does not say what it can do: {status}");
        let mut node = NodeClient::new(channel.clone());
        let mut controller = ControllerClient::new(channel.clone());
        let can = node
            .node_get_capabilities(csi::NodeGetCapabilitiesRequest {})
            .await
            .map_err(asked)?
            .into_inner();
        let node_has = |wanted: node_can::rpc::Type| {
            can.capabilities.iter().any(|one| {
                matches!(&one.r#type, Some(node_can::Type::Rpc(rpc)) if rpc.r#type() == wanted)
            })
        };
        let controls = controller
            .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest {})
            .await
            .map_err(asked)?
            .into_inner();
        let controller_has = |wanted: controller_can::rpc::Type| {
            controls.capabilities.iter().any(|one| {
                matches!(&one.r#type, Some(controller_can::Type::Rpc(rpc)) if rpc.r#type() == wanted)
            })
        };
        if controller_has(controller_can::rpc::Type::PublishUnpublishVolume) {
            return Err(
                "the driver wants its volumes attached, which this client does not do".into(),
            );
        }
        let info = node
            .node_get_info(csi::NodeGetInfoRequest {})
            .await
            .map_err(asked)?
            .into_inner();
        Ok(Self {
            wanted,
            topology: info.accessible_topology,
            stages: node_has(node_can::rpc::Type::StageUnstageVolume),
            tells_stats: node_has(node_can::rpc::Type::GetVolumeStats),
            tells_capacity: controller_has(controller_can::rpc::Type::GetCapacity),
            channel,
        })
    }

    /// Returns the calls in the life of a volume that this driver supports.
    pub(crate) fn life(&self) -> Vec<Call> {
        let mut calls = vec![Call::Create];
        calls.extend(self.stages.then_some(Call::Stage));
        calls.push(Call::Publish);
        calls.extend(self.tells_stats.then_some(Call::Stats));
        calls.push(Call::Unpublish);
        calls.extend(self.stages.then_some(Call::Unstage));
        calls.push(Call::Delete);
        calls
    }

    /// Returns whether the driver supports `GetCapacity`.
    pub(crate) fn tells_capacity(&self) -> bool {
        self.tells_capacity
    }

    /// Returns volumes that do not exist yet.
    pub(crate) fn volumes(&self, count: usize) -> Vec<Arc<Volume>> {
        (0..count).map(|_| Arc::new(self.volume())).collect()
    }

    /// Returns a volume that does not exist yet.
    pub(crate) fn volume(&self) -> Volume {
        let name = format!("pvc-{}", Uuid::new_v4());
        let staging = format!("{name}-staging");
        Volume {
            target: targets::target(&self.wanted.target_dir, &name),
            staging: targets::target(&self.wanted.target_dir, &staging),
            name,
            made: OnceLock::new(),
        }
    }

    /// Makes one call and returns its duration; the error is the code and the message.
    pub(crate) async fn timed(
        &self,
        call: Call,
        volume: &Volume,
    ) -> (Duration, Result<(), Status>) {
        let timeout = self.wanted.timeout;
        let started = Instant::now();
        let answer = tokio::time::timeout(timeout, self.call(call, volume)).await;
        let took = started.elapsed();
        let late = |_| {
            Err(Status::deadline_exceeded(format!(
                "no answer within {timeout:?}"
            )))
        };
        (took, answer.unwrap_or_else(late))
    }

    async fn call(&self, call: Call, volume: &Volume) -> Result<(), Status> {
        match call {
            Call::Probe => {
                let mut identity = IdentityClient::new(self.channel.clone());
                identity.probe(csi::ProbeRequest {}).await.map(drop)
            }
            Call::Capacity => self.capacity().await,
            Call::Create => self.create(volume).await,
            Call::Snapshot => self.snapshot(volume).await,
            Call::Pod => self.pod(volume).await,
            Call::Delete => {
                let mut controller = ControllerClient::new(self.channel.clone());
                let request = csi::DeleteVolumeRequest {
                    volume_id: made(volume)?.volume_id.clone(),
                    ..Default::default()
                };
                controller.delete_volume(request).await.map(drop)
            }
            _ => self.on_node(call, volume).await,
        }
    }

    /// Sends the provisioner's request for a volume.
    async fn create(&self, volume: &Volume) -> Result<(), Status> {
        let topologies: Vec<_> = self.topology.clone().into_iter().collect();
        let request = csi::CreateVolumeRequest {
            name: volume.name.clone(),
            capacity_range: Some(csi::CapacityRange {
                required_bytes: self.wanted.size,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![self.capability()],
            parameters: self.wanted.parameters.clone().into_iter().collect(),
            accessibility_requirements: self.topology.is_some().then(|| csi::TopologyRequirement {
                requisite: topologies.clone(),
                preferred: topologies,
            }),
            ..Default::default()
        };
        let mut controller = ControllerClient::new(self.channel.clone());
        let answer = controller.create_volume(request).await?.into_inner();
        let made = answer
            .volume
            .ok_or_else(|| Status::internal("the answer holds no volume"))?;
        // A volume is created once.
        let _ = volume.made.set(made);
        Ok(())
    }

    /// Sends the provisioner's request for each class and segment.
    async fn capacity(&self) -> Result<(), Status> {
        let request = csi::GetCapacityRequest {
            volume_capabilities: vec![self.capability()],
            parameters: self.wanted.parameters.clone().into_iter().collect(),
            accessible_topology: self.topology.clone(),
        };
        let mut controller = ControllerClient::new(self.channel.clone());
        controller.get_capacity(request).await.map(drop)
    }

    /// Sends the snapshotter's request.
    async fn snapshot(&self, volume: &Volume) -> Result<(), Status> {
        let request = csi::CreateSnapshotRequest {
            source_volume_id: made(volume)?.volume_id.clone(),
            name: format!("snapshot-of-{}", volume.name),
            ..Default::default()
        };
        let mut controller = ControllerClient::new(self.channel.clone());
        controller.create_snapshot(request).await.map(drop)
    }

    /// Makes the kubelet's calls for a pod that writes one block.
    async fn pod(&self, volume: &Volume) -> Result<(), Status> {
        volume.make_places()?;
        let node_calls = [Call::Stage, Call::Publish, Call::Unpublish, Call::Unstage];
        for call in self.life() {
            if call == Call::Unpublish {
                std::fs::write(volume.target().join("block"), BLOCK)?;
            }
            if node_calls.contains(&call) {
                self.on_node(call, volume).await?;
            }
        }
        Ok(volume.remove_places()?)
    }

    /// Sends the kubelet's request.
    async fn on_node(&self, call: Call, volume: &Volume) -> Result<(), Status> {
        let mut node = NodeClient::new(self.channel.clone());
        let made = made(volume)?;
        let volume_id = made.volume_id.clone();
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let (target_path, staging_target_path) = (path(&volume.target), path(&volume.staging));
        let volume_context: HashMap<_, _> = made.volume_context.clone();
        let volume_capability = Some(self.capability());
        match call {
            Call::Stage => {
                let request = csi::NodeStageVolumeRequest {
                    volume_id,
                    staging_target_path,
                    volume_capability,
                    volume_context,
                    ..Default::default()
                };
                node.node_stage_volume(request).await.map(drop)
            }
            Call::Publish => {
                let request = csi::NodePublishVolumeRequest {
                    volume_id,
                    target_path,
                    staging_target_path: self.staging_of(staging_target_path),
                    volume_capability,
                    volume_context,
                    ..Default::default()
                };
                node.node_publish_volume(request).await.map(drop)
            }
            Call::Unpublish => {
                let request = csi::NodeUnpublishVolumeRequest {
                    volume_id,
                    target_path,
                };
                node.node_unpublish_volume(request).await.map(drop)
            }
            Call::Unstage => {
                let request = csi::NodeUnstageVolumeRequest {
                    volume_id,
                    staging_target_path,
                };
                node.node_unstage_volume(request).await.map(drop)
            }
            _ => {
                let request = csi::NodeGetVolumeStatsRequest {
                    volume_id,
                    volume_path: target_path,
                    staging_target_path: self.staging_of(staging_target_path),
                };
                node.node_get_volume_stats(request).await.map(drop)
            }
        }
    }

    /// Returns a capability that every driver of such volumes accepts.
    fn capability(&self) -> VolumeCapability {
        let access_type = if self.wanted.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume::default())
        };
        VolumeCapability {
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
            access_type: Some(access_type),
        }
    }

    /// The kubelet sends the staging path only to a driver that stages.
    fn staging_of(&self, path: String) -> String {
        Some(path).filter(|_| self.stages).unwrap_or_default()
    }
}

/// Waits until the driver reports that it is ready. A reply without that field means ready.
async fn ready(channel: &Channel, timeout: Duration) -> Result<(), String> {
    let until = Instant::now() + timeout;
    loop {
        let answer = IdentityClient::new(channel.clone())
            .probe(csi::ProbeRequest {})
            .await
            .map_err(|status| format!("the driver fails its Probe: {status}"))?;
        if answer.into_inner().ready.unwrap_or(true) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("the driver is not ready within {timeout:?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes one call on every volume, this many at the same time. A failure is counted and not tried
/// again.
pub(crate) async fn phase(
    driver: &Arc<Driver>,
    name: &str,
    call: Call,
    volumes: &[Arc<Volume>],
    in_flight: u16,
) -> Phase {
    let next = Arc::new(AtomicUsize::new(0));
    let told = Arc::new(AtomicBool::new(false));
    let volumes: Arc<[_]> = volumes.into();
    let started = Instant::now();
    let workers: Vec<_> = (0..in_flight)
        .map(|_| {
            let (driver, volumes) = (Arc::clone(driver), Arc::clone(&volumes));
            let (next, told) = (Arc::clone(&next), Arc::clone(&told));
            tokio::spawn(async move {
                let mut times = Times::default();
                while let Some(volume) = volumes.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (took, outcome) = driver.timed(call, volume).await;
                    times.add(took, outcome.err().map(|status| tell(call, &status, &told)));
                }
                times
            })
        })
        .collect();
    let mut times = Times::default();
    for worker in workers {
        match worker.await {
            Ok(counted) => times.merge(counted),
            Err(panic) => times.add(Duration::ZERO, Some(panic.to_string())),
        }
    }
    times.phase(name, started.elapsed())
}

/// Returns the code of a failure; the first one is printed in full.
fn tell(call: Call, status: &Status, told: &AtomicBool) -> String {
    let code = code_name(status.code());
    if !told.swap(true, Ordering::Relaxed) {
        eprintln!("load: {} failed: {code}: {}", call.name(), status.message());
    }
    code
}

/// Returns a code in the spelling of the specification.
fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn made(volume: &Volume) -> Result<&csi::Volume, Status> {
    let unmade = || Status::failed_precondition("the volume was never made");
    volume.made.get().ok_or_else(unmade)
}
