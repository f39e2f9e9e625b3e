//! The gRPC port: rate limits, `ext_authz`, `ext_proc`,
//! permits, access logs, health and reflection.
//!
//! Guarantees:
//! - A vanished proxy with permit streams is detected after [`PING_AFTER`] plus [`PONG_WITHIN`].
//! - Shutdown closes the listener at once, sends GOAWAY and finishes the open calls.
//!
//! Not covered:
//! - A limit on the time that open calls take at shutdown.

pub mod access_log;
pub mod arrival;
mod connections;
pub mod convert;
mod doors;
pub mod ext_authz;
pub mod ext_proc;
mod fields;
pub mod incoming;
pub mod metadata;
pub mod peer;
pub mod permits;
mod prompt;
pub mod reserved;
pub mod rls;
pub mod surface;
mod timed;
pub mod tls;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::auth::v3::authorization_server::{
    AuthorizationServer, SERVICE_NAME as AUTHORIZATION,
};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME as RATE_LIMITS;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tonic_reflection::server::Error as ReflectionError;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

use super::Reporting;
use super::health::{Health, Ready};
use crate::config::hooks::Hooks;
use crate::engine::Engine;
use crate::telemetry::event::Protocol;
use access_log::AccessLogs;
use ext_authz::Authorizations;
use ext_proc::Processor;
use incoming::{Incoming, Listener};
use permits::Places;
use permits::api::permits_server::PermitsServer;
use rls::RateLimits;
use surface::Surface;
use timed::Timed;
use tls::Tls;

/// The idle time of a connection after which the server sends an HTTP/2 ping.
pub const PING_AFTER: Duration = Duration::from_millis(500);
/// The time that a connection with a permit stream may stay silent after a ping.
///
/// A permit stream is a call whose end releases permits: `ext_proc` or `Permits.Hold`. Any received
/// byte counts, not only the ping's reply. If a proxy's machine dies, the kernel may keep its
/// connection for hours. With this timeout the permits of its requests are free after two seconds.
pub const PONG_WITHIN: Duration = Duration::from_millis(1_500);
/// The timeout of a ping's own reply, even if other bytes arrive.
///
/// This is also the idle limit of a connection without permit streams:
/// a proxy that was paused for some seconds keeps its connection.
pub const PONG_AT_LAST: Duration = Duration::from_secs(20);

/// The largest number of connections at one time; a proxy opens one per worker thread.
const MOST_CONNECTIONS: usize = 65_536;

/// The health service's name for the whole process, as in envoyproxy/ratelimit.
const PROCESS: &str = "ratelimit";

const NAMED: [&str; 3] = [PROCESS, RATE_LIMITS, AUTHORIZATION];

/// The protobuf descriptors of Envoy's services, which `envoy-types` does not export.
/// `tests/edge/reflection.rs` generates them and compares them with that crate.
const SERVICES: &[u8] = include_bytes!("../../../proto/ratelimit.binpb");

const OURS: &[u8] = include_bytes!("../../../proto/sluicegate/v1/permits.binpb");

/// The parts that the gRPC port serves.
#[derive(Clone, Debug)]
pub struct Grpc {
    /// The engine that decides checks.
    pub engine: Arc<Engine>,
    /// The headers and metadata that replies carry.
    pub reporting: Reporting,
    /// The readiness that health checks report.
    pub health: Health,
    /// The hooks of `ext_authz` and `ext_proc`.
    pub hooks: Arc<Hooks>,
    /// True if gRPC reflection is served. envoyproxy/ratelimit has no reflection.
    pub reflection: bool,
    /// TLS; `None` means plain text.
    pub tls: Option<Arc<Tls>>,
    /// The age limit of connections; `None` means no limit.
    pub age: Option<Age>,
}

/// The age limit of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    /// The age at which the server sends GOAWAY.
    pub most: Duration,
    /// The time from GOAWAY until the connection is closed; `None` means no limit.
    pub grace: Option<Duration>,
}

/// Serves `grpc` on `listener` until `shutdown`, then finishes the open calls.
///
/// It does not use tonic's own server: its router costs each call more than the decision does.
///
/// # Errors
/// The server cannot be set up.
pub async fn serve(
    listener: Listener,
    grpc: Grpc,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let ready = grpc.health.watch();
    report(&reporter, grpc.health.ready()).await;
    let (leave, leaving) = watch::channel(false);
    let (engine, hooks) = (Arc::clone(&grpc.engine), Arc::clone(&grpc.hooks));
    let places = Places::new(Arc::clone(&engine), grpc.reporting.clone(), leaving.clone());
    let ended = AccessLogs::new(Arc::clone(&engine), leaving.clone());
    let processor = Processor::new(engine, grpc.reporting.clone(), hooks, leaving);
    let limits = RateLimits::new(Arc::clone(&grpc.engine), grpc.reporting.clone());
    let whose = Arc::clone(&grpc.engine);
    let checks = Authorizations::new(grpc.engine, grpc.reporting, grpc.hooks);
    let life = grpc.age.and_then(|age| Some(age.most.saturating_add(age.grace?)));
    let incoming = Incoming::new(listener, grpc.tls, life, MOST_CONNECTIONS);
    let mut others = Routes::new(Surface(AuthorizationServer::new(checks), Protocol::ExtAuthz))
        .add_service(ExternalProcessorServer::new(processor))
        .add_service(ended)
        .add_service(Surface(PermitsServer::new(places), Protocol::Permits))
        .add_service(Timed(health, whose));
    if grpc.reflection {
        others = others.add_service(reflection()?);
    }
    let most = grpc.age.map(|age| age.most);
    let shutdown = until(shutdown, reporter, ready, leave);
    connections::serve(incoming, (limits, others.prepare()), most, shutdown).await;
    Ok(())
}

/// The reason why the gRPC port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The embedded protobuf descriptors are invalid.
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] ReflectionError),
}

/// Reports readiness until `shutdown`, then ends all health `Watch` calls and permit streams.
///
/// The server waits for open calls, and a `Watch` call never ends by
/// itself. Permit streams end without an error, so proxies see no failure.
async fn until(
    shutdown: impl Future<Output = ()>,
    mut reporter: HealthReporter,
    ready: watch::Receiver<Ready>,
    leave: watch::Sender<bool>,
) {
    tokio::select! {
        () = shutdown => {}
        () = mirror(&reporter, ready) => {}
    }
    leave.send_replace(true);
    for service in NAMED.into_iter().chain([""]) {
        reporter.clear_service_status(service).await;
    }
}

async fn mirror(reporter: &HealthReporter, mut ready: watch::Receiver<Ready>) {
    while ready.changed().await.is_ok() {
        let now = *ready.borrow_and_update();
        report(reporter, now).await;
    }
    std::future::pending::<()>().await;
}

/// Sets the health status of every service.
///
/// The unnamed service is the server itself. As in envoyproxy/ratelimit it is serving from the
/// start. Unlike there, it stops serving during a drain: a proxy may check health without a name.
async fn report(reporter: &HealthReporter, ready: Ready) {
    let serving = |yes| if yes { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in NAMED {
        reporter.set_service_status(service, serving(ready == Ready::Yes)).await;
    }
    reporter.set_service_status("", serving(ready != Ready::Draining)).await;
}

fn reflection() -> Result<ServerReflectionServer<impl ServerReflection>, ReflectionError> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(SERVICES)
        .register_encoded_file_descriptor_set(OURS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
}
