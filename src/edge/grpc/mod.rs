//! The gRPC port: rate limits, `ext_authz`, requests in flight and their ends, health, reflection.
//!
//! Guarantees: proxies that vanish are noticed ([`PING_AFTER`], [`PONG_WITHIN`]); at shutdown the listener closes at
//! once, every connection is told (GOAWAY) and every call under way is finished.
//! Leaves out: any limit on how long the finishing may take.

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

/// After how long a silent proxy is pinged…
pub const PING_AFTER: Duration = Duration::from_millis(500);
/// …and how long nothing may come after that, the answer or anything else, of a proxy with a stream of requests in flight.
/// Without it one whose machine died keeps its connection here for as long as the kernel likes, hours, and with it the
/// permits of its requests: they are free again after both, two seconds.
pub const PONG_WITHIN: Duration = Duration::from_millis(1_500);
/// How long a ping may stay without its own answer, whatever else comes: who sends and never answers is no client. As long
/// may nothing come of who holds no stream of requests in flight: a proxy that stands still for seconds asks on.
pub const PONG_AT_LAST: Duration = Duration::from_secs(20);

/// Most connections at one time: a proxy has one for each of its threads.
const MOST_CONNECTIONS: usize = 65_536;

/// Health's name for the whole process, as the reference spells it.
const PROCESS: &str = "ratelimit";

/// What health knows by name.
const NAMED: [&str; 3] = [PROCESS, RATE_LIMITS, AUTHORIZATION];

/// The descriptors of the services, which `envoy-types` does not export.
/// `tests/edge/reflection.rs` makes them, and compares them with that crate's.
const SERVICES: &[u8] = include_bytes!("../../../proto/ratelimit.binpb");

/// The descriptors of our own service.
const OURS: &[u8] = include_bytes!("../../../proto/sluicegate/v1/permits.binpb");

/// What the gRPC port serves.
#[derive(Clone, Debug)]
pub struct Grpc {
    /// Answers.
    pub engine: Arc<Engine>,
    /// What answers show.
    pub reporting: Reporting,
    /// What health checks show.
    pub health: Health,
    /// What `ext_authz` and `ext_proc` ask about.
    pub hooks: Arc<Hooks>,
    /// Whether the services can be listed. The reference has no reflection.
    pub reflection: bool,
    /// TLS; plain text without.
    pub tls: Option<Arc<Tls>>,
    /// When a connection is told to go; never without.
    pub age: Option<Age>,
}

/// How long a connection may last.
#[derive(Clone, Copy, Debug)]
pub struct Age {
    /// After this it is told to go (GOAWAY).
    pub most: Duration,
    /// How long its calls have then, before it is closed; any time without.
    pub grace: Option<Duration>,
}

/// Serves `grpc` on `listener` until `shutdown`, then finishes what is under way.
///
/// Not by tonic's own server: its router costs each call more than the decision does.
///
/// # Errors
/// When the server cannot be set up.
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

/// Why the gRPC port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The descriptors within this program are broken.
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] ReflectionError),
}

/// Shows readiness until `shutdown`, and then ends health's open `Watch` calls with the server: it waits for every call, and
/// they never end. The streams of requests in flight end as well, in order, which no proxy takes for a failure.
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

/// Shows every change of readiness; never ends.
async fn mirror(reporter: &HealthReporter, mut ready: watch::Receiver<Ready>) {
    while ready.changed().await.is_ok() {
        let now = *ready.borrow_and_update();
        report(reporter, now).await;
    }
    std::future::pending::<()>().await;
}

/// The unnamed service is the server itself: it serves, as in the reference, until it drains. Then
/// it does not, unlike the reference: a proxy that checks without a name must leave as well.
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
