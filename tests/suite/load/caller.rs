//! One of many callers. It requests random changes of its own volumes, and checks every answer
//! against the expected state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rootcellar::csi;
use rootcellar::csi::controller_client::ControllerClient;
use rootcellar::csi::identity_client::IdentityClient;
use rootcellar::csi::node_client::NodeClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::expected::{Maybe, Outcome, READ_ONLY, TARGETS, Verdict, Volume};
use super::{HUGE, Random};
use support::messages::{assert_well_formed, create_with, publish};
use support::names;
use support::server::Clients;

/// The only file in each volume.
const FILE: &str = "file";

/// The requested sizes. All volumes together are far from filling the pools.
const SIZES: [i64; 3] = [16 << 10, 32 << 10, 48 << 10];

/// Far longer than any call takes. A call that is never answered is a defect, not slowness.
const CALL_TIMEOUT: Duration = Duration::from_mins(2);

/// The pause before a call that cannot be answered now is repeated.
pub const PAUSE: Duration = Duration::from_millis(5);

/// The counters of all callers together.
#[derive(Debug, Default)]
pub struct Tally {
    answered: AtomicU64,
    unanswered: AtomicU64,
}

impl Tally {
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Counts a call.
    pub fn count(&self, is_answered: bool) {
        let counter = if is_answered {
            &self.answered
        } else {
            &self.unanswered
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

pub struct Caller {
    pub volumes: Vec<Volume>,
    pub clients: Clients,
    random: Random,
    tally: Arc<Tally>,
    writes: u64,
}

/// Clients that connect on first use, and again after the server was replaced.
pub fn clients(socket: &Path) -> Clients {
    let channel: Channel = Endpoint::try_from(format!("unix://{}", socket.display()))
        .unwrap()
        .connect_lazy();
    Clients {
        identity: IdentityClient::new(channel.clone()),
        controller: ControllerClient::new(channel.clone()),
        node: NodeClient::new(channel),
    }
}

/// Waits for an answer, and separates errors of the driver from errors of the connection.
pub async fn ended<T>(answer: impl Future<Output = Result<T, Status>>) -> Outcome<T> {
    let answer = tokio::time::timeout(CALL_TIMEOUT, answer).await;
    match answer.expect("a call is answered, or its connection ends") {
        Ok(done) => Outcome::Done(done),
        Err(status) if std::error::Error::source(&status).is_some() => Outcome::Unanswered,
        Err(status) => {
            assert_well_formed("any call", &status);
            match (status.code(), status.message()) {
                (Code::Unavailable, said) if said.contains("loading its records") => {
                    Outcome::NotNow
                }
                // Part of such a call may already be done, so its result is unknown too.
                (Code::Unavailable, said) if said.contains("is stopping") => Outcome::Unanswered,
                (code, said) => Outcome::Refused(code, said.to_owned()),
            }
        }
    }
}

fn range(required_bytes: i64, limit_bytes: i64) -> csi::CapacityRange {
    csi::CapacityRange {
        required_bytes,
        limit_bytes,
    }
}

impl Caller {
    pub fn new(volumes: Vec<Volume>, socket: &Path, random: Random, tally: Arc<Tally>) -> Self {
        Self {
            volumes,
            clients: clients(socket),
            random,
            tally,
            writes: 0,
        }
    }

    /// Creates all volumes, then changes random ones until `stop` is set.
    pub async fn work(mut self, stop: Arc<AtomicBool>) -> Self {
        for index in 0..self.volumes.len() {
            while self.volumes[index].may_be_absent() && !stop.load(Ordering::Relaxed) {
                self.create(index).await;
            }
        }
        while !stop.load(Ordering::Relaxed) {
            let index = self.random.below(self.volumes.len());
            self.anything(index).await;
        }
        self
    }

    /// The same load every time: every volume is created, published at every target and used, and
    /// then everything is undone.
    pub async fn round(mut self) -> Self {
        for index in 0..self.volumes.len() {
            self.create(index).await;
            for target in 0..TARGETS {
                self.publish(index, target).await;
                self.stats(index, target).await;
            }
            self.write(index);
            self.get(index).await;
            self.delete(index).await;
        }
        self.list().await;
        self.clear().await
    }

    async fn anything(&mut self, index: usize) {
        let target = self.random.below(TARGETS);
        match self.random.below(100) {
            0..25 => self.create(index).await,
            25..28 => self.create_twice(index).await,
            28..50 => self.publish(index, target).await,
            50..66 => self.unpublish(index, target).await,
            66..74 => self.write(index),
            74..85 => self.delete(index).await,
            85..91 => self.get(index).await,
            91..97 => self.stats(index, target).await,
            _ => self.list().await,
        }
    }

    /// Counts a call, records it, and waits a moment if the server is absent.
    async fn count<T: std::fmt::Debug>(&mut self, index: usize, call: String, end: &Outcome<T>) {
        self.volumes[index].note(format!("{call}: {end:?}"));
        self.tally.count(!matches!(end, Outcome::Unanswered));
        if matches!(end, Outcome::Unanswered | Outcome::NotNow) {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Counts an answer, and checks it against the expected state.
    async fn check_answer<T: std::fmt::Debug>(
        &mut self,
        index: usize,
        call: String,
        end: &Outcome<T>,
        verdict: impl FnOnce(&mut Volume) -> Verdict,
    ) {
        self.count(index, call, end).await;
        let volume = &mut self.volumes[index];
        let verdict = verdict(volume);
        volume.assert_verdict(verdict);
    }

    /// A range that may fit the existing volume or not, or that no volume can have.
    fn any_range(&mut self) -> csi::CapacityRange {
        let size = SIZES[self.random.below(SIZES.len())];
        match self.random.below(10) {
            0 => range(HUGE, 0),
            1..4 => range(size, 0),
            4..7 => range(size, size),
            _ => range(SIZES[0], size),
        }
    }

    fn create_request(&self, index: usize, range: csi::CapacityRange) -> csi::CreateVolumeRequest {
        let volume = &self.volumes[index];
        csi::CreateVolumeRequest {
            capacity_range: Some(range),
            ..create_with(&volume.name, 0, &[("pool", volume.pool)])
        }
    }

    async fn create(&mut self, index: usize) {
        let range = self.any_range();
        let request = self.create_request(index, range);
        let end = ended(self.clients.create(request)).await;
        self.check_answer(index, format!("create {range:?}"), &end, |volume| {
            volume.created(range, &end)
        })
        .await;
    }

    /// The same call twice at once. One of the two may be refused with `ABORTED`.
    async fn create_twice(&mut self, index: usize) {
        let range = self.any_range();
        let request = self.create_request(index, range);
        let mut second = ControllerClient::clone(&self.clients.controller);
        let other = async {
            let answer = second.create_volume(request.clone()).await?;
            Ok(answer.into_inner().volume.unwrap())
        };
        let mut ends = <[_; 2]>::from(tokio::join!(
            ended(self.clients.create(request.clone())),
            ended(other)
        ));
        // Unanswered calls first, because an answer may be to the later of the two.
        ends.sort_by_key(|end| !matches!(end, Outcome::Unanswered));
        for end in ends {
            self.count(index, format!("create, twice, {range:?}"), &end)
                .await;
            if !matches!(end, Outcome::Refused(Code::Aborted, _)) {
                let volume = &mut self.volumes[index];
                let verdict = volume.created(range, &end);
                volume.assert_verdict(verdict);
            }
        }
    }

    async fn delete(&mut self, index: usize) {
        let end = ended(self.clients.delete(&self.volumes[index].id)).await;
        self.check_answer(index, "delete".into(), &end, |volume| volume.deleted(&end))
            .await;
    }

    async fn get(&mut self, index: usize) {
        let end = ended(self.clients.get(&self.volumes[index].id)).await;
        self.check_answer(index, "get".into(), &end, |volume| volume.got(&end))
            .await;
    }

    async fn publish(&mut self, index: usize, target: usize) {
        let volume = &self.volumes[index];
        let request = csi::NodePublishVolumeRequest {
            readonly: target == READ_ONLY,
            ..publish(&volume.id, &volume.targets[target])
        };
        let end = ended(self.clients.publish(request)).await;
        self.check_answer(index, format!("publish at {target}"), &end, |volume| {
            volume.was_published(target, &end)
        })
        .await;
        let volume = &mut self.volumes[index];
        if volume.published[target] == Maybe::YES {
            read(volume, &volume.targets[target].clone());
        }
        // An empty volume could not be distinguished from a wrong one.
        if volume.may_be_empty() {
            self.write(index);
        }
    }

    async fn unpublish(&mut self, index: usize, target: usize) {
        let volume = &self.volumes[index];
        let end = ended(self.clients.unpublish(&volume.id, &volume.targets[target])).await;
        self.check_answer(index, format!("unpublish at {target}"), &end, |volume| {
            volume.was_unpublished(target, &end)
        })
        .await;
    }

    async fn stats(&mut self, index: usize, target: usize) {
        let volume = &self.volumes[index];
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.id.clone(),
            volume_path: volume.targets[target].to_str().unwrap().to_owned(),
            ..Default::default()
        };
        let end = ended(async {
            let answer = self.clients.node.node_get_volume_stats(request).await;
            answer.map(drop)
        })
        .await;
        self.check_answer(index, format!("stats at {target}"), &end, |volume| {
            volume.was_measured(target, &end)
        })
        .await;
    }

    /// Lists everything, and asserts that exactly its own volumes are among the others.
    async fn list(&mut self) {
        let size = 1 + i32::try_from(self.random.below(400)).unwrap();
        let mut listed = BTreeSet::new();
        let mut token = String::new();
        loop {
            let end = ended(self.clients.list(size, &token)).await;
            match end {
                Outcome::Done((ids, next)) => {
                    let count = ids.len();
                    listed.extend(ids);
                    assert!(
                        count > 0 || next.is_empty(),
                        "an empty page, and not the last"
                    );
                    token = next;
                }
                Outcome::NotNow | Outcome::Unanswered => return,
                Outcome::Refused(..) => panic!("list: {end:?}"),
            }
            if token.is_empty() {
                break;
            }
        }
        for volume in &mut self.volumes {
            let verdict = volume.listed(listed.contains(&volume.id));
            volume.assert_verdict(verdict);
        }
    }

    /// Writes the volume's file as its pod would, at a target where the volume is surely published.
    fn write(&mut self, index: usize) {
        self.writes += 1;
        let volume = &mut self.volumes[index];
        let writable = (0..READ_ONLY).find(|target| volume.published[*target] == Maybe::YES);
        let Some(target) = writable else {
            return;
        };
        let path = volume.targets[target].clone();
        read(volume, &path);
        let content = format!("{} {}", volume.id, self.writes);
        volume.note(format!("write {content:?}"));
        fs::write(path.join(FILE), &content).unwrap();
        volume.was_written(&content);
    }

    /// Repeats calls until no state is open. The server must stay up.
    pub async fn resolve(mut self) -> Self {
        for index in 0..self.volumes.len() {
            self.get(index).await;
            for target in 0..TARGETS {
                if !self.volumes[index].published[target].is_certain() {
                    self.stats(index, target).await;
                }
            }
            let volume = &self.volumes[index];
            let open = volume.published.iter().any(|target| !target.is_certain());
            let is_open = volume.may_be_absent() && volume.may_exist();
            assert!(!open && !is_open, "still open: {volume:?}");
        }
        self
    }

    /// Unpublishes and deletes everything. The server must stay up.
    pub async fn clear(mut self) -> Self {
        for index in 0..self.volumes.len() {
            for target in 0..TARGETS {
                self.unpublish(index, target).await;
            }
            self.delete(index).await;
            let volume = &self.volumes[index];
            assert!(!volume.may_exist(), "not deleted: {volume:?}");
        }
        self
    }
}

/// Reads the content of a volume, through a mount or in the pool, and checks it against the
/// expected content.
pub fn read(volume: &mut Volume, dir: &Path) {
    let found = names(dir);
    let content = match found.as_slice() {
        [] => String::new(),
        [only] if only == FILE => fs::read_to_string(dir.join(FILE)).unwrap(),
        _ => panic!("{}: {found:?} in {}", volume.name, dir.display()),
    };
    volume.note(format!("read {content:?} at {}", dir.display()));
    let verdict = volume.was_read(&content);
    volume.assert_verdict(verdict);
}

/// All volumes that surely exist, by id.
pub fn there(callers: &mut [Caller]) -> BTreeMap<String, &mut Volume> {
    let volumes = callers.iter_mut().flat_map(|caller| &mut caller.volumes);
    volumes
        .filter(|volume| !volume.may_be_absent())
        .map(|volume| (volume.id.clone(), volume))
        .collect()
}
