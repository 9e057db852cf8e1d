//! Calls with arbitrary bytes as messages.

use proptest::prelude::*;
use prost::bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Sends the bytes unchanged.
#[derive(Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).into()))
    }
}

/// Sends bytes as the message of a call, and returns the bytes of the answer.
pub async fn send(channel: &Channel, path: &str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.expect("the server lives");
    let path = PathAndQuery::try_from(path).unwrap();
    let answer = client.unary(Request::new(message), path, Raw).await?;
    Ok(answer.into_inner())
}

/// One change to a message. The numbers are taken modulo the number of positions.
#[derive(Debug, Clone)]
enum Change {
    Flip(usize, u8),
    Cut(usize),
    Remove(usize, usize),
    Insert(usize, Vec<u8>),
    Repeat(usize, usize),
}

fn apply(mut bytes: Vec<u8>, change: Change) -> Vec<u8> {
    let at = |number: usize| number % (bytes.len() + 1);
    match change {
        Change::Flip(index, mask) => {
            let index = at(index);
            if let Some(byte) = bytes.get_mut(index) {
                *byte ^= mask;
            }
        }
        Change::Cut(length) => bytes.truncate(at(length)),
        Change::Remove(from, count) => {
            let (from, to) = (at(from), at(from.saturating_add(count)));
            bytes.drain(from.min(to)..from.max(to));
        }
        Change::Insert(index, inserted) => {
            let index = at(index);
            bytes.splice(index..index, inserted);
        }
        Change::Repeat(from, count) => {
            let (from, to) = (at(from), at(from.saturating_add(count)));
            let part = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.extend(part);
        }
    }
    bytes
}

fn changes() -> impl Strategy<Value = Change> {
    // Includes keys of fields with a wrong length, and varints without an end.
    let inserted = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..16),
        Just(vec![0xff; 11]),
        Just(vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x07]),
        Just(vec![0x0b; 200]),
        Just(vec![0xc0, 0x80]),
    ];
    prop_oneof![
        4 => (any::<usize>(), 1..=255_u8).prop_map(|(index, mask)| Change::Flip(index, mask)),
        1 => any::<usize>().prop_map(Change::Cut),
        2 => (any::<usize>(), 1..32_usize).prop_map(|(from, count)| Change::Remove(from, count)),
        2 => (any::<usize>(), inserted).prop_map(|(index, bytes)| Change::Insert(index, bytes)),
        1 => (any::<usize>(), 1..64_usize).prop_map(|(from, count)| Change::Repeat(from, count)),
    ]
}

/// Valid bytes with a few changes, and random bytes.
pub fn spoiled(good: BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>> {
    let changed = (good, prop::collection::vec(changes(), 1..5))
        .prop_map(|(bytes, changes)| changes.into_iter().fold(bytes, apply));
    prop_oneof![
        4 => changed,
        1 => prop::collection::vec(any::<u8>(), 0..300),
    ]
    .boxed()
}
