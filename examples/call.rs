//! Makes one call to a running driver, for hack/test/guest/selinux.sh.
//!
//! ```text
//! call SOCKET create NAME SOURCE [KEY=VALUE...]
//! call SOCKET snapshot NAME VOLUME
//! call SOCKET publish VOLUME TARGET FILESYSTEM [OPTION...]
//! call SOCKET unpublish VOLUME TARGET
//! call SOCKET delete VOLUME
//! call SOCKET delete-snapshot SNAPSHOT
//! ```
//!
//! SOURCE is `-`, `volume:ID` or `snapshot:ID`, and FILESYSTEM may be `-`.
//! It prints the id of a new volume or snapshot, or an error as `CODE: MESSAGE`.
#![allow(unreachable_pub, missing_debug_implementations)]
// The call of a script fails by a panic if it is wrong.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use rootcellar::csi;
use rootcellar::csi::volume_capability::AccessType;
use support::messages::{
    Answer, copy, create_with, of_snapshot, of_volume, publish, snapshot, with_fs_type,
};
use support::server::Clients;

/// Enough for an XFS image.
const BYTES: i64 = 320 << 20;
/// The parameter that is the filesystem of an image, as the provisioner reads it.
const FS_TYPE: &str = "csi.storage.k8s.io/fstype";

fn create(name: &str, source: &str, parameters: &[String]) -> csi::CreateVolumeRequest {
    let parameters: Vec<_> = { parameters.iter() }
        .map(|one| one.split_once('=').unwrap())
        .collect();
    let fs_type = { parameters.iter() }.find(|(key, _)| *key == FS_TYPE);
    let plain = create_with(name, BYTES, &parameters);
    let source = match source.split_once(':') {
        None => None,
        Some(("volume", id)) => Some(of_volume(id)),
        Some(("snapshot", id)) => Some(of_snapshot(id)),
        Some(_) => panic!("neither a volume nor a snapshot: {source}"),
    };
    let allowing = source.map(|source| copy(name, BYTES, source));
    let mut request = match allowing {
        Some(mut copy) => {
            copy.parameters.extend(plain.parameters);
            copy
        }
        None => plain,
    };
    request.volume_capabilities = vec![with_fs_type(fs_type.map_or("", |(_, value)| value))];
    request
}

async fn call(clients: &mut Clients, words: &[String]) -> Answer<String> {
    let words_of: Vec<&str> = words.iter().map(String::as_str).collect();
    match words_of[..] {
        ["create", name, source, ..] => {
            let volume = clients.create(create(name, source, &words[3..])).await?;
            Ok(volume.volume_id)
        }
        ["snapshot", name, volume] => {
            let taken = clients.snapshot(snapshot(name, volume)).await?;
            Ok(taken.snapshot_id)
        }
        ["publish", volume, target, kind, ..] => {
            let target = Path::new(target);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            let mut capability = with_fs_type(kind.trim_matches('-'));
            if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
                mount.mount_flags = words[4..].to_vec();
            }
            let mut request = publish(volume, target);
            request.volume_capability = Some(capability);
            clients.publish(request).await?;
            Ok(String::new())
        }
        ["unpublish", volume, target] => {
            clients.unpublish(volume, Path::new(target)).await?;
            Ok(String::new())
        }
        ["delete", volume] => clients.delete(volume).await.map(|()| String::new()),
        ["delete-snapshot", id] => clients.delete_snapshot(id).await.map(|()| String::new()),
        _ => panic!("no such call: {words:?}"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (socket, words) = arguments.split_first().unwrap();
    let mut clients = Clients::connect(Path::new(socket)).await.unwrap();
    match call(&mut clients, words).await {
        Ok(answer) => {
            if !answer.is_empty() {
                println!("{answer}");
            }
            ExitCode::SUCCESS
        }
        Err(status) => {
            println!("{:?}: {}", status.code(), status.message());
            ExitCode::FAILURE
        }
    }
}
