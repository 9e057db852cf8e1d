//! Fault plans: functions that the driver calls before every step.

use std::ffi::OsStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use linux::os::{Observer, Os, Step};
use rustix::io::Errno;

use crate::Fakes;

/// Calls a plan before every step; the plan may delay the step or fail it.
struct FaultPlan<F>(F);

impl<F> fmt::Debug for FaultPlan<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultPlan")
    }
}

impl<F: Fn(Step, &OsStr) -> Result<(), Errno> + Send + Sync> Observer for FaultPlan<F> {
    fn before(&self, step: Step, name: &OsStr) -> Result<(), Errno> {
        self.0(step, name)
    }

    fn after(&self, _step: Step, _name: &OsStr) {}
}

impl Fakes {
    /// Fakes that differ from the default only by a plan.
    pub fn planned(
        plan: impl Fn(Step, &OsStr) -> Result<(), Errno> + Send + Sync + 'static,
    ) -> Self {
        Self {
            os: Os::observed(Arc::new(FaultPlan(plan))),
            ..Self::default()
        }
    }
}

/// Blocks each thread whose step is on an entry of a shut name.
#[derive(Default)]
pub struct Gate {
    shut: Mutex<Vec<(&'static str, bool)>>,
    opened: Condvar,
}

impl Gate {
    pub fn shut(&self, name: &'static str) {
        self.shut.lock().unwrap().push((name, false));
    }

    pub fn open(&self, open: impl Fn(&str) -> bool) {
        self.shut.lock().unwrap().retain(|(name, _)| !open(name));
        self.opened.notify_all();
    }

    pub fn pass(&self, name: &OsStr) {
        let mut shut = self.shut.lock().unwrap();
        while let Some((_, arrived)) = shut.iter_mut().find(|(closed, _)| *closed == name) {
            *arrived = true;
            shut = self.opened.wait(shut).unwrap();
        }
    }

    pub fn holds(&self, name: &str) -> bool {
        let shut = self.shut.lock().unwrap();
        shut.iter()
            .any(|(closed, arrived)| *closed == name && *arrived)
    }

    pub fn fakes(self: &Arc<Self>) -> Fakes {
        let gate = self.clone();
        Fakes::planned(move |_, name| {
            gate.pass(name);
            Ok(())
        })
    }
}

/// Opens a gate at the end of a test. Otherwise a failed test would wait for the reclaimer forever.
pub struct Opened<'a>(pub &'a Gate);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.0.open(|_| true);
    }
}

/// Sets a flag when it is dropped, also after a failed assertion. Otherwise a thread that waits for the flag would keep
/// the test from ending.
pub struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
