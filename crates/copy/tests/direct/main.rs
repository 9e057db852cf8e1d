//! Copies over the network between two processes, with strangers, and with somebody between them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod ends;
mod network;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use ends::{Ended, KEY, OTHER_KEY, Place, Process};
use network::{Fault, Proxy};
use support::eventually;

/// The bytes of the first message of an end, and those of a sender until it has proven that it knows the key.
const GREETING: usize = 48;
const PROVEN: usize = GREETING + 16;

/// The end of a process whose copy failed, and of those that found no other end.
const FAILED: i32 = 1;
const NO_STREAM: i32 = 75;

/// Both ends say that the copy is complete.
fn succeed(sender: Process, receiver: Process) -> Ended {
    let (sent, taken) = (sender.end(), receiver.end());
    assert_eq!((sent.code, taken.code), (0, 0), "{sent:?} {taken:?}");
    assert_eq!(sent.out, "");
    taken
}

/// Everything that somebody sends until the connection ends.
fn all_from(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => bytes,
    }
}

#[test]
fn a_copy_is_complete_and_may_be_repeated() {
    let place = Place::new();
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        let receiver = place.receiver("60");
        let sender = place.sender_to(&format!("{host}:{}", receiver.port));
        let ended = succeed(sender, receiver);
        assert!(ended.out.starts_with("fingerprint "), "{ended:?}");
    }
    place.is_complete();
}

/// They get no answer, and keep nobody out.
#[test]
fn strangers_get_nothing_and_disturb_nobody() {
    let place = Place::new();
    let receiver = place.receiver("60");
    let connect = || TcpStream::connect(("127.0.0.1", receiver.port)).unwrap();
    let first = connect();
    let silent: Vec<_> = (0..300).map(|_| connect()).collect();
    // Too many, so the oldest is closed.
    assert_eq!(all_from(&first), b"");
    let garbage = connect();
    (&garbage).write_all(&[7; 4000]).unwrap();
    assert_eq!(all_from(&garbage), b"");
    let half = connect();
    (&half).write_all(&[7; GREETING - 1]).unwrap();

    let others = [
        place.sender(&receiver, OTHER_KEY, ends::ID),
        place.sender(&receiver, KEY, "other"),
    ];
    for other in others.map(Process::end) {
        assert_eq!(other.code, NO_STREAM, "{other:?}");
        assert!(
            other.err.contains("another key, id or version"),
            "{other:?}"
        );
    }
    place.has_nothing();

    succeed(place.sender(&receiver, KEY, ends::ID), receiver);
    for stranger in silent.iter().chain([&half]) {
        assert_eq!(all_from(stranger), b"");
    }
    place.is_complete();
}

/// The receiver answers a recorded greeting, because it may be a true one, with a message that has no content.
#[test]
fn recorded_bytes_are_of_no_use() {
    let place = Place::new();
    let receiver = place.receiver("60");
    let proxy = Proxy::new(receiver.port, vec![(Fault::None, Fault::None)]);
    succeed(place.sender_to(&proxy.address()), receiver);
    let (of_sender, of_receiver) = proxy.recorded();

    // The same key and id, as when a copy is repeated.
    let again = Place::new();
    let receiver = again.receiver("60");
    let stranger = TcpStream::connect(("127.0.0.1", receiver.port)).unwrap();
    // The receiver closes the connection before it has read all.
    let _ = (&stranger).write_all(&of_sender);
    let answer = all_from(&stranger);
    assert!(answer.len() <= GREETING, "{}", answer.len());
    again.has_nothing();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let sender = again.sender_within(&address, KEY, ends::ID, "2");
    let (false_receiver, _) = listener.accept().unwrap();
    drop(listener);
    (&false_receiver).write_all(&of_receiver).unwrap();
    assert_eq!(all_from(&false_receiver).len(), GREETING);
    let sent = sender.end();
    assert_eq!(sent.code, NO_STREAM, "{sent:?}");

    succeed(again.sender(&receiver, KEY, ends::ID), receiver);
    again.is_complete();
}

/// A stream that ends early, or was changed, is never a complete copy, and the next run goes on.
#[test]
fn a_broken_stream_is_an_error() {
    let place = Place::new();
    let receiver = place.receiver("60");
    let proxy = Proxy::new(receiver.port, vec![(Fault::None, Fault::None)]);
    succeed(place.sender_to(&proxy.address()), receiver);
    let (of_sender, of_receiver) = proxy.recorded();
    let (up, down) = (of_sender.len(), of_receiver.len());
    let mut faults = Vec::new();
    for at in [PROVEN + 1, PROVEN + 2, PROVEN + 60, up / 3, up / 2, up - 1] {
        faults.push((Fault::Cut(at), Fault::None));
        faults.push((Fault::Flip(at), Fault::None));
    }
    // Of the receiver's proof, and of its message that the copy is complete.
    faults.push((Fault::None, Fault::Flip(GREETING + 10)));
    faults.push((Fault::None, Fault::Cut(down - 1)));
    faults.push((Fault::None, Fault::Flip(down - 1)));
    for fault in faults {
        place.empty_target();
        let receiver = place.receiver("60");
        let what = format!("{fault:?} of {up} and {down}");
        let is_of_sender = !matches!(fault.0, Fault::None);
        let proxy = Proxy::new(receiver.port, vec![fault]);
        let sent = place.sender_within(&proxy.address(), KEY, ends::ID, "2");
        let sent = sent.end();
        let taken = receiver.end();
        assert_ne!(sent.code, 0, "{what}: {sent:?}");
        if is_of_sender {
            assert_eq!(taken.code, FAILED, "{what}: {taken:?}");
            assert_eq!(taken.out, "", "{what}");
        }
        let receiver = place.receiver("60");
        succeed(place.sender(&receiver, KEY, ends::ID), receiver);
        place.is_complete();
    }
}

/// The sender calls again, so a handshake that fails costs nothing.
#[test]
fn a_broken_handshake_is_repeated() {
    let place = Place::new();
    let receiver = place.receiver("60");
    let faults = vec![
        (Fault::Cut(1), Fault::None),
        (Fault::Cut(GREETING), Fault::None),
        (Fault::Flip(GREETING - 1), Fault::None),
        (Fault::None, Fault::Cut(GREETING - 1)),
        (Fault::None, Fault::Flip(3)),
        (Fault::Cut(PROVEN - 1), Fault::None),
        (Fault::Flip(PROVEN - 1), Fault::None),
        (Fault::None, Fault::None),
    ];
    let proxy = Proxy::new(receiver.port, faults);
    succeed(place.sender_to(&proxy.address()), receiver);
    place.is_complete();
}

#[test]
fn an_end_whose_peer_is_killed_fails() {
    for is_sender in [true, false] {
        let place = Place::new();
        fs::write(place.source().join("large"), vec![1; 64 << 20]).unwrap();
        let receiver = place.receiver("60");
        let sender = place.sender(&receiver, KEY, ends::ID);
        let begun = place.target().join("large");
        eventually("the copy begins", || begun.symlink_metadata().is_ok());
        let (killed, other) = if is_sender {
            (sender, receiver)
        } else {
            (receiver, sender)
        };
        killed.kill();
        let ended = other.end();
        assert_eq!(ended.code, FAILED, "{ended:?}");
        assert_eq!(ended.out, "");
        assert!(ended.err.contains("message says why"), "{ended:?}");
    }
}

#[test]
fn one_of_two_senders_is_taken() {
    let place = Place::new();
    let receiver = place.receiver("60");
    let (paused, reached) = mpsc::channel();
    let (resume, resumed) = mpsc::channel();
    let proxy = Proxy::new(
        receiver.port,
        vec![(Fault::Pause(PROVEN + 1, paused, resumed), Fault::None)],
    );
    let first = place.sender_to(&proxy.address());
    reached.recv().unwrap();
    let second = place.sender(&receiver, KEY, ends::ID).end();
    assert_eq!(second.code, NO_STREAM, "{second:?}");
    resume.send(()).unwrap();
    succeed(first, receiver);
    place.is_complete();
}

/// The plan that runs both can then take another way, and only then.
#[test]
fn an_end_without_another_says_so() {
    let place = Place::new();
    let waited = place.receiver("0").end();
    assert_eq!(waited.code, NO_STREAM, "{waited:?}");
    assert!(waited.err.contains("no sender"), "{waited:?}");
    place.has_nothing();

    let taken = TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let args = |port: &str| place.receive_args(port, "60");
    let refused = Process::start(&args(&port.to_string())).end();
    assert_eq!(refused.code, NO_STREAM, "{refused:?}");
    // It is silent.
    let unanswered = place.sender_within(&format!("127.0.0.1:{port}"), KEY, ends::ID, "1");
    let unanswered = unanswered.end();
    assert_eq!(unanswered.code, NO_STREAM, "{unanswered:?}");

    fs::write(place.target().join("file"), "old").unwrap();
    let receiver = place.receiver("60");
    let sent = place.sender(&receiver, KEY, ends::ID).end();
    assert_eq!(sent.code, FAILED, "{sent:?}");
    let refused = receiver.end();
    assert_eq!(refused.code, FAILED);
    assert!(refused.err.contains("not empty"), "{refused:?}");

    fs::write(place.key(KEY), "0123").unwrap();
    let refused = Process::start(&args("0")).end();
    assert_eq!(refused.code, FAILED);
    assert!(refused.err.contains("has no key"), "{refused:?}");
}
