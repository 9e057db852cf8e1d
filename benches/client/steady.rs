//! The same work for a long time, to see whether the driver becomes slower or grows.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::process::Process;
use super::{Call, Driver, tell};
use crate::common::{self, Phase, Times};

/// The duration of the run and of an interval.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) lasts: Duration,
    pub(crate) interval: Duration,
    pub(crate) in_flight: u16,
    pub(crate) pid: i32,
    pub(crate) json: bool,
}

/// The measurements of one interval.
#[derive(Debug, serde::Serialize)]
struct Facts {
    seconds: u64,
    in_flight: u16,
    server: Process,
}

/// The times of each call since the last report.
#[derive(Debug)]
struct Interval {
    calls: Vec<(Call, Times)>,
    began: Instant,
}

impl Interval {
    fn new(life: &[Call]) -> Self {
        Self {
            calls: life.iter().map(|call| (*call, Times::default())).collect(),
            began: Instant::now(),
        }
    }

    fn add(&mut self, call: Call, took: Duration, code: Option<String>) {
        let times = self.calls.iter_mut().find(|(of, _)| *of == call);
        if let Some((_, times)) = times {
            times.add(took, code);
        }
    }

    fn phases(self) -> Vec<Phase> {
        let lasted = self.began.elapsed();
        let phase = |(call, times): (Call, Times)| times.phase(call.name(), lasted);
        self.calls.into_iter().map(phase).collect()
    }
}

/// Creates and deletes volumes, this many at the same time, and reports every interval; returns
/// whether no call failed.
pub(crate) async fn run(driver: &Arc<Driver>, plan: Plan) -> Result<bool, String> {
    let life: Arc<[Call]> = driver.life().into();
    let current = Arc::new(Mutex::new(Interval::new(&life)));
    let until = Instant::now() + plan.lasts;
    let workers: Vec<_> = (0..plan.in_flight)
        .map(|_| {
            let (driver, life, current) =
                (Arc::clone(driver), Arc::clone(&life), Arc::clone(&current));
            tokio::spawn(async move {
                while Instant::now() < until {
                    live(&driver, &life, &current).await?;
                }
                Ok::<_, std::io::Error>(())
            })
        })
        .collect();
    let mut good = true;
    let started = Instant::now();
    while Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        tokio::time::sleep(plan.interval.min(left)).await;
        let mut interval = current.lock().unwrap_or_else(PoisonError::into_inner);
        let phases = std::mem::replace(&mut *interval, Interval::new(&life)).phases();
        drop(interval);
        let facts = Facts {
            seconds: started.elapsed().as_secs(),
            in_flight: plan.in_flight,
            server: Process::look(plan.pid)?,
        };
        common::print(plan.json, &facts, &phases).map_err(|error| error.to_string())?;
        good &= phases.iter().all(Phase::is_good);
    }
    for worker in workers {
        let ended = worker.await.map_err(|panic| panic.to_string())?;
        ended.map_err(|error| format!("cannot make or remove a target's directory: {error}"))?;
    }
    // The calls that ended after the last report.
    let mut interval = current.lock().unwrap_or_else(PoisonError::into_inner);
    let rest = std::mem::replace(&mut *interval, Interval::new(&life)).phases();
    Ok(good && rest.iter().all(Phase::is_good))
}

/// Makes all calls of one volume's life. It repeats no failed call, but makes all later ones, so
/// that nothing is left.
async fn live(driver: &Driver, life: &[Call], current: &Mutex<Interval>) -> std::io::Result<()> {
    let volume = driver.volume();
    volume.make_places()?;
    let told = AtomicBool::new(false);
    for call in life {
        if *call != Call::Create && !volume.is_made() {
            break;
        }
        let (took, outcome) = driver.timed(*call, &volume).await;
        let code = outcome.err().map(|status| tell(*call, &status, &told));
        let mut interval = current.lock().unwrap_or_else(PoisonError::into_inner);
        interval.add(*call, took, code);
    }
    volume.remove_places()
}
