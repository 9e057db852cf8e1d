//! The `DaemonSet`s of the driver, which say on which nodes it is to run.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::node::{NAME, Node};
use crate::wire::Object;

/// A `DaemonSet` of the driver. Its tolerations are not read, because a node may have a taint only until it has started.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DriverSet {
    node_selector: BTreeMap<String, String>,
    affinity: Affinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Affinity {
    node_affinity: NodeAffinity,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    required: Option<Required>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Required {
    node_selector_terms: Vec<Term>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Requirement>,
    /// Kubernetes allows only `metadata.name` here.
    match_fields: Vec<Requirement>,
}

#[derive(Debug, Clone, Deserialize)]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

impl DriverSet {
    /// `None` if the `DaemonSet` is not the driver's. One that cannot be read selects every node.
    pub(crate) fn read(set: Object) -> Option<Self> {
        #[derive(Deserialize)]
        struct Fields {
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Spec {
            template: Template,
        }
        #[derive(Deserialize)]
        struct Template {
            #[serde(default)]
            spec: DriverSet,
        }
        let label = set.text(&["spec", "template", "metadata", "labels", NAME.0]);
        if label != Some(NAME.1) {
            return None;
        }
        let fields: Option<Fields> = set.fields();
        Some(fields.map_or_else(Self::default, |fields| fields.spec.template.spec))
    }

    /// Whether its pod is to run on a node, by the labels and the name.
    pub(crate) fn selects(&self, node: &Node) -> bool {
        let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
        let required = &self.affinity.node_affinity.required;
        let terms = required.as_ref().map(|one| &one.node_selector_terms);
        self.node_selector.iter().all(has)
            && terms.is_none_or(|terms| terms.iter().any(|term| term.is_met(node)))
    }
}

impl Term {
    /// A term without requirements selects no node.
    fn is_met(&self, node: &Node) -> bool {
        let labels = self.match_expressions.iter();
        let mut labels = labels.map(|one| one.is_met(node.labels.get(&one.key)));
        let name = Some(&node.identity.name);
        let mut fields = self.match_fields.iter().map(|one| one.is_met(name));
        let is_empty = self.match_expressions.is_empty() && self.match_fields.is_empty();
        !is_empty && labels.all(|met| met) && fields.all(|met| met)
    }
}

impl Requirement {
    fn is_met(&self, value: Option<&String>) -> bool {
        let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
        let numbers = || number(value).zip(number(self.values.first()));
        match &*self.operator {
            "In" => value.is_some_and(|value| self.values.contains(value)),
            "NotIn" => value.is_none_or(|value| !self.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => numbers().is_some_and(|(value, than)| value > than),
            "Lt" => numbers().is_some_and(|(value, than)| value < than),
            // The driver may be on its way: better to wait than to lose sight of a disk.
            _ => true,
        }
    }
}
