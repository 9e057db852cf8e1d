//! The topology of CSI: a label of this node.

use crate::csi;

/// This node's topology segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topology {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl Topology {
    pub(super) fn to_message(&self) -> csi::Topology {
        csi::Topology {
            segments: [(self.key.clone(), self.value.clone())].into(),
        }
    }

    /// Whether this node is in the place. Only one key describes this node, so any other key excludes it.
    pub(super) fn is_in(&self, place: &csi::Topology) -> bool {
        !place.segments.is_empty()
            && place
                .segments
                .iter()
                .all(|(key, value)| key.eq_ignore_ascii_case(&self.key) && *value == self.value)
    }

    pub(super) fn is_excluded_by(&self, requirement: Option<&csi::TopologyRequirement>) -> bool {
        let places = requirement.map(|requirement| match requirement.requisite.as_slice() {
            [] => requirement.preferred.as_slice(),
            requisite => requisite,
        });
        places.is_some_and(|places| {
            !places.is_empty() && !places.iter().any(|place| self.is_in(place))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "topology.example/node";

    fn place(segments: &[(&str, &str)]) -> csi::Topology {
        let segments = segments
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        csi::Topology {
            segments: segments.collect(),
        }
    }

    /// Proves: E1.
    #[test]
    fn a_requirement_is_met_by_this_node_alone() {
        let here = Topology {
            key: KEY.into(),
            value: "n1".into(),
        };
        let ours = || place(&[(KEY, "n1")]);
        let theirs = || place(&[(KEY, "n2")]);
        let zone = || place(&[("topology.example/zone", "z")]);
        let both = || place(&[(KEY, "n1"), ("topology.example/zone", "z")]);
        let upper = || place(&[("TOPOLOGY.example/Node", "n1")]);
        #[rustfmt::skip]
        let cases: Vec<(&str, Vec<csi::Topology>, Vec<csi::Topology>, bool)> = vec![
            // case, requisite, preferred, excluded
            ("no requirement", vec![], vec![], false),
            ("this node", vec![ours()], vec![], false),
            ("this node among others", vec![theirs(), ours()], vec![theirs()], false),
            ("another node", vec![theirs()], vec![], true),
            ("requisite binds, preferred does not", vec![theirs()], vec![ours()], true),
            ("another node preferred", vec![ours()], vec![theirs()], false),
            ("only preferred: this node", vec![], vec![theirs(), ours()], false),
            ("only preferred: another node", vec![], vec![theirs()], true),
            ("a key we do not know", vec![zone()], vec![], true),
            ("a key we do not know next to ours", vec![both()], vec![], true),
            ("one of them is ours", vec![both(), ours()], vec![], false),
            ("no segment", vec![place(&[])], vec![], true),
            ("the key in capitals", vec![upper()], vec![], false),
            ("the value in capitals", vec![place(&[(KEY, "N1")])], vec![], true),
        ];
        for (case, requisite, preferred, excluded) in cases {
            let requirement = csi::TopologyRequirement {
                requisite,
                preferred,
            };
            assert_eq!(here.is_excluded_by(Some(&requirement)), excluded, "{case}");
        }
        assert!(here.is_in(&here.to_message()));
    }
}
