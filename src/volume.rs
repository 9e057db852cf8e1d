//! The volumes and snapshots of all pools of this node. The gRPC services and the tests call it.
//! Everything here is synchronous, and every change runs to its end.

mod admit;
mod capability;
mod class;
mod create;
mod delete;
mod enforce;
mod expand;
mod fits;
mod health;
mod ids;
mod image_devices;
mod images;
mod imports;
mod in_flight;
mod inventory;
mod io_limits;
mod io_parameters;
mod kept;
mod label;
mod list;
mod locate;
mod moving;
mod parameter;
mod pools;
mod publications;
mod publish;
mod published;
mod requests;
mod snapshot;
mod volumes;

pub use capability::Capability;
pub use class::{Class, EnforcementPolicy, InUse, Kind, SnapshotClass};
pub use expand::ExpandRequest;
pub use imports::{Export, ImportPlace, ImportRequest, ImportState, NewImport};
pub use io_parameters::{parse_bytes, parse_operations};
pub use kept::{UndeleteRequest, Undeleted};
pub use label::Labelled;
pub use linux::image::Allocation;
pub use linux::io::IoLimits;
pub use moving::Moved;
pub use parameter::{Parameter, Parametrized};
pub use pool::{Caller, CopyPolicy, KubernetesFields, Method, Mode, Parameters, Sharing, Source};
pub use requests::{Capacity, CreateRequest, Page, PublishRequest, SourceId, Stats, Usage, Volume};
pub use snapshot::{Snapshot, SnapshotFilter, SnapshotRequest};
pub use volumes::{MEMBER_WAIT, Seams, Settings, TIMEOUT, Volumes};
