//! The parameters of storage classes and snapshot classes.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use linux::image::Allocation;
use objects::{ClaimLabel, Invalid, PoolName, ReclaimPolicy, SnapshotLabel};

use crate::error::{Error, Result};
use crate::pool::{CopyPolicy, KubernetesFields, Mode, Parameters, Sharing};

/// The prefix of the sidecars' keys.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

/// The longest name of a Kubernetes object.
const MAX_OBJECT_NAME: usize = 253;

/// The largest uid or gid; 4294967295 means "no change" to chown(2).
const MAX_ID: u32 = u32::MAX - 1;

/// The checked parameters of a `StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Class {
    pub pool: Option<PoolName>,
    /// Whether a volume takes the whole disk of a set's member.
    pub exclusive: bool,
    pub kind: Kind,
    /// Whether the blocks of images are allocated at once, if the class says so.
    pub allocation: Option<Allocation>,
    /// Whether the kernel must enforce the size.
    pub enforcement: EnforcementPolicy,
    /// The parameters in the volume's record.
    pub parameters: Parameters,
    /// `csi.storage.k8s.io/fstype`; `CreateVolume` has it in the capabilities.
    pub fs_type: Option<String>,
    /// The volume's claim, for people.
    pub claim: ClaimLabel,
    /// Its own name and reclaim policy, for the volume's record.
    pub kubernetes: KubernetesFields,
    pub copies: CopyPolicy,
}

/// The checked parameters of a `VolumeSnapshotClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotClass {
    /// Whether the volume may be in use.
    pub in_use: InUse,
    pub copies: CopyPolicy,
    /// The snapshot's `VolumeSnapshot`, for people.
    pub label: SnapshotLabel,
}

/// Whether a volume in use may have a snapshot: the parameter `inUse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InUse {
    /// It may.
    #[default]
    Allow,
    /// The volume must not be published.
    Refuse,
}

/// The kind of volumes: the parameter `kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// Directories of the pool's filesystem.
    #[default]
    Directory,
    /// Files with a filesystem of their own.
    Image,
}

/// Whether the kernel enforces the sizes of a class: the parameter `enforcement`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EnforcementPolicy {
    /// If the pool can enforce sizes.
    #[default]
    Auto,
    /// A pool that cannot enforce sizes gets no volume.
    Required,
    /// Never.
    None,
}

impl Class {
    /// Parses a request's parameters. The error names the first unknown key or bad value.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self> {
        set_all(pairs)
    }

    /// As [`Class::parse`], without bad keys and values. If `GetCapacity` failed, the provisioner would
    /// never call `CreateVolume`, and nobody would see its error message.
    pub fn parse_leniently<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Self {
        let mut class = Self::default();
        for (key, value) in pairs {
            if let Err(error) = set(&mut class, key, value) {
                tracing::debug!(%error, "GetCapacity has a class that no volume can have");
            }
        }
        class
    }
}

impl SnapshotClass {
    /// Parses a request's parameters. The error names the first unknown key or bad value.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = (&'a String, &'a String)>) -> Result<Self> {
        set_all(pairs)
    }
}

/// A parameter of classes `C`. This is the only place with its key and its values.
#[derive(Debug)]
pub struct Parameter<C: 'static> {
    pub key: &'static str,
    /// All values, or examples of them.
    pub values: &'static [&'static str],
    set: Set<C>,
}

/// The effect of a parameter.
#[derive(Debug)]
enum Set<C> {
    Checked(fn(&mut C, Given<'_>) -> Result<()>),
    /// Any text is kept, for people.
    Kept(fn(&mut C) -> &mut Option<String>),
}

/// Classes with parameters.
pub trait Parametrized: Default + 'static {
    /// The known parameters, in the order of the message about an unknown one.
    const PARAMETERS: &'static [Parameter<Self>];

    fn copies(&mut self) -> &mut CopyPolicy;

    /// The parameters that a class sets, and no sidecar.
    fn own_parameters() -> impl Iterator<Item = &'static Parameter<Self>> {
        let is_own = |known: &&Parameter<Self>| !known.key.starts_with(SIDECAR_PREFIX);
        Self::PARAMETERS.iter().filter(is_own)
    }
}

impl<C: Parametrized> Parameter<C> {
    /// Whether a filesystem that shares no blocks may copy.
    const COPY: Self = Self {
        key: "copy",
        values: &["allowed", "refused"],
        set: Set::Checked(|class, given| {
            let choices = [("allowed", true), ("refused", false)];
            given.choose(&mut class.copies().copy, &choices)
        }),
    };
    /// The longest time for which a file may be locked during its copy.
    const MAX_STALL: Self = Self {
        key: "maxStall",
        values: &["100ms", "2s"],
        set: Set::Checked(|class, given| given.parse_stall(&mut class.copies().max_stall)),
    };

    const fn label(key: &'static str, field: fn(&mut C) -> &mut Option<String>) -> Self {
        Self {
            key,
            values: &["shop", ""],
            set: Set::Kept(field),
        }
    }
}

impl Parametrized for Class {
    const PARAMETERS: &'static [Parameter<Self>] = &[
        Parameter {
            key: "pool",
            values: &["default"],
            set: Set::Checked(|class, given| given.parse(&mut class.pool)),
        },
        Parameter {
            key: "kind",
            values: &["directory", "image"],
            set: Set::Checked(|class, given| {
                let choices = [("directory", Kind::Directory), ("image", Kind::Image)];
                given.choose(&mut class.kind, &choices)
            }),
        },
        Parameter {
            key: "allocation",
            values: &["thick", "thin"],
            set: Set::Checked(|class, given| {
                let choices = [Allocation::Thick, Allocation::Thin];
                let choices = choices.map(|choice| (choice.as_str(), Some(choice)));
                given.choose(&mut class.allocation, &choices)
            }),
        },
        Parameter {
            key: "exclusive",
            values: &["true", "false"],
            set: Set::Checked(|class, given| {
                given.choose(&mut class.exclusive, &[("true", true), ("false", false)])
            }),
        },
        Parameter {
            key: "enforcement",
            values: &["auto", "required", "none"],
            set: Set::Checked(|class, given| {
                let choices = [
                    ("auto", EnforcementPolicy::Auto),
                    ("required", EnforcementPolicy::Required),
                    ("none", EnforcementPolicy::None),
                ];
                given.choose(&mut class.enforcement, &choices)
            }),
        },
        Parameter {
            key: "mode",
            values: &["0777", "2750"],
            set: Set::Checked(|class, given| {
                let mode = Mode::parse(given.value);
                let problem = || format!("{:?} is not an octal mode up to 3777", given.value);
                class.parameters.mode = mode.ok_or_else(|| given.is_wrong(&problem()))?;
                Ok(())
            }),
        },
        Parameter {
            key: "uid",
            values: &["0", "1000"],
            set: Set::Checked(|class, given| given.parse_id(&mut class.parameters.uid)),
        },
        Parameter {
            key: "gid",
            values: &["0", "1000"],
            set: Set::Checked(|class, given| given.parse_id(&mut class.parameters.gid)),
        },
        Parameter {
            key: "sharing",
            values: &["none", "node"],
            set: Set::Checked(|class, given| {
                let choices = [("none", Sharing::None), ("node", Sharing::Node)];
                given.choose(&mut class.parameters.sharing, &choices)
            }),
        },
        Parameter::COPY,
        Parameter::MAX_STALL,
        Parameter {
            key: "class",
            values: &["fast"],
            set: Set::Checked(|class, given| given.name(&mut class.kubernetes.class)),
        },
        Parameter {
            key: "reclaimPolicy",
            values: &["Delete", "Retain"],
            set: Set::Checked(|class, given| {
                let policies = ReclaimPolicy::ALL.map(|policy| (policy.as_str(), Some(policy)));
                given.choose(&mut class.kubernetes.reclaim_policy, &policies)
            }),
        },
        Parameter {
            key: "csi.storage.k8s.io/fstype",
            values: &["ext4", "xfs", ""],
            set: Set::Checked(|class, given| {
                let is_given = !given.value.is_empty();
                class.fs_type = is_given.then(|| given.value.to_owned());
                Ok(())
            }),
        },
        Parameter::label("csi.storage.k8s.io/pvc/namespace", |class| {
            &mut class.claim.namespace
        }),
        Parameter::label("csi.storage.k8s.io/pvc/name", |class| {
            &mut class.claim.claim
        }),
        Parameter::label("csi.storage.k8s.io/pv/name", |class| {
            &mut class.claim.volume
        }),
    ];

    fn copies(&mut self) -> &mut CopyPolicy {
        &mut self.copies
    }
}

impl Parametrized for SnapshotClass {
    const PARAMETERS: &'static [Parameter<Self>] = &[
        Parameter {
            key: "inUse",
            values: &["allow", "refuse"],
            set: Set::Checked(|class, given| {
                let choices = [("allow", InUse::Allow), ("refuse", InUse::Refuse)];
                given.choose(&mut class.in_use, &choices)
            }),
        },
        Parameter::COPY,
        Parameter::MAX_STALL,
        Parameter::label("csi.storage.k8s.io/volumesnapshot/namespace", |class| {
            &mut class.label.namespace
        }),
        Parameter::label("csi.storage.k8s.io/volumesnapshot/name", |class| {
            &mut class.label.snapshot
        }),
        Parameter::label("csi.storage.k8s.io/volumesnapshotcontent/name", |class| {
            &mut class.label.content
        }),
    ];

    fn copies(&mut self) -> &mut CopyPolicy {
        &mut self.copies
    }
}

fn set<C: Parametrized>(class: &mut C, key: &str, value: &str) -> Result<()> {
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
        None => {
            let known: Vec<&str> = C::own_parameters().map(|known| known.key).collect();
            let (last, others) = known.split_last().unwrap_or((&"", &[]));
            let others = others.join(", ");
            Err(given.is_wrong(&format!("unknown parameter; known are {others} and {last}")))
        }
    }
}

/// Sets every parameter of a class. They are sorted, so that of several mistakes always the same one
/// is reported.
fn set_all<'a, C: Parametrized>(
    pairs: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<C> {
    let mut class = C::default();
    for (key, value) in pairs.into_iter().collect::<BTreeMap<_, _>>() {
        set(&mut class, key, value)?;
    }
    Ok(class)
}

/// A key and its value, as received.
#[derive(Debug, Clone, Copy)]
struct Given<'a> {
    key: &'a str,
    value: &'a str,
}

impl Given<'_> {
    fn is_wrong(self, problem: &str) -> Error {
        Error::invalid(format!("parameter {:?}", self.key), problem)
    }

    fn parse<T: FromStr<Err = Invalid>>(self, field: &mut Option<T>) -> Result<()> {
        let parsed = self.value.parse();
        *field = Some(parsed.map_err(|error: Invalid| self.is_wrong(&error.problem))?);
        Ok(())
    }

    /// Takes the choice with the name.
    fn choose<T: Copy>(self, field: &mut T, choices: &[(&str, T)]) -> Result<()> {
        let Some((_, choice)) = choices.iter().find(|(name, _)| *name == self.value) else {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            return Err(self.is_wrong(&format!("{:?} is not one of {names}", self.value)));
        };
        *field = *choice;
        Ok(())
    }

    /// A number with the unit `ms` or `s`; at least one millisecond.
    fn parse_stall(self, field: &mut Option<Duration>) -> Result<()> {
        let (milliseconds, seconds) = (self.value.strip_suffix("ms"), self.value.strip_suffix('s'));
        let (digits, unit) = match (milliseconds, seconds) {
            (Some(digits), _) => (digits, 1),
            (None, Some(digits)) => (digits, 1000),
            (None, None) => ("", 0),
        };
        let stall = number(digits).and_then(|number: u64| number.checked_mul(unit));
        let Some(stall) = stall.filter(|stall| *stall > 0) else {
            let problem = format!("{:?} is not a time such as 100ms or 2s", self.value);
            return Err(self.is_wrong(&problem));
        };
        *field = Some(Duration::from_millis(stall));
        Ok(())
    }

    /// The name of a Kubernetes object.
    fn name(self, field: &mut Option<String>) -> Result<()> {
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

    fn parse_id(self, field: &mut u32) -> Result<()> {
        let Some(id) = number(self.value).filter(|id| *id <= MAX_ID) else {
            let problem = format!("{:?} is not a number from 0 to {MAX_ID}", self.value);
            return Err(self.is_wrong(&problem));
        };
        *field = id;
        Ok(())
    }
}

/// A number without the sign that [`str::parse`] accepts.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    const SCHEMA: &str = include_str!("../../deploy/chart/values.schema.json");
    const CLASSES: &str = include_str!("../../docs/classes.md");
    const SNAPSHOTS: &str = include_str!("../../docs/snapshots.md");

    /// The parameters that a person may write into a class of this kind in the chart, with all values of each that
    /// has a list of them.
    fn in_chart(kind: &str) -> BTreeMap<String, Option<BTreeSet<String>>> {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        let path = format!("/properties/{kind}/items/properties/parameters/properties");
        let all = schema.pointer(&path).unwrap().as_object().unwrap().iter();
        let values = |of: &Value| {
            let values = of["enum"].as_array()?.iter();
            Some(
                values
                    .map(|value| value.as_str().unwrap().to_owned())
                    .collect(),
            )
        };
        all.map(|(key, of)| (key.clone(), values(of))).collect()
    }

    /// Compares the parameters with the chart, which sets some itself, and a document.
    fn assert_consistent<C: Parametrized>(kind: &str, set_by_chart: &[&str], document: &str) {
        let chart = in_chart(kind);
        for Parameter { key, values, .. } in C::PARAMETERS {
            for value in *values {
                set(&mut C::default(), key, value).unwrap();
            }
            if let Some(Some(listed)) = chart.get(*key) {
                let values: BTreeSet<_> = values.iter().map(|value| (*value).to_owned()).collect();
                assert_eq!(*listed, values, "{key}");
            }
        }
        let mut of_classes: BTreeSet<&str> = C::own_parameters().map(|known| known.key).collect();
        for key in &of_classes {
            assert!(
                document.contains(&format!("`{key}`")),
                "{key} is not documented"
            );
        }
        of_classes.retain(|key| !set_by_chart.contains(key));
        let chart = chart.keys().map(String::as_str);
        let chart: BTreeSet<&str> = chart
            .filter(|key| !key.starts_with(SIDECAR_PREFIX))
            .collect();
        assert_eq!(
            chart, of_classes,
            "the keys in values.schema.json of {kind}"
        );
    }

    #[test]
    fn the_chart_and_the_documents_have_every_parameter() {
        let by_chart = ["pool", "class", "reclaimPolicy"];
        assert_consistent::<Class>("storageClasses", &by_chart, CLASSES);
        assert_consistent::<SnapshotClass>("snapshots/properties/classes", &[], SNAPSHOTS);
    }

    #[test]
    fn an_unknown_parameter_is_told_the_known_ones() {
        let error = set(&mut SnapshotClass::default(), "size", "1").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("known are inUse, copy and maxStall"),
            "{error}"
        );
    }
}
