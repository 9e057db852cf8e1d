//! `rootcellar volume import` and `volume export`. The command works on the directory, in the mount
//! namespace of the host; the server works on the volume.

mod connection;

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use linux::fault::PathFault;
use linux::mount::Users;
use linux::os::Os;
use objects::manifest::ClaimMode;
use objects::{AccessMode, Bytes, ClaimLabel, ReclaimPolicy, VolumeId, VolumeName};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::client::{ServerArgs, parse_id};
use super::manifest::{parse_claim, parse_size};
use super::output::print;
use super::progress;
use crate::error::{Error, Refusal, Result};
use crate::host::{ExportTo, Import, Imported};
use pool::{KubernetesFields, Sharing};

use connection::Connection;

/// The mount namespace of the host, as its process namespace shows it.
const HOST_MOUNTS: &str = "/proc/1/ns/mnt";

#[derive(Debug, Args)]
struct HostArgs {
    /// Work in the mount namespace of process 1, for a privileged pod with hostPID
    #[arg(long)]
    host: bool,

    /// Report whether the command is possible now, and change nothing
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

    /// Import it into this pool, which is on the mount of the directory
    #[arg(long, value_name = "NAME")]
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

fn mode_parser() -> impl TypedValueParser<Value = ClaimMode> {
    let names = ClaimMode::ALL.map(ClaimMode::short);
    PossibleValuesParser::new(names).try_map(|name| {
        let mut modes = ClaimMode::ALL.into_iter();
        let mode = modes.find(|mode| mode.short() == name);
        mode.ok_or("it is no access mode")
    })
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
            return Err(Refusal::NoHost.into());
        }
        Ok(())
    }
}

/// Prints the log to standard error.
fn start_log() {
    let writer = || {
        progress::clear();
        std::io::stderr()
    };
    let subscriber = tracing_subscriber::fmt().with_writer(writer);
    // It fails if there is one already.
    let _ = subscriber.without_time().with_target(false).try_init();
}

pub(super) fn import(args: &ImportArgs) -> Result<bool> {
    args.check()?;
    start_log();
    args.host.enter()?;
    let server = Connection(args.server.connect()?);
    let directory = args.directory.display();
    match args.import().run(&server)? {
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

pub(super) fn export(args: &ExportArgs) -> Result<bool> {
    start_log();
    args.host.enter()?;
    let server = Connection(args.server.connect()?);
    let id = args.id;
    let export = ExportTo {
        os: Os::default(),
        id,
        to: args.to.clone(),
        users: args.host.users(),
        dry_run: args.host.dry_run,
    };
    let exported = export.run(&server)?;
    let path = exported.path.display();
    if exported.was_done {
        print(format_args!(
            "volume {id} was exported before: it is the directory {path}"
        ))?;
    } else if args.host.dry_run {
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
        let access_modes = self.access_modes.iter().copied();
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
            access_modes: access_modes.map(AccessMode::from).collect(),
            users: self.host.users(),
            dry_run: self.host.dry_run,
            show: progress::is_shown().then_some(progress::show),
        }
    }
}
