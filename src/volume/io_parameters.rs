//! The parameters of classes that limit the I/O of pods with images.

use linux::io::IoLimits;
use objects::{Bytes, digits};

use crate::error::{Error, Result};
use crate::volume::class::Class;
use crate::volume::parameter::{Given, Parameter};

/// The least limits per second. With lower ones, one operation could take minutes, and a process that waits for it cannot be
/// killed.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_OPERATIONS: u64 = 10;

/// The largest number of operations; the kernel takes 4294967295 for no limit.
const MOST_OPERATIONS: u64 = u32::MAX as u64 - 1;

const BYTES: &[&str] = &["50Mi", "1048576"];
const OPERATIONS: &[&str] = &["500", "10"];

impl Parameter<Class> {
    pub(super) const READ_BYTES: Self = Self::new("readBytesPerSecond", BYTES, |class, given| {
        given.limit(&mut class.io_limits.read_bytes, parse_bytes)
    });
    pub(super) const WRITE_BYTES: Self = Self::new("writeBytesPerSecond", BYTES, |class, given| {
        given.limit(&mut class.io_limits.write_bytes, parse_bytes)
    });
    pub(super) const READ_OPERATIONS: Self =
        Self::new("readsPerSecond", OPERATIONS, |class, given| {
            given.limit(&mut class.io_limits.read_operations, parse_operations)
        });
    pub(super) const WRITE_OPERATIONS: Self =
        Self::new("writesPerSecond", OPERATIONS, |class, given| {
            given.limit(&mut class.io_limits.write_operations, parse_operations)
        });
}

impl Given<'_> {
    fn limit(self, field: &mut Option<u64>, parse: fn(&str) -> Result<u64, String>) -> Result<()> {
        *field = Some(parse(self.value).map_err(|problem| self.is_wrong(&problem))?);
        Ok(())
    }
}

/// Parses a limit of bytes per second, as in 50Mi.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let problem = || format!("{text:?} is not a number of bytes such as 50Mi");
    check_bytes(Bytes::parse(text).ok_or_else(problem)?.0)
}

pub(super) fn check_bytes(bytes: u64) -> Result<u64, String> {
    let problem = || format!("{} per second is not a limit from 1Mi on", Bytes(bytes));
    let is_allowed = (LEAST_BYTES..=Bytes::MAX.0).contains(&bytes);
    is_allowed.then_some(bytes).ok_or_else(problem)
}

/// Parses a limit of operations per second.
pub fn parse_operations(text: &str) -> Result<u64, String> {
    let problem = || format!("{text:?} is not a number such as 500");
    check_operations(digits(text).ok_or_else(problem)?)
}

pub(super) fn check_operations(operations: u64) -> Result<u64, String> {
    let problem =
        || format!("{operations} is not a number from {LEAST_OPERATIONS} to {MOST_OPERATIONS}");
    let is_allowed = (LEAST_OPERATIONS..=MOST_OPERATIONS).contains(&operations);
    is_allowed.then_some(operations).ok_or_else(problem)
}

/// Refuses a class with limits whose volumes are directories.
pub(super) fn check_unlimited(class: &Class) -> Result<()> {
    let IoLimits {
        read_bytes,
        write_bytes,
        read_operations,
        write_operations,
    } = class.io_limits;
    let given = [
        (Parameter::READ_BYTES.key, read_bytes),
        (Parameter::WRITE_BYTES.key, write_bytes),
        (Parameter::READ_OPERATIONS.key, read_operations),
        (Parameter::WRITE_OPERATIONS.key, write_operations),
    ];
    match given.into_iter().find(|(_, limit)| limit.is_some()) {
        None => Ok(()),
        Some((key, _)) => Err(Error::invalid(
            format!("parameter {key:?}"),
            "needs kind: image, because the kernel limits I/O by device, and the directories of a pool share one",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::parameter::set;

    #[test]
    fn a_limit_is_a_number_within_bounds() {
        let parsed = |key: &str, value: &str| {
            let mut class = Class::default();
            set(&mut class, key, value).map(|()| class.io_limits)
        };
        for (key, value, limits) in [
            (
                "readBytesPerSecond",
                "1Mi",
                IoLimits {
                    read_bytes: Some(1 << 20),
                    ..IoLimits::NONE
                },
            ),
            (
                "writeBytesPerSecond",
                "5000000",
                IoLimits {
                    write_bytes: Some(5_000_000),
                    ..IoLimits::NONE
                },
            ),
            (
                "readsPerSecond",
                "10",
                IoLimits {
                    read_operations: Some(10),
                    ..IoLimits::NONE
                },
            ),
            (
                "writesPerSecond",
                "4294967294",
                IoLimits {
                    write_operations: Some(4_294_967_294),
                    ..IoLimits::NONE
                },
            ),
        ] {
            assert_eq!(parsed(key, value).unwrap(), limits);
        }
        for (key, value) in [
            ("readBytesPerSecond", "0"),
            ("readBytesPerSecond", "1023Ki"),
            ("writeBytesPerSecond", "max"),
            ("writeBytesPerSecond", "-5Mi"),
            ("writeBytesPerSecond", ""),
            ("readsPerSecond", "9"),
            ("readsPerSecond", "1k"),
            ("writesPerSecond", "4294967295"),
        ] {
            let refused = parsed(key, value).unwrap_err().to_string();
            assert!(
                refused.contains(" is not a") && refused.contains(key),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_directory_has_no_limits() {
        let mut class = Class::default();
        check_unlimited(&class).unwrap();
        class.io_limits.write_operations = Some(10);
        let refused = check_unlimited(&class).unwrap_err().to_string();
        assert!(
            refused.starts_with("parameter \"writesPerSecond\": needs kind: image"),
            "{refused}"
        );
    }
}
