//! The parameters of storage classes and snapshot classes.

use linux::image::Allocation;
use linux::io::IoLimits;
use objects::{ClaimLabel, PoolName, ReclaimPolicy, SnapshotLabel};

use crate::volume::parameter::{Parameter, Parametrized, set};
use pool::{CopyPolicy, KubernetesFields, Mode, Parameters, Sharing};

/// The checked parameters of a `StorageClass`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Class {
    pub pool: Option<PoolName>,
    /// Whether a volume takes the whole disk of a set's member.
    pub exclusive: bool,
    /// Whether btrfs rewrites the blocks of new files in place.
    pub nodatacow: bool,
    pub kind: Kind,
    /// Whether the blocks of images are allocated at once, if the class says so.
    pub allocation: Option<Allocation>,
    /// The limits of the I/O of pods with an image.
    pub io_limits: IoLimits,
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
    /// As [`Parametrized::parse`], without bad keys and values. If `GetCapacity` failed, the provisioner would
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

impl Parametrized for Class {
    const PARAMETERS: &'static [Parameter<Self>] = &[
        Parameter::new("pool", &["default"], |class, given| {
            given.parse(&mut class.pool)
        }),
        Parameter::new("kind", &["directory", "image"], |class, given| {
            let choices = [("directory", Kind::Directory), ("image", Kind::Image)];
            given.choose(&mut class.kind, &choices)
        }),
        Parameter::new("allocation", &["thick", "thin"], |class, given| {
            let choices = [Allocation::Thick, Allocation::Thin];
            let choices = choices.map(|choice| (choice.as_str(), Some(choice)));
            given.choose(&mut class.allocation, &choices)
        }),
        Parameter::READ_BYTES,
        Parameter::WRITE_BYTES,
        Parameter::READ_OPERATIONS,
        Parameter::WRITE_OPERATIONS,
        Parameter::compared(
            "exclusive",
            &["true", "false"],
            |class, given| given.choose(&mut class.exclusive, &[("true", true), ("false", false)]),
            |class| class.exclusive.to_string(),
            |volume| volume.exclusive.to_string(),
        ),
        Parameter::<Self>::compared(
            "nodatacow",
            &["true", "false"],
            |class, given| given.choose(&mut class.nodatacow, &[("true", true), ("false", false)]),
            |class| class.nodatacow.to_string(),
            |volume| volume.nodatacow.to_string(),
        )
        .of_the_source(),
        Parameter::new(
            "enforcement",
            &["auto", "required", "none"],
            |class, given| {
                let choices = [
                    ("auto", EnforcementPolicy::Auto),
                    ("required", EnforcementPolicy::Required),
                    ("none", EnforcementPolicy::None),
                ];
                given.choose(&mut class.enforcement, &choices)
            },
        ),
        Parameter::compared(
            "mode",
            &["0777", "2750"],
            |class, given| {
                let mode = Mode::parse(given.value);
                let problem = || format!("{:?} is not an octal mode up to 3777", given.value);
                class.parameters.mode = mode.ok_or_else(|| given.is_wrong(&problem()))?;
                Ok(())
            },
            |class| class.parameters.mode.to_string(),
            |volume| volume.parameters.mode.to_string(),
        ),
        Parameter::compared(
            "uid",
            &["0", "1000"],
            |class, given| given.parse_id(&mut class.parameters.uid),
            |class| class.parameters.uid.to_string(),
            |volume| volume.parameters.uid.to_string(),
        ),
        Parameter::compared(
            "gid",
            &["0", "1000"],
            |class, given| given.parse_id(&mut class.parameters.gid),
            |class| class.parameters.gid.to_string(),
            |volume| volume.parameters.gid.to_string(),
        ),
        Parameter::compared(
            "sharing",
            &["none", "node"],
            |class, given| {
                let choices = Sharing::ALL.map(|sharing| (sharing.as_str(), sharing));
                given.choose(&mut class.parameters.sharing, &choices)
            },
            |class| class.parameters.sharing.as_str().to_string(),
            |volume| volume.parameters.sharing.as_str().to_string(),
        ),
        Parameter::COPY,
        Parameter::MAX_STALL,
        Parameter::new("class", &["fast"], |class, given| {
            given.name(&mut class.kubernetes.class)
        }),
        Parameter::new("reclaimPolicy", &["Delete", "Retain"], |class, given| {
            let policies = ReclaimPolicy::ALL.map(|policy| (policy.as_str(), Some(policy)));
            given.choose(&mut class.kubernetes.reclaim_policy, &policies)
        }),
        Parameter::new(
            "csi.storage.k8s.io/fstype",
            &["ext4", "xfs", ""],
            |class, given| {
                let is_given = !given.value.is_empty();
                class.fs_type = is_given.then(|| given.value.to_owned());
                Ok(())
            },
        ),
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
        Parameter::new("inUse", &["allow", "refuse"], |class, given| {
            let choices = [("allow", InUse::Allow), ("refuse", InUse::Refuse)];
            given.choose(&mut class.in_use, &choices)
        }),
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use objects::{ObjectId, PoolId, VolumeId};
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;
    use crate::volume::parameter::SIDECAR_PREFIX;
    use pool::VolumeRecord;

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

    /// A volume has the values of the class that made it, and no other class fits. Every field of the record's
    /// parameters has a row.
    #[test]
    fn a_class_with_another_value_of_a_compared_parameter_is_refused() {
        let made_by = |class: &Class| VolumeRecord {
            exclusive: class.exclusive,
            nodatacow: class.nodatacow,
            parameters: class.parameters,
            ..VolumeRecord::new(
                VolumeId::new(PoolId(Uuid::nil()), &"pvc".parse().unwrap()),
                "pvc".parse().unwrap(),
            )
        };
        let made = made_by(&Class::default());
        for row in Class::PARAMETERS
            .iter()
            .filter(|row| row.of(&made).is_some())
        {
            let key = row.key;
            let of = |value| {
                let mut class = Class::default();
                set(&mut class, key, value).unwrap();
                class
            };
            let [one, other] = row.values else {
                panic!("{key} has no two values");
            };
            let volume = made_by(&of(one));
            assert_eq!(row.of(&volume).as_deref(), Some(*one), "{key}");
            row.check_same(&of(one), &volume).unwrap();
            let refused = row.check_same(&of(other), &volume).unwrap_err();
            assert!(refused.to_string().contains(key), "{refused}");
        }
    }

    #[test]
    fn a_key_without_the_prefix_of_the_sidecars_is_told_the_whole_key() {
        for key in ["fsType", "fstype", "FSType", "fs-type"] {
            let error = set(&mut Class::default(), key, "xfs").unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("parameter {key:?}: unknown parameter; write csi.storage.k8s.io/fstype")
            );
        }
        for key in ["namespace", "pvc", ""] {
            let error = set(&mut Class::default(), key, "x").unwrap_err();
            assert!(error.to_string().contains("known are pool"), "{error}");
        }
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
