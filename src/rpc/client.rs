//! The client of a call, and the time for which it waits.

use std::time::{Duration, Instant};

use tonic::metadata::MetadataMap;

use crate::volume::Caller;

/// The header of gRPC with the time that a client gives a call.
const TIMEOUT: &str = "grpc-timeout";

/// The time that an answer may take to its client.
const MARGIN: Duration = Duration::from_secs(2);

/// The client of a call, which has left when this is dropped: its call has ended, or it hung up.
#[derive(Debug)]
pub(super) struct Client(pub(super) Caller);

impl Client {
    pub(super) fn of(metadata: &MetadataMap) -> Self {
        let given = metadata.get(TIMEOUT).and_then(|text| text.to_str().ok());
        // Such a long time is none.
        let until = given
            .and_then(timeout)
            .and_then(|time| Instant::now().checked_add(time.saturating_sub(MARGIN)));
        Self(Caller::until(until))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Parses the value of the header: at most eight digits and a unit. Tonic refuses no other, and then knows no deadline.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_a_number_with_a_unit() {
        let (hour, minute) = (Duration::from_hours(1), Duration::from_mins(1));
        let cases = [
            ("1H", Some(hour)),
            ("60M", Some(hour)),
            ("60S", Some(minute)),
            ("59999m", Some(Duration::from_millis(59_999))),
            ("59999876u", Some(Duration::from_micros(59_999_876))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("99999999H", Some(hour * 99_999_999)),
            ("0S", Some(Duration::ZERO)),
            ("", None),
            ("S", None),
            ("60", None),
            ("60s", None),
            ("+60S", None),
            ("-1S", None),
            ("100000000S", None),
            ("1\u{e9}", None),
        ];
        for (text, expected) in cases {
            assert_eq!(timeout(text), expected, "{text:?}");
        }
    }
}
