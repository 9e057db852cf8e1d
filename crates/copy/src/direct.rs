//! The stream from pod to pod without the API server: encrypted, and only between two ends that know the key of the copy.

mod channel;
mod peer;

use std::io::{BufWriter, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::fault::{Doing, Error, Result};
use crate::record::CHUNK_BYTES;
use channel::{Reader, Secret, Writer};

/// The options of the receiver.
#[derive(Debug, clap::Args)]
pub(crate) struct ReceiveOptions {
    /// Receive over the network: listen on this port until a sender comes that knows the key
    #[arg(long, value_name = "PORT", requires = "key")]
    listen: Option<u16>,
    /// The file with the key of this copy: 32 random bytes as 64 hexadecimal digits or as base64
    #[arg(long, value_name = "FILE", requires = "listen")]
    key: Option<PathBuf>,
    /// How long to wait for the sender; if none comes, the exit code is 75
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        requires = "listen"
    )]
    wait: u32,
}

/// The options of the sender.
#[derive(Debug, clap::Args)]
pub(crate) struct SendOptions {
    /// Send over the network, to the receiver that listens there
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_address, requires_all = ["id", "key"])]
    connect: Option<String>,
    /// The id of this copy, which the receiver also has
    #[arg(long, value_parser = crate::parse_id, requires = "connect")]
    id: Option<String>,
    /// The file with the key of this copy: 32 random bytes as 64 hexadecimal digits or as base64
    #[arg(long, value_name = "FILE", requires = "connect")]
    key: Option<PathBuf>,
    /// How long to try to reach the receiver; if that fails, the exit code is 75
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        requires = "connect"
    )]
    wait: u32,
}

/// A name has no colon in it, and an IPv6 address is in brackets.
fn parse_address(text: &str) -> std::result::Result<String, String> {
    let is_name = |(host, port): (&str, &str)| {
        !host.is_empty() && !host.contains([':', '[', ']']) && port.parse::<u16>().is_ok()
    };
    if text.parse::<SocketAddr>().is_ok() || text.split_once(':').is_some_and(is_name) {
        Ok(text.to_owned())
    } else {
        Err("not HOST:PORT, or [ADDRESS]:PORT with an IPv6 address".to_owned())
    }
}

/// The receiver, before the sender has come.
pub(crate) struct Listener {
    socket: TcpListener,
    secret: Secret,
    wait: Duration,
}

impl ReceiveOptions {
    /// `None` without the option.
    pub(crate) fn listener(&self, id: &str) -> Result<Option<Listener>> {
        let (Some(port), Some(key)) = (self.listen, &self.key) else {
            return Ok(None);
        };
        let secret = Secret::read(key, id)?;
        let socket = peer::open_port(port).map_err(|error| Error::NoPort { port, error })?;
        Ok(Some(Listener {
            socket,
            secret,
            wait: Duration::from_secs(self.wait.into()),
        }))
    }
}

impl Listener {
    /// Waits for the sender, sends the content of the target as sums, and receives. The end that the receiver sends says
    /// that the copy is complete.
    pub(crate) fn receive(
        self,
        have: impl FnOnce(&mut BufWriter<&mut Writer>) -> Result<()> + Send + 'static,
        receive: impl FnOnce(&mut Reader) -> Result<u128>,
    ) -> Result<u128> {
        let address = self.socket.local_addr().doing("listen")?;
        eprintln!("waiting for the sender on port {}", address.port());
        // No other connection is accepted after the sender's.
        let (mut reader, mut writer) = peer::accept(self.socket, &self.secret, self.wait)?;
        eprintln!("the sender is connected");
        let (tell, told) = mpsc::channel();
        // A copy that fails does not wait for this thread, which may read a large file.
        thread::spawn(move || {
            let had = have(&mut BufWriter::new(&mut writer));
            let is_told = match had {
                Ok(()) => tell.send(Ok(writer)),
                Err(error) => {
                    // Before the other thread notices the end of the connection.
                    let is_told = tell.send(Err(error));
                    writer.abort();
                    is_told
                }
            };
            // Otherwise the copy has failed.
            drop(is_told);
        });
        let received = receive(&mut reader).and_then(|fingerprint| {
            // If anything is unread, the sender may get no answer.
            reader.drain().doing("read the end of the stream")?;
            Ok(fingerprint)
        });
        match received {
            Ok(fingerprint) => {
                // The sender has read all.
                let mut writer = told.recv().unwrap_or(Err(Error::EndedEarly))?;
                writer.end().doing("write to the sender")?;
                Ok(fingerprint)
            }
            Err(error) => match told.try_recv() {
                Ok(Err(had)) if !is_hang_up(&had) => Err(had),
                _ if is_hang_up(&error) => Err(Error::EndedEarly),
                _ => Err(error),
            },
        }
    }
}

/// The sender, before it has reached the receiver.
pub(crate) struct Caller<'a> {
    address: &'a str,
    secret: Secret,
    wait: Duration,
}

impl SendOptions {
    /// `None` without the option.
    pub(crate) fn caller(&self) -> Result<Option<Caller<'_>>> {
        let (Some(address), Some(id), Some(key)) = (&self.connect, &self.id, &self.key) else {
            return Ok(None);
        };
        Ok(Some(Caller {
            address,
            secret: Secret::read(key, id)?,
            wait: Duration::from_secs(self.wait.into()),
        }))
    }
}

impl Caller<'_> {
    /// Reaches the receiver, sends the chunks that the target lacks, and waits until the receiver has compared everything.
    pub(crate) fn send(
        &self,
        send: impl FnOnce(&mut Reader, BufWriter<&mut Writer>) -> Result<()>,
    ) -> Result<()> {
        let (mut reader, mut writer) = peer::connect(self.address, &self.secret, self.wait)?;
        eprintln!("connected to the receiver at {}", self.address);
        let out = BufWriter::with_capacity(CHUNK_BYTES, &mut writer);
        let outcome = send(&mut reader, out).and_then(|()| {
            let ended = writer.end().and_then(|()| reader.drain());
            ended.doing("read the receiver's answer")
        });
        match outcome {
            Err(error) if is_hang_up(&error) => Err(Error::ReceiverEnded),
            outcome => outcome,
        }
    }
}

/// Whether the other end has ended, whose message says more.
fn is_hang_up(error: &Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error {
        Error::Io { error, .. } => {
            matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port() {
        for right in ["10.0.0.1:80", "receiver.space:8080", "[fd00::1]:65535"] {
            assert_eq!(parse_address(right).as_deref(), Ok(right));
        }
        for wrong in [
            "",
            "host",
            "host:",
            ":80",
            "host:65536",
            "fd00::1:80",
            "[]:80",
        ] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
