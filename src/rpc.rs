//! The CSI edge: the services, thin over the domain.
//!
//! Every call that touches the domain goes through [`Edge::run`]: the work, once begun, goes on
//! to its end on the blocking pool whether or not the client is still there.

mod admin;
mod controller;
mod identity;
mod node;
mod request;
mod status;
mod topology;

pub(crate) use admin::AdminService;
pub(crate) use controller::ControllerService;
pub(crate) use identity::IdentityService;
pub(crate) use node::NodeService;
pub(crate) use topology::Topology;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;
use tonic::{Response, Status};

use crate::error::{Code, Error, Operation, Result};
use crate::metrics::Metrics;
use crate::types::{MAX_FIELD_BYTES, NodeName};
use crate::volume::Volumes;

/// As many calls as there can be: each pool has its own limit.
const ALL_CALLS: u32 = u32::MAX;

/// Who the driver is to the CO.
#[derive(Debug, Clone)]
pub struct Plugin {
    /// The driver's name.
    pub driver_name: String,
    /// The node's name.
    pub node: NodeName,
    /// The key of the label that says on which node a volume is.
    pub topology_key: String,
}

/// What the services share.
#[derive(Debug)]
pub(crate) struct Edge {
    plugin: Plugin,
    topology: Topology,
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
    /// One for each call, until it ends.
    permits: Arc<Semaphore>,
}

/// What a handler answers.
type Answer<T> = Result<Response<T>, Status>;

/// One RPC of the specification.
#[derive(Debug, Clone, Copy)]
struct Rpc {
    name: &'static str,
    operation: Operation,
    /// Whether a success is worth a line in the log.
    mutates: bool,
    /// Whether it works before the records are loaded.
    while_loading: bool,
}

impl Rpc {
    const fn read(name: &'static str, operation: Operation) -> Self {
        Self {
            name,
            operation,
            mutates: false,
            while_loading: false,
        }
    }

    const fn write(name: &'static str, operation: Operation) -> Self {
        Self {
            mutates: true,
            ..Self::read(name, operation)
        }
    }

    const fn while_loading(self) -> Self {
        Self {
            while_loading: true,
            ..self
        }
    }
}

impl Edge {
    /// The edge over these volumes.
    pub(crate) fn new(plugin: Plugin, volumes: Arc<Volumes>, metrics: Arc<Metrics>) -> Self {
        let topology = Topology {
            key: plugin.topology_key.clone(),
            value: plugin.node.topology_value(),
        };
        let permits = Arc::new(Semaphore::new(ALL_CALLS as usize));
        Self {
            plugin,
            topology,
            volumes,
            metrics,
            permits,
        }
    }

    /// Waits until no call is at work, also none whose client is gone, and lets none begin after.
    pub(crate) async fn close(&self) {
        // An error says that it is closed already.
        let _all = self.permits.acquire_many(ALL_CALLS).await;
        self.permits.close();
    }

    /// Runs a call's work to its end; `subject` is the volume's id or name, or empty.
    async fn run<T, F>(self: &Arc<Self>, rpc: Rpc, subject: String, work: F) -> Answer<T>
    where
        T: Default + Send + 'static,
        F: FnOnce(&Edge) -> Result<T> + Send + 'static,
    {
        let started = Instant::now();
        let permit = Arc::clone(&self.permits).try_acquire_owned();
        let permit = permit.map_err(|_| stopping())?;
        let edge = Arc::clone(self);
        let call = move || {
            let _permit = permit;
            // Caught here, because nobody takes the result when the client is gone.
            let result = catch_unwind(AssertUnwindSafe(|| {
                if !rpc.while_loading && !edge.volumes.is_loaded() {
                    return Err(Error::Loading);
                }
                work(&edge)
            }))
            .unwrap_or_else(|panic| Err(panicked(&*panic)));
            edge.finish(rpc, &subject, started, result)
        };
        // Dropping this future, as a hang-up does, does not drop the call.
        tokio::task::spawn_blocking(call)
            .await
            .unwrap_or_else(|_| Err(stopping()))
    }

    /// Answers a call that needs no work.
    fn answer<T: Default>(&self, rpc: Rpc, message: T) -> Answer<T> {
        self.finish(rpc, "", Instant::now(), Ok(message))
    }

    /// Logs and counts a call, and turns its result into the answer.
    fn finish<T: Default>(
        &self,
        rpc: Rpc,
        subject: &str,
        started: Instant,
        result: Result<T>,
    ) -> Answer<T> {
        let elapsed = started.elapsed();
        let code = result
            .as_ref()
            .err()
            .map_or(Code::Ok, |error| error.code(rpc.operation));
        self.metrics.observe(rpc.name, status::name(code), elapsed);
        let line = Line {
            rpc,
            volume: Some(&subject[..subject.floor_char_boundary(MAX_FIELD_BYTES)])
                .filter(|volume| !volume.is_empty()),
            code,
            milliseconds: (elapsed.as_secs_f64() * 1e6).round() / 1e3,
            error: result.as_ref().err().map(status::message),
        };
        line.log();
        result.map(Response::new).or_else(|error| {
            // The answer of a success that had nothing to do: the empty message.
            status::status(&error, rpc.operation).map(|()| Response::new(T::default()))
        })
    }
}

/// The error of a call that panicked.
fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    Error::Internal(format!("a call panicked: {}", text.unwrap_or("no message")))
}

fn stopping() -> Status {
    Status::unavailable("the driver is stopping; try again")
}

/// One call's line in the log.
struct Line<'a> {
    rpc: Rpc,
    volume: Option<&'a str>,
    code: Code,
    milliseconds: f64,
    error: Option<String>,
}

impl Line<'_> {
    fn log(&self) {
        let Self {
            volume,
            milliseconds,
            ..
        } = *self;
        let (rpc, code, error) = (
            self.rpc.name,
            status::name(self.code),
            self.error.as_deref(),
        );
        match self.code {
            Code::Ok if error.is_none() && !self.rpc.mutates => {
                tracing::debug!(rpc, volume, code, milliseconds);
            }
            Code::Ok => tracing::info!(rpc, volume, code, milliseconds, error),
            Code::Internal => tracing::error!(rpc, volume, code, milliseconds, error),
            _ => tracing::warn!(rpc, volume, code, milliseconds, error),
        }
    }
}

#[cfg(test)]
mod tests;
