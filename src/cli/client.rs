//! The connection to a server, by its socket.

use std::convert::Infallible;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linux::fault::PathFault;
use objects::{NameHash, ObjectId};
use tokio::runtime::Runtime;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::progress;
use crate::admin::GetAdvanceRequest;
use crate::admin::admin_client::AdminClient;
use crate::config::parse_endpoint;
use crate::csi::controller_client::ControllerClient;
use crate::error::{Error, Result};
use pool::{Advance, Unit};

/// How often the command asks how far work has come.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The flag of commands that need a server.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Ask the server at this Unix socket
    #[arg(long, env = "CSI_ENDPOINT", value_name = "URL", default_value = "unix:///csi/csi.sock",
          value_parser = parse_endpoint)]
    endpoint: PathBuf,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) runtime: Runtime,
    pub(super) controller: ControllerClient<Channel>,
    pub(super) admin: AdminClient<Channel>,
}

impl ServerArgs {
    /// Connects to the server. Fails if nobody serves the socket.
    pub(super) fn connect(&self) -> Result<Server> {
        // This attempt reports the error of the system, with the path.
        UnixStream::connect(&self.endpoint).map_err(PathFault::at(
            "reach a server at the socket",
            &self.endpoint,
        ))?;
        let cannot = |error: &dyn std::fmt::Display| {
            Error::Internal(format!("cannot use {}: {error}", self.endpoint.display()))
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| cannot(&error))?;
        let channel = {
            let _context = runtime.enter();
            let url = format!("unix://{}", self.endpoint.display());
            Endpoint::try_from(url)
                .map_err(|error| cannot(&error))?
                .connect_lazy()
        };
        Ok(Server {
            runtime,
            controller: ControllerClient::new(channel.clone()),
            admin: AdminClient::new(channel),
        })
    }
}

impl Server {
    /// Waits for a call about a volume, and shows on a terminal how far its work has come. `about` begins the line.
    pub(super) fn wait<T>(&self, about: &str, id: &str, call: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            if !progress::is_shown() {
                return call.await;
            }
            tokio::select! {
                done = call => done,
                never = show_advance(self.admin.clone(), about, id) => match never {},
            }
        })
    }
}

/// Shows how far the work on a volume has come, again and again.
async fn show_advance(mut admin: AdminClient<Channel>, about: &str, id: &str) -> Infallible {
    loop {
        tokio::time::sleep(ASK_EVERY).await;
        let request = GetAdvanceRequest { id: id.to_owned() };
        // Only the call itself reports that the server is lost.
        let Ok(answer) = admin.get_advance(request).await else {
            continue;
        };
        let answer = answer.into_inner();
        let (what, unit) = if answer.bytes {
            ("copied", Unit::Bytes)
        } else {
            ("files and directories", Unit::Objects)
        };
        if answer.done > 0 {
            let (done, total) = (answer.done, answer.total);
            progress::show(&format!("{about}{what}"), Advance { done, total, unit });
        }
    }
}

pub(super) fn print_refusal(status: &Status) {
    progress::clear();
    eprintln!("rootcellar: {}", status.message());
}

/// Parses an id. A name is an error.
pub(super) fn parse_id<I: ObjectId>(text: &str) -> Result<I, String> {
    let object = I::OBJECT;
    let problem = || format!("it is not the id of a {object}; rootcellar {object} show prints it");
    I::parse(text).ok_or_else(problem)
}

/// An object by its id, or by the hash with which the id ends. The events of the controller have hashes, because an id
/// has that of the pool too.
#[derive(Debug, Clone, Copy)]
pub(super) enum Named<I> {
    Id(I),
    Hash(NameHash),
}

pub(super) fn parse_named<I: ObjectId>(text: &str) -> Result<Named<I>, String> {
    match NameHash::parse(text) {
        Some(hash) => Ok(Named::Hash(hash)),
        None => parse_id(text).map(Named::Id),
    }
}

impl<I: ObjectId> Named<I> {
    /// The id. `all` are the objects that a hash may be of.
    pub(super) fn id<E>(self, all: impl FnOnce() -> Result<Vec<I>, E>) -> Result<Option<I>, E> {
        let hash = match self {
            Self::Id(id) => return Ok(Some(id)),
            Self::Hash(hash) => hash,
        };
        let mut found = all()?.into_iter().filter(|id| id.hash() == hash);
        let first = found.next();
        // A hash is of one pool's object, unless somebody wrote the record of another one.
        let is_alone = found.all(|other| Some(other) == first);
        Ok(first.filter(|_| is_alone))
    }
}
