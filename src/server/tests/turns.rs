//! Copies that wait for their turn, as their clients see them.

use super::*;

/// A disk on which no copy gets beyond its first file until it is released.
#[derive(Debug, Default)]
struct SlowCopies {
    released: Mutex<bool>,
    changed: Condvar,
}

impl SlowCopies {
    fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.changed.notify_all();
    }
}

/// Releases the copies, also when the test fails.
struct ReleaseCopies(Arc<SlowCopies>);

impl Drop for ReleaseCopies {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Observer for SlowCopies {
    fn before(&self, step: Step, _name: &OsStr) -> Result<(), rustix::io::Errno> {
        if step == Step::CopyRange {
            let released = self.released.lock().unwrap();
            let wait = self.changed.wait_while(released, |released| !*released);
            drop(wait.unwrap());
        }
        Ok(())
    }

    fn after(&self, _step: Step, _name: &OsStr) {}
}

/// A call for a copy of a volume, with a deadline or without.
fn copy(
    channel: &Channel,
    name: &str,
    source: &str,
    timeout: Option<Duration>,
) -> JoinHandle<Result<tonic::Response<csi::CreateVolumeResponse>, Status>> {
    use csi::volume_content_source::{Type, VolumeSource};
    let volume_id = source.to_owned();
    let mut message = create(name.into(), "slow");
    let class = [("pool", "slow"), ("copy", "allowed")];
    message.parameters = class.map(|(key, value)| (key.into(), value.into())).into();
    message.volume_content_source = Some(csi::VolumeContentSource {
        r#type: Some(Type::Volume(VolumeSource { volume_id })),
    });
    let mut request = tonic::Request::new(message);
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    let mut controller = ControllerClient::new(channel.clone());
    tokio::spawn(async move { controller.create_volume(request).await })
}

/// A copy that waits for its turn has an answer before its deadline. One whose client hangs up gives its place up, and the
/// stop ends the others.
///
/// Proves: SN22, SV5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_waits_for_its_turn_as_long_as_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(dir.path(), vec![pool(dir.path(), "slow")]);
    let disk = Arc::new(SlowCopies::default());
    let release = ReleaseCopies(Arc::clone(&disk));
    let seams = Seams {
        os: Os::observed(disk as Arc<dyn Observer>),
        ..Seams::default()
    };
    let volumes = Arc::new(Volumes::with_seams(settings, seams).unwrap());
    let server = Running::serve(dir, Arc::clone(&volumes)).await;
    let channel = server.connect().await;
    until_ready(&channel).await;
    let made = ControllerClient::new(channel.clone())
        .create_volume(create("source".into(), "slow"))
        .await;
    let source = made.unwrap().into_inner().volume.unwrap().volume_id;
    let home = server.dir.path().join("slow/volumes");
    let home = std::fs::read_dir(home).unwrap().next().unwrap().unwrap();
    std::fs::write(home.path().join("data/file"), "content").unwrap();
    let until = async |running, waiting| {
        let running = format!("rootcellar_pool_copies{{pool=\"slow\"}} {running}");
        let waiting = format!("rootcellar_pool_copies_waiting{{pool=\"slow\"}} {waiting}");
        until_reported(&server, "/metrics", &[&running, &waiting]).await;
    };
    let running = ["a", "b", "c", "d"].map(|name| copy(&channel, name, &source, None));
    until(4, 0).await;

    let timeout = Some(Duration::from_secs(4));
    let late = copy(&channel, "late", &source, timeout).await.unwrap();
    let late = late.unwrap_err();
    assert_eq!(late.code(), Code::Aborted, "{late}");
    assert!(late.message().contains("makes 4 copies already"), "{late}");
    let patient = copy(&channel, "patient", &source, Some(Duration::from_mins(10)));
    until(4, 1).await;
    let hung_up = copy(&channel, "hung-up", &source, None);
    until(4, 2).await;
    hung_up.abort();
    until(4, 1).await;

    server.stop.send(()).unwrap();
    let stopped = patient.await.unwrap().unwrap_err();
    assert_eq!(stopped.code(), Code::Unavailable, "{stopped}");
    assert!(stopped.message().contains("the driver stops"), "{stopped}");
    drop(release);
    for copy in running {
        // It is complete or stopped.
        let _answer = copy.await.unwrap();
    }
    server.ended.await.unwrap().unwrap();
    volumes.stop();
}
