//! The systems from which volumes come: how their `PersistentVolumes` look, where their directories are.

use std::path::{Component, Path};

use clap::ValueEnum;

use crate::cluster::{Affinity, Expression, Node, Term, Volume};

const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// A system of volumes on nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum System {
    /// Rancher's local-path-provisioner, also that of k3s
    LocalPath,
    /// The local volume static provisioner
    Static,
    /// `KubeVirt`'s hostpath-provisioner, both generations
    Kubevirt,
    /// Volumes of type hostPath or local without a known provisioner
    Manual,
}

impl System {
    /// The system of a volume; `None` if its directory is on no node.
    pub(crate) fn of(volume: &Volume) -> Option<Self> {
        let spec = &volume.spec;
        if let Some(csi) = &spec.csi {
            let is_known = csi.driver == "kubevirt.io.hostpath-provisioner";
            return is_known.then_some(Self::Kubevirt);
        }
        if spec.host_path.is_none() && spec.local.is_none() {
            return None;
        }
        Some(match provisioner(volume) {
            "rancher.io/local-path" => Self::LocalPath,
            "kubevirt.io/hostpath-provisioner" => Self::Kubevirt,
            other if other.starts_with("local-volume-provisioner-") => Self::Static,
            _ => Self::Manual,
        })
    }
}

/// The provisioner that a volume names, or nothing.
pub(crate) fn provisioner(volume: &Volume) -> &str {
    let annotations = &volume.metadata.annotations;
    annotations.get(PROVISIONED_BY).map_or("", String::as_str)
}

/// The directory of a volume on its node. An error is the reason why it is unknown or cannot be imported.
pub(crate) fn directory(volume: &Volume, template: Option<&str>) -> Result<String, String> {
    let spec = &volume.spec;
    let path = if let Some(host) = &spec.host_path {
        if let Some(other @ ("File" | "FileOrCreate" | "Socket" | "CharDevice" | "BlockDevice")) =
            host.r#type.as_deref()
        {
            return Err(format!(
                "its hostPath has type {other}; only directories are imported"
            ));
        }
        host.path.clone()
    } else if let Some(local) = &spec.local {
        if let Some(fs_type) = local
            .fs_type
            .as_deref()
            .filter(|fs_type| !fs_type.is_empty())
        {
            return Err(format!(
                "its local volume has fsType {fs_type}, so its path is a disk and not a directory"
            ));
        }
        local.path.clone()
    } else {
        let handle = spec.csi.as_ref().map(|csi| csi.volume_handle.as_str());
        let handle = handle.filter(|handle| !handle.is_empty() && !handle.contains('/'));
        let handle = handle.ok_or("it has no volumeHandle that can be the name of a directory")?;
        let template = template.ok_or(
            "a CSI volume does not name its directory; give --path, such as \
             --path '/var/hpvolumes/csi/{handle}'",
        )?;
        if !template.contains("{handle}") {
            return Err(format!("--path {template:?} lacks {{handle}}"));
        }
        template.replace("{handle}", handle)
    };
    clean(&path).ok_or_else(|| {
        format!("{path:?} is not an absolute path below / without '..' and control characters")
    })
}

/// A path without repeated and trailing slashes.
pub(crate) fn clean(path: &str) -> Option<String> {
    let is_plain = path.starts_with('/') && !path.chars().any(char::is_control);
    let mut names = Vec::new();
    for component in Path::new(path).components().skip(1) {
        match component {
            Component::Normal(name) => names.push(name.to_str()?),
            _ => return None,
        }
    }
    (is_plain && !names.is_empty()).then(|| format!("/{}", names.join("/")))
}

/// The node of a volume. Its affinity has the value of a label, which may differ from the name of the
/// node.
pub(crate) fn node<'a>(
    volume: &Volume,
    nodes: &'a [Node],
    given: Option<&str>,
) -> Result<&'a str, String> {
    let mut matches = Vec::new();
    if let Some(affinity) = &volume.spec.node_affinity {
        for node in nodes {
            if selects(affinity, node)? {
                matches.push(node.metadata.name.as_str());
            }
        }
    } else {
        let name = given.ok_or("it names no node; give --node with --claim")?;
        let all = nodes.iter().map(|node| node.metadata.name.as_str());
        matches.extend(all.filter(|node| *node == name));
    }
    match matches[..] {
        [node] => Ok(node),
        [] => Err("no node of the input is the one of its affinity".to_owned()),
        _ => Err(format!(
            "its affinity fits several nodes, {}, and only one has the data",
            matches.join(", ")
        )),
    }
}

/// Whether a volume can be on a node. Of a volume with an affinity that is not understood, as well as of
/// one without, that is possible.
pub(crate) fn may_be_on(volume: &Volume, nodes: &[Node], name: &str) -> bool {
    let Some(affinity) = &volume.spec.node_affinity else {
        return true;
    };
    let node = nodes.iter().find(|node| node.metadata.name == name);
    node.is_none_or(|node| selects(affinity, node).unwrap_or(true))
}

fn selects(affinity: &Affinity, node: &Node) -> Result<bool, String> {
    for term in &affinity.required.node_selector_terms {
        if fits(term, node)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn fits(term: &Term, node: &Node) -> Result<bool, String> {
    let labels = &node.metadata.labels;
    let mut fits = !(term.match_expressions.is_empty() && term.match_fields.is_empty());
    for expression in &term.match_expressions {
        fits &= holds(expression, labels.get(&expression.key))?;
    }
    for field in &term.match_fields {
        let value = (field.key == "metadata.name").then_some(&node.metadata.name);
        fits &= holds(field, value)?;
    }
    Ok(fits)
}

fn holds(expression: &Expression, value: Option<&String>) -> Result<bool, String> {
    let is_named = value.is_some_and(|value| expression.values.contains(value));
    match expression.operator.as_str() {
        "In" => Ok(is_named),
        "NotIn" => Ok(!is_named),
        "Exists" => Ok(value.is_some()),
        "DoesNotExist" => Ok(value.is_none()),
        other => Err(format!(
            "its affinity has the operator {other}, which is not understood"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_or_refused() {
        let cases = [
            ("/a", Some("/a")),
            ("/a//b/", Some("/a/b")),
            ("/a/./b", Some("/a/b")),
            ("/", None),
            ("", None),
            ("a/b", None),
            ("/a/../b", None),
            ("/a\nb", None),
        ];
        for (path, expected) in cases {
            assert_eq!(clean(path).as_deref(), expected, "{path:?}");
        }
    }
}
