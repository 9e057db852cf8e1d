//! The expected behavior of a set in its shortest form: three members and the rules for them.

use std::collections::BTreeMap;

use rootcellar::error::Code;

use super::{MIB, reservable};

/// The upper bound of the space for records and the marker of a member. Sizes are multiples of 4 MiB,
/// and no sum of them comes this close below the size of a member.
pub const TOLERANCE: u64 = MIB;

#[derive(Debug, Clone)]
pub struct Member {
    /// In MiB.
    pub size: u64,
    pub mounted: bool,
    pub retired: bool,
    /// Whether the driver has read its records since the start.
    pub read: bool,
    /// The bytes of other data on its filesystem.
    pub other: u64,
    pub volumes: BTreeMap<String, u64>,
}

impl Member {
    pub fn new(size: u64) -> Self {
        Self {
            size,
            mounted: true,
            retired: false,
            read: true,
            other: 0,
            volumes: BTreeMap::new(),
        }
    }

    pub fn is_available(&self) -> bool {
        self.mounted && !self.retired
    }

    /// Whether the driver knows its volumes.
    pub fn is_known(&self) -> bool {
        self.read && !self.retired
    }

    /// Whether it may hold volumes that the driver does not know.
    pub fn is_unread(&self) -> bool {
        !self.read && !self.retired
    }

    /// The largest size of its next volume. Other data fills the space of volumes that are not written,
    /// because nothing counts the bytes of a volume here.
    pub fn room(&self) -> u64 {
        let reserved = self.volumes.values().sum::<u64>();
        reservable(self.size).saturating_sub(reserved.max(self.other))
    }
}

#[derive(Debug)]
pub struct Model {
    pub members: Vec<Member>,
    /// Whether the set waits for the members that it has not read.
    pub waits: bool,
}

impl Model {
    /// The members that the driver knows to hold a name.
    pub fn holders(&self, name: &str) -> Vec<usize> {
        let is_holder = |m: &usize| {
            let member = &self.members[*m];
            member.is_known() && member.volumes.contains_key(name)
        };
        (0..self.members.len()).filter(is_holder).collect()
    }

    /// The allowed outcomes of a create: the member of the volume, or a code.
    pub fn create(&self, name: &str, size: u64) -> Vec<Result<usize, Code>> {
        let holders = self.holders(name);
        if !holders.is_empty() {
            let found = holders.into_iter().map(|m| {
                let member = &self.members[m];
                match member.is_available() {
                    false => Err(Code::Unavailable),
                    true if member.volumes[name] < size => Err(Code::AlreadyExists),
                    true => Ok(m),
                }
            });
            return found.collect();
        }
        if self.waits && self.members.iter().any(Member::is_unread) {
            return vec![Err(Code::Unavailable)];
        }
        let available = self.members.iter().enumerate();
        let available = available.filter(|(_, member)| member.is_available());
        let room = available.map(|(m, member)| (m, member.room()));
        let most = room.clone().map(|(_, room)| room).max().unwrap_or(0);
        if size > most {
            return vec![Err(Code::ResourceExhausted)];
        }
        let best = room.filter(|(_, room)| *room >= size && room + TOLERANCE >= most);
        best.map(|(m, _)| Ok(m)).collect()
    }

    /// Deletes a volume of a member.
    pub fn delete(&mut self, m: usize, name: &str) -> Result<(), Code> {
        let member = &mut self.members[m];
        if !member.retired && !member.mounted {
            return Err(Code::Unavailable);
        }
        if !member.retired {
            member.volumes.remove(name);
        }
        Ok(())
    }

    /// The bytes for which the set has free space, and the largest size of the next volume.
    pub fn capacity(&self) -> (u64, u64) {
        let available = self.members.iter().filter(|member| member.is_available());
        let room = available.map(Member::room);
        (room.clone().sum(), room.max().unwrap_or(0))
    }

    /// Starts the driver again.
    pub fn restart(&mut self, waits: bool) {
        self.waits = waits;
        for member in &mut self.members {
            member.read = member.mounted;
        }
    }
}
