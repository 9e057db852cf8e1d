//! The calls of the provisioner and the kubelet.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rootcellar::csi::controller_client::ControllerClient;
use rootcellar::csi::identity_client::IdentityClient;
use rootcellar::csi::node_client::NodeClient;
use rootcellar::csi::volume_capability::access_mode::Mode;
use rootcellar::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use rootcellar::csi::{
    CapacityRange, CreateVolumeRequest, NodePublishVolumeRequest, VolumeCapability,
};
use rootcellar::error::Error;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use uuid::Uuid;

use super::report::Failure;

/// How long a call may take before the demo gives up.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Clients of the services of CSI over one connection, which reconnects after a restart.
pub(super) struct Clients {
    /// The identity service.
    pub(super) identity: IdentityClient<Channel>,
    /// The controller service.
    pub(super) controller: ControllerClient<Channel>,
    /// The node service.
    pub(super) node: NodeClient<Channel>,
}

impl Clients {
    /// Creates clients that connect to the socket on first use.
    pub(super) fn new(socket: &Path) -> Result<Self, Error> {
        let channel = Endpoint::try_from(format!("unix://{}", socket.display()))
            .map_err(|error| Error::Internal(format!("cannot use {}: {error}", socket.display())))?
            .connect_lazy();
        Ok(Self {
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel),
        })
    }
}

/// Returns the reply of a call that must succeed, and its duration.
pub(super) async fn call<T>(
    rpc: &str,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<(T, Duration), Failure> {
    let (answer, took) = timed(rpc, answer).await?;
    match answer {
        Ok(response) => Ok((response.into_inner(), took)),
        Err(status) => Err(Failure::new(rpc, "OK", shown(&status))),
    }
}

/// Returns the message of a call that must be refused with `code`, and its duration.
pub(super) async fn refused<T>(
    rpc: &str,
    code: Code,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<(String, Duration), Failure> {
    let (answer, took) = timed(rpc, answer).await?;
    match answer {
        Err(status) if status.code() == code => Ok((status.message().to_owned(), took)),
        Err(status) => Err(Failure::new(rpc, format!("{code:?}"), shown(&status))),
        Ok(_) => Err(Failure::new(rpc, format!("{code:?}"), "OK")),
    }
}

async fn timed<T>(rpc: &str, answer: impl Future<Output = T>) -> Result<(T, Duration), Failure> {
    let start = Instant::now();
    let answer = tokio::time::timeout(CALL_TIMEOUT, answer)
        .await
        .map_err(|_| {
            Failure::new(
                rpc,
                format!("an answer within {} s", CALL_TIMEOUT.as_secs()),
                "none",
            )
        })?;
    Ok((answer, start.elapsed()))
}

fn shown(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// A claim, its volume, and the kubelet's target path.
#[derive(Debug, Clone)]
pub(super) struct Claim {
    /// The claim's name.
    pub(super) name: &'static str,
    /// Its size in bytes.
    pub(super) size: i64,
    /// The name of the volume.
    pub(super) volume: String,
    /// The volume's id from the driver.
    pub(super) id: String,
    /// The target path: the kubelet makes its parent, the driver the last component.
    pub(super) target: PathBuf,
}

impl Claim {
    /// The namespace of the claims.
    pub(super) const NAMESPACE: &str = "shop";

    /// Creates a claim of a pod of its own, without a volume yet.
    pub(super) fn new(name: &'static str, size: i64, kubelet: &Path) -> Self {
        let volume = format!("pvc-{}", short_id());
        let target = kubelet
            .join("pods")
            .join(short_id())
            .join("volumes/kubernetes.io~csi")
            .join(&volume)
            .join("mount");
        Self {
            name,
            size,
            volume,
            id: String::new(),
            target,
        }
    }

    /// Returns the external provisioner's request, with `--extra-create-metadata`.
    pub(super) fn create_request(&self) -> CreateVolumeRequest {
        let parameters = [
            ("csi.storage.k8s.io/pvc/namespace", Self::NAMESPACE),
            ("csi.storage.k8s.io/pvc/name", self.name),
            ("csi.storage.k8s.io/pv/name", &self.volume),
        ];
        CreateVolumeRequest {
            name: self.volume.clone(),
            capacity_range: Some(CapacityRange {
                required_bytes: self.size,
                limit_bytes: 0,
            }),
            volume_capabilities: vec![capability()],
            parameters: parameters.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..Default::default()
        }
    }

    /// Returns the kubelet's request.
    pub(super) fn publish_request(&self, readonly: bool) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            target_path: self.target.to_string_lossy().into_owned(),
            volume_capability: Some(capability()),
            readonly,
            volume_context: HashMap::new(),
            ..Default::default()
        }
    }
}

/// Returns the first digits of a UUID, because a complete one fills a line.
fn short_id() -> String {
    let id = Uuid::new_v4().simple().to_string();
    id.chars().take(8).collect()
}

/// Returns the capability of a `ReadWriteOnce` claim.
fn capability() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeMultiWriter.into(),
        }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

#[cfg(test)]
mod tests {
    use rootcellar::volume::{Class, Parametrized};

    use super::*;

    #[test]
    fn a_claim_asks_as_the_provisioner_does() {
        let claim = Claim::new("orders", 64 << 20, Path::new("/k"));
        let request = claim.create_request();
        let class = Class::parse(&request.parameters).unwrap();
        assert_eq!(class.claim.namespace.as_deref(), Some("shop"));
        assert_eq!(class.claim.claim.as_deref(), Some("orders"));
        assert_eq!(class.claim.volume.as_ref(), Some(&request.name));
        assert!(claim.target.starts_with("/k/pods") && claim.target.ends_with("mount"));
        assert!(claim.publish_request(true).readonly);
    }
}
