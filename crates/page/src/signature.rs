//! The signatures of the page `/inventory`: the controller signs its request, and the driver its answer, with a key that
//! both have and neither sends.
//!
//! A request is `Authorization: Rootcellar-HMAC-SHA256 TIME.NONCE.MAC`, and the header of its answer
//! `Rootcellar-Signature: TIME.MAC`. `TIME` is in seconds since 1970, `MAC` is HMAC-SHA-256 in hexadecimal digits. It
//! covers these parts, each after its length as eight bytes, the highest first: a label, the node's name, `TIME`, `NONCE`
//! and, in an answer, the body. The label is `rootcellar request` or `rootcellar answer`, so that neither can pass as the
//! other.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, Mac};
use sha2::Sha256;
use uuid::Uuid;

/// The scheme of `Authorization`. A refusal names it in `WWW-Authenticate`.
pub const SCHEME: &str = "Rootcellar-HMAC-SHA256";

/// The header with the signature of an answer.
pub const HEADER: &str = "rootcellar-signature";

/// The time for which a request is good. Two clocks may differ by it.
pub const GOOD_FOR: Duration = Duration::from_mins(5);

/// The fewest bytes of a key.
const MIN_KEY: usize = 16;

/// The key of a Secret.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

/// The file of a key has too few characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortKey;

impl fmt::Display for ShortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the key has fewer than {MIN_KEY} characters")
    }
}

impl Key {
    /// The key in a file, which may end with a newline.
    ///
    /// # Errors
    ///
    /// It is too short.
    pub fn new(file: &[u8]) -> Result<Self, ShortKey> {
        let key = Some(file.trim_ascii()).filter(|key| key.len() >= MIN_KEY);
        // HMAC takes a key of any length.
        let mac = key.and_then(|key| Hmac::new_from_slice(key).ok());
        mac.map(Self).ok_or(ShortKey)
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }
}

/// A request for the page of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    node: String,
    /// In seconds since 1970.
    time: u64,
    /// Makes its answer good for no other request.
    nonce: String,
}

/// Why a driver does not answer with its inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The request is not signed for this node with this key.
    Unsigned,
    /// It is signed, but was made at another time. The answer names the driver's time, so it is signed too.
    Clock(Request),
}

/// Why an answer is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distrust {
    /// It is not signed for this request with this key.
    Unsigned,
    /// It is signed, but by a clock that is ahead.
    Ahead(Duration),
    Behind(Duration),
}

impl Request {
    pub fn new(node: &str, now: SystemTime) -> Self {
        Self {
            node: node.to_owned(),
            time: seconds(now),
            nonce: Uuid::new_v4().simple().to_string(),
        }
    }

    /// The value of `Authorization`.
    pub fn authorization(&self, key: &Key) -> String {
        let Self { time, nonce, .. } = self;
        let mac = to_hex(self.mac(key));
        format!("{SCHEME} {time}.{nonce}.{mac}")
    }

    /// Reads the value of `Authorization` on the node that is asked.
    ///
    /// # Errors
    ///
    /// The request is not signed, or not of now.
    pub fn read(key: &Key, value: &[u8], node: &str, now: SystemTime) -> Result<Self, Refusal> {
        let (request, mac) = Self::parse(value, node).ok_or(Refusal::Unsigned)?;
        let verified = request.mac(key).verify_slice(&mac);
        verified.map_err(|_| Refusal::Unsigned)?;
        match same_time(request.time, now) {
            Ok(()) => Ok(request),
            Err(_) => Err(Refusal::Clock(request)),
        }
    }

    fn parse(value: &[u8], node: &str) -> Option<(Self, Vec<u8>)> {
        let value = str::from_utf8(value).ok()?;
        let mut parts = value.strip_prefix(SCHEME)?.strip_prefix(' ')?.split('.');
        let (time, nonce, mac) = (parts.next()?, parts.next()?, parts.next()?);
        let request = Self {
            node: node.to_owned(),
            time: time.parse().ok()?,
            nonce: nonce.to_owned(),
        };
        let mac = from_hex(mac)?;
        parts.next().is_none().then_some((request, mac))
    }

    fn mac(&self, key: &Key) -> Hmac<Sha256> {
        let Self { node, time, nonce } = self;
        let parts = ["rootcellar request", node, &time.to_string(), nonce];
        key.mac(&parts.map(str::as_bytes))
    }

    /// The value of [`HEADER`] in an answer with this body.
    pub fn signature(&self, key: &Key, body: &[u8], now: SystemTime) -> String {
        let time = seconds(now);
        let mac = to_hex(self.mac_of_answer(key, time, body));
        format!("{time}.{mac}")
    }

    fn mac_of_answer(&self, key: &Key, time: u64, body: &[u8]) -> Hmac<Sha256> {
        let Self { node, nonce, .. } = self;
        let parts = ["rootcellar answer", node, &time.to_string(), nonce];
        let [label, node, time, nonce] = parts.map(str::as_bytes);
        key.mac(&[label, node, time, nonce, body])
    }

    /// Checks the value of [`HEADER`] in an answer to this request.
    ///
    /// # Errors
    ///
    /// The answer is not signed, or by a node with another time.
    pub fn verify(
        &self,
        key: &Key,
        value: &[u8],
        body: &[u8],
        now: SystemTime,
    ) -> Result<(), Distrust> {
        let (time, mac) = parse_signature(value).ok_or(Distrust::Unsigned)?;
        let verified = self.mac_of_answer(key, time, body).verify_slice(&mac);
        verified.map_err(|_| Distrust::Unsigned)?;
        same_time(time, now)
    }
}

fn parse_signature(value: &[u8]) -> Option<(u64, Vec<u8>)> {
    let (time, mac) = str::from_utf8(value).ok()?.split_once('.')?;
    Some((time.parse().ok()?, from_hex(mac)?))
}

/// Whether another clock shows about this time.
fn same_time(theirs: u64, now: SystemTime) -> Result<(), Distrust> {
    let ours = seconds(now);
    match Duration::from_secs(theirs.abs_diff(ours)) {
        differs if differs <= GOOD_FOR => Ok(()),
        ahead if theirs > ours => Err(Distrust::Ahead(ahead)),
        behind => Err(Distrust::Behind(behind)),
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn to_hex(mac: Hmac<Sha256>) -> String {
    format!("{:x}", mac.finalize().into_bytes())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let bytes = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    });
    bytes.collect()
}

#[cfg(test)]
mod tests;
