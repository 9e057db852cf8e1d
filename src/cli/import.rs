//! `rootcellar volume import` and `volume export`. The command works on the directory, in the mount
//! namespace of the host; the server works on the volume.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tonic::Status;

use super::client::{Server, ServerArgs, parse_id};
use super::print;
use crate::admin::{CheckImportRequest, ExportVolumeRequest, ImportVolumeRequest};
use crate::error::{Error, Result};
use crate::fault::PathFault;
use crate::import::{ExportTo, Import, ImportServer, Imported, Users};
use crate::manifest::ClaimMode;
use crate::os::Os;
use crate::pool::{AccessMode, KubernetesFields, ReclaimPolicy, Sharing};
use crate::types::{Bytes, ClaimLabel, PoolId, VolumeId, VolumeName};
use crate::volume::{Export, ImportPlace, ImportRequest, ImportState};

/// The mount namespace of the host, as its process namespace shows it.
const HOST_MOUNTS: &str = "/proc/1/ns/mnt";

#[derive(Debug, Args)]
struct HostArgs {
    /// Work in the mount namespace of process 1, for a privileged pod with hostPID
    #[arg(long)]
    host: bool,

    /// Report whether it is possible, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not examine which processes use the directory
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Import the directory at this absolute path
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Import it into this pool, or this member of a pool set
    #[arg(long, value_name = "NAME[/MEMBER]")]
    pool: String,

    /// Give the volume this name, such as that of its former PersistentVolume
    #[allow(clippy::doc_markdown, reason = "the comment is the help text")]
    #[arg(long)]
    name: VolumeName,

    /// Reserve this size, such as 10Gi
    #[arg(long, value_parser = parse_size)]
    size: Bytes,

    /// Note this claim, for people and for `volume manifest`
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = parse_claim)]
    claim: Option<ClaimLabel>,

    /// Accept this access mode; repeat for more
    #[arg(long = "access-mode", value_name = "MODE", default_value = "RWO",
          value_parser = mode_parser())]
    access_modes: Vec<ClaimMode>,

    /// Share the volume between pods of the node, as RWX and ROX need
    #[arg(long, default_value = "none")]
    sharing: SharingArg,

    /// Note this class for `volume manifest`
    #[arg(long)]
    class: Option<String>,

    /// Note this reclaim policy for `volume manifest`: Delete or Retain
    #[arg(long)]
    policy: Option<ReclaimPolicy>,

    /// Note this mount option for `volume manifest`; repeat for more
    #[arg(long = "mount-option", value_name = "OPTION")]
    mount_options: Vec<String>,

    #[command(flatten)]
    host: HostArgs,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Export the volume with this id, as printed by show
    #[arg(value_parser = parse_id::<VolumeId>)]
    id: VolumeId,

    /// Put the directory at this absolute path instead of where it was before its import
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,

    #[command(flatten)]
    host: HostArgs,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SharingArg {
    None,
    Node,
}

/// Parses the short name of an access mode.
fn mode_parser() -> impl TypedValueParser<Value = ClaimMode> {
    let names = ClaimMode::ALL.map(ClaimMode::short);
    PossibleValuesParser::new(names).try_map(|name| {
        let mut modes = ClaimMode::ALL.into_iter();
        let mode = modes.find(|mode| mode.short() == name);
        mode.ok_or("it is no access mode")
    })
}

fn parse_size(text: &str) -> Result<Bytes, String> {
    let size = Bytes::parse(text).filter(|size| *size > Bytes::ZERO);
    size.ok_or_else(|| "it is not a size above 0, such as 10Gi".into())
}

fn parse_claim(text: &str) -> Result<ClaimLabel, String> {
    match text.split_once('/') {
        Some((namespace, claim)) if !namespace.is_empty() && !claim.is_empty() => Ok(ClaimLabel {
            namespace: Some(namespace.into()),
            claim: Some(claim.into()),
            volume: None,
        }),
        _ => Err("it is not NAMESPACE/NAME".into()),
    }
}

impl HostArgs {
    fn users(&self) -> Users {
        if self.force {
            Users::Ignore
        } else {
            Users::Check
        }
    }

    /// Enters the mount namespace of the host, before anything has started a thread.
    fn enter(&self) -> Result<()> {
        if !self.host {
            return Ok(());
        }
        let path = Path::new(HOST_MOUNTS);
        let own = || std::fs::read_link("/proc/self/ns/mnt");
        let before = own().map_err(PathFault::at("enter", path))?;
        let entered = std::fs::File::open(path).and_then(|namespace| {
            let kind = Some(LinkNameSpaceType::Mount);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind)?;
            own()
        });
        if entered.map_err(PathFault::at("enter", path))? == before {
            return Err(Error::Precondition(
                "process 1 has the mount namespace of this process, and not that of a host; give the pod \
                 hostPID, or leave --host out"
                    .into(),
            ));
        }
        Ok(())
    }
}

/// Makes a directory a volume.
pub(super) fn import(args: &ImportArgs) -> Result<bool> {
    args.check()?;
    args.host.enter()?;
    let mut server = Connection(args.server.connect()?);
    let directory = args.directory.display();
    match args.import().run(&mut server)? {
        Imported::Done(id) => print(format_args!("{directory} is volume {id} now"))?,
        Imported::Possible(id, Some(content)) => print(format_args!(
            "{directory} can become volume {id}: it uses {} of {} in {} files and directories",
            content.bytes, args.size, content.inodes
        ))?,
        Imported::Possible(id, None) => print(format_args!(
            "{directory} was taken by an interrupted import, and can become volume {id}"
        ))?,
    }
    Ok(true)
}

/// Makes a volume a directory of the host.
pub(super) fn export(args: &ExportArgs) -> Result<bool> {
    args.host.enter()?;
    let mut server = Connection(args.server.connect()?);
    let id = args.id;
    let export = ExportTo {
        os: Os::default(),
        id,
        to: args.to.clone(),
        users: args.host.users(),
        dry_run: args.host.dry_run,
    };
    let path = export.run(&mut server)?;
    let path = path.display();
    if args.host.dry_run {
        print(format_args!("volume {id} can become the directory {path}"))?;
    } else {
        print(format_args!("volume {id} is the directory {path} now"))?;
    }
    Ok(true)
}

impl ImportArgs {
    /// Refuses flags that contradict each other.
    fn check(&self) -> Result<()> {
        let shares = self.access_modes.iter().any(|mode| mode.is_shared());
        if shares && self.sharing == SharingArg::None {
            let problem = "RWX and ROX need --sharing node";
            return Err(Error::invalid("--access-mode", problem));
        }
        Ok(())
    }

    fn import(&self) -> Import {
        Import {
            os: Os::default(),
            directory: self.directory.clone(),
            pool: self.pool.clone(),
            name: self.name.clone(),
            size: self.size,
            claim: ClaimLabel {
                volume: Some(self.name.to_string()),
                ..self.claim.clone().unwrap_or_default()
            },
            kubernetes: KubernetesFields {
                class: self.class.clone(),
                reclaim_policy: self.policy,
                mount_options: self.mount_options.clone(),
            },
            sharing: match self.sharing {
                SharingArg::None => Sharing::None,
                SharingArg::Node => Sharing::Node,
            },
            access_modes: self
                .access_modes
                .iter()
                .copied()
                .map(AccessMode::from)
                .collect(),
            users: self.host.users(),
            dry_run: self.host.dry_run,
        }
    }
}

/// The server at its socket.
struct Connection(Server);

impl Connection {
    fn id(text: &str) -> Result<VolumeId> {
        parse_id(text).map_err(|problem| Error::Internal(format!("{text:?}: {problem}")))
    }
}

/// The answer of the server, or the loss of the connection to it.
fn refused(status: &Status) -> Error {
    match std::error::Error::source(status) {
        Some(lost) => Error::ConnectionLost(lost.to_string()),
        None => Error::Precondition(status.message().to_owned()),
    }
}

fn pool_id(text: &str) -> Result<PoolId> {
    let id = PoolId::parse(text);
    id.ok_or_else(|| Error::Internal(format!("{text:?} is no id of a pool")))
}

fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl ImportServer for Connection {
    fn check_import(&mut self, request: &ImportRequest) -> Result<ImportPlace> {
        let call = self.0.admin.check_import(CheckImportRequest {
            name: request.name.to_string(),
            pool: request.pool.clone(),
            size_bytes: request.size.0,
            used_bytes: request.used.0.0,
            used_inodes: request.used.1,
        });
        let place = self.0.runtime.block_on(call);
        let place = place.map_err(|status| refused(&status))?.into_inner();
        let waiting = given(place.waiting).map(ImportState::Waiting);
        let imported = given(place.imported_from).map(ImportState::Imported);
        Ok(ImportPlace {
            id: Self::id(&place.volume_id)?,
            pool: place.pool_path.into(),
            pool_id: pool_id(&place.pool_id)?,
            state: imported.or(waiting).unwrap_or(ImportState::New),
        })
    }

    fn import(&mut self, pool: &str, name: &VolumeName) -> Result<VolumeId> {
        let call = self.0.admin.import_volume(ImportVolumeRequest {
            name: name.to_string(),
            pool: pool.to_owned(),
        });
        let made = self.0.runtime.block_on(call);
        let made = made.map_err(|status| refused(&status))?.into_inner();
        Self::id(&made.volume_id)
    }

    fn export(&mut self, id: &str, dry_run: bool) -> Result<Export> {
        let call = self.0.admin.export_volume(ExportVolumeRequest {
            volume_id: id.to_owned(),
            dry_run,
        });
        let exported = self.0.runtime.block_on(call);
        let exported = exported.map_err(|status| refused(&status))?.into_inner();
        Ok(Export {
            pool: exported.pool_path.into(),
            pool_id: pool_id(&exported.pool_id)?,
            name: given(exported.name),
            origin: given(exported.origin),
        })
    }
}
