//! The pools of a run, and the objects that their disks show.

use std::fs;
use std::path::{Path, PathBuf};

use objects::PoolId;

use super::super::pool_id;
use super::world::{Held, Object, World};
use support::names;

/// The file with the token, and that with the blocks that a volume needs.
pub const TOKEN: &str = "token";
pub const BLOCKS: &str = "blocks";

/// The pools of a run: one, or the members of a set.
#[derive(Debug, Clone)]
pub struct Pools {
    pub paths: Vec<PathBuf>,
    pub members: Vec<String>,
    /// The size of each volume, and the bytes that it is filled with.
    pub size: u64,
    pub filled: usize,
    /// Whether kept objects have to end, because the names need more space than the disks have.
    pub ends: bool,
}

impl Pools {
    /// Their ids.
    pub fn ids(&self) -> Vec<PoolId> {
        self.paths.iter().map(|path| pool_id(path)).collect()
    }

    /// The volumes and kept objects that the disks show, by name. A directory that is being changed shows as a wrong
    /// one.
    pub fn observe(&self) -> World {
        let mut world = World::new();
        for (place, pool) in self.paths.iter().enumerate() {
            let object = |directory: &Path| Object {
                id: recorded_id(directory).unwrap_or_default(),
                place,
                token: token(directory),
            };
            for directory in names(&pool.join("volumes")) {
                let (name, _) = directory.rsplit_once('-').unwrap();
                let held: &mut Held = world.entry(name.to_owned()).or_default();
                let found = object(&pool.join("volumes").join(&directory));
                let token = found.token.clone();
                if let Some(other) = held.live.replace(found) {
                    let both = format!("in two places: {other:?} and {token:?}");
                    held.live.as_mut().unwrap().token = both;
                }
            }
            let home = pool.join(".rootcellar/kept");
            let mut kept: Vec<(u64, String, PathBuf)> = Vec::new();
            for entry in names(&home) {
                let mut parts = entry.rsplitn(3, '.').skip(1);
                let at = parts.next().unwrap().parse().unwrap();
                let (name, _) = parts.next().unwrap().rsplit_once('-').unwrap();
                kept.push((at, name.to_owned(), home.join(&entry)));
            }
            kept.sort();
            for (_, name, directory) in kept {
                let held = world.entry(name).or_default();
                held.kept.push(object(&directory));
            }
        }
        world
    }

    /// The token in the only volume with a name.
    pub fn token_of(&self, name: &str) -> String {
        let found = self.live(name);
        found.map_or_else(String::new, |(_, directory)| token(&directory))
    }

    /// The directory of the only volume with a name, and its pool.
    pub fn live(&self, name: &str) -> Option<(usize, PathBuf)> {
        let start = format!("{name}-");
        let found = self.paths.iter().enumerate().flat_map(|(place, pool)| {
            let home = pool.join("volumes");
            let all = names(&home).into_iter();
            all.filter(|directory| directory.starts_with(&start))
                .map(move |directory| (place, home.join(directory)))
                .collect::<Vec<_>>()
        });
        let found: Vec<_> = found.collect();
        assert!(found.len() < 2, "in two places: {found:?}");
        found.into_iter().next()
    }
}

fn recorded_id(directory: &Path) -> Option<String> {
    let record = fs::read(directory.join("volume.json")).ok()?;
    let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
    Some(record["id"].as_str()?.to_owned())
}

fn token(directory: &Path) -> String {
    fs::read_to_string(directory.join("data").join(TOKEN)).unwrap_or_default()
}
