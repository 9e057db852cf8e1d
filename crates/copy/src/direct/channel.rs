//! The channel between the two pods of a copy: messages of the Noise protocol over TCP.
//!
//! The sender calls. Its greeting and the receiver's answer show that both know the key. But the greeting may be a recorded
//! one, which nobody can see. So the receiver waits for one more message, the proof, which needs the key and the answer, and
//! takes the sender by a proof of its own. Each message after these has two bytes in front, its length; an empty one is the
//! end.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::net::sockopt;
use snow::{HandshakeState, StatelessTransportState};

use crate::fault::{Error, Result};
use crate::record::CHUNK_BYTES;

/// The key of the copy and a fresh key of each run, so that a key that becomes known later opens no recorded stream.
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

/// The version of the channel, which both ends must have, with the id of the copy.
const PROLOGUE: &str = "rootcellar-copy direct 1 ";

/// The longest message of the protocol, and the bytes that it adds to its content.
const MAX_MESSAGE: usize = 65535;
const TAG: usize = 16;
const MAX_CONTENT: usize = MAX_MESSAGE - TAG;
const LENGTH: usize = 2;

/// The bytes of the first message of each end, and of its proof.
pub(super) const GREETING: usize = 32 + TAG;
pub(super) const PROOF: usize = TAG;

/// A key file has one line.
const MAX_KEY_FILE: u64 = 1024;

/// The time without an answer after which a peer counts as dead. `TCP_USER_TIMEOUT` is not set, because a receiver that waits
/// for its disk does not read, and that option ends its connection too. The kernel ends the connection of a sender whose data
/// nobody acknowledges after about 15 minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

/// The knowledge that both ends of a copy share.
pub(crate) struct Secret {
    key: [u8; 32],
    prologue: String,
}

impl Secret {
    pub(crate) fn read(path: &Path, id: &str) -> Result<Self> {
        let read = || {
            let mut text = String::new();
            let file = File::open(path)?;
            file.take(MAX_KEY_FILE).read_to_string(&mut text)?;
            parse_key(text.trim()).ok_or_else(|| {
                let problem = "it needs 32 bytes as 64 hexadecimal digits or as base64";
                io::Error::new(ErrorKind::InvalidData, problem)
            })
        };
        let key = read().map_err(|error| Error::Key {
            path: path.display().to_string(),
            error,
        })?;
        Ok(Self {
            key,
            prologue: format!("{PROLOGUE}{id}"),
        })
    }

    fn handshake(&self, is_sender: bool) -> io::Result<HandshakeState> {
        let build = || {
            let builder = snow::Builder::new(PATTERN.parse()?)
                .prologue(self.prologue.as_bytes())?
                .psk(0, &self.key)?;
            if is_sender {
                builder.build_initiator()
            } else {
                builder.build_responder()
            }
        };
        build().map_err(io::Error::other)
    }

    pub(super) fn of_sender(&self) -> io::Result<HandshakeState> {
        self.handshake(true)
    }

    pub(super) fn of_receiver(&self) -> io::Result<HandshakeState> {
        self.handshake(false)
    }
}

fn parse_key(text: &str) -> Option<[u8; 32]> {
    // As many base64 digits have 48 bytes.
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let (high, low) = text.split_at_checked(32)?;
        let half = |digits| u128::from_str_radix(digits, 16).map(u128::to_be_bytes);
        let both = [half(high).ok()?, half(low).ok()?];
        return both.concat().try_into().ok();
    }
    STANDARD.decode(text).ok()?.try_into().ok()
}

/// The keys of a run, after both greetings.
pub(super) struct Session(StatelessTransportState);

/// The number of the proof; those of the messages follow.
const PROOF_NUMBER: u64 = 0;

impl Session {
    pub(super) fn new(noise: HandshakeState) -> io::Result<Self> {
        let noise = noise.into_stateless_transport_mode();
        noise.map(Self).map_err(io::Error::other)
    }

    /// Sends the proof that this end knows the key now.
    pub(super) fn prove(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut proof = [0; PROOF];
        let written = self.0.write_message(PROOF_NUMBER, &[], &mut proof);
        written.map_err(io::Error::other)?;
        // It is shorter than the buffer of any socket.
        stream.write_all(&proof)
    }

    /// Refuses a false proof of the other end.
    pub(super) fn check(&self, proof: &[u8]) -> io::Result<()> {
        let read = self.0.read_message(PROOF_NUMBER, proof, &mut []);
        read.map(drop).map_err(|_| changed())
    }

    pub(super) fn open(self, stream: TcpStream) -> io::Result<(Reader, Writer)> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_EVERY)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        let noise = Arc::new(self.0);
        let writer = Writer {
            stream: stream.try_clone()?,
            noise: Arc::clone(&noise),
            number: PROOF_NUMBER,
            out: Vec::new(),
        };
        let reader = Reader {
            stream: BufReader::with_capacity(CHUNK_BYTES, stream),
            noise,
            number: PROOF_NUMBER,
            message: vec![0; MAX_MESSAGE],
            content: vec![0; MAX_CONTENT],
            taken: 0,
            length: 0,
            is_at_end: false,
        };
        Ok((reader, writer))
    }
}

fn changed() -> io::Error {
    let problem = "a message was changed on the way, or is not of the other end";
    io::Error::new(ErrorKind::InvalidData, problem)
}

/// The messages of the other end. The end of the connection is an error; only that of the messages is an end.
pub(crate) struct Reader {
    stream: BufReader<TcpStream>,
    noise: Arc<StatelessTransportState>,
    number: u64,
    message: Vec<u8>,
    /// Of the last message, with its length and the bytes that were taken.
    content: Vec<u8>,
    length: usize,
    taken: usize,
    is_at_end: bool,
}

impl Reader {
    /// Reads until the end.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }

    fn next(&mut self) -> io::Result<()> {
        let mut length = [0; LENGTH];
        self.stream.read_exact(&mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        let message = self.message.get_mut(..length).unwrap_or_default();
        self.stream.read_exact(message)?;
        self.number += 1;
        let read = self
            .noise
            .read_message(self.number, message, &mut self.content);
        self.length = read.map_err(|_| changed())?;
        self.taken = 0;
        self.is_at_end = self.length == 0;
        Ok(())
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.length && !self.is_at_end {
            self.next()?;
        }
        let rest = self.content.get(self.taken..self.length);
        let read = rest.unwrap_or_default().read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}

/// The messages of this end. It does not buffer: each write is at least one message.
pub(crate) struct Writer {
    stream: TcpStream,
    noise: Arc<StatelessTransportState>,
    number: u64,
    /// Messages that were not written yet.
    out: Vec<u8>,
}

impl Writer {
    /// Writes the end, after which nothing may follow.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.seal(&[])?;
        self.flush()
    }

    /// Ends the connection for both ends, without the end of the messages.
    pub(super) fn abort(&self) {
        // It may have ended already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Adds a message to those that are written next.
    fn seal(&mut self, content: &[u8]) -> io::Result<()> {
        let length = u16::try_from(content.len() + TAG).map_err(io::Error::other)?;
        self.out.extend(length.to_be_bytes());
        let at = self.out.len();
        self.out.resize(at + usize::from(length), 0);
        let message = self.out.get_mut(at..).unwrap_or_default();
        self.number += 1;
        let written = self.noise.write_message(self.number, content, message);
        written.map(drop).map_err(io::Error::other)
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..CHUNK_BYTES).unwrap_or(bytes);
        for content in bytes.chunks(MAX_CONTENT) {
            self.seal(content)?;
        }
        self.flush()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_hex_or_base64() {
        let hex = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
        let base64 = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let key: Vec<u8> = (0..32).collect();
        for text in [hex, base64] {
            assert_eq!(parse_key(text).unwrap(), *key, "{text}");
        }
        let too_long = hex.replace('0', "+");
        for text in ["", "key", &hex[2..], &base64[4..], &too_long] {
            assert_eq!(parse_key(text), None, "{text}");
        }
    }
}
