//! One of several clients. It changes its own names at random, and writes a token into each new volume.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use objects::{ObjectId, PoolId, VolumeId};
use rootcellar::admin;
use rootcellar::admin::admin_client::AdminClient;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::super::Random;
use super::super::caller::{PAUSE, Tally, clients, ended};
use super::super::expected::Outcome;
use super::pools::{BLOCKS, Pools, TOKEN};
use super::world::{Held, Object, World, allows, in_order_of};
use support::messages::create;
use support::name;
use support::server::Clients;

/// A part of the message about an object whose undeletion under another name was interrupted.
const HALF_RENAMED: &str = "an interrupted undelete";

/// The number of names of each client.
pub const NAMES: usize = 2;

/// The number of recent calls in the message of a failure.
const REMEMBERED: usize = 40;

/// A client of the driver's own service, which connects as [`clients`] do.
pub fn admin(socket: &Path) -> AdminClient<Channel> {
    let channel = Endpoint::try_from(format!("unix://{}", socket.display()));
    AdminClient::new(channel.unwrap().connect_lazy())
}

pub struct Client {
    pools: Arc<Pools>,
    ids: Vec<PoolId>,
    random: Random,
    tally: Arc<Tally>,
    clients: Clients,
    admin: AdminClient<Channel>,
    world: World,
    /// The other states that the disks may have after a call without an answer.
    others: Vec<World>,
    /// The undeletion under another name that was not answered: its id, and both names.
    again: Option<[String; 3]>,
    tokens: usize,
    calls: Vec<String>,
    /// The number of changes, by kind.
    pub made: BTreeMap<&'static str, usize>,
}

/// The result of a call; `None` ends the turn of a client, because a call was not answered.
type Turn = Option<()>;

impl Client {
    pub fn new(
        number: usize,
        pools: &Arc<Pools>,
        socket: &Path,
        random: Random,
        tally: &Arc<Tally>,
    ) -> Self {
        let names = (0..NAMES).map(|own| (format!("c{number}-n{own}"), Held::default()));
        Self {
            ids: pools.ids(),
            pools: Arc::clone(pools),
            random,
            tally: Arc::clone(tally),
            clients: clients(socket),
            admin: admin(socket),
            world: names.collect(),
            others: Vec::new(),
            again: None,
            tokens: 0,
            calls: Vec::new(),
            made: BTreeMap::new(),
        }
    }

    /// Changes its names until a call is not answered.
    pub async fn work(mut self) -> Self {
        for name in self.world.keys().cloned().collect::<Vec<_>>() {
            if self.live(&name).is_some_and(|live| live.token.is_empty()) {
                self.write(&name);
            }
        }
        // A client may repeat it, or try without a new name first, as a person may.
        while let Some([id, of, to]) = self.again.clone() {
            let as_name = Some(&*to).filter(|_| self.random.below(2) == 0);
            if self.undelete(id, &of, as_name).await.is_none() {
                return self;
            }
            tokio::time::sleep(PAUSE).await;
        }
        while self.anything().await.is_some() {}
        self
    }

    async fn anything(&mut self) -> Turn {
        let all: Vec<_> = self.world.keys().cloned().collect();
        let own = self.random.below(NAMES);
        let (name, other) = (&all[own], &all[(own + 1) % NAMES]);
        let id = self.id(name);
        match self.random.below(100) {
            0..30 => self.create(name).await,
            30..52 => self.delete(id, name).await,
            52..56 => self.delete_now(name).await,
            56..72 => self.undelete(id, name, None).await,
            72..82 => self.undelete(id, name, Some(other)).await,
            82..88 => self.purge(id, name).await,
            _ => self.move_away(name).await,
        }
    }

    fn live(&self, name: &str) -> Option<&Object> {
        self.world[name].live.as_ref()
    }

    fn held(&mut self, name: &str) -> &mut Held {
        self.world.get_mut(name).unwrap()
    }

    /// The world with another state of a name.
    fn with(&self, name: &str, change: impl FnOnce(&mut Held)) -> World {
        let mut world = self.world.clone();
        change(world.get_mut(name).unwrap());
        world
    }

    /// An id of the name: that of an object, or one that nothing has.
    fn id(&mut self, of: &str) -> String {
        let held = &self.world[of];
        let ids: BTreeSet<_> = held.live.iter().chain(&held.kept).collect();
        let ids: Vec<_> = ids.iter().map(|object| object.id.clone()).collect();
        match ids.len() {
            0 => VolumeId::new(self.ids[0], &name(of)).to_string(),
            count => ids[self.random.below(count)].clone(),
        }
    }

    fn note(&mut self, call: String) {
        self.calls.push(call);
        let old = self.calls.len().saturating_sub(REMEMBERED);
        self.calls.drain(..old);
    }

    /// Counts a call, and returns its answer or refusal. Without an answer the turn ends, and the disks may have one of
    /// these states too.
    fn answered<T: std::fmt::Debug>(
        &mut self,
        call: &str,
        end: Outcome<T>,
        others: impl FnOnce(&Self) -> Vec<World>,
    ) -> Option<Result<T, (Code, String)>> {
        self.note(format!("{call}: {end:?}"));
        match end {
            Outcome::Done(done) => {
                self.tally.count(true);
                Some(Ok(done))
            }
            Outcome::Refused(code, said) => {
                self.tally.count(true);
                Some(Err((code, said)))
            }
            Outcome::NotNow | Outcome::Unanswered => {
                self.tally.count(false);
                self.others = others(self);
                None
            }
        }
    }

    #[track_caller]
    fn unexpected(&self, what: impl std::fmt::Debug) -> ! {
        panic!("{what:?}; {:#?}\n{:#?}", self.world, self.calls);
    }

    /// Fails unless a refusal has an expected reason: a lack of space, or the end of an interrupted move.
    #[track_caller]
    fn expect_later(&self, (code, said): (Code, String)) {
        let expected = match code {
            Code::Unavailable | Code::ResourceExhausted => self.pools.ends,
            Code::Aborted => self.ids.len() > 1,
            _ => false,
        };
        if !expected {
            self.unexpected((code, said));
        }
    }

    fn count(&mut self, change: &'static str) {
        *self.made.entry(change).or_default() += 1;
    }

    /// Writes a token into the volume, as its pod does.
    fn write(&mut self, name: &str) {
        let Some((_, directory)) = self.pools.live(name) else {
            self.unexpected(format!("no directory of {name}"));
        };
        self.tokens += 1;
        let token = format!("{name} {}", self.tokens);
        self.note(format!("write {token:?}"));
        let data = directory.join("data");
        fs::write(data.join(BLOCKS), vec![7; self.pools.filled]).unwrap();
        fs::write(data.join(TOKEN), &token).unwrap();
        self.held(name).live.as_mut().unwrap().token = token;
    }

    async fn create(&mut self, of: &str) -> Turn {
        let request = create(of, self.pools.size.try_into().unwrap());
        let end = ended(self.clients.create(request)).await;
        let answer = self.answered(&format!("create {of}"), end, |client| {
            if client.live(of).is_some() {
                return Vec::new();
            }
            let anywhere = client.ids.iter().enumerate().map(|(place, pool)| Object {
                id: VolumeId::new(*pool, &name(of)).to_string(),
                place,
                token: String::new(),
            });
            let made = anywhere.map(|made| client.with(of, |held| held.live = Some(made)));
            made.collect()
        })?;
        match (answer, self.live(of)) {
            (Ok(volume), Some(live)) if volume.volume_id == live.id => {}
            (Ok(volume), None) => {
                let Some((place, _)) = self.pools.live(of) else {
                    self.unexpected("no directory");
                };
                let (id, token) = (volume.volume_id, String::new());
                let live = Object { id, place, token };
                self.held(of).live = Some(live);
                self.write(of);
                self.count("create");
            }
            (Ok(volume), Some(_)) => self.unexpected(volume),
            (Err(refused), _) => self.expect_later(refused),
        }
        Some(())
    }

    /// The states after a deletion: of the volume with this id, if there is one.
    fn deleted(&self, of: &str, id: &str, keeps: bool) -> Option<World> {
        self.live(of).filter(|live| live.id == id)?;
        Some(self.with(of, |held| {
            let deleted = held.live.take();
            held.kept.extend(deleted.filter(|_| keeps));
        }))
    }

    async fn delete(&mut self, id: String, of: &str) -> Turn {
        let end = ended(self.clients.delete(&id)).await;
        let deleted = self.deleted(of, &id, true);
        let after = deleted.clone();
        let answer = self.answered(&format!("delete {id}"), end, |_| {
            after.into_iter().collect()
        })?;
        if let Err(refused) = answer {
            self.expect_later(refused);
            return Some(());
        }
        if let Some(deleted) = deleted {
            self.world = deleted;
            self.count("delete");
        }
        Some(())
    }

    async fn delete_now(&mut self, of: &str) -> Turn {
        let Some(id) = self.live(of).map(|live| live.id.clone()) else {
            return Some(());
        };
        let request = admin::DeleteNowRequest { id: id.clone() };
        let end = ended(async { self.admin.delete_now(request).await.map(drop) }).await;
        let deleted = self.deleted(of, &id, false).unwrap();
        let after = deleted.clone();
        let answer = self.answered(&format!("delete --now {id}"), end, |_| vec![after])?;
        if let Err(refused) = answer {
            self.expect_later(refused);
            return Some(());
        }
        self.world = deleted;
        self.count("delete --now");
        Some(())
    }

    /// The states after the newest object of a pool with an id has come back under a name. Several pools have objects
    /// with an id only until those of the others end.
    fn returned(&self, of: &str, id: &str, to: &str) -> Vec<World> {
        let places = 0..self.ids.len();
        places
            .rev()
            .filter_map(|place| self.returned_from(place, of, id, to))
            .collect()
    }

    fn returned_from(&self, place: usize, of: &str, id: &str, to: &str) -> Option<World> {
        let has_id = |kept: &Object| kept.id == id;
        let is_newest = |kept: &Object| has_id(kept) && kept.place == place;
        let index = self.world[of].kept.iter().rposition(is_newest)?;
        let others = self.world[of].kept.iter().filter(|kept| has_id(kept));
        let has_others = { others }.any(|kept| kept.place != place);
        if self.live(to).is_some() || has_others && !self.pools.ends {
            return None;
        }
        let mut world = self.world.clone();
        let kept = &mut world.get_mut(of).unwrap().kept;
        let mut back = kept.remove(index);
        kept.retain(|kept| !has_id(kept) || kept.place == place);
        if to != of {
            back.id = VolumeId::new(self.ids[back.place], &name(to)).to_string();
        }
        world.get_mut(to).unwrap().live = Some(back);
        Some(world)
    }

    async fn undelete(&mut self, id: String, of: &str, as_name: Option<&str>) -> Turn {
        let to = as_name.unwrap_or(of);
        let request = admin::UndeleteRequest {
            id: id.clone(),
            name: as_name.unwrap_or_default().to_owned(),
            ..Default::default()
        };
        let end = ended(async {
            let answer = self.admin.undelete(request).await?;
            Ok(answer.into_inner().id)
        })
        .await;
        let returned = self.returned(of, &id, to);
        let after = returned.clone();
        let call = format!("undelete {id} {as_name:?}");
        if let Some(to) = as_name {
            self.again = Some([&id, of, to].map(str::to_owned));
        }
        let answer = self.answered(&call, end, |_| after)?;
        let is_final = !matches!(answer, Err((Code::Unavailable | Code::Aborted, _)));
        if is_final && as_name.is_some() || answer.is_ok() {
            self.again = None;
        }
        let (with_id, places) = self.world[of].with_id(&id);
        let is_kept = !with_id.is_empty();
        let is_repeated = as_name.is_none() && self.live(of).is_some_and(|live| live.id == id);
        match (answer, !returned.is_empty()) {
            (Ok(new), true) => {
                let token = self.pools.token_of(to);
                let is = |world: &World| {
                    let live = world[to].live.as_ref();
                    live.is_some_and(|live| (&live.id, &live.token) == (&new, &token))
                };
                match returned.into_iter().find(is) {
                    Some(world) => self.world = world,
                    None => self.unexpected((new, token)),
                }
                self.count(as_name.map_or("undelete", |_| "undelete --as"));
            }
            // It may be repeated, and may be a repetition once the kept one has ended.
            (Ok(new), false) if is_repeated && (!is_kept || self.pools.ends) && new == id => {
                self.held(of).kept.retain(|kept| kept.id != id);
            }
            (Ok(new), false) => self.unexpected(new),
            (Err((Code::NotFound, _)), _) if !is_kept => {}
            (Err((Code::NotFound, _)), _) if self.pools.ends => {
                self.held(of).kept.retain(|kept| kept.id != id);
            }
            (Err((Code::FailedPrecondition, _)), _) if self.live(to).is_some() || places > 1 => {}
            (Err((Code::FailedPrecondition, said)), _) if said.contains(HALF_RENAMED) => {}
            // It has ended since it was found.
            (Err((Code::Aborted, _)), _) if self.pools.ends => {}
            (Err(refused), _) => self.expect_later(refused),
        }
        Some(())
    }

    /// The states in which each pool may have ended some of the kept objects with an id, the oldest first.
    fn purged(&self, of: &str, id: &str) -> Vec<World> {
        let mut worlds = vec![self.world.clone()];
        for place in 0..self.ids.len() {
            for mut world in worlds.clone() {
                let next = |kept: &Object| kept.id == id && kept.place == place;
                while let Some(at) = world[of].kept.iter().position(next) {
                    world.get_mut(of).unwrap().kept.remove(at);
                    worlds.push(world.clone());
                }
            }
        }
        worlds
    }

    async fn purge(&mut self, id: String, of: &str) -> Turn {
        let request = admin::PurgeRequest {
            id: id.clone(),
            all: false,
        };
        let end = ended(async {
            let answer = self.admin.purge(request).await?;
            Ok(answer.into_inner().purged)
        })
        .await;
        let answer = self.answered(&format!("purge {id}"), end, |client| client.purged(of, &id))?;
        let kept = self.world[of].with_id(&id).0.len();
        match answer {
            Ok(purged) if usize::try_from(purged).unwrap() == kept && kept > 0 => {}
            Ok(purged) if self.pools.ends && usize::try_from(purged).unwrap() < kept => {}
            Err((Code::NotFound, _)) if self.pools.ends || kept == 0 => {}
            answer => self.unexpected(answer),
        }
        self.held(of).kept.retain(|kept| kept.id != id);
        if kept > 0 {
            self.count("purge");
        }
        Some(())
    }

    async fn move_away(&mut self, of: &str) -> Turn {
        let Some(live) = self.live(of).filter(|_| self.ids.len() > 1).cloned() else {
            return Some(());
        };
        let place = (live.place + 1) % self.ids.len();
        let request = admin::MoveVolumeRequest {
            volume_id: live.id.clone(),
            to: self.pools.members[place].clone(),
            force: false,
        };
        let end = ended(async { self.admin.move_volume(request).await.map(drop) }).await;
        let moved = self.with(of, |held| held.live.as_mut().unwrap().place = place);
        let after = moved.clone();
        let answer = self.answered(&format!("move {} to {place}", live.id), end, |_| {
            vec![after]
        })?;
        match answer {
            Ok(()) => {
                self.world = moved;
                self.count("move");
            }
            // A process that another test has just begun has its files open.
            Err((Code::FailedPrecondition, said)) if said.contains("use") => {
                self.count("move, in use");
            }
            Err(refused) => self.expect_later(refused),
        }
        Some(())
    }

    /// Takes the state that the disks show, which a call without an answer has left; false if none of those that the
    /// answers allow is it.
    pub fn complete_move(&mut self, seen: &World) -> bool {
        let ends = self.pools.ends;
        let all = std::iter::once(&self.world).chain(&self.others);
        let Some(found) = all.into_iter().find(|world| allows(world, seen, ends)) else {
            return false;
        };
        self.world = in_order_of(found, seen);
        self.others.clear();
        self.note("the server was killed".into());
        true
    }

    /// The states that the answers allow, and the calls before.
    pub fn expected(&self) -> String {
        format!(
            "{:#?}\nor {:#?}\n{:#?}",
            self.world, self.others, self.calls
        )
    }

    /// The ids of its volumes.
    pub fn ids(&self) -> impl Iterator<Item = String> {
        let live = self.world.values().filter_map(|held| held.live.as_ref());
        live.map(|live| live.id.clone())
    }

    /// Deletes its volumes.
    pub async fn clear(mut self) {
        for of in self.world.keys().cloned().collect::<Vec<_>>() {
            while let Some(id) = self.live(&of).map(|live| live.id.clone()) {
                let done = match self.random.below(2) {
                    0 => self.delete(id, &of).await,
                    _ => self.delete_now(&of).await,
                };
                done.expect("the server is there");
            }
        }
    }
}
