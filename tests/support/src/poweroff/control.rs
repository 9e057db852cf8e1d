//! Kills the driver of a scene at a step, blocks its reclaimer, skips a sync, and reports its steps.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use linux::os::{self, Object, Observer, Step};
use rustix::io::Errno;

/// A step at which the driver is killed.
#[derive(Debug, Clone, Copy)]
pub enum Kill {
    /// Before the step on an entry whose name has this prefix.
    Before(Step, &'static str),
    /// After that step.
    After(Step, &'static str),
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) kill: Option<Kill>,
    pub(super) killed: bool,
    pub(super) reclaims: bool,
    pub(super) skips: Option<(Step, &'static str)>,
}

/// Kills the driver, blocks its reclaimer, and reports its steps.
#[derive(Debug)]
pub(super) struct Control {
    plan: Mutex<Plan>,
    changed: Condvar,
    witness: Option<Arc<dyn Observer>>,
}

impl Control {
    pub(super) fn new(witness: Option<Arc<dyn Observer>>) -> Self {
        Self {
            plan: Mutex::default(),
            changed: Condvar::new(),
            witness,
        }
    }

    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.plan());
        self.changed.notify_all();
    }
}

impl Observer for Control {
    fn before(&self, step: Step, name: &OsStr) -> Result<(), Errno> {
        let mut plan = self.plan();
        let thread = std::thread::current();
        if thread
            .name()
            .is_some_and(|name| name.starts_with("reclaim"))
        {
            while !plan.reclaims {
                plan = self.changed.wait(plan).unwrap();
            }
        }
        if let Some(Kill::Before(at, start)) = plan.kill {
            plan.killed |= at == step && name.to_string_lossy().starts_with(start);
        }
        if plan.killed { Err(Errno::IO) } else { Ok(()) }
    }

    fn after(&self, step: Step, name: &OsStr) {
        let mut plan = self.plan();
        if let Some(Kill::After(at, start)) = plan.kill {
            plan.killed |= at == step && name.to_string_lossy().starts_with(start);
        }
    }

    fn changed(&self, step: Step, object: Object<'_>) {
        if let Some(witness) = &self.witness {
            witness.changed(step, object);
        }
    }

    fn skips(&self, sync: Step, file: BorrowedFd<'_>) -> bool {
        let path = os::path_of(file).unwrap().display().to_string();
        let is_meant = |(step, at): &mut (Step, &str)| {
            let (middle, end) = at.split_once('*').unwrap_or(("", at));
            *step == sync && path.contains(middle) && path.ends_with(end)
        };
        self.plan().skips.take_if(is_meant).is_some()
    }
}
