//! Arbitrary messages, bytes and records. Every call is answered with a code that the table allows.
//! Every record on the disk is served or left alone. Nothing else changes.

mod messages;
mod records;
mod wire;

use std::fs;
use std::path::PathBuf;

use linux::io::IoLimits;
use linux::mount::MountTable;
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use prost::Message;
use rootcellar::csi::volume_capability::{AccessType, BlockVolume};
use rootcellar::{admin, csi};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Status};

use support::cgroup::Cgroups;
use support::messages::{self as valid, assert_well_formed, snapshot};
use support::picture::{Picture, picture};
use support::random::config;
use support::require;
use support::server::{Clients, Server, connect};
use support::{Node, names};

/// Occurs in the secrets of requests and after the `=` of a mount option.
const SECRET: &str = "correct-horse-battery";

/// The number of messages for each call, unless `PROPTEST_CASES` is set.
const CASES: u32 = 48;

/// A volume or snapshot whose id is known.
#[derive(Debug, Clone, Default)]
pub struct Named {
    name: String,
    id: String,
}

/// The objects and paths that messages may name.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Volumes that no request deletes.
    kept: Vec<Named>,
    /// Volumes that requests may create and delete.
    deletable: Vec<Named>,
    /// Snapshots that no request deletes.
    kept_snapshots: Vec<Named>,
    /// Snapshots that requests may create and delete.
    deletable_snapshots: Vec<Named>,
    /// A published block volume, which only changes of limits name.
    limited: Named,
    targets: Vec<String>,
    elsewhere: Vec<String>,
}

/// A call of the specification or of the driver's own service, and the codes other than `OK` that may answer a message of its
/// type.
struct Call {
    package: &'static str,
    service: &'static str,
    request: &'static str,
    messages: fn(&Known) -> BoxedStrategy<Vec<u8>>,
    /// The text of bytes that decode as a message of its type.
    reads: fn(&[u8]) -> Option<String>,
    allowed: &'static [Code],
}

impl Call {
    fn name(&self) -> &'static str {
        self.request.strip_suffix("Request").unwrap()
    }

    fn path(&self) -> String {
        format!("/{}.{}/{}", self.package, self.service, self.name())
    }
}

macro_rules! calls {
    ($($types:ident $package:literal {
        $($service:ident($messages:ident): $($request:ident)+ => $allowed:expr;)*
    })*) => {
        [$($($(Call {
            package: $package,
            service: stringify!($service),
            request: stringify!($request),
            messages: messages::$messages,
            reads: |bytes| Some(format!("{:?}", $types::$request::decode(bytes).ok()?)),
            allowed: &$allowed,
        },)+)*)*]
    };
}

use Code::{
    Aborted, AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, OutOfRange,
    ResourceExhausted, Unimplemented,
};

/// Every call of `proto/csi.proto` and of `proto/rootcellar.proto`. After the last one, no volume gets limits any more.
const CALLS: [Call; 48] = calls! { csi "csi.v1" {
    Identity(others): GetPluginInfoRequest GetPluginCapabilitiesRequest ProbeRequest => [];
    Controller(create): CreateVolumeRequest
        => [InvalidArgument, OutOfRange, NotFound, AlreadyExists, ResourceExhausted];
    Controller(delete): DeleteVolumeRequest => [InvalidArgument, FailedPrecondition];
    Controller(validate): ValidateVolumeCapabilitiesRequest => [InvalidArgument, NotFound];
    Controller(list): ListVolumesRequest => [InvalidArgument, Aborted];
    Controller(capacity): GetCapacityRequest => [];
    Controller(get): ControllerGetVolumeRequest => [InvalidArgument, NotFound];
    Controller(create_snapshot): CreateSnapshotRequest
        => [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted];
    Controller(delete_snapshot): DeleteSnapshotRequest => [InvalidArgument, FailedPrecondition];
    Controller(list_snapshots): ListSnapshotsRequest => [InvalidArgument, Aborted];
    Controller(get_snapshot): GetSnapshotRequest => [InvalidArgument, NotFound];
    Controller(others): ControllerGetCapabilitiesRequest => [];
    Node(publish): NodePublishVolumeRequest
        => [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition];
    Node(unpublish): NodeUnpublishVolumeRequest => [InvalidArgument, NotFound, AlreadyExists];
    // Both have the same fields.
    Node(stats): NodeGetVolumeStatsRequest NodeGetVolumeHealthRequest
        => [InvalidArgument, NotFound];
    Node(expand): NodeExpandVolumeRequest => [InvalidArgument, NotFound, OutOfRange];
    Node(others): NodeGetCapabilitiesRequest NodeGetInfoRequest NodeGetStorageHealthRequest => [];

    Controller(others): ControllerPublishVolumeRequest ControllerUnpublishVolumeRequest
        ControllerListVolumeHealthRequest ControllerGetVolumeHealthRequest
        ControllerExpandVolumeRequest ControllerModifyVolumeRequest => [Unimplemented];
    GroupController(others): GroupControllerGetCapabilitiesRequest CreateVolumeGroupSnapshotRequest
        DeleteVolumeGroupSnapshotRequest GetVolumeGroupSnapshotRequest => [Unimplemented];
    SnapshotMetadata(others): GetMetadataAllocatedRequest GetMetadataDeltaRequest
        => [Unimplemented];
    Node(others): NodeStageVolumeRequest NodeUnstageVolumeRequest => [Unimplemented];
}
admin "rootcellar.v1" {
    Admin(limit): LimitVolumeRequest => [InvalidArgument, NotFound];
    Admin(undelete): UndeleteRequest
        => [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted];
    Admin(label): LabelVolumeRequest => [InvalidArgument, NotFound];
    Admin(enforce): EnforceVolumeRequest => [InvalidArgument, NotFound, FailedPrecondition];
    Admin(move_to): MoveVolumeRequest
        => [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted];
    Admin(advance): GetAdvanceRequest => [InvalidArgument, NotFound];
    Admin(check_import): CheckImportRequest
        => [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted];
    Admin(export): ExportVolumeRequest
        => [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted];
    Admin(import): ImportVolumeRequest
        => [InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted];
    Admin(delete_now): DeleteNowRequest => [InvalidArgument, FailedPrecondition];
    Admin(purge): PurgeRequest => [InvalidArgument, NotFound];
    Admin(others): LiftLimitsRequest => [];
}};

/// A served pool with volumes, and foreign files around it.
struct FuzzNode {
    runtime: Runtime,
    channel: Channel,
    clients: Clients,
    known: Known,
    cgroups: Cgroups,
    /// The limits of I/O that the last answer showed.
    limits: IoLimits,
    before: Picture,
    server: Server,
    node: Node,
}

impl FuzzNode {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let node = Node::new();
        fs::create_dir_all(node.path("outside")).unwrap();
        fs::write(node.path("outside/file"), "precious").unwrap();
        fs::create_dir_all(node.path("kubelet/pods/pod/full")).unwrap();
        fs::write(node.path("kubelet/pods/pod/full/file"), "precious").unwrap();
        let cgroups = Cgroups::new(&node);
        let server = serve(&node, &cgroups);
        runtime.block_on(server.wait_ready());
        let mut clients = runtime.block_on(server.clients());
        let channel = runtime.block_on(connect(&server.socket)).unwrap();
        let path = |below: &str| node.path(below).display().to_string();
        let mut make = |name: &str| Named {
            name: name.to_owned(),
            id: runtime.block_on(clients.make(name, 1000)),
        };
        let kept: Vec<Named> = ["kept-1", "kept-2"].map(&mut make).into();
        let deletable = ["prey-1", "prey-2", "prey-3"].map(&mut make).into();
        for directory in kept_below(&node, "volumes") {
            fs::write(directory.join("data/file"), "kept").unwrap();
        }
        let mut take = |name: &str| {
            let request = snapshot(name, &kept[0].id);
            let taken = runtime.block_on(clients.snapshot(request)).unwrap();
            Named {
                name: name.to_owned(),
                id: taken.snapshot_id,
            }
        };
        let known = Known {
            kept_snapshots: ["kept-1"].map(&mut take).into(),
            deletable_snapshots: ["prey-1", "prey-2"].map(&mut take).into(),
            kept,
            deletable,
            limited: make_device(&runtime, &mut clients),
            targets: ["a", "b", "c"]
                .map(|pod| path(&format!("kubelet/pods/pod/{pod}")))
                .into(),
            elsewhere: [
                "outside/new",
                "pool/volumes/new",
                "kubelet/pods/pod/full",
                "kubelet",
            ]
            .map(path)
            .into(),
        };
        let before = picture_protected(&node);
        publish_device(&runtime, &mut clients, &known.limited, &node);
        Self {
            runtime,
            channel,
            clients,
            known,
            cgroups,
            limits: IoLimits::NONE,
            before,
            server,
            node,
        }
    }

    /// Sends a message, and checks the answer against the codes that the call allows.
    fn check(&mut self, call: &Call, message: Vec<u8>) {
        let reads = (call.reads)(&message);
        if reads.as_deref().is_some_and(moves_secret) {
            return;
        }
        let reads = reads.is_some();
        let answer = self
            .runtime
            .block_on(wire::send(&self.channel, &call.path(), message));
        match answer {
            Ok(answer) => {
                assert!(reads, "no message, and accepted");
                match call.name() {
                    "CreateVolume" => self.give_back(&answer),
                    "CreateSnapshot" => self.give_snapshot_back(&answer),
                    "LimitVolume" => self.limits = limits_of(&answer),
                    "LiftLimits" => self.limits = IoLimits::NONE,
                    _ => {}
                }
                assert!(!call.allowed.contains(&Code::Unimplemented), "accepted");
            }
            Err(status) => {
                assert_well_formed(call.name(), &status);
                assert!(!status.message().contains(SECRET), "{status}");
                self.assert_allowed(call, reads, &status);
            }
        }
        // No other call changes them, and no refused one.
        let in_kernel = self.cgroups.limits().into_values().next();
        assert_eq!(in_kernel.unwrap_or_default(), self.limits);
    }

    fn assert_allowed(&self, call: &Call, reads: bool, status: &Status) {
        let unserved = call.allowed == [Code::Unimplemented];
        let allowed = match status.code() {
            // The answer of gRPC itself to bytes that do not decode as a message of the call.
            Code::Internal => !reads && status.message().contains("failed to decode"),
            Code::Unimplemented => unserved,
            code => reads && call.allowed.contains(&code),
        };
        assert!(allowed, "{status}\n{}", self.server.log());
    }

    /// Deletes a volume that was created, unless it is a known one.
    fn give_back(&mut self, answer: &[u8]) {
        let made = csi::CreateVolumeResponse::decode(answer).unwrap();
        let id = made.volume.unwrap().volume_id;
        let mut known = self.known.kept.iter().chain(&self.known.deletable);
        if !known.any(|volume| volume.id == id) {
            self.runtime.block_on(self.clients.delete(&id)).unwrap();
        }
    }

    /// As [`FuzzNode::give_back`], for a snapshot.
    fn give_snapshot_back(&mut self, answer: &[u8]) {
        let made = csi::CreateSnapshotResponse::decode(answer).unwrap();
        let id = made.snapshot.unwrap().snapshot_id;
        let known = &self.known;
        let mut known = known
            .kept_snapshots
            .iter()
            .chain(&known.deletable_snapshots);
        if !known.any(|snapshot| snapshot.id == id) {
            let deleted = self.clients.delete_snapshot(&id);
            self.runtime.block_on(deleted).unwrap();
        }
    }

    /// Undoes all publications. Asserts that the server runs, that nothing in it panicked, that it
    /// logged no secret, and that the retained volumes and everything around the pool are
    /// unchanged.
    fn end(mut self) {
        let kubelet = self.node.path("kubelet");
        let table = MountTable::read().unwrap().entries.into_iter();
        let mounts = table.map(|entry| entry.mount_point);
        let mounts: Vec<PathBuf> = mounts.filter(|path| path.starts_with(&kubelet)).collect();
        let limited = std::slice::from_ref(&self.known.limited);
        let volumes = [&self.known.kept[..], &self.known.deletable, limited].concat();
        for target in mounts {
            let mut unpublish = |volume: &Named| {
                let call = self.clients.unpublish(&volume.id, &target);
                self.runtime.block_on(call).is_ok()
            };
            assert!(volumes.iter().any(&mut unpublish), "{}", target.display());
        }
        for volume in &self.known.kept {
            let got = self.runtime.block_on(self.clients.get(&volume.id)).unwrap();
            assert_eq!((&got.volume_id, got.capacity_bytes), (&volume.id, 1000));
        }
        for snapshot in &self.known.kept_snapshots {
            let got = self.clients.get_snapshot(&snapshot.id);
            assert!(self.runtime.block_on(got).unwrap().ready_to_use);
        }
        let call = self.clients.get(&self.known.limited.id);
        assert_eq!(self.runtime.block_on(call).unwrap().capacity_bytes, DEVICE);
        assert_eq!(picture_protected(&self.node), self.before);
        let log = self.server.log();
        assert!(log.contains("Probe"), "it is the right log");
        assert!(!log.contains("panicked") && !log.contains(SECRET), "{log}");
        assert_eq!(self.server.stop(), Some(0));
    }
}

/// The name of the block volume whose limits messages change.
const LIMITED: &str = "limited";

/// Its size in bytes.
const DEVICE: i64 = 1 << 20;

/// How it is used.
const BLOCK: AccessType = AccessType::Block(BlockVolume {});

/// Starts a server that logs everything, and whose pool keeps deleted objects.
fn serve(node: &Node, cgroups: &Cgroups) -> Server {
    let pool = format!("{},keep=1h", node.pool_option());
    let mut command = Server::command(node, &[pool]);
    command.env("RUST_LOG", "rootcellar=trace");
    command.arg("--pods-cgroup").arg(cgroups.pods());
    Server::spawn(node, &mut command)
}

fn make_device(runtime: &Runtime, clients: &mut Clients) -> Named {
    let mut request = valid::create(LIMITED, DEVICE);
    request.volume_capabilities[0].access_type = Some(BLOCK);
    Named {
        name: LIMITED.to_owned(),
        id: runtime.block_on(clients.create(request)).unwrap().volume_id,
    }
}

fn publish_device(runtime: &Runtime, clients: &mut Clients, volume: &Named, node: &Node) {
    let target = node.path("kubelet/pods/limited");
    let mut request = valid::publish(&volume.id, &target);
    request.volume_capability.as_mut().unwrap().access_type = Some(BLOCK);
    runtime.block_on(clients.publish(request)).unwrap();
}

/// The limits in an answer, which the kernel must have.
fn limits_of(answer: &[u8]) -> IoLimits {
    let limited = admin::LimitVolumeResponse::decode(answer).unwrap();
    assert!(!limited.are_lifted);
    IoLimits {
        read_bytes: limited.read_bytes,
        write_bytes: limited.write_bytes,
        read_operations: limited.read_operations,
        write_operations: limited.write_operations,
    }
}

/// Whether a damaged length made the secret a part of another field, where it is no secret.
fn moves_secret(message: &str) -> bool {
    let in_place = [
        format!("\"password\": \"{SECRET}\""),
        format!("\"password={SECRET}\""),
    ];
    let in_place = in_place.map(|text| message.matches(&text).count());
    message.matches(SECRET).count() > in_place.iter().sum()
}

/// The directories of the volumes or snapshots that no request deletes.
fn kept_below(node: &Node, home: &str) -> Vec<PathBuf> {
    let home = node.pool().join(home);
    let kept = names(&home).into_iter();
    let kept = kept.filter(|name| name.starts_with("kept-"));
    kept.map(|name| home.join(name)).collect()
}

/// Everything on the node that no request may change.
fn picture_protected(node: &Node) -> Picture {
    let left_out = ["pool", "server.log", "cgroup"].map(|below| node.path(below));
    let mut seen = picture(&node.path(""), &left_out);
    for home in ["volumes", "snapshots"] {
        for directory in kept_below(node, home) {
            seen.extend(picture(&directory, &[]));
        }
    }
    seen
}

/// Asserts that `CALLS` lists the calls of the specification and those of the driver's own service.
fn assert_all_calls() {
    let lines = include_str!("../../proto/csi.proto").lines();
    let lines = lines.chain(include_str!("../../proto/rootcellar.proto").lines());
    let names = lines.filter_map(|line| line.trim().strip_prefix("rpc "));
    let names = names.map(|rest| rest.split('(').next().unwrap().trim());
    let mut names: Vec<&str> = names.collect();
    let mut ours: Vec<&str> = CALLS.iter().map(Call::name).collect();
    names.sort_unstable();
    ours.sort_unstable();
    assert_eq!(ours, names);
}

/// Sends messages to every call; `spoil` alters the valid ones.
fn run(spoil: fn(BoxedStrategy<Vec<u8>>) -> BoxedStrategy<Vec<u8>>) {
    assert_all_calls();
    let scene = std::cell::RefCell::new(FuzzNode::new());
    // One seed for all calls, because each finds the state that the calls before have left.
    let config = config(CASES);
    for call in &CALLS {
        let messages = spoil((call.messages)(&scene.borrow().known));
        let outcome = TestRunner::new(config.clone()).run(&messages, |message| {
            scene.borrow_mut().check(call, message);
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, message)) => {
                let text = String::from_utf8_lossy(&message);
                panic!("{}: {reason}\nmessage {message:?}\n{text:?}", call.name());
            }
            Err(TestError::Abort(reason)) => panic!("{}: {reason}", call.name()),
        }
    }
    scene.into_inner().end();
}

/// Every message is answered with a code of the table, for arbitrary values of its fields.
///
/// Proves: H1.
#[test]
fn any_message_is_answered_by_the_table() {
    require!(loop_devices);
    run(|good| good);
}

/// Bytes that decode are answered with a code of the table, and other bytes are refused.
///
/// Proves: H1.
#[test]
fn any_bytes_are_answered_or_refused() {
    require!(loop_devices);
    run(wire::spoiled);
}
