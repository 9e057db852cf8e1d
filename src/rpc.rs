//! The gRPC services.
//!
//! [`Edge::run`] runs every call that needs a volume: on a thread that may block, and to its end even
//! if the client hangs up.

mod admin;
mod client;
mod controller;
mod health;
mod identity;
mod lists;
mod node;
mod request;
mod status;
mod topology;

pub(crate) use admin::AdminService;
pub(crate) use controller::ControllerService;
pub(crate) use identity::IdentityService;
pub(crate) use lists::until_sent;
pub(crate) use node::NodeService;
pub(crate) use topology::Topology;

use std::any::Any;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use objects::{MAX_FIELD_BYTES, NodeName};
use tokio::sync::Semaphore;
use tonic::{Response, Status};

use crate::error::{Code, Error, Operation, Result};
use crate::metrics::Metrics;
use crate::volume::{Caller, Volumes};

use client::Client;
use lists::Lists;

/// The number of permits. It limits nothing, because each pool has a limit of its own.
const ALL_CALLS: u32 = u32::MAX;

/// The identity of the driver, as the CO sees it.
#[derive(Debug, Clone)]
pub(crate) struct Plugin {
    pub(crate) driver_name: String,
    pub(crate) node: NodeName,
    pub(crate) topology: Topology,
}

/// The state that the services share.
#[derive(Debug)]
pub(crate) struct Edge {
    plugin: Plugin,
    volumes: Arc<Volumes>,
    metrics: Arc<Metrics>,
    /// Each call holds one until it ends.
    permits: Arc<Semaphore>,
    lists: Lists,
}

/// A call at work: the state of the services, and its caller.
struct Call<'a> {
    edge: &'a Edge,
    caller: Caller,
}

impl Deref for Call<'_> {
    type Target = Edge;

    fn deref(&self) -> &Edge {
        self.edge
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[derive(Debug, Clone, Copy)]
struct Rpc {
    name: &'static str,
    operation: Operation,
    /// Whether a success is logged at level info.
    mutates: bool,
    /// Whether it works before the records are loaded.
    while_loading: bool,
    /// Whether its response is a page of a list.
    lists: bool,
}

impl Rpc {
    const fn read(operation: Operation) -> Self {
        Self {
            name: "",
            operation,
            mutates: false,
            while_loading: false,
            lists: false,
        }
    }

    const fn list() -> Self {
        Self {
            lists: true,
            ..Self::read(Operation::Query)
        }
    }

    const fn write(operation: Operation) -> Self {
        Self {
            mutates: true,
            ..Self::read(operation)
        }
    }

    const fn while_loading(self) -> Self {
        Self {
            while_loading: true,
            ..self
        }
    }
}

/// Declares a service and implements it for a module of generated code. Each line is a method, with its request and
/// the required field that names its object, its response, its properties and its work, a function of [`Call`].
macro_rules! service {
    ($(#[$meta:meta])* $name:ident: $module:ident::$service:ident {
        $($method:ident($request:ident $(: $object:ident)?) -> $response:ident, $rpc:expr, $work:expr;)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        pub(crate) struct $name(pub(crate) Arc<Edge>);

        #[tonic::async_trait]
        impl $service for $name {
            $(async fn $method(
                &self,
                request: tonic::Request<$module::$request>,
            ) -> Answer<$module::$response> {
                let client = Client::of(request.metadata());
                let caller = client.0.clone();
                let request = request.into_inner();
                let object = String::new() $(+ &request.$object)?;
                let name = stringify!($request).trim_end_matches("Request");
                let work: fn(&Call<'_>, $module::$request) -> Result<$module::$response> = $work;
                let work = move |edge: &Edge| {
                    $(request::required(stringify!($object), &*request.$object)?;)?
                    work(&Call { edge, caller }, request)
                };
                self.0.run(Rpc { name, ..$rpc }, object, work).await
            })*
        }
    };
}
use service;

impl Edge {
    /// The state of services over these volumes.
    pub(crate) fn new(plugin: Plugin, volumes: Arc<Volumes>, metrics: Arc<Metrics>) -> Self {
        Self {
            plugin,
            volumes,
            metrics,
            permits: Arc::new(Semaphore::new(ALL_CALLS as usize)),
            lists: Lists::default(),
        }
    }

    /// Waits until every call has ended, with or without its client, and refuses new ones.
    pub(crate) async fn close(&self) {
        // An error says that it is closed already.
        let _all = self.permits.acquire_many(ALL_CALLS).await;
        self.permits.close();
    }

    /// Runs a call's work to its end; `object` is an id or a name for the log, or empty.
    async fn run<T, F>(self: &Arc<Self>, rpc: Rpc, object: String, work: F) -> Answer<T>
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
            let mut turn = None;
            // Caught here, because nobody takes the result after a hang-up.
            let result = catch_unwind(AssertUnwindSafe(|| {
                if !rpc.while_loading && !edge.volumes.is_loaded() {
                    return Err(Error::Loading);
                }
                if rpc.lists {
                    turn = Some(edge.lists.begin()?);
                }
                work(&edge)
            }))
            .unwrap_or_else(|panic| Err(panicked(&*panic)));
            let mut answer = edge.finish(rpc, &object, started, result)?;
            if let Some(turn) = turn {
                answer.extensions_mut().insert(turn);
            }
            Ok(answer)
        };
        // A hang-up drops this future, but not the call.
        tokio::task::spawn_blocking(call)
            .await
            .unwrap_or_else(|_| Err(stopping()))
    }

    /// Logs and counts a call, and makes its response.
    fn finish<T: Default>(
        &self,
        rpc: Rpc,
        object: &str,
        started: Instant,
        result: Result<T>,
    ) -> Answer<T> {
        let elapsed = started.elapsed();
        let error = result.as_ref().err();
        let kind = error.map_or(Code::Ok, |error| error.code(rpc.operation));
        let (_, code) = status::grpc(kind);
        self.metrics.observe(rpc.name, code, elapsed);
        let milliseconds = (elapsed.as_secs_f64() * 1e6).round() / 1e3;
        let volume = &object[..object.floor_char_boundary(MAX_FIELD_BYTES)];
        let volume = Some(volume).filter(|volume| !volume.is_empty());
        let error = error.map(status::message);
        let (rpc, mutates, operation) = (rpc.name, rpc.mutates, rpc.operation);
        match kind {
            Code::Ok if error.is_none() && !mutates => {
                tracing::debug!(rpc, volume, code, milliseconds);
            }
            Code::Ok => tracing::info!(rpc, volume, code, milliseconds, error),
            Code::Internal => tracing::error!(rpc, volume, code, milliseconds, error),
            _ => tracing::warn!(rpc, volume, code, milliseconds, error),
        }
        result.map(Response::new).or_else(|error| {
            // An error that is a success, such as the deletion of an absent volume, has no content.
            status::status(&error, operation, &self.plugin.node)
                .map(|()| Response::new(T::default()))
        })
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    Error::Internal(format!("a call panicked: {}", text.unwrap_or("no message")))
}

fn stopping() -> Status {
    Status::unavailable("the driver is stopping; try again")
}

#[cfg(test)]
mod tests;
