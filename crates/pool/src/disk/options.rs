//! The options of one pool, as in `--pool`.

use std::path::PathBuf;
use std::str::{FromStr, Split};
use std::time::Duration;

use objects::{Bytes, Invalid, PoolName, digits, parse_time};

/// The flag that errors name.
const FLAG: &str = "--pool";

const KNOWN: &str = "init, require-mount, overcommit=R, reserve=BYTES|N% and keep=TIME";

/// The factor of a pool's capacity that may be reserved, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overcommit(pub u32);

impl Default for Overcommit {
    /// Every byte is reserved once.
    fn default() -> Self {
        Self(1000)
    }
}

/// The part of a filesystem that is not used for volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    Bytes(Bytes),
    /// A percentage of the filesystem's size, 0 to 100.
    Percent(u8),
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an option of its own"
)]
pub struct PoolOptions {
    pub name: PoolName,
    /// Its path: absolute, without `.` and `..`.
    pub path: PathBuf,
    /// Whether an empty directory may be made a pool.
    pub init: bool,
    /// Whether the path must be a mount point.
    pub require_mount: bool,
    /// The factor of its capacity that may be reserved.
    pub overcommit: Overcommit,
    /// The part that is not used for volumes; by default nothing, or 15 % on the root disk.
    pub reserve: Option<Reserve>,
    /// How long a deleted volume or snapshot can come back, in running time of the driver; `None`: not at all.
    pub keep: Option<Duration>,
    /// Whether tests may use any filesystem.
    pub any_filesystem: bool,
}

impl PoolOptions {
    /// Parses an absolute path without `.`, `..` and control characters, other than `/`, dropping
    /// repeated and trailing slashes. The error names the problem.
    pub fn absolute_path(text: &str) -> Result<PathBuf, String> {
        if !text.starts_with('/') {
            return Err(format!(
                "path {text:?} is not absolute; it must begin with '/'"
            ));
        }
        if text.contains(char::is_control) {
            return Err(format!("path {text:?} has a control character"));
        }
        let mut path = PathBuf::from("/");
        for part in text.split('/').filter(|part| !part.is_empty()) {
            if part == "." || part == ".." {
                return Err(format!("path {text:?} has {part:?}; write it without"));
            }
            path.push(part);
        }
        match path.parent() {
            Some(_) => Ok(path),
            None => Err(format!(
                "path {text:?} is the root directory; name one below it"
            )),
        }
    }

    /// The options of a pool that has none.
    pub(crate) fn plain(name: PoolName, path: PathBuf) -> Self {
        Self {
            name,
            path,
            init: false,
            require_mount: false,
            overcommit: Overcommit::default(),
            reserve: None,
            keep: None,
            any_filesystem: false,
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (name, path, options) = split(text)?;
        let mut pool = Self::plain(name, path);
        set_each(options, |key, value| match (key, value) {
            ("require-mount", None) => {
                pool.require_mount = true;
                Ok(())
            }
            ("require-mount", Some(_)) => Err(takes_no_value(key)),
            _ => pool.set(key, value, KNOWN),
        })?;
        Ok(pool)
    }

    /// Sets an option that pools and sets have. `known` are the known ones, for an error.
    pub(crate) fn set(
        &mut self,
        key: &str,
        value: Option<&str>,
        known: &str,
    ) -> Result<(), String> {
        match (key, value) {
            ("init", None) => self.init = true,
            ("any-filesystem", None) => self.any_filesystem = true,
            ("overcommit", Some(value)) => {
                self.overcommit = parse_overcommit(value).ok_or_else(|| {
                    format!(
                        "overcommit {value:?} is not a number above 0 and up to 1000 with at most \
                         3 decimals, such as 1.5"
                    )
                })?;
            }
            ("reserve", Some(value)) => {
                self.reserve = Some(parse_reserve(value).ok_or_else(|| {
                    format!(
                        "reserve {value:?} is neither bytes, such as 500M or 10Gi, nor a \
                         percentage from 0% to 100%"
                    )
                })?);
            }
            ("keep", Some(value)) => {
                self.keep = Some(parse_keep(value).ok_or_else(|| {
                    format!("keep {value:?} is not a time such as 90s, 30m, 24h or 7d")
                })?);
            }
            ("init" | "any-filesystem", Some(_)) => {
                return Err(takes_no_value(key));
            }
            ("overcommit" | "reserve" | "keep", None) => return Err(needs_value(key)),
            _ => {
                return Err(format!(
                    "unknown option {key:?}; known are {known}, and a path cannot have ','"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for PoolOptions {
    type Err = Invalid;

    /// Parses `NAME=PATH[,init][,require-mount][,overcommit=R][,reserve=BYTES|N%][,keep=TIME]`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        Self::parse(text).map_err(|problem| Invalid::new(FLAG, format!("{text:?}: {problem}")))
    }
}

/// Splits `NAME=PATH[,OPTION...]` into the name, the path and the options.
pub(crate) fn split(text: &str) -> Result<(PoolName, PathBuf, Split<'_, char>), String> {
    let mut parts = text.split(',');
    let first = parts.next().unwrap_or_default();
    let (name, path) = first
        .split_once('=')
        .ok_or("it has no '='; write NAME=PATH[,OPTION...]")?;
    let name = name.parse().map_err(|error: Invalid| error.problem)?;
    Ok((name, PoolOptions::absolute_path(path)?, parts))
}

/// Gives each option to `set`, with its value.
pub(crate) fn set_each<'a>(
    options: impl Iterator<Item = &'a str>,
    mut set: impl FnMut(&'a str, Option<&'a str>) -> Result<(), String>,
) -> Result<(), String> {
    let mut seen = Vec::new();
    for option in options {
        let (key, value) = option
            .split_once('=')
            .map_or((option, None), |(key, value)| (key, Some(value)));
        if seen.contains(&key) {
            return Err(format!("option {key:?} is given twice"));
        }
        seen.push(key);
        set(key, value)?;
    }
    Ok(())
}

pub(crate) fn takes_no_value(key: &str) -> String {
    format!("option {key:?} takes no value")
}

pub(crate) fn needs_value(key: &str) -> String {
    format!("option {key:?} needs a value after '='")
}

fn parse_overcommit(text: &str) -> Option<Overcommit> {
    const MAX_THOUSANDTHS: u32 = 1_000_000;
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if decimals.len() > 3 {
        return None;
    }
    // "5" after the point is 500 thousandths.
    let padded = format!("{decimals:0<3}");
    let thousandths = digits::<u64>(whole)?
        .checked_mul(1000)?
        .checked_add(digits::<u64>(decimals).and(digits(&padded))?)?;
    let thousandths = u32::try_from(thousandths).ok()?;
    (1..=MAX_THOUSANDTHS)
        .contains(&thousandths)
        .then_some(Overcommit(thousandths))
}

fn parse_reserve(text: &str) -> Option<Reserve> {
    if let Some(percent) = text.strip_suffix('%') {
        let percent = digits(percent)?;
        return (percent <= 100).then_some(Reserve::Percent(percent));
    }
    Bytes::parse(text).map(Reserve::Bytes)
}

/// At least one second and at most ten years.
fn parse_keep(text: &str) -> Option<Duration> {
    const MAX: Duration = Duration::from_hours(10 * 366 * 24);
    let keep = parse_time(text, &["s", "m", "h", "d"])?;
    (Duration::from_secs(1)..=MAX)
        .contains(&keep)
        .then_some(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(name: &str, path: &str) -> PoolOptions {
        PoolOptions {
            name: name.parse().unwrap(),
            path: path.into(),
            init: false,
            require_mount: false,
            overcommit: Overcommit(1000),
            reserve: None,
            keep: None,
            any_filesystem: false,
        }
    }

    #[test]
    fn good_options_are_understood() {
        let base = plain("fast", "/srv/fast");
        let over = |n| PoolOptions {
            overcommit: Overcommit(n),
            ..base.clone()
        };
        let reserve = |r| PoolOptions {
            reserve: Some(r),
            ..base.clone()
        };
        let bytes = |n| reserve(Reserve::Bytes(Bytes(n)));
        let cases = [
            ("", base.clone()),
            (
                ",init",
                PoolOptions {
                    init: true,
                    ..base.clone()
                },
            ),
            (
                ",require-mount",
                PoolOptions {
                    require_mount: true,
                    ..base.clone()
                },
            ),
            (
                ",any-filesystem",
                PoolOptions {
                    any_filesystem: true,
                    ..base.clone()
                },
            ),
            (",overcommit=1", over(1000)),
            (",overcommit=1.5", over(1500)),
            (",overcommit=0.001", over(1)),
            (",overcommit=0.05", over(50)),
            (",overcommit=1000.000", over(1_000_000)),
            (",reserve=0", bytes(0)),
            (",reserve=12", bytes(12)),
            (",reserve=12K", bytes(12_000)),
            (",reserve=12Ki", bytes(12_288)),
            (",reserve=500M", bytes(500_000_000)),
            (",reserve=1Mi", bytes(1 << 20)),
            (",reserve=2G", bytes(2_000_000_000)),
            (",reserve=10Gi", bytes(10 << 30)),
            (",reserve=1T", bytes(1_000_000_000_000)),
            (",reserve=3Ti", bytes(3 << 40)),
            (",reserve=0%", reserve(Reserve::Percent(0))),
            (",reserve=100%", reserve(Reserve::Percent(100))),
        ];
        for (text, expected) in cases {
            let text = format!("fast=/srv/fast{text}");
            assert_eq!(text.parse::<PoolOptions>().unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn options_combine_in_any_order() {
        let options: PoolOptions = "a=/b,overcommit=2,init,reserve=1%,require-mount"
            .parse()
            .unwrap();
        let expected = PoolOptions {
            init: true,
            require_mount: true,
            overcommit: Overcommit(2000),
            reserve: Some(Reserve::Percent(1)),
            ..plain("a", "/b")
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn a_path_is_kept_in_its_one_spelling() {
        let cases = [
            ("a=//srv///fast/", "/srv/fast"),
            ("a=/x=y", "/x=y"),
            ("a=/srv/two words", "/srv/two words"),
            ("a=/srv/...", "/srv/..."),
        ];
        for (text, path) in cases {
            assert_eq!(
                text.parse::<PoolOptions>().unwrap(),
                plain("a", path),
                "{text}"
            );
        }
    }

    /// An option text, and a part of its error.
    const MISTAKES: &[(&str, &str)] = &[
        ("", "no '='"),
        ("fast", "no '='"),
        ("/srv/fast", "no '='"),
        ("=/srv", "1 to 63 characters"),
        ("Fast=/srv", "pool name \"Fast\""),
        ("fast=", "not absolute"),
        ("fast=srv", "path \"srv\" is not absolute"),
        ("fast=/", "root directory"),
        ("fast=///", "root directory"),
        ("fast=/srv/../etc", "has \"..\""),
        ("fast=/srv/.", "has \".\""),
        ("fast=/srv\n", "control character"),
        ("fast=/srv\0x", "control character"),
        ("fast=/srv,", "unknown option \"\""),
        ("fast=/srv,part2", "unknown option \"part2\""),
        ("fast=/srv,part2", "a path cannot have ','"),
        ("fast=/srv,Init", "unknown option \"Init\""),
        ("fast=/srv, init", "unknown option \" init\""),
        ("fast=/srv,init,init", "option \"init\" is given twice"),
        (
            "fast=/srv,reserve=1,reserve=1",
            "option \"reserve\" is given twice",
        ),
        ("fast=/srv,init=true", "option \"init\" takes no value"),
        ("fast=/srv,discard", "unknown option \"discard\""),
        (
            "fast=/srv,overcommit",
            "option \"overcommit\" needs a value",
        ),
        ("fast=/srv,reserve", "option \"reserve\" needs a value"),
        ("fast=/srv,overcommit=", "overcommit \"\""),
        ("fast=/srv,overcommit=0", "overcommit \"0\""),
        ("fast=/srv,overcommit=0.000", "overcommit \"0.000\""),
        ("fast=/srv,overcommit=1000.001", "overcommit \"1000.001\""),
        ("fast=/srv,overcommit=1.0001", "overcommit \"1.0001\""),
        ("fast=/srv,overcommit=1.", "overcommit \"1.\""),
        ("fast=/srv,overcommit=.5", "overcommit \".5\""),
        ("fast=/srv,overcommit=-1", "overcommit \"-1\""),
        ("fast=/srv,overcommit=+1", "overcommit \"+1\""),
        ("fast=/srv,overcommit=1e2", "overcommit \"1e2\""),
        ("fast=/srv,overcommit=18446744073709551615", "overcommit"),
        ("fast=/srv,overcommit=NaN", "overcommit \"NaN\""),
        ("fast=/srv,reserve=", "reserve \"\""),
        ("fast=/srv,reserve=101%", "reserve \"101%\""),
        ("fast=/srv,reserve=1.5%", "reserve \"1.5%\""),
        ("fast=/srv,reserve=%", "reserve \"%\""),
        ("fast=/srv,reserve=Gi", "reserve \"Gi\""),
        ("fast=/srv,reserve=1GiB", "reserve \"1GiB\""),
        ("fast=/srv,reserve=-1", "reserve \"-1\""),
        ("fast=/srv,reserve=9223372036854775808", "reserve"),
        ("fast=/srv,reserve=99999999999Ti", "reserve"),
    ];

    #[test]
    fn bad_options_are_refused_in_a_sentence_with_the_bad_text() {
        for (text, fragment) in MISTAKES {
            let error = text.parse::<PoolOptions>().unwrap_err();
            let Invalid { field, problem } = error;
            assert_eq!(field, "--pool");
            assert!(problem.contains(fragment), "{text:?}: {problem}");
            assert!(
                problem.starts_with(&format!("{text:?}: ")),
                "{text:?}: {problem}"
            );
            assert!(!problem.ends_with('.'), "{problem}");
        }
    }
}
