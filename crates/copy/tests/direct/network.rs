//! Somebody between the two ends, who records and changes their messages.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::{self, JoinHandle};

/// One fault of a direction, after a number of bytes.
#[derive(Debug)]
pub(crate) enum Fault {
    None,
    /// The connection ends.
    Cut(usize),
    /// The next byte is another.
    Flip(usize),
    /// Nothing goes on until the test says so.
    Pause(usize, Sender<()>, Receiver<()>),
}

/// The bytes of the first connection, from the sender and from the receiver.
type Recorded = (Vec<u8>, Vec<u8>);

/// Passes one connection after another on to a port.
pub(crate) struct Proxy {
    port: u16,
    thread: JoinHandle<Recorded>,
}

impl Proxy {
    /// With a fault of each direction for each connection; there are no more.
    pub(crate) fn new(to: u16, faults: Vec<(Fault, Fault)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let thread = thread::spawn(move || {
            let mut connections = faults.into_iter().map(|fault| {
                let (sender, _) = listener.accept().unwrap();
                let receiver = TcpStream::connect(("127.0.0.1", to)).unwrap();
                pass(&sender, &receiver, fault)
            });
            let first = connections.next().unwrap();
            connections.for_each(drop);
            first
        });
        Self { port, thread }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Waits for the end of the last connection.
    pub(crate) fn recorded(self) -> Recorded {
        self.thread.join().unwrap()
    }
}

/// Passes both directions on until each has ended.
fn pass(sender: &TcpStream, receiver: &TcpStream, (up, down): (Fault, Fault)) -> Recorded {
    thread::scope(|scope| {
        let up = scope.spawn(|| pump(sender, receiver, up));
        let down = pump(receiver, sender, down);
        (up.join().unwrap(), down)
    })
}

/// Returns the bytes that were read.
fn pump(mut from: &TcpStream, mut to: &TcpStream, fault: Fault) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    let mut fault = Some(fault);
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        let before = all.len();
        all.extend(&buffer[..read]);
        let bytes = &mut buffer[..read];
        let here = |at: &usize| (before..before + read).contains(at);
        match fault.take() {
            Some(Fault::Cut(at)) if here(&at) => {
                let _ = to.write_all(&bytes[..at - before]);
                let _ = from.shutdown(Shutdown::Both);
                break;
            }
            Some(Fault::Flip(at)) if here(&at) => bytes[at - before] ^= 1,
            Some(Fault::Pause(at, reached, resume)) if here(&at) => {
                reached.send(()).unwrap();
                resume.recv().unwrap();
            }
            other => fault = other,
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    // The other direction ends only where an end closes the connection.
    let _ = to.shutdown(Shutdown::Write);
    all
}
