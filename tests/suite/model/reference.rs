//! The expected behavior of the driver in its shortest form: two maps and the rules between them.

use std::collections::{BTreeMap, BTreeSet};

use linux::mount::{Atime, MountOptions};
use objects::AccessMode;
use rustix::fs::StatVfsMountFlags;

use pool::{Image, ImageContent, Parameters, Sharing};
use rootcellar::error::{Code, Result};
use rootcellar::volume::{Capability, Class, CreateRequest, Kind};
use support::memory::SIZE;

use super::{KEEPING, MIB, POOLS, RESERVABLE, TOLERANCE};

/// The expected state.
#[derive(Debug, Default)]
pub struct Model {
    pub volumes: BTreeMap<String, Made>,
    /// The deleted volumes of [`KEEPING`], the oldest first, with their names.
    pub kept: Vec<(String, Made)>,
    /// The names of those that ended early since the driver started.
    pub ended: BTreeSet<String>,
    /// Whether a creation since the last check may have needed the blocks of the kept directories and records.
    pub is_tight: bool,
    pub mounts: BTreeMap<usize, Mounted>,
    /// The targets whose mount was removed without the driver, and whether each is a file.
    pub left: BTreeMap<usize, bool>,
}

#[derive(Debug, Clone)]
pub struct Made {
    pub pool: String,
    pub size: u64,
    pub parameters: Parameters,
    pub image: Option<Image>,
    /// Whether it was created for one target only.
    pub exclusive: bool,
}

impl Made {
    /// Whether a repeated request gets it.
    fn matches(&self, request: &CreateRequest) -> bool {
        let class = &request.class;
        let limit = request.limit;
        let is_limited = limit.is_none_or(|limit| (1..=limit.0).contains(&self.size));
        let named = class.pool.as_ref();
        let image = image(class, &request.capabilities);
        self.size >= request.required.0
            && is_limited
            && self.parameters == class.parameters
            && image.is_ok_and(|image| match (self.image, image) {
                (Some(has), Some(asked)) => has.suits(asked),
                (has, asked) => has == asked,
            })
            && named.is_none_or(|pool| pool.as_str() == self.pool)
            && !request.excludes_node
    }
}

#[derive(Debug)]
pub struct Mounted {
    pub name: &'static str,
    pub options: MountOptions,
    /// Unknown after a restart, because the mount does not show it.
    pub mode: Option<AccessMode>,
}

impl Mounted {
    /// Whether it has the requested options. Options that a request does not list are not compared.
    fn has(&self, flags: StatVfsMountFlags, atime: Option<Atime>) -> bool {
        let is_read_only = |flags: StatVfsMountFlags| flags.contains(StatVfsMountFlags::RDONLY);
        is_read_only(self.options.flags) == is_read_only(flags)
            && self.options.flags.contains(flags)
            && atime.is_none_or(|atime| self.options.atime == Some(atime))
    }
}

pub fn fails_sharing(capability: &Capability, sharing: Sharing) -> bool {
    capability.access_mode.is_multi_node() && sharing == Sharing::None
}

/// The image that a request asks for.
fn image(class: &Class, capabilities: &[Capability]) -> Result<Option<Image>, Code> {
    let devices = capabilities.iter().filter(|c| c.block).count();
    let is_directory = class.kind == Kind::Directory && devices == 0;
    if !(devices == 0 || devices == capabilities.len())
        || is_directory && class.allocation.is_some()
    {
        return Err(Code::InvalidArgument);
    }
    if is_directory {
        return Ok(None);
    }
    let named = capabilities.iter().map(|c| &c.fs_type);
    let named: BTreeSet<&String> = named.chain([&class.fs_type]).flatten().collect();
    let mut named = named.into_iter();
    let content = match (named.next().map(String::as_str), named.next()) {
        _ if devices > 0 => ImageContent::Block,
        (None | Some("ext4"), None) => ImageContent::Ext4,
        (Some("xfs"), None) => ImageContent::Xfs,
        _ => return Err(Code::InvalidArgument),
    };
    let allocation = class.allocation.unwrap_or_default();
    Ok(Some(Image::new(content, allocation)))
}

/// The least size of a volume.
fn least_size(image: Option<Image>) -> u64 {
    match image.map(|image| image.content) {
        None => 0,
        Some(ImageContent::Block) => 1,
        Some(ImageContent::Ext4) => 16 * MIB,
        Some(ImageContent::Xfs) => 300 * MIB,
    }
}

fn is_block(image: Option<Image>) -> bool {
    image.is_some_and(|image| image.content == ImageContent::Block)
}

impl Model {
    pub fn free_space(&self, pool: &str) -> u64 {
        let sizes = self.volumes.values().filter(|made| made.pool == pool);
        RESERVABLE - sizes.map(|made| made.size).sum::<u64>()
    }

    /// The pool for a new volume of a class, if this node can have it.
    pub fn place(class: &Class, capabilities: &[Capability]) -> Option<String> {
        let pool = class.pool.as_ref().map_or("default", |pool| pool.as_str());
        let asked = capabilities.iter().map(|c| &c.fs_type);
        let mut asked = asked.chain([&class.fs_type]).flatten();
        let is_directory = image(class, capabilities) == Ok(None);
        let suits = !is_directory || asked.all(|fs_type| fs_type == "tmpfs");
        (POOLS.contains(&pool) && suits).then(|| pool.to_owned())
    }

    /// The least size of a volume of a class.
    pub fn least_size(class: &Class, capabilities: &[Capability]) -> u64 {
        image(class, capabilities).map_or(0, least_size)
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
        let image = image(class, capabilities);
        if let Some(made) = self.volumes.get(request.name.as_str()) {
            let is_same = made.matches(request) && place.is_some();
            return is_same.then_some(()).ok_or(Code::AlreadyExists);
        }
        let image = image?;
        // That of a directory on another filesystem is compared with the pool only after this.
        let is_here = class
            .pool
            .as_ref()
            .is_none_or(|pool| POOLS.contains(&pool.as_str()));
        if !is_here || request.excludes_node {
            return Err(Code::ResourceExhausted);
        }
        let size = if required.0 > 0 {
            required.0
        } else {
            limit.map_or(0, |limit| limit.0)
        };
        match least_size(image) {
            least if size >= least => {}
            _ if size == 0 => return Err(Code::InvalidArgument),
            _ => return Err(Code::OutOfRange),
        }
        let pool = place.ok_or(Code::ResourceExhausted)?;
        if size > self.free_space(&pool) {
            return Err(Code::ResourceExhausted);
        }
        if pool == KEEPING {
            self.free_space_for(size);
        }
        let exclusive = capabilities.iter().all(|c| c.access_mode.is_exclusive());
        let made = Made {
            pool,
            size,
            parameters,
            image,
            exclusive,
        };
        self.volumes.insert(request.name.as_str().to_owned(), made);
        Ok(())
    }

    /// Removes the oldest kept volumes until this much is free without the others.
    pub fn free_space_for(&mut self, size: u64) {
        let without = self.free_space(KEEPING).saturating_sub(self.kept_size());
        self.is_tight |= size > without.saturating_sub(TOLERANCE);
        while !self.kept.is_empty() && self.free_space(KEEPING) - self.kept_size() < size {
            self.end_oldest();
        }
    }

    /// Removes the oldest kept volumes down to this number, if the disk may be nearly full with them, or a creation may have
    /// needed the blocks of their directories.
    pub fn end_on_full_disk(&mut self, number: usize) {
        let is_tight = std::mem::take(&mut self.is_tight);
        while self.kept.len() > number && (is_tight || self.allocated() > SIZE - SIZE / 40) {
            self.end_oldest();
        }
    }

    fn end_oldest(&mut self) {
        let (name, _) = self.kept.remove(0);
        self.ended.insert(name);
    }

    /// The most bytes that the volumes of [`KEEPING`] may use, the kept ones included. Only images have data.
    fn allocated(&self) -> u64 {
        let volumes = self.volumes.values().filter(|made| made.pool == KEEPING);
        let all = volumes.chain(self.kept.iter().map(|(_, made)| made));
        let images = all.filter(|made| made.image.is_some());
        TOLERANCE + images.map(|made| made.size).sum::<u64>()
    }

    fn kept_size(&self) -> u64 {
        self.kept.iter().map(|(_, made)| made.size).sum()
    }

    pub fn delete(&mut self, name: &str, for_good: bool) -> Result<(), Code> {
        if self.mounts.values().any(|mounted| mounted.name == name) {
            return Err(Code::FailedPrecondition);
        }
        // For an absent volume, deletion returns `OK`.
        let made = self.volumes.remove(name).ok_or(Code::Ok)?;
        if made.pool == KEEPING && !for_good {
            self.kept.push((name.to_owned(), made));
        }
        Ok(())
    }

    /// Returns the name that the volume has then.
    pub fn undelete(&mut self, name: &str, new: Option<&str>) -> Result<String, Code> {
        let Some(at) = self.kept.iter().rposition(|(kept, _)| kept == name) else {
            let lives = self
                .volumes
                .get(name)
                .is_some_and(|made| made.pool == KEEPING);
            return (lives && new.is_none())
                .then(|| name.to_owned())
                .ok_or(Code::NotFound);
        };
        let new = new.unwrap_or(name);
        if self.volumes.contains_key(new) {
            return Err(Code::FailedPrecondition);
        }
        let (_, made) = self.kept.remove(at);
        self.ended.remove(name);
        self.volumes.insert(new.to_owned(), made);
        Ok(new.to_owned())
    }

    pub fn purge(&mut self, name: Option<&str>) -> Result<usize, Code> {
        let before = self.kept.len();
        let stays = |kept: &String| name.is_some_and(|name| name != kept);
        let purged = self.kept.iter().filter(|(kept, _)| !stays(kept));
        self.ended.extend(purged.map(|(kept, _)| kept.clone()));
        self.kept.retain(|(kept, _)| stays(kept));
        match (before - self.kept.len(), name) {
            (0, Some(_)) => Err(Code::NotFound),
            (purged, _) => Ok(purged),
        }
    }

    pub fn publish(
        &mut self,
        name: &'static str,
        target: usize,
        capability: &Capability,
        read_only: bool,
    ) -> Result<(), Code> {
        let made = self.volumes.get_mut(name).ok_or(Code::NotFound)?;
        let access = capability.access_mode;
        let has = made.image.map_or("tmpfs", |image| image.content.as_str());
        let is_block = is_block(made.image);
        if fails_sharing(capability, made.parameters.sharing) || capability.block != is_block || {
            capability.fs_type.as_ref()
        }
        .is_some_and(|fs_type| fs_type != has)
        {
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
            // The mount of the pool itself has `relatime`, and so has that of an image.
            atime: asked.atime.or((!is_block).then_some(Atime::Relatime)),
        };
        if self
            .left
            .get(&target)
            .is_some_and(|is_file| *is_file != is_block)
        {
            return Err(Code::AlreadyExists);
        }
        if let Some(there) = self.mounts.get_mut(&target) {
            let same = there.name == name && there.has(flags, asked.atime);
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
        if let Some(image) = &mut made.image
            && !flags.contains(StatVfsMountFlags::RDONLY)
        {
            image.unused = false;
        }
        self.left.remove(&target);
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
        self.left.remove(&target);
        self.mounts.remove(&target);
        Ok(())
    }

    /// Removes the mount of a target without the driver, which leaves the directory or file.
    pub fn unmount(&mut self, target: usize) {
        if let Some(there) = self.mounts.remove(&target) {
            let image = self.volumes.get(there.name).and_then(|made| made.image);
            self.left.insert(target, is_block(image));
        }
    }
}
