//! The trims of a server.

use std::sync::atomic::AtomicUsize;

use objects::{AccessMode, Bytes};
use support::mounter::FakeMounter;

use super::*;
use crate::volume::{Allocation, Caller, Capability, Class, CreateRequest, Kind, PublishRequest};

fn request(capability: Capability) -> CreateRequest {
    CreateRequest {
        name: "pvc".parse().unwrap(),
        required: Bytes(16 << 20),
        limit: None,
        capabilities: vec![capability],
        class: Class {
            kind: Kind::Image,
            allocation: Some(Allocation::Thin),
            ..Class::default()
        },
        source: None,
        excludes_node: false,
        caller: Caller::default(),
    }
}

/// While a thin image is published, it is trimmed again and again.
///
/// Proves: I6.
#[tokio::test]
async fn published_thin_images_are_trimmed_regularly() {
    let dir = TempDir::new().unwrap();
    let trims = Arc::<AtomicUsize>::default();
    let seen = Arc::clone(&trims);
    let mounter = FakeMounter::watched(move |step| {
        seen.fetch_add(usize::from(step == "trim"), Ordering::SeqCst);
    });
    let seams = Seams {
        mounter: Arc::new(mounter),
        ..Seams::default()
    };
    let settings = settings(dir.path(), vec![pool(dir.path(), "default")]);
    let volumes = Arc::new(Volumes::with_seams(settings, seams).unwrap());
    volumes.load().unwrap();
    let capability = Capability {
        block: false,
        access_mode: AccessMode::SingleNodeWriter,
        fs_type: None,
        options: linux::mount::MountOptions::default(),
    };
    let id = volumes.create(&request(capability.clone())).unwrap().id;
    let target = dir.path().join("pod/mount");
    std::fs::create_dir(dir.path().join("pod")).unwrap();
    let publish = PublishRequest {
        id: id.to_string(),
        target: target.clone(),
        capability,
        read_only: false,
    };
    let has_trims = || volumes.pools().iter().any(|pool| volumes.has_trims(pool));
    assert!(!has_trims(), "it is not published");
    for pool in volumes.pools().iter() {
        volumes.trim_images(pool);
    }
    assert_eq!(trims.load(Ordering::SeqCst), 0, "it is not published");
    let trimming = Arc::clone(&volumes);
    let every = Duration::from_millis(10);
    let task = tokio::spawn(async move { trim_regularly(&trimming, every).await });

    volumes.publish(&publish).unwrap();
    assert!(has_trims());
    let several = async {
        while trims.load(Ordering::SeqCst) < 5 {
            tokio::time::sleep(every).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), several)
        .await
        .unwrap();
    task.abort();
    volumes.unpublish(&id.to_string(), &target).unwrap();
    volumes.stop();
}
