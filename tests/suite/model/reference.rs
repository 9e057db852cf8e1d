//! The expected behavior of the driver in its shortest form: two maps and the rules between them.

use std::collections::BTreeMap;

use rustix::fs::StatVfsMountFlags;

use rootcellar::error::{Code, Result};
use rootcellar::mount::{Atime, MountOptions};
use rootcellar::pool::{AccessMode, Parameters, Sharing};
use rootcellar::volume::{Capability, Class, CreateRequest};

use super::{POOLS, RESERVABLE};

/// The expected state.
#[derive(Debug, Default)]
pub struct Model {
    pub volumes: BTreeMap<String, Made>,
    pub mounts: BTreeMap<usize, Mounted>,
}

#[derive(Debug)]
pub struct Made {
    pub pool: String,
    pub size: u64,
    pub parameters: Parameters,
    /// Whether it was created for one target only.
    pub exclusive: bool,
}

#[derive(Debug)]
pub struct Mounted {
    pub name: &'static str,
    pub options: MountOptions,
    /// Unknown after a restart, because the mount does not show it.
    pub mode: Option<AccessMode>,
}

pub fn fails_sharing(capability: &Capability, sharing: Sharing) -> bool {
    capability.access_mode.is_multi_node() && sharing == Sharing::None
}

fn other_filesystem(fs_type: Option<&String>) -> bool {
    fs_type.is_some_and(|fs_type| fs_type != "tmpfs")
}

impl Model {
    pub fn free_space(&self, pool: &str) -> u64 {
        let sizes = self.volumes.values().filter(|made| made.pool == pool);
        RESERVABLE - sizes.map(|made| made.size).sum::<u64>()
    }

    /// The pool for a new volume of a class, if this node can have it.
    pub fn place(class: &Class, capabilities: &[Capability]) -> Option<String> {
        let pool = class.pool.as_ref().map_or("default", |pool| pool.as_str());
        let mut asked = capabilities
            .iter()
            .map(|c| c.fs_type.as_ref())
            .chain([class.fs_type.as_ref()]);
        (POOLS.contains(&pool) && !asked.any(other_filesystem)).then(|| pool.to_owned())
    }

    pub fn create(&mut self, request: &CreateRequest) -> Result<(), Code> {
        let CreateRequest {
            required,
            limit,
            capabilities,
            class,
            ..
        } = request;
        let parameters = class.parameters;
        if capabilities
            .iter()
            .any(|c| fails_sharing(c, parameters.sharing))
        {
            return Err(Code::InvalidArgument);
        }
        let place = Self::place(class, capabilities);
        if let Some(made) = self.volumes.get(request.name.as_str()) {
            let limited = limit.is_none_or(|limit| (1..=limit.0).contains(&made.size));
            let elsewhere = class
                .pool
                .as_ref()
                .is_some_and(|pool| pool.as_str() != made.pool);
            let same = made.size >= required.0
                && limited
                && made.parameters == parameters
                && !(elsewhere || request.excludes_node || place.is_none());
            return if same {
                Ok(())
            } else {
                Err(Code::AlreadyExists)
            };
        }
        let pool = place
            .filter(|_| !request.excludes_node)
            .ok_or(Code::ResourceExhausted)?;
        let size = if required.0 > 0 {
            required.0
        } else {
            limit.map_or(0, |limit| limit.0)
        };
        if size > self.free_space(&pool) {
            return Err(Code::ResourceExhausted);
        }
        let exclusive = capabilities.iter().all(|c| c.access_mode.is_exclusive());
        let made = Made {
            pool,
            size,
            parameters,
            exclusive,
        };
        self.volumes.insert(request.name.as_str().to_owned(), made);
        Ok(())
    }

    pub fn delete(&mut self, name: &str) -> Result<(), Code> {
        if self.mounts.values().any(|mounted| mounted.name == name) {
            return Err(Code::FailedPrecondition);
        }
        // For an absent volume, deletion returns `OK`.
        self.volumes.remove(name).map(|_| ()).ok_or(Code::Ok)
    }

    pub fn publish(
        &mut self,
        name: &'static str,
        target: usize,
        capability: &Capability,
        read_only: bool,
    ) -> Result<(), Code> {
        let made = self.volumes.get(name).ok_or(Code::NotFound)?;
        let access = capability.access_mode;
        let refused = fails_sharing(capability, made.parameters.sharing);
        if refused || other_filesystem(capability.fs_type.as_ref()) {
            return Err(Code::InvalidArgument);
        }
        let asked = capability.options;
        let mut flags = asked.flags;
        if read_only || access.is_read_only() {
            flags |= StatVfsMountFlags::RDONLY;
        }
        let options = MountOptions {
            flags,
            read_write: false,
            // The mount of the pool itself has `relatime`.
            atime: asked.atime.or(Some(Atime::Relatime)),
        };
        if let Some(there) = self.mounts.get_mut(&target) {
            let same = there.name == name && there.options == options;
            if !same || there.mode.is_some_and(|before| before != access) {
                return Err(Code::AlreadyExists);
            }
            there.mode = Some(access);
            return Ok(());
        }
        let alone = |there: &Mounted| {
            let exclusive = there.mode.map_or(made.exclusive, AccessMode::is_exclusive);
            there.name == name && (access.is_exclusive() || exclusive)
        };
        if self.mounts.values().any(alone) {
            return Err(Code::FailedPrecondition);
        }
        self.mounts.insert(
            target,
            Mounted {
                name,
                options,
                mode: Some(access),
            },
        );
        Ok(())
    }

    pub fn unpublish(&mut self, name: &str, target: usize) -> Result<(), Code> {
        if self
            .mounts
            .get(&target)
            .is_some_and(|there| there.name != name)
        {
            return Err(Code::NotFound);
        }
        self.mounts.remove(&target);
        Ok(())
    }
}
