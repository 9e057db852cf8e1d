//! Messages as the provisioner and the kubelet send them, and the form that every answer must have.

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use rootcellar::csi;
use rootcellar::csi::volume_capability::access_mode::Mode;
use rootcellar::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use rootcellar::csi::volume_usage::Unit;
use tonic::{Code, Status};

use super::server::Clients;

/// The answer to a call.
pub type Answer<T = ()> = Result<T, Status>;

pub fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Mount access in a mode, with mount options.
pub fn capability(mode: Mode, flags: &[&str]) -> csi::VolumeCapability {
    let mount = MountVolume {
        mount_flags: flags.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

/// As [`read_write_once`], with a filesystem type.
pub fn with_fs_type(fs_type: &str) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            ..Default::default()
        })),
        ..read_write_once()
    }
}

/// `ReadWriteOnce`, as the provisioner translates it for this driver.
pub fn read_write_once() -> csi::VolumeCapability {
    capability(Mode::SingleNodeMultiWriter, &[])
}

/// A request for a volume of at least `bytes` bytes.
pub fn create(name: &str, bytes: i64) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange {
            required_bytes: bytes,
            limit_bytes: 0,
        }),
        volume_capabilities: vec![read_write_once()],
        ..Default::default()
    }
}

/// A request for a volume of a class with these parameters.
pub fn create_with(
    name: &str,
    bytes: i64,
    parameters: &[(&str, &str)],
) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        parameters: map(parameters),
        ..create(name, bytes)
    }
}

/// A request for a snapshot of a volume, by a class that allows copies where they are needed.
pub fn snapshot(name: &str, source: &str) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: source.to_owned(),
        parameters: map(&[("copy", "allowed")]),
        ..Default::default()
    }
}

/// A snapshot as the source of a volume.
pub fn of_snapshot(id: &str) -> csi::VolumeContentSource {
    use csi::volume_content_source::{SnapshotSource, Type};
    csi::VolumeContentSource {
        r#type: Some(Type::Snapshot(SnapshotSource {
            snapshot_id: id.to_owned(),
        })),
    }
}

/// A volume as the source of another.
pub fn of_volume(id: &str) -> csi::VolumeContentSource {
    use csi::volume_content_source::{Type, VolumeSource};
    csi::VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource {
            volume_id: id.to_owned(),
        })),
    }
}

/// A request for a volume that is a copy, by a class that allows copies where they are needed.
pub fn copy(name: &str, bytes: i64, source: csi::VolumeContentSource) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_content_source: Some(source),
        ..create_with(name, bytes, &[("copy", "allowed")])
    }
}

/// A request to publish a volume at a target.
pub fn publish(id: &str, target: &Path) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: target.to_str().unwrap().to_owned(),
        volume_capability: Some(read_write_once()),
        ..Default::default()
    }
}

/// A request to publish a volume at a target with mount options.
pub fn publish_with(id: &str, target: &Path, flags: &[&str]) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_capability: Some(capability(Mode::SingleNodeMultiWriter, flags)),
        ..publish(id, target)
    }
}

/// Asserts that a call was refused with this code and a message that contains `says`.
#[track_caller]
pub fn refused<T: Debug>(case: &str, answer: Answer<T>, code: Code, says: &str) {
    let Err(status) = answer else {
        panic!("{case}: not refused: {answer:?}");
    };
    assert_eq!(status.code(), code, "{case}: {status}");
    assert_well_formed(case, &status);
    assert!(
        status.message().contains(says),
        "{case}: {says:?} is not in {:?}",
        status.message()
    );
}

/// Asserts the form that the specification demands of every error: a message, and no details.
#[track_caller]
pub fn assert_well_formed(case: &str, status: &Status) {
    assert!(!status.message().is_empty(), "{case}: {status:?}");
    assert!(status.details().is_empty(), "{case}: {status:?}");
}

/// As [`super::eventually`], for a condition that needs a call.
pub async fn soon(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..3000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never came true: {what}");
}

impl Clients {
    /// `CreateVolume`.
    pub async fn create(&mut self, request: csi::CreateVolumeRequest) -> Answer<csi::Volume> {
        let answer = self.controller.create_volume(request).await?;
        Ok(answer.into_inner().volume.unwrap())
    }

    /// Makes a volume and returns its id.
    pub async fn make(&mut self, name: &str, bytes: i64) -> String {
        self.create(create(name, bytes)).await.unwrap().volume_id
    }

    /// `DeleteVolume`.
    pub async fn delete(&mut self, id: &str) -> Answer {
        let request = csi::DeleteVolumeRequest {
            volume_id: id.to_owned(),
            ..Default::default()
        };
        self.controller.delete_volume(request).await.map(drop)
    }

    /// Asserts that a volume cannot be deleted because it is in use; the message contains `says`.
    pub async fn assert_in_use(&mut self, case: &str, id: &str, says: &str) {
        refused(case, self.delete(id).await, Code::FailedPrecondition, says);
    }

    /// `ControllerGetVolume`.
    pub async fn get(&mut self, id: &str) -> Answer<csi::Volume> {
        let request = csi::ControllerGetVolumeRequest {
            volume_id: id.to_owned(),
        };
        let answer = self.controller.controller_get_volume(request).await?;
        Ok(answer.into_inner().volume.unwrap())
    }

    /// `ValidateVolumeCapabilities`; `None` if they are confirmed, otherwise the reason.
    pub async fn validate(
        &mut self,
        id: &str,
        capability: csi::VolumeCapability,
    ) -> Answer<Option<String>> {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        let answer = self
            .controller
            .validate_volume_capabilities(request)
            .await?
            .into_inner();
        Ok(Some(answer.message).filter(|_| answer.confirmed.is_none()))
    }

    /// `ListVolumes`: the ids, and the token of the next page.
    pub async fn list(
        &mut self,
        max_entries: i32,
        starting_token: &str,
    ) -> Answer<(Vec<String>, String)> {
        let request = csi::ListVolumesRequest {
            max_entries,
            starting_token: starting_token.to_owned(),
        };
        let answer = self.controller.list_volumes(request).await?.into_inner();
        let ids = answer.entries.into_iter();
        let ids = ids.map(|entry| entry.volume.unwrap().volume_id);
        Ok((ids.collect(), answer.next_token))
    }

    /// `ListVolumes`: the ids of all pages.
    pub async fn list_all(&mut self) -> Vec<String> {
        let (mut all, mut token) = self.list(0, "").await.unwrap();
        while !token.is_empty() {
            let (ids, next) = self.list(0, &token).await.unwrap();
            all.extend(ids);
            token = next;
        }
        all
    }

    /// `CreateSnapshot`.
    pub async fn snapshot(&mut self, request: csi::CreateSnapshotRequest) -> Answer<csi::Snapshot> {
        let answer = self.controller.create_snapshot(request).await?;
        Ok(answer.into_inner().snapshot.unwrap())
    }

    /// `DeleteSnapshot`.
    pub async fn delete_snapshot(&mut self, id: &str) -> Answer {
        let request = csi::DeleteSnapshotRequest {
            snapshot_id: id.to_owned(),
            ..Default::default()
        };
        self.controller.delete_snapshot(request).await.map(drop)
    }

    /// `GetSnapshot`.
    pub async fn get_snapshot(&mut self, id: &str) -> Answer<csi::Snapshot> {
        let request = csi::GetSnapshotRequest {
            snapshot_id: id.to_owned(),
            ..Default::default()
        };
        let answer = self.controller.get_snapshot(request).await?;
        Ok(answer.into_inner().snapshot.unwrap())
    }

    /// `ListSnapshots`: the snapshots, and the token of the next page.
    pub async fn list_snapshots(
        &mut self,
        request: csi::ListSnapshotsRequest,
    ) -> Answer<(Vec<csi::Snapshot>, String)> {
        let answer = self.controller.list_snapshots(request).await?.into_inner();
        let snapshots = answer.entries.into_iter();
        let snapshots = snapshots.map(|entry| entry.snapshot.unwrap());
        Ok((snapshots.collect(), answer.next_token))
    }

    /// `GetCapacity` as the provisioner polls it: with parameters, without capabilities.
    pub async fn capacity(&mut self, parameters: &[(&str, &str)]) -> i64 {
        let request = csi::GetCapacityRequest {
            parameters: map(parameters),
            ..Default::default()
        };
        let answer = self.controller.get_capacity(request).await.unwrap();
        answer.into_inner().available_capacity
    }

    /// `NodePublishVolume`.
    pub async fn publish(&mut self, request: csi::NodePublishVolumeRequest) -> Answer {
        self.node.node_publish_volume(request).await.map(drop)
    }

    /// As [`Clients::publish`] with mount options; must succeed.
    pub async fn publish_as(&mut self, id: &str, target: &Path, flags: &[&str]) {
        let answer = self.publish(publish_with(id, target, flags)).await;
        answer.unwrap();
    }

    /// Waits until the pool is unavailable and its capacity therefore 0.
    pub async fn wait_unavailable(&mut self) {
        soon("the pool is unavailable", async || {
            self.capacity(&[]).await == 0
        })
        .await;
    }

    /// Waits until the pool of a volume is available again.
    pub async fn wait_back(&mut self, id: &str) {
        soon("the pool is back", async || self.get(id).await.is_ok()).await;
    }

    /// `NodeUnpublishVolume`.
    pub async fn unpublish(&mut self, id: &str, target: &Path) -> Answer {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: target.to_str().unwrap().to_owned(),
        };
        self.node.node_unpublish_volume(request).await.map(drop)
    }

    /// As [`Clients::unpublish`], repeated while the mount is busy, as the kubelet does. A process
    /// that another test starts has a copy of every open file for a moment.
    pub async fn unpublish_soon(&mut self, id: &str, target: &Path) {
        soon("the target is unpublished", async || {
            match self.unpublish(id, target).await {
                Ok(()) => true,
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{status}");
                    false
                }
            }
        })
        .await;
    }

    /// `NodeGetVolumeStats`: bytes available and inodes available.
    pub async fn stats(&mut self, id: &str, path: &Path) -> Answer<(i64, i64)> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: path.to_str().unwrap().to_owned(),
            ..Default::default()
        };
        let answer = self.node.node_get_volume_stats(request).await?.into_inner();
        let available = |unit: Unit| {
            let usage = answer.usage.iter().find(|usage| usage.unit() == unit);
            usage.map_or(-1, |usage| usage.available)
        };
        Ok((available(Unit::Bytes), available(Unit::Inodes)))
    }

    /// `Probe`: whether the driver is ready.
    pub async fn ready(&mut self) -> bool {
        let answer = self.identity.probe(csi::ProbeRequest {}).await.unwrap();
        answer.into_inner().ready == Some(true)
    }
}
