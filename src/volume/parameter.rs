//! The parameters of classes as tables: one row has the key, the values, the effect, and the value of a volume.
//!
//! The parser, the message about an unknown key, the comparison with an existing volume, `volume show`, and the generators
//! of the tests read the rows. A test compares them with the chart's schema and with the documents.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use objects::{Invalid, digits, parse_time};

use crate::error::{Error, Result};
use pool::{CopyPolicy, VolumeRecord};

/// The prefix of the sidecars' keys.
pub(super) const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// The longest name of a Kubernetes object.
const MAX_OBJECT_NAME: usize = 253;

/// The largest uid or gid; 4294967295 means "no change" to chown(2).
const MAX_ID: u32 = u32::MAX - 1;

/// A parameter of classes `C`. This is the only place with its key and its values.
#[derive(Debug)]
pub struct Parameter<C: 'static> {
    pub key: &'static str,
    /// All values, or examples of them.
    pub values: &'static [&'static str],
    set: Set<C>,
    compared: Option<Compared<C>>,
    /// Whether a copy has the value of its source, and not of its class.
    is_of_the_source: bool,
}

#[derive(Debug)]
enum Set<C> {
    Checked(fn(&mut C, Given<'_>) -> Result<()>),
    /// Any text is kept, for people.
    Kept(fn(&mut C) -> &mut Option<String>),
}

/// A parameter that a volume retains until its deletion. Both values are as a class has them.
#[derive(Debug)]
struct Compared<C> {
    in_class: fn(&C) -> String,
    in_volume: fn(&VolumeRecord) -> String,
}

pub trait Parametrized: Default + 'static {
    /// The known parameters, in the order of the message about an unknown one.
    const PARAMETERS: &'static [Parameter<Self>];

    fn copies(&mut self) -> &mut CopyPolicy;

    /// The parameters that a class sets, and no sidecar.
    fn own_parameters() -> impl Iterator<Item = &'static Parameter<Self>> {
        let is_own = |known: &&Parameter<Self>| !known.key.starts_with(SIDECAR_PREFIX);
        Self::PARAMETERS.iter().filter(is_own)
    }

    /// The key with the sidecars' prefix that a person means who writes it without, as in `fsType`.
    fn of_sidecars(key: &str) -> Option<&'static str> {
        let letters = key.chars().filter(char::is_ascii_alphanumeric);
        let letters = letters.map(|letter| letter.to_ascii_lowercase());
        let mut known = Self::PARAMETERS.iter().map(|known| known.key);
        known.find(|known| {
            let name = known.strip_prefix(SIDECAR_PREFIX);
            name.is_some_and(|name| letters.clone().eq(name.chars()))
        })
    }

    /// Parses a request's parameters. They are sorted, so that of several mistakes always the same one is
    /// reported.
    fn parse<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self> {
        let mut class = Self::default();
        for (key, value) in pairs.into_iter().collect::<BTreeMap<_, _>>() {
            set(&mut class, key, value)?;
        }
        Ok(class)
    }
}

impl<C: Parametrized> Parameter<C> {
    /// Whether a filesystem that shares no blocks may copy.
    pub(super) const COPY: Self = Self::new("copy", &["allowed", "refused"], |class, given| {
        let choices = [("allowed", true), ("refused", false)];
        given.choose(&mut class.copies().copy, &choices)
    });
    /// The longest time for which a file may be locked during its copy.
    pub(super) const MAX_STALL: Self = Self::new("maxStall", &["100ms", "2s"], |class, given| {
        given.parse_stall(&mut class.copies().max_stall)
    });

    pub(super) const fn new(
        key: &'static str,
        values: &'static [&'static str],
        set: fn(&mut C, Given<'_>) -> Result<()>,
    ) -> Self {
        Self {
            key,
            values,
            set: Set::Checked(set),
            compared: None,
            is_of_the_source: false,
        }
    }

    pub(super) const fn label(key: &'static str, field: fn(&mut C) -> &mut Option<String>) -> Self {
        Self {
            key,
            values: &["shop", ""],
            set: Set::Kept(field),
            compared: None,
            is_of_the_source: false,
        }
    }

    /// A parameter that a volume retains, with these values in its class and in its record.
    pub(super) const fn compared(
        key: &'static str,
        values: &'static [&'static str],
        set: fn(&mut C, Given<'_>) -> Result<()>,
        in_class: fn(&C) -> String,
        in_volume: fn(&VolumeRecord) -> String,
    ) -> Self {
        Self {
            key,
            values,
            set: Set::Checked(set),
            compared: Some(Compared {
                in_class,
                in_volume,
            }),
            is_of_the_source: false,
        }
    }

    /// The parameter, of which a copy has its source's value, with any class.
    pub(super) const fn of_the_source(mut self) -> Self {
        self.is_of_the_source = true;
        self
    }

    /// The value of a volume, if volumes retain the parameter.
    pub fn of(&self, volume: &VolumeRecord) -> Option<String> {
        Some((self.compared.as_ref()?.in_volume)(volume))
    }

    /// Refuses a class with another value than the volume's.
    pub(super) fn check_same(&self, class: &C, volume: &VolumeRecord) -> Result<()> {
        let Some(compared) = &self.compared else {
            return Ok(());
        };
        if self.is_of_the_source && volume.source.is_some() {
            return Ok(());
        }
        let (has, asked) = ((compared.in_volume)(volume), (compared.in_class)(class));
        if has == asked {
            return Ok(());
        }
        let problem = format!("the volume was made with {has}, not with {asked}");
        Err(Error::invalid(format!("parameter {:?}", self.key), problem))
    }
}

pub(super) fn set<C: Parametrized>(class: &mut C, key: &str, value: &str) -> Result<()> {
    let given = Given { key, value };
    match C::PARAMETERS.iter().find(|parameter| parameter.key == key) {
        Some(Parameter {
            set: Set::Checked(set),
            ..
        }) => set(class, given),
        Some(Parameter {
            set: Set::Kept(field),
            ..
        }) => {
            *field(class) = Some(value.to_owned());
            Ok(())
        }
        None if key.starts_with(SIDECAR_PREFIX) => Ok(()),
        None if let Some(meant) = C::of_sidecars(key) => {
            Err(given.is_wrong(&format!("unknown parameter; write {meant}")))
        }
        None => {
            let known: Vec<&str> = C::own_parameters().map(|known| known.key).collect();
            let (last, others) = known.split_last().unwrap_or((&"", &[]));
            let others = others.join(", ");
            Err(given.is_wrong(&format!("unknown parameter; known are {others} and {last}")))
        }
    }
}

/// A key and its value, as received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

impl Given<'_> {
    pub(super) fn is_wrong(self, problem: &str) -> Error {
        Error::invalid(format!("parameter {:?}", self.key), problem)
    }

    pub(super) fn parse<T: FromStr<Err = Invalid>>(self, field: &mut Option<T>) -> Result<()> {
        let parsed = self.value.parse();
        *field = Some(parsed.map_err(|error: Invalid| self.is_wrong(&error.problem))?);
        Ok(())
    }

    pub(super) fn choose<T: Copy>(self, field: &mut T, choices: &[(&str, T)]) -> Result<()> {
        let Some((_, choice)) = choices.iter().find(|(name, _)| *name == self.value) else {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            return Err(self.is_wrong(&format!("{:?} is not one of {names}", self.value)));
        };
        *field = *choice;
        Ok(())
    }

    /// A number with the unit `ms` or `s`; at least one millisecond.
    pub(super) fn parse_stall(self, field: &mut Option<Duration>) -> Result<()> {
        let stall = parse_time(self.value, &["ms", "s"]).filter(|stall| !stall.is_zero());
        if stall.is_none() {
            let problem = format!("{:?} is not a time such as 100ms or 2s", self.value);
            return Err(self.is_wrong(&problem));
        }
        *field = stall;
        Ok(())
    }

    /// The name of a Kubernetes object.
    pub(super) fn name(self, field: &mut Option<String>) -> Result<()> {
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let has_length = (1..=MAX_OBJECT_NAME).contains(&self.value.len());
        if !has_length || !self.value.chars().all(allowed) {
            let problem = format!("{:?} is not the name of a Kubernetes object", self.value);
            return Err(self.is_wrong(&problem));
        }
        *field = Some(self.value.to_owned());
        Ok(())
    }

    pub(super) fn parse_id(self, field: &mut u32) -> Result<()> {
        let Some(id) = digits(self.value).filter(|id| *id <= MAX_ID) else {
            let problem = format!("{:?} is not a number from 0 to {MAX_ID}", self.value);
            return Err(self.is_wrong(&problem));
        };
        *field = id;
        Ok(())
    }
}
