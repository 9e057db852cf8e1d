use super::*;

/// A directory in place of a mount of cgroup v2. Files in it record each write.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(cgroups: &[&str]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.add("");
        fs::write(tree.0.path().join(CONTROLLERS), "cpu io\n").unwrap();
        for cgroup in cgroups {
            tree.add(cgroup);
            fs::write(tree.0.path().join(cgroup).join(LIMITS), "").unwrap();
        }
        tree
    }

    fn add(&self, cgroup: &str) {
        let dir = self.0.path().join(cgroup);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(CONTROLLERS), "cpu io\n").unwrap();
    }

    fn place(&self) -> CgroupPlace {
        CgroupPlace::Tree(self.0.path().to_owned())
    }

    fn find(&self) -> Result<PathBuf, CgroupFault> {
        let found = PodsCgroup::find(&self.place())?;
        Ok(found.path().strip_prefix(self.0.path()).unwrap().to_owned())
    }
}

/// Proves: IO3.
#[test]
fn the_cgroup_of_pods_is_found_by_its_name() {
    for (cgroups, expected) in [
        // cgroupfs; systemd; kind; a kubelet with a cgroup root of its own.
        (
            &["system.slice", "kubepods", "kubepods/burstable"][..],
            "kubepods",
        ),
        (
            &["init.scope", "kubepods.slice/kubepods-besteffort.slice"],
            "kubepods.slice",
        ),
        (
            &[
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice",
                "system.slice/ssh.service",
            ],
            "kubelet.slice/kubelet-kubepods.slice",
        ),
        (&["machine/kubepods"], "machine/kubepods"),
    ] {
        let tree = Tree::new(cgroups);
        let pods = tree.0.path().join(expected).join(LIMITS);
        fs::write(pods, "").unwrap();
        assert_eq!(tree.find().unwrap(), Path::new(expected));
    }
}

/// Proves: IO3.
#[test]
fn an_unknown_layout_is_no_cgroup_of_pods() {
    let refusal = |tree: &Tree| tree.find().unwrap_err();
    for cgroups in [
        &["system.slice"][..],
        &[
            "a/b/kubepods",
            "kubepods2",
            "kubepods-burstable.slice",
            "my-kubepods",
        ],
    ] {
        let tree = Tree::new(cgroups);
        // A file of the name is none.
        fs::write(tree.0.path().join("kubepods"), "").unwrap();
        assert!(matches!(refusal(&tree), CgroupFault::NoPods { .. }));
    }
    let two = Tree::new(&["kubepods", "kubepods.slice"]);
    let text = refusal(&two).to_string();
    assert!(
        text.contains("kubepods and ") && text.contains("--pods-cgroup"),
        "{text}"
    );

    let bare = Tree::new(&[]);
    bare.add("kubepods");
    let text = refusal(&bare).to_string();
    assert!(text.contains("kubepods has no io.max; use"), "{text}");

    let old = Tree::new(&["kubepods"]);
    fs::remove_file(old.0.path().join(CONTROLLERS)).unwrap();
    let text = refusal(&old).to_string();
    assert!(text.contains("boot the node with cgroup v2"), "{text}");
    let pods = old.0.path().join("kubepods");
    fs::remove_file(pods.join(CONTROLLERS)).unwrap();
    let refused = PodsCgroup::find(&CgroupPlace::Pods(pods)).unwrap_err();
    assert!(matches!(refused, CgroupFault::NoTree { .. }), "{refused}");
}

/// Proves: IO3.
#[test]
fn a_given_cgroup_has_any_name() {
    let tree = Tree::new(&["a/b/c", "kubepods"]);
    let given = tree.0.path().join("a/b/c");
    let found = PodsCgroup::find(&CgroupPlace::Pods(given.clone())).unwrap();
    assert_eq!(found.path(), given);
}

#[test]
fn limits_are_written_listed_and_removed() {
    let tree = Tree::new(&["kubepods"]);
    let pods = PodsCgroup::find(&tree.place()).unwrap();
    assert_eq!(pods.limits().unwrap(), BTreeMap::new());
    let all = IoLimits {
        read_bytes: Some(1 << 20),
        write_bytes: Some(2 << 20),
        read_operations: Some(30),
        write_operations: Some(40),
    };
    let one = IoLimits {
        write_operations: Some(50),
        ..IoLimits::NONE
    };
    pods.limit((7, 2048), all).unwrap();
    pods.limit((7, 4095), all).unwrap();
    pods.limit((7, 4095), one).unwrap();
    let expected = BTreeMap::from([((7, 2048), all), ((7, 4095), one)]);
    assert_eq!(pods.limits().unwrap(), expected);
    pods.limit((7, 2048), IoLimits::NONE).unwrap();
    assert_eq!(pods.limits().unwrap(), BTreeMap::from([((7, 4095), one)]));
    let text = fs::read_to_string(pods.path().join(LIMITS)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "7:2048 rbps=1048576 wbps=2097152 riops=30 wiops=40"
    );
    assert_eq!(lines[3], "7:2048 rbps=max wbps=max riops=max wiops=max");

    fs::write(
        pods.path().join(LIMITS),
        "(unknown) rbps=1048576 wbps=max\n",
    )
    .unwrap();
    assert_eq!(pods.limits().unwrap(), BTreeMap::new());
    fs::write(pods.path().join(LIMITS), "8:0 rbps=fast").unwrap();
    pods.limits().unwrap_err();
    // The controller was disabled meanwhile.
    fs::remove_file(pods.path().join(LIMITS)).unwrap();
    let refused = pods.limit((7, 2048), all).unwrap_err();
    assert!(
        matches!(refused, CgroupFault::NoController { .. }),
        "{refused}"
    );
}

#[test]
fn limits_are_shown_to_people() {
    let limits = IoLimits {
        read_bytes: Some(50 << 20),
        write_operations: Some(500),
        ..IoLimits::NONE
    };
    assert_eq!(
        limits.to_string(),
        "50 MiB per second read, 500 writes per second"
    );
    assert_eq!(IoLimits::NONE.to_string(), "none");
}
