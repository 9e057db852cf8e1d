//! Random requests of few kinds, so that they collide.

use linux::mount::MountOptions;
use objects::{AccessMode, Bytes};
use proptest::prelude::*;

use pool::{Mode, Parameters, Sharing};
use rootcellar::volume::{Allocation, Capability, Class, CreateRequest, Kind};

use support::create;
use support::random::Op;

use super::{MIB, NAMES, POOLS, TARGETS};

fn modes() -> impl Strategy<Value = AccessMode> {
    prop_oneof![
        4 => Just(AccessMode::SingleNodeMultiWriter),
        2 => Just(AccessMode::SingleNodeSingleWriter),
        1 => Just(AccessMode::SingleNodeWriter),
        1 => Just(AccessMode::SingleNodeReaderOnly),
        1 => Just(AccessMode::MultiNodeReaderOnly),
        1 => Just(AccessMode::MultiNodeSingleWriter),
        1 => Just(AccessMode::MultiNodeMultiWriter),
    ]
}

fn fs_types() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        10 => Just(None),
        2 => Just(Some("tmpfs".to_owned())),
        1 => Just(Some("xfs".to_owned())),
        1 => Just(Some("ext4".to_owned())),
    ]
}

fn capabilities() -> impl Strategy<Value = Capability> {
    let flags = prop_oneof![
        6 => Just(vec![]),
        1 => Just(vec!["ro"]),
        1 => Just(vec!["rw", "relatime"]),
        1 => Just(vec!["noexec"]),
        1 => Just(vec!["noexec", "noatime"]),
    ];
    let block = prop::bool::weighted(0.2);
    (block, modes(), fs_types(), flags).prop_map(|(block, access_mode, fs_type, flags)| {
        let options = MountOptions::parse(flags).unwrap();
        let mounted = Capability {
            block: false,
            access_mode,
            fs_type,
            options,
        };
        let device = Capability {
            block: true,
            fs_type: None,
            options: MountOptions::default(),
            ..mounted.clone()
        };
        if block { device } else { mounted }
    })
}

fn classes() -> impl Strategy<Value = Class> {
    let pool = prop_oneof![
        6 => Just(None),
        2 => Just(Some("default")),
        4 => Just(Some("second")),
        1 => Just(Some("third")),
    ];
    let kept = |mode: &str, id: u32, sharing| Parameters {
        mode: Mode::parse(mode).unwrap(),
        uid: id,
        gid: 2 * id,
        sharing,
    };
    // A user namespace maps no other id.
    let id = if can_change_owner() { 1000 } else { 0 };
    let parameters = prop_oneof![
        4 => Just(Parameters::default()),
        1 => Just(kept("0700", id, Sharing::None)),
        3 => Just(kept("3775", 0, Sharing::Node)),
    ];
    let images = prop_oneof![
        6 => Just((Kind::Directory, None)),
        1 => Just((Kind::Directory, Some(Allocation::Thin))),
        2 => Just((Kind::Image, Some(Allocation::Thin))),
        1 => Just((Kind::Image, None)),
    ];
    (pool, parameters, fs_types(), images).prop_map(
        |(pool, parameters, fs_type, (kind, allocation))| Class {
            pool: pool.map(|pool| pool.parse().unwrap()),
            parameters,
            fs_type,
            kind,
            allocation,
            ..Class::default()
        },
    )
}

fn can_change_owner() -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::os::unix::fs::chown(file.path(), Some(1000), Some(2000)).is_ok()
}

fn requests() -> impl Strategy<Value = CreateRequest> {
    let sizes = vec![0, 4 * MIB, 16 * MIB, 64 * MIB, 160 * MIB, 400 * MIB];
    let sizes = prop::sample::select(sizes);
    let above = prop::option::of(prop::sample::select(vec![4 * MIB, 60 * MIB]));
    let capabilities = prop::collection::vec(capabilities(), 1..=2);
    let excludes_node = prop::bool::weighted(0.05);
    (
        prop::sample::select(&NAMES[..]),
        sizes,
        above,
        capabilities,
        classes(),
        excludes_node,
    )
        .prop_map(
            |(volume, size, above, capabilities, class, excludes_node)| CreateRequest {
                limit: above.map(|above| Bytes(size + above)),
                capabilities,
                class,
                excludes_node,
                ..create(volume, size)
            },
        )
}

pub fn ops() -> impl Strategy<Value = Op> {
    let names = || prop::sample::select(&NAMES[..]);
    let publish = (
        names(),
        0..TARGETS,
        capabilities(),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(name, target, capability, read_only)| Op::Publish {
            name,
            target,
            capability,
            read_only,
        });
    prop_oneof![
        10 => requests().prop_map(Op::Create),
        7 => names().prop_map(Op::Delete),
        1 => names().prop_map(Op::DeleteNow),
        4 => (names(), prop::option::of(names())).prop_map(|(name, new)| Op::Undelete(name, new)),
        1 => prop::option::of(names()).prop_map(Op::Purge),
        1 => names().prop_map(Op::Get),
        12 => publish,
        6 => (names(), 0..TARGETS).prop_map(|(name, target)| Op::Unpublish { name, target }),
        2 => (0..TARGETS).prop_map(Op::UnmountTarget),
        2 => prop::collection::vec(1..4_usize, 1..4).prop_map(Op::List),
        2 => (classes(), capabilities()).prop_map(|(class, mode)| Op::Capacity(class, mode)),
        1 => prop::sample::select(&POOLS[..]).prop_map(Op::Probe),
        1 => Just(Op::RESTART),
    ]
}
