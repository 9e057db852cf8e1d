//! Directories with the data of the driver, of other pools or of pods, by every path that shows them.

use pool::Wanted;
use rootcellar::volume::Settings;
use support::NODE;

use super::*;

/// A node with two pools, a set and a directory "old" with a pool that is not served.
fn host() -> Host {
    let node = MemoryNode::new(&["default", "other"]);
    for dir in ["above/disks", "kubelet/pods/pod"] {
        fs::create_dir_all(node.path(dir)).unwrap();
    }
    let set = format!("set={}", node.path("above/disks").display());
    let settings = Settings {
        sets: vec![set.parse().unwrap()],
        ..node.settings(&node.options())
    };
    let host = Host {
        driver: node.volumes_with(settings, &Fakes::default()),
        node,
        os: Os::default(),
    };
    make_tree(&host.old(), "content");
    host
}

fn bind(host: &Host, directory: &Path) -> PathBuf {
    let at = host.node.path("bound");
    fs::create_dir(&at).unwrap();
    rustix::mount::mount_bind(directory, &at).unwrap();
    at
}

fn make(directory: PathBuf) -> PathBuf {
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Makes the path to import, and a fragment of the refusal.
type Case = (&'static str, fn(&Host) -> PathBuf, &'static str);

const CASES: [Case; 17] = [
    ("its pool", |host| host.node.pool("default"), "contains"),
    ("another pool", |host| host.node.pool("other"), "contains"),
    (
        "in a pool",
        |host| make(host.node.pool("other").join("volumes/below")),
        "is in",
    ),
    (
        "above a pool, on its disk",
        |host| host.node.pool("other").parent().unwrap().to_owned(),
        "contains",
    ),
    (
        "a bind mount of a pool",
        |host| bind(host, &host.node.pool("other")),
        "contains",
    ),
    (
        "a bind mount of a part of a pool",
        |host| bind(host, &host.node.pool("other").join("volumes")),
        "is in",
    ),
    (
        "a bind mount of the directory above a pool",
        |host| bind(host, host.node.pool("other").parent().unwrap()),
        "contains",
    ),
    (
        "a directory by a path with a link",
        |host| {
            symlink(host.node.pool("other"), host.node.path("link")).unwrap();
            host.node.path("link/volumes")
        },
        "is in",
    ),
    ("a set", |host| host.node.path("above/disks"), "contains"),
    ("above a set", |host| host.node.path("above"), "contains"),
    (
        "in a set",
        |host| make(host.node.path("above/disks/spare")),
        "is in",
    ),
    ("state", |host| host.node.path("state"), "contains"),
    (
        "in the state",
        |host| make(host.node.path("state/below")),
        "is in",
    ),
    (
        "a bind mount of the state",
        |host| bind(host, &host.node.path("state")),
        "contains",
    ),
    ("the kubelet", |host| host.node.path("kubelet"), "contains"),
    ("a pod", |host| host.node.path("kubelet/pods/pod"), "is in"),
    (
        "the node",
        |host| {
            host.node
                .path("")
                .join("../")
                .join(host.node.path("").file_name().unwrap())
        },
        "contains",
    ),
];

/// A directory that contains, is or is in a pool, a set, the state or the kubelet's pods is refused, by
/// whichever path it is named, and is left as it was.
///
/// Proves: IM2.
#[test]
fn the_data_of_the_driver_and_of_pods_is_not_imported() {
    require!(mount_namespace);
    for (name, prepare, relation) in CASES {
        let host = host();
        let path = prepare(&host);
        let fragment = format!(" {relation} {}", host.node.path("").display());
        let (code, message) = host.import_from(path).unwrap_err();
        assert!(message.contains(&fragment), "{name}: {message}");
        assert!(message.ends_with("has its data"), "{name}: {message}");
        assert_eq!(code, Code::FailedPrecondition, "{name}");
        assert_eq!(host.imports(), [""; 0], "{name}");
        let _ = rustix::mount::unmount(host.node.path("bound"), UnmountFlags::empty());
        host.import().unwrap();
    }
}

/// A volume is not exported into such a directory, and stays a volume.
///
/// Proves: IM2.
#[test]
fn no_volume_is_exported_into_the_data_of_the_driver_or_of_pods() {
    require!(mount_namespace);
    let host = host();
    let id = host.import().unwrap();
    let shown = bind(&host, &host.node.pool("other").join("volumes"));
    let below = [
        host.node.pool("other"),
        shown,
        host.node.path("above/disks"),
        host.node.path("state"),
        host.node.path("kubelet/pods/pod"),
    ];
    for (dry_run, directory) in below.iter().flat_map(|dir| [(true, dir), (false, dir)]) {
        let export = ExportTo {
            os: host.os.clone(),
            id,
            to: Some(directory.join("new")),
            users: Users::Check,
            dry_run,
        };
        let (code, message) = result(export.run(&Direct(&host.driver))).unwrap_err();
        assert_eq!(code, Code::FailedPrecondition, "{message}");
        assert!(message.contains("has its data; choose"), "{message}");
        assert_eq!(host.imports(), [""; 0]);
    }
    host.driver.get(&id.to_string()).unwrap();
}

/// A pool that this driver does not serve is not imported, nor a tree that contains one.
///
/// Proves: IM2.
#[test]
fn a_pool_that_is_not_served_is_not_imported() {
    require!(mount_namespace);
    for below in ["", "pool", "dir/deep"] {
        let host = host();
        let at = make(host.old().join(below));
        if below.is_empty() {
            fs::rename(&at, at.with_file_name("full")).unwrap();
            make(at.clone());
        }
        let wanted = Wanted {
            require_mount: false,
            any_filesystem: true,
        };
        pool::init(&host.os, &at, &NODE.parse().unwrap(), wanted).unwrap();
        let (code, message) = host.import().unwrap_err();
        let is_pool = message.contains("is in the pool at");
        assert!(
            is_pool || message.contains("contains a pool, as its"),
            "{message}"
        );
        assert_eq!(code, Code::FailedPrecondition);
        assert_eq!(host.imports(), [""; 0]);
        let marker = host.old().with_file_name("marker");
        fs::rename(at.join(".rootcellar"), marker).unwrap();
        host.import().unwrap();
    }
}
