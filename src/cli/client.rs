//! The way to a server: its socket.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::admin::admin_client::AdminClient;
use crate::config::parse_endpoint;
use crate::csi::controller_client::ControllerClient;
use crate::error::{Error, Result};

/// The flag of commands that need a server.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// Ask the server at this Unix socket
    #[arg(
        long,
        env = "CSI_ENDPOINT",
        value_name = "URL",
        default_value = "unix:///csi/csi.sock"
    )]
    endpoint: String,
}

impl ServerArgs {
    /// The path of the socket.
    pub(super) fn socket(&self) -> Result<PathBuf> {
        parse_endpoint(&self.endpoint)
    }
}

/// Says why a server refused.
pub(super) fn refused(status: &Status) -> ExitCode {
    eprintln!("rootcellar: {}", status.message());
    ExitCode::FAILURE
}

/// The error of a text that is no id.
pub(super) fn no_id(what: &str, id: &str) -> Error {
    let problem = format!("{id:?} is not the id of a {what}; rootcellar {what} show tells it");
    Error::invalid("ID", problem)
}

/// Clients of the services that commands use, over one connection.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    /// The controller service.
    pub(super) controller: ControllerClient<Channel>,
    /// The driver's own service.
    pub(super) admin: AdminClient<Channel>,
}

impl Clients {
    /// Clients of a server that is there.
    pub(super) fn of_server(socket: &Path) -> Result<Self> {
        // A connection that is tried here tells the system's own reason, and by the path.
        UnixStream::connect(socket).map_err(|source| Error::Io {
            what: "reach a server at the socket",
            path: socket.to_owned(),
            source,
        })?;
        let channel = Endpoint::try_from(format!("unix://{}", socket.display()))
            .map_err(|error| Error::Internal(format!("cannot use {}: {error}", socket.display())))?
            .connect_lazy();
        Ok(Self {
            controller: ControllerClient::new(channel.clone()),
            admin: AdminClient::new(channel),
        })
    }
}
