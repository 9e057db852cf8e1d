//! `docs/troubleshooting.md` quotes the messages of the driver as they are.

use std::fs;
use std::path::Path;

use objects::{Audience, NodeName};

use super::*;
use crate::volume::{Class, Parametrized};
use pool::QuotaConflict;

/// Stands for a part of a message that varies.
const HOLE: char = '\u{2026}';

/// Turns the list into samples; a reason without a line does not compile.
macro_rules! reasons {
    ($($pattern:pat, $sample:expr;)*) => {
        fn reasons() -> Vec<Unavailable> {
            let _every_reason_is_here = |reason: &Unavailable| match reason {
                $($pattern => (),)*
            };
            vec![$($sample),*]
        }
    };
}

#[rustfmt::skip]
reasons! {
    Unavailable::Opening, Unavailable::Opening;
    Unavailable::Absent, Unavailable::Absent;
    Unavailable::File { .. }, Unavailable::File { path: text() };
    Unavailable::MountedOver { .. }, Unavailable::MountedOver { name: "volumes" };
    Unavailable::NotItsOwn { .. }, Unavailable::NotItsOwn { name: "volumes", found: "missing" };
    Unavailable::NotMounted, Unavailable::NotMounted;
    Unavailable::CannotTell, Unavailable::CannotTell;
    Unavailable::Unmarked, Unavailable::Unmarked;
    Unavailable::MarkerLost { .. }, Unavailable::MarkerLost { remembered: id() };
    Unavailable::MarkerDamaged(_), Unavailable::MarkerDamaged(text());
    Unavailable::Swapped { .. }, Unavailable::Swapped { found: id(), remembered: id() };
    Unavailable::Foreign { .. }, Unavailable::Foreign { found: id(), node: node() };
    Unavailable::Retired { .. }, Unavailable::Retired { found: id() };
    Unavailable::Locked, Unavailable::Locked;
    Unavailable::SharesFilesystem { .. }, Unavailable::SharesFilesystem { with: pool() };
    Unavailable::Twin { .. }, Unavailable::Twin { id: id(), with: pool() };
    Unavailable::KnownPools(_), Unavailable::KnownPools(text());
    Unavailable::RefusedFilesystem { .. }, Unavailable::RefusedFilesystem { filesystem: text() };
    Unavailable::OnVolume { .. }, Unavailable::OnVolume { device: text() };
    Unavailable::NotEmpty { .. }, Unavailable::NotEmpty { found: text() };
    Unavailable::IsPool { .. }, Unavailable::IsPool { id: id(), node: node() };
    Unavailable::Silent { .. }, Unavailable::Silent { seconds: 5 };
    Unavailable::ReadOnly, Unavailable::ReadOnly;
    Unavailable::Changed, Unavailable::Changed;
    Unavailable::EnforcementChanged, Unavailable::EnforcementChanged;
    Unavailable::Shortage(_), Unavailable::Shortage(fault());
    Unavailable::Io { .. }, Unavailable::Io { what: text(), error: text() };
}

/// The refusals on the page of which the table has no sample.
fn quoted_refusals() -> [Error; 3] {
    let (id, device, pool, fault) = (volume(), path(), pool(), format_fault());
    [
        Refusal::Published { id, at: path() }.into(),
        Refusal::ImageInUse { id, device }.into(),
        Unsuitable::NoProgram { pool, fault }.into(),
    ]
}

fn node() -> NodeName {
    "node1".parse().unwrap()
}

/// A line of the page: `<name>` varies, and a final `...` leaves out the rest.
#[derive(Debug)]
struct Quote {
    text: String,
    is_cut: bool,
}

impl Quote {
    fn new(line: &str) -> Self {
        let start = line.strip_suffix("...");
        Self {
            text: with_holes(start.unwrap_or(line).trim_end(), '<', '>'),
            is_cut: start.is_some(),
        }
    }

    fn is_of(&self, message: &str) -> bool {
        let mut pieces = self.text.split(HOLE).peekable();
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = message.strip_prefix(first) else {
            return false;
        };
        while let Some(piece) = pieces.next() {
            if pieces.peek().is_none() && !self.is_cut {
                return rest.ends_with(piece);
            }
            let Some((_, after)) = rest.split_once(piece) else {
                return false;
            };
            rest = after;
        }
        self.is_cut || rest.is_empty()
    }

    /// Whether it is a string literal of the source, after this text.
    fn follows(&self, before: &str, source: &str) -> bool {
        let end = if self.is_cut { "" } else { "\"" };
        source.contains(&format!("{before}\"{}{end}", self.text))
    }

    /// Whether the code has it: as it stands or, of an error, also in a real one.
    fn is_message(&self, source: &str, errors: &[String]) -> bool {
        let is_real = || errors.iter().any(|error| self.is_of(error));
        self.follows("", source) && (!self.follows("#[error(", source) || is_real())
    }
}

/// The text with a hole for everything between the brackets.
fn with_holes(text: &str, open: char, close: char) -> String {
    let mut parts = text.split(open);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(close) {
            Some((name, rest)) if !name.contains([' ', '\n']) => {
                result.push(HOLE);
                result.push_str(rest);
            }
            _ => {
                result.push(open);
                result.push_str(part);
            }
        }
    }
    result
}

/// The lines of the page's blocks of a language.
fn quotes(page: &str, language: &str) -> Vec<Quote> {
    let mut quotes = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(found) = line.strip_prefix("```") {
            assert!(
                ["text", "kubernetes", "sh"].contains(&found),
                "a block of {found:?}: text is of the driver, kubernetes of others"
            );
            let block = lines.by_ref().take_while(|line| *line != "```");
            if found == language {
                quotes.extend(block.map(Quote::new));
            } else {
                block.for_each(drop);
            }
        }
    }
    quotes
}

/// The program's source without its tests, each string literal as it is printed.
fn source(dir: &Path) -> String {
    let mut source = String::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap();
        if stem == "tests" {
            continue;
        }
        if path.is_dir() {
            source.push_str(&self::source(&path));
        } else {
            let text = fs::read_to_string(&path).unwrap();
            source.push_str(text.split("#[cfg(test)]").next().unwrap());
        }
    }
    let mut lines = source.split("\\\n");
    let mut joined = lines.next().unwrap_or_default().to_owned();
    for line in lines {
        joined.push_str(line.trim_start());
    }
    let words: Vec<_> = joined.split_whitespace().collect();
    let joined = words.join(" ").replace("#[error( ", "#[error(");
    with_holes(&joined.replace("\\\"", "\""), '{', '}')
}

#[test]
fn the_troubleshooting_page_quotes_messages_as_they_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
    let source = ["src", "crates/pool/src"]
        .map(|dir| source(&root.join(dir)))
        .concat();
    let (key, value) = ("x".to_owned(), "y".to_owned());
    let reasons: Vec<String> = reasons().iter().map(ToString::to_string).collect();
    // A field and its problem are two literals, and so are a cause and the way out.
    let mut in_two_parts = vec![Class::parse([(&key, &value)]).unwrap_err().to_string()];
    in_two_parts.extend(reasons.clone());
    let samples = samples().into_iter().map(|(_, error)| error.to_string());
    let twin = QuotaConflict::Twin(1).to_string();
    let refusals = quoted_refusals().map(|error| error.to_string());
    let errors = samples.chain(reasons.clone()).chain(refusals);
    let errors: Vec<String> = errors.chain([twin]).collect();

    let quotes = quotes(&page, "text");
    let is_known = |quote: &&Quote| {
        quote.is_message(&source, &errors) || in_two_parts.iter().any(|error| quote.is_of(error))
    };
    let unknown: Vec<_> = quotes.iter().filter(|quote| !is_known(quote)).collect();
    let has_entry = |reason: &&String| quotes.iter().any(|quote| quote.is_of(reason));
    let missing: Vec<_> = reasons.iter().filter(|reason| !has_entry(reason)).collect();
    assert!(
        unknown.is_empty() && missing.is_empty(),
        "no messages of the driver (a block of kubernetes is for those of others): {unknown:#?}\n\
         reasons without an entry in docs/troubleshooting.md: {missing:#?}"
    );
}

/// Any pod can read `/readyz`, and an id helps to forge a disk.
///
/// Proves: SV9.
#[test]
fn the_reasons_on_the_page_have_no_ids() {
    let has_id = |text: &str| {
        let mut words = text.split(|char: char| !char.is_ascii_hexdigit() && char != '-');
        words.any(|word| uuid::Uuid::parse_str(word).is_ok())
    };
    let mut hidden = 0;
    let mut damaged = vec![
        Unavailable::MarkerDamaged(format!("in {}/x", id())),
        Unavailable::KnownPools(id().to_string()),
        Unavailable::NotEmpty {
            found: id().to_string(),
        },
    ];
    damaged.extend(reasons());
    for reason in damaged {
        let shown = reason.cause(Audience::Everyone).to_string();
        assert!(!has_id(&shown), "{shown}");
        hidden += usize::from(has_id(&reason.to_string()));
    }
    assert_eq!(hidden, 9, "reasons with ids");
    let shown = Unavailable::MarkerDamaged(text()).cause(Audience::Everyone);
    assert_eq!(
        shown.what,
        "its marker .rootcellar/pool.json cannot be trusted: <text>"
    );
}
