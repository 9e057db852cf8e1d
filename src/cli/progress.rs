//! The line on a terminal that shows how far long work has come. Without a terminal there is none.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use linux::sync::lock;
use objects::Bytes;

use pool::{Advance, Unit};

/// How often the line changes.
const SHOW_EVERY: Duration = Duration::from_millis(250);

/// The shortest time from which a rate is known.
const RATED_FROM: Duration = Duration::from_secs(1);

/// The line, of which a process has one.
static LINE: Mutex<Option<Line>> = Mutex::new(None);

/// Work, as it was when its line began.
#[derive(Debug)]
struct Line {
    about: String,
    first: Advance,
    began: Instant,
    last: Advance,
    shown: Option<Instant>,
}

impl Line {
    fn new(about: &str, first: Advance) -> Self {
        Self {
            about: about.to_owned(),
            first,
            began: Instant::now(),
            last: first,
            shown: None,
        }
    }

    /// Whether an advance is of the same work. Threads may report out of order, but work that falls back further has
    /// begun again.
    fn goes_on(&self, about: &str, advance: &Advance) -> bool {
        self.about == about
            && self.last.done / 2 <= advance.done
            && (self.last.total, self.last.unit) == (advance.total, advance.unit)
    }
}

/// Whether there is a terminal.
pub(super) fn is_shown() -> bool {
    io::stderr().is_terminal()
}

/// Shows how far work has come, on a terminal. The rate begins when the work does, or the name in `about` changes.
pub(super) fn show(about: &str, advance: Advance) {
    let mut line = lock(&LINE);
    if !line
        .as_ref()
        .is_some_and(|line| line.goes_on(about, &advance))
    {
        *line = Some(Line::new(about, advance));
    }
    let Some(line) = &mut *line else { return };
    line.last = advance;
    if line.shown.is_none_or(|shown| shown.elapsed() >= SHOW_EVERY) {
        line.shown = Some(Instant::now());
        let text = text(line.first.done, advance, line.began.elapsed());
        // A lost line of progress is no error.
        let _ = write!(io::stderr(), "\r{about}: {text}\x1b[K");
    }
}

/// Clears the line, if there is one.
pub(super) fn clear() {
    if lock(&LINE).take().is_some() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// How far work has come, with its rate and the remaining time, if they are known. It had done `first` before `elapsed`.
fn text(first: u64, advance: Advance, elapsed: Duration) -> String {
    let Advance { done, total, unit } = advance;
    let amount = |number: u64| match unit {
        Unit::Bytes => Bytes(number).rounded(),
        Unit::Objects => number.to_string(),
    };
    let mut parts = vec![match total {
        // A sync follows. A copy may occupy a little more than its original.
        Some(total) if done >= total => return format!("{}, finishing", amount(done)),
        Some(total) => format!("{} of {}", amount(done), amount(total)),
        None => amount(done),
    }];
    let new = u128::from(done.saturating_sub(first));
    if new > 0 && elapsed >= RATED_FROM {
        let per_second = new * 1000 / elapsed.as_millis();
        let per_second = u64::try_from(per_second).unwrap_or(u64::MAX);
        parts.push(format!("{}/s", amount(per_second)));
        if let Some(total) = total {
            let left = u128::from(total - done) * elapsed.as_millis() / new;
            let left = u64::try_from(left.div_ceil(1000)).unwrap_or(u64::MAX);
            parts.push(format!(
                "{} left",
                objects::rounded(Duration::from_secs(left))
            ));
        }
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// The bytes or objects that were done first, then and in total, the milliseconds, and the text.
    type Case = (Unit, u64, u64, Option<u64>, u64, &'static str);

    const CASES: [Case; 14] = [
        (Unit::Bytes, 0, 0, Some(10 * GIB), 0, "0 B of 10 GiB"),
        (Unit::Bytes, 0, GIB, Some(10 * GIB), 500, "1 GiB of 10 GiB"),
        (
            Unit::Bytes,
            0,
            GIB,
            Some(10 * GIB),
            8_000,
            "1 GiB of 10 GiB, 128 MiB/s, 72s left",
        ),
        (
            Unit::Bytes,
            0,
            5 * GIB,
            Some(10 * GIB),
            3_600_000,
            "5 GiB of 10 GiB, 1.4 MiB/s, 60m left",
        ),
        (Unit::Bytes, 0, GIB, None, 8_000, "1 GiB, 128 MiB/s"),
        (
            Unit::Bytes,
            0,
            2 * GIB,
            Some(GIB),
            8_000,
            "2 GiB, finishing",
        ),
        (Unit::Bytes, 0, GIB, Some(GIB), 8_000, "1 GiB, finishing"),
        // The command came when half was done.
        (
            Unit::Bytes,
            5 * GIB,
            6 * GIB,
            Some(10 * GIB),
            8_000,
            "6 GiB of 10 GiB, 128 MiB/s, 32s left",
        ),
        (
            Unit::Bytes,
            5 * GIB,
            5 * GIB,
            Some(10 * GIB),
            8_000,
            "5 GiB of 10 GiB",
        ),
        (
            Unit::Objects,
            0,
            1_200,
            Some(5_000),
            4_000,
            "1200 of 5000, 300/s, 13s left",
        ),
        (Unit::Objects, 0, 1_200, None, 4_000, "1200, 300/s"),
        (Unit::Objects, 0, 1, Some(3), 4_000, "1 of 3, 0/s, 8s left"),
        (
            Unit::Bytes,
            0,
            u64::MAX,
            Some(u64::MAX),
            1_000,
            "16777215.9 TiB, finishing",
        ),
        (
            Unit::Bytes,
            0,
            1,
            Some(u64::MAX),
            u64::MAX,
            "1 B of 16777215.9 TiB, 0 B/s, 213503982334602d left",
        ),
    ];

    #[test]
    fn the_text_has_the_rate_and_the_remaining_time_if_they_are_known() {
        for (unit, first, done, total, elapsed, expected) in CASES {
            let advance = Advance { done, total, unit };
            let elapsed = Duration::from_millis(elapsed);
            assert_eq!(text(first, advance, elapsed), expected);
        }
    }

    #[test]
    fn other_work_has_a_rate_of_its_own() {
        let advance = |done, total| Advance {
            done,
            total,
            unit: Unit::Objects,
        };
        let mut line = Line::new("files", advance(5, Some(9)));
        line.last = advance(8, Some(9));
        assert!(line.goes_on("files", &advance(9, Some(9))));
        assert!(line.goes_on("files", &advance(4, Some(9))));
        for (about, other) in [
            ("other", advance(8, Some(9))),
            ("files", advance(3, Some(9))),
            ("files", advance(8, None)),
        ] {
            assert!(!line.goes_on(about, &other), "{about}, {other:?}");
        }
    }
}
