//! Names, ids and tokens with arbitrary bytes.

use objects::{ObjectId, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::runtime::Runtime;
use tonic::Code;

use super::{HostileNode, assert_one_of};
use support::messages::{create, create_with, publish, read_write_once, refused};
use support::random;

/// Any name that the specification allows, up to 128 bytes of any Unicode, creates a volume. The
/// directory of the volume has a plain name, and the given name is stored unchanged.
///
/// Proves: V3.
#[tokio::test]
async fn every_allowed_name_makes_a_volume() {
    let mut scene = HostileNode::new().await;
    let names = [
        ".",
        "..",
        "/",
        "../../../etc/passwd",
        "a/b",
        "a-b",
        "a\nb",
        "\t",
        "\r\n",
        " ",
        "-rf",
        "*",
        "$(reboot)",
        "%n%s",
        ".rootcellar",
        "volume.json",
        "data",
        "lost+found",
        "\u{202e}txt.exe",
        "\u{feff}",
        "\u{10ffff}",
        "pvc\u{301}",
        &"n".repeat(128),
        &"→".repeat(42),
        &"🗄".repeat(32),
        &"/".repeat(128),
    ];
    let mut ids = Vec::new();
    for name in names {
        let volume = scene.clients.create(create(name, 1000)).await.unwrap();
        let again = scene.clients.create(create(name, 1000)).await.unwrap();
        assert_eq!(again.volume_id, volume.volume_id, "{name:?}");
        assert!(volume.volume_id.len() <= 128);
        ids.push(volume.volume_id);
    }
    assert_plain(&scene, names.len());
    let records = scene.node.names("volumes");
    let mut kept: Vec<String> = records
        .iter()
        .map(|directory| name_in_record(&scene, directory))
        .collect();
    kept.sort();
    let mut expected = names.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(kept, expected);
    for id in ids {
        scene.clients.delete(&id).await.unwrap();
    }
    assert_plain(&scene, 0);
    scene.assert_untouched("names");
}

fn name_in_record(scene: &HostileNode, directory: &str) -> String {
    let path = scene
        .node
        .pool()
        .join("volumes")
        .join(directory)
        .join("volume.json");
    let record: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    record["name"].as_str().unwrap().to_owned()
}

/// Asserts that the pool holds this number of volumes, in directories with names that any tool can
/// handle.
#[track_caller]
fn assert_plain(scene: &HostileNode, count: usize) {
    let directories = scene.node.names("volumes");
    assert_eq!(directories.len(), count, "{directories:?}");
    for directory in directories {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        assert!(
            directory.chars().all(plain) && !directory.starts_with('.'),
            "{directory:?}"
        );
        assert!(directory.len() < 255, "{directory:?}");
    }
}

/// A name that is empty, too long or has a forbidden character is `INVALID_ARGUMENT`.
///
/// Proves: V3.
#[tokio::test]
async fn every_forbidden_name_is_refused() {
    let mut scene = HostileNode::new().await;
    let mut names = vec![
        String::new(),
        "n".repeat(129),
        "→".repeat(43),
        "n".repeat(1 << 20),
    ];
    let forbidden = (0..=8)
        .chain([0xb, 0xc])
        .chain(0xe..=0x1f)
        .chain(0x7f..=0x9f);
    names.extend(
        forbidden
            .filter_map(char::from_u32)
            .map(|c| format!("a{c}b")),
    );
    for name in names {
        let answer = scene.clients.create(create(&name, 1000)).await;
        refused(
            &format!("{name:.20?}"),
            answer,
            Code::InvalidArgument,
            "name",
        );
    }
    assert_plain(&scene, 0);
    scene.assert_untouched("names");
}

/// Labels of claims may have any value. They are for people, and never become paths.
///
/// Proves: V3.
#[tokio::test]
async fn claim_labels_are_only_for_reading() {
    let mut scene = HostileNode::new().await;
    let long = "x".repeat(1000);
    for (number, label) in ["../../etc", "/", "\0\n", "", &long, "→"]
        .into_iter()
        .enumerate()
    {
        let parameters = [
            ("csi.storage.k8s.io/pvc/namespace", label),
            ("csi.storage.k8s.io/pvc/name", label),
            ("csi.storage.k8s.io/pv/name", label),
        ];
        let request = create_with(&format!("pvc-{number}"), 1000, &parameters);
        scene.clients.create(request.clone()).await.unwrap();
        // A volume with other labels is still the same volume.
        let unlabelled = create(&format!("pvc-{number}"), 1000);
        scene.clients.create(unlabelled).await.unwrap();
    }
    assert_plain(&scene, 6);
    scene.assert_untouched("labels");
}

/// Checks a property in one scene. Every case is a few calls over the socket.
fn check<S: Strategy>(
    cases: u32,
    strategy: &S,
    property: &impl AsyncFn(&mut HostileNode, S::Value),
) {
    let runtime = Runtime::new().unwrap();
    let scene = std::cell::RefCell::new(runtime.block_on(HostileNode::new()));
    let outcome = TestRunner::new(random::config(cases)).run(strategy, |value| {
        runtime.block_on(property(&mut scene.borrow_mut(), value));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    scene.borrow().assert_untouched("all cases");
}

/// Text of up to 128 bytes with many characters that are special to some tool.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        any::<char>().prop_map(String::from),
        "[a-z0-9-]{1,8}",
        prop::sample::select(vec![
            "/", "..", "\0", "\n", "v1-", "%", "\\", "'", "\u{202e}", "~"
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| {
        let mut text = pieces.concat();
        text.truncate(text.floor_char_boundary(128));
        text
    })
}

/// For any name, either a volume is created, found and deleted, or the name is `INVALID_ARGUMENT`.
/// The specification decides between the two.
///
/// Proves: V3.
#[test]
fn any_text_as_a_name_is_accepted_or_refused_by_the_rule() {
    check(150, &text(), &async |scene, name| {
        let forbidden = |c: char| c.is_control() && !"\t\n\r".contains(c);
        let answer = scene.clients.create(create(&name, 1000)).await;
        if name.is_empty() || name.contains(forbidden) {
            refused(&format!("{name:?}"), answer, Code::InvalidArgument, "name");
            return;
        }
        let volume = answer.unwrap();
        assert_plain(scene, 1);
        assert_eq!(scene.clients.get(&volume.volume_id).await.unwrap(), volume);
        scene.clients.delete(&volume.volume_id).await.unwrap();
        assert_plain(scene, 0);
    });
}

/// With an id that names no volume, deletion and unpublishing return OK, and every other call
/// `NOT_FOUND`.
///
/// Proves: E1.
#[test]
fn any_text_as_an_id_names_nothing() {
    check(150, &text(), &async |scene, id| {
        if id.is_empty() || VolumeId::parse(&id).is_some() {
            return;
        }
        let case = format!("{id:?}");
        let target = scene.node.path("kubelet/pods/pod/mount");
        let clients = &mut scene.clients;
        clients.delete(&id).await.unwrap();
        refused(
            &case,
            clients.get(&id).await,
            Code::NotFound,
            "does not exist",
        );
        let validated = clients.validate(&id, read_write_once()).await;
        refused(&case, validated, Code::NotFound, "does not exist");
        refused(
            &case,
            clients.publish(publish(&id, &target)).await,
            Code::NotFound,
            "does not exist",
        );
        clients.unpublish_soon(&id, &target).await;
    });
}

/// A token is `ABORTED` unless it could be one of the driver's tokens.
///
/// Proves: L1.
#[test]
fn any_text_as_a_token_is_aborted() {
    check(150, &text(), &async |scene, token| {
        if token.is_empty() || VolumeId::parse(&token).is_some() {
            return;
        }
        let answer = scene.clients.list(1, &token).await;
        refused(
            &format!("{token:?}"),
            answer,
            Code::Aborted,
            "starting_token",
        );
    });
}

/// For any parameters, the answer to a create is OK, `INVALID_ARGUMENT` or `RESOURCE_EXHAUSTED`,
/// which sends the pod back to the scheduler.
///
/// Proves: V9.
#[test]
fn any_text_as_a_parameter_is_accepted_or_refused() {
    let key = prop_oneof![
        text(),
        prop::sample::select(vec![
            "pool",
            "mode",
            "uid",
            "gid",
            "sharing",
            "csi.storage.k8s.io/fstype"
        ])
        .prop_map(str::to_owned),
    ];
    let value = prop_oneof![text(), "[0-7]{1,5}", "[0-9]{1,12}"];
    check(150, &(key, value), &async |scene, (key, value)| {
        let request = create_with("any", 1000, &[(&key, &value)]);
        let answer = scene.clients.create(request).await;
        let allowed = [Code::InvalidArgument, Code::ResourceExhausted];
        assert_one_of(
            &format!("{key:?}={value:?}"),
            answer.as_ref().map(|_| ()),
            &allowed,
        );
        if let Ok(volume) = answer {
            scene.clients.delete(&volume.volume_id).await.unwrap();
        }
        assert!(scene.clients.capacity(&[(&key, &value)]).await >= 0);
    });
}
