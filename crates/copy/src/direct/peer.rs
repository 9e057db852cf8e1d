//! How the two ends of a copy find each other, before either says anything about its volume.

use std::io::{self, ErrorKind, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use snow::HandshakeState;

use super::channel::{GREETING, PROOF, Reader, Secret, Session, Writer};
use crate::fault::{Error, Result};

/// The time that a connection has to prove that it knows the key.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The time between two attempts of the sender.
const PAUSE: Duration = Duration::from_millis(250);

/// The connections that may be in a handshake at once; another takes the place of the oldest.
const MAX_GUESTS: usize = 128;

pub(super) type Channel = (Reader, Writer);

/// Listens on a port of all addresses, with IPv4 alone if the node has no IPv6.
pub(super) fn open_port(port: u16) -> io::Result<TcpListener> {
    match bind_to(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
            Ok(bind_to(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?)
        }
        listener => Ok(listener?),
    }
}

fn bind_to(address: SocketAddr) -> std::result::Result<TcpListener, Errno> {
    let family = if address.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        // The node's default may be another.
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)?;
    listen(&socket, i32::try_from(MAX_GUESTS).unwrap_or(i32::MAX))?;
    Ok(TcpListener::from(socket))
}

/// Waits for the sender. Nothing is sent to a connection before it has proven that it knows the key, or has repeated a
/// message of a peer that does.
pub(super) fn accept(listener: TcpListener, secret: &Secret, wait: Duration) -> Result<Channel> {
    let reception = Reception {
        listener,
        secret,
        until: Instant::now() + wait,
        guests: Vec::new(),
        refused: 0,
    };
    reception.run(wait)
}

/// All connections are in one thread, and none of them is waited for alone.
struct Reception<'a> {
    listener: TcpListener,
    secret: &'a Secret,
    until: Instant,
    /// The oldest first.
    guests: Vec<Guest>,
    refused: u64,
}

impl Reception<'_> {
    fn run(mut self, wait: Duration) -> Result<Channel> {
        let port = self.listener.local_addr().map_or(0, |local| local.port());
        let failed = |error| Error::NoPort { port, error };
        loop {
            self.admit().map_err(failed)?;
            if let Some(channel) = self.serve() {
                return Ok(channel);
            }
            if self.until <= Instant::now() {
                return Err(Error::NoSender {
                    seconds: wait.as_secs(),
                    refused: self.refused,
                });
            }
            self.wait().map_err(failed)?;
        }
    }

    fn admit(&mut self) -> io::Result<()> {
        // Not all at once, so that the others have their turn.
        for _ in 0..MAX_GUESTS / 4 {
            // It may have been closed before.
            let Ok((stream, _)) = self.listener.accept() else {
                break;
            };
            if self.guests.len() == MAX_GUESTS {
                self.guests.remove(0);
                self.refused += 1;
            }
            self.guests.push(Guest::new(stream, self.secret)?);
        }
        Ok(())
    }

    fn serve(&mut self) -> Option<Channel> {
        let now = Instant::now();
        for guest in mem::take(&mut self.guests) {
            match guest.step() {
                Ok(Step::Waits(guest)) if guest.until > now => self.guests.push(guest),
                Ok(Step::Proven(channel)) => return Some(channel),
                Ok(Step::Waits(_)) | Err(_) => self.refused += 1,
            }
        }
        None
    }

    /// Waits until something comes, or a time is over.
    fn wait(&self) -> io::Result<()> {
        let streams = self.guests.iter().map(|guest| &guest.stream);
        let mut watched: Vec<_> = streams
            .map(|stream| PollFd::new(stream, PollFlags::IN))
            .collect();
        watched.push(PollFd::new(&self.listener, PollFlags::IN));
        let ends = self.guests.iter().map(|guest| guest.until);
        let end = ends.chain([self.until]).min().unwrap_or(self.until);
        let rest = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(rest).map_err(io::Error::other)?;
        match poll(&mut watched, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A connection of which nothing is known.
struct Guest {
    stream: TcpStream,
    stage: Stage,
    message: [u8; GREETING],
    have: usize,
    until: Instant,
}

enum Stage {
    Greeting(Box<HandshakeState>),
    Proof(Box<Session>),
}

enum Step {
    Waits(Guest),
    Proven(Channel),
}

impl Guest {
    fn new(stream: TcpStream, secret: &Secret) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            stage: Stage::Greeting(Box::new(secret.of_receiver()?)),
            message: [0; GREETING],
            have: 0,
            until: Instant::now() + HANDSHAKE,
        })
    }

    /// Goes on as far as possible without waiting.
    fn step(mut self) -> io::Result<Step> {
        loop {
            let length = match self.stage {
                Stage::Greeting(_) => GREETING,
                Stage::Proof(_) => PROOF,
            };
            let buffer = self.message.get_mut(self.have..length);
            match self.stream.read(buffer.unwrap_or_default()) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.have += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Step::Waits(self));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.have < length {
                continue;
            }
            self.have = 0;
            let message = self.message.get(..length).unwrap_or_default();
            match self.stage {
                Stage::Greeting(mut noise) => {
                    let is_right = noise.read_message(message, &mut []);
                    is_right.map_err(io::Error::other)?;
                    greet(&mut noise, &self.stream)?;
                    self.stage = Stage::Proof(Box::new(Session::new(*noise)?));
                }
                Stage::Proof(session) => {
                    session.check(message)?;
                    session.prove(&self.stream)?;
                    return Ok(Step::Proven(session.open(self.stream)?));
                }
            }
        }
    }
}

/// Sends the next message of a handshake, whose turn it is.
fn greet(noise: &mut HandshakeState, mut stream: &TcpStream) -> io::Result<()> {
    let mut message = [0; GREETING];
    let written = noise.write_message(&[], &mut message);
    written.map_err(io::Error::other)?;
    // It is shorter than the buffer of any socket.
    stream.write_all(&message)
}

/// Calls the receiver until it takes this sender.
pub(super) fn connect(address: &str, secret: &Secret, wait: Duration) -> Result<Channel> {
    let until = Instant::now() + wait;
    let mut refusal = None;
    loop {
        let error = match call(address, secret, until) {
            Ok(channel) => return Ok(channel),
            Err(error) => error,
        };
        // The end of the time says less than an answer before it.
        let error = match refusal.take() {
            Some(refusal) if error.kind() == ErrorKind::TimedOut => refusal,
            _ => error,
        };
        if Instant::now() + PAUSE >= until {
            return Err(Error::NoReceiver {
                address: address.to_owned(),
                seconds: wait.as_secs(),
                error,
            });
        }
        refusal = Some(error);
        // It may not listen yet, or had too many other connections.
        thread::sleep(PAUSE);
    }
}

fn call(address: &str, secret: &Secret, until: Instant) -> io::Result<Channel> {
    let mut outcome = Err(io::Error::other("the name has no address"));
    for address in address.to_socket_addrs()? {
        let time = time_left(until.min(Instant::now() + HANDSHAKE))?;
        let connected = TcpStream::connect_timeout(&address, time);
        outcome = connected.and_then(|stream| shake_hands(stream, secret, until));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn shake_hands(stream: TcpStream, secret: &Secret, until: Instant) -> io::Result<Channel> {
    let until = until.min(Instant::now() + HANDSHAKE);
    let mut noise = secret.of_sender()?;
    greet(&mut noise, &stream)?;
    let mut greeting = [0; GREETING];
    read_until(&stream, &mut greeting, until)?;
    let is_right = noise.read_message(&greeting, &mut []);
    is_right.map_err(|_| io::Error::other("the other end does not know the key"))?;
    let session = Session::new(noise)?;
    session.prove(&stream)?;
    let mut proof = [0; PROOF];
    read_until(&stream, &mut proof, until)?;
    session.check(&proof)?;
    session.open(stream)
}

fn read_until(mut stream: &TcpStream, buffer: &mut [u8], until: Instant) -> io::Result<()> {
    let mut have = 0;
    while have < buffer.len() {
        stream.set_read_timeout(Some(time_left(until)?))?;
        match stream.read(buffer.get_mut(have..).unwrap_or_default()) {
            Ok(0) => {
                let problem = "it closed the connection: it has another key, id or version, or another sender";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, problem));
            }
            Ok(read) => have += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Err(ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The time until then.
fn time_left(until: Instant) -> io::Result<Duration> {
    let rest = until.saturating_duration_since(Instant::now());
    if rest.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(rest)
}
