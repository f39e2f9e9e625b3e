//! Serves the gRPC port: rate limits, `ext_authz`, `ext_proc`, permits, leases, access logs, health
//! and reflection.
//!
//! Guarantees:
//! - A vanished proxy with permit streams is detected within two seconds ([`PING_INTERVAL`] plus
//!   [`PERMIT_STREAM_PONG_TIMEOUT`]).
//! - Shutdown closes the listener at once, sends GOAWAY and finishes the open calls, without a time
//!   limit.

pub mod access_log;
mod bounded_body;
mod connections;
pub mod convert;
pub mod ext_authz;
pub mod ext_proc;
pub mod incoming;
pub mod leases;
pub mod metadata;
pub mod peer;
pub mod peer_addresses;
pub mod permits;
mod ping_timer;
mod protobuf_fields;
pub mod reserved_keys;
pub mod rls;
pub mod rls_codec;
mod router;
pub mod status_codes;
mod timed_health;
mod timeouts;
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

use super::ReplyOptions;
use super::body_memory::BodyLimits;
use super::connection_gate::{ConnectionGate, ListenPort};
use super::health::{Health, Readiness};
use super::mirror::Mirror;
use crate::config::hooks::Hooks;
use crate::config::settings::ProxyAccess;
use crate::engine::Engine;
use crate::telemetry::event::Protocol;
use access_log::AccessLogService;
use ext_authz::AuthorizationService;
use ext_proc::ExtProcService;
use incoming::{GrpcListener, IncomingConnections};
use leases::LeasesService;
use permits::PermitsService;
use permits::api::permits_server::PermitsServer;
use rls::RateLimitService;
use sluicegate_lease_protocol::api::leases_server::LeasesServer;
use status_codes::StatusCodeMapper;
use timed_health::TimedHealth;
pub use timeouts::{
    GrpcTimeouts, IDLE_PING_INTERVAL, PERMIT_STREAM_PONG_TIMEOUT, PING_INTERVAL, PONG_TIMEOUT,
};
use tls::ServerTls;

/// The service name in gRPC health checks for the whole process, as in envoyproxy/ratelimit.
const PROCESS_SERVICE: &str = "ratelimit";

const HEALTH_SERVICES: [&str; 3] = [PROCESS_SERVICE, RATE_LIMITS, AUTHORIZATION];

/// The protobuf descriptors of Envoy's services for reflection, which the crate `envoy-types`
/// does not export. `tests/edge/grpc/reflection.rs` generates them and compares them with the crate.
const ENVOY_DESCRIPTORS: &[u8] = include_bytes!("../../../proto/ratelimit.binpb");

const PERMITS_DESCRIPTORS: &[u8] = include_bytes!("../../../proto/sluicegate/v1/permits.binpb");

const LEASES_DESCRIPTORS: &[u8] = include_bytes!("../../../proto/sluicegate/v1/leases.binpb");

#[derive(Clone, Debug)]
/// The dependencies and options of the gRPC port.
pub struct GrpcPort {
    /// The engine that decides checks.
    pub engine: Arc<Engine>,
    /// The optional contents of replies to checks.
    pub reporting: ReplyOptions,
    /// The readiness that health checks report.
    pub health: Health,
    /// The hooks of `ext_authz` and `ext_proc`.
    pub hooks: Arc<Hooks>,
    /// `true` to serve gRPC reflection, which envoyproxy/ratelimit does not have.
    pub reflection: bool,
    /// The TLS configuration; `None` means plain text.
    pub tls: Option<Arc<ServerTls>>,
    /// The largest number of open connections. Envoy opens one per worker thread.
    pub max_connections: usize,
    /// The age limit of connections; `None` means no limit.
    pub connection_age: Option<ConnectionAge>,
    /// The mirror, which gets a sample of the checks; `None` means no mirror.
    pub mirror: Option<Mirror>,
    /// The clients that `sluicegate.v1.Leases` serves.
    pub proxies: ProxyAccess,
    /// The bounds on messages, which the HTTP port shares.
    pub bodies: BodyLimits,
}

/// The age limit of a connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionAge {
    /// The age at which the server sends GOAWAY.
    pub max_age: Duration,
    /// The time from GOAWAY until the connection is closed; `None` means no limit.
    pub grace: Option<Duration>,
}

/// Serves the gRPC port on `listener` until `shutdown`, then finishes the open calls. Avoids
/// tonic's server, whose router takes longer than a decision.
///
/// # Errors
/// [`GrpcPortError`] if the embedded protobuf descriptors are invalid.
pub async fn serve(
    listener: GrpcListener,
    grpc: GrpcPort,
    shutdown: impl Future<Output = ()>,
) -> Result<(), GrpcPortError> {
    serve_with_timeouts(listener, grpc, GrpcTimeouts::default(), shutdown).await
}

/// As [`serve`], with other timeouts.
///
/// # Errors
/// [`GrpcPortError`] if the embedded protobuf descriptors are invalid.
pub async fn serve_with_timeouts(
    listener: GrpcListener,
    grpc: GrpcPort,
    timeouts: GrpcTimeouts,
    shutdown: impl Future<Output = ()>,
) -> Result<(), GrpcPortError> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let readiness = grpc.health.watch();
    set_serving_status(&reporter, grpc.health.readiness()).await;
    let (drain, draining) = watch::channel(false);
    let (engine, hooks) = (Arc::clone(&grpc.engine), Arc::clone(&grpc.hooks));
    let (reporting, bodies) = (grpc.reporting.clone(), grpc.bodies.clone());
    let permits_service = PermitsService::new(
        Arc::clone(&engine),
        reporting.clone(),
        bodies.clone(),
        draining.clone(),
    );
    let leases = LeasesService::new(Arc::clone(&engine), grpc.proxies, draining.clone());
    let access_logs = AccessLogService::new(Arc::clone(&engine), draining.clone());
    let processor = ExtProcService::new(engine, (reporting, hooks), bodies, draining);
    let limits = RateLimitService::new(Arc::clone(&grpc.engine), grpc.reporting.clone())
        .with_mirror(grpc.mirror);
    let health_engine = Arc::clone(&grpc.engine);
    let checks = AuthorizationService::new(grpc.engine, grpc.reporting, grpc.hooks);
    let max_lifetime =
        grpc.connection_age.and_then(|age| Some(age.max_age.saturating_add(age.grace?)));
    let gate = ConnectionGate::new(ListenPort::Grpc, grpc.max_connections);
    let times = (max_lifetime, timeouts);
    let incoming = IncomingConnections::with_timeouts(listener, grpc.tls, times, gate);
    let mut routes =
        Routes::new(StatusCodeMapper(AuthorizationServer::new(checks), Protocol::ExtAuthz))
            .add_service(ExternalProcessorServer::new(processor))
            .add_service(access_logs)
            .add_service(StatusCodeMapper(PermitsServer::new(permits_service), Protocol::Permits))
            .add_service(StatusCodeMapper(LeasesServer::new(leases), Protocol::Leases))
            .add_service(TimedHealth(health, health_engine));
    if grpc.reflection {
        routes = routes.add_service(reflection()?);
    }
    let max_age = grpc.connection_age.map(|age| age.max_age);
    let shutdown = report_until_shutdown(shutdown, reporter, readiness, drain);
    let services = (limits, routes.prepare(), grpc.bodies);
    connections::serve(incoming, services, max_age, shutdown).await;
    Ok(())
}

/// The reason why the gRPC port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum GrpcPortError {
    /// The embedded protobuf descriptors are invalid.
    #[error("gRPC reflection: {0}")]
    Reflection(#[from] ReflectionError),
}

/// Reports the readiness to the health service until `shutdown`. Then ends health `Watch` calls and
/// permit streams, which would otherwise never end. Permit streams end without an error.
async fn report_until_shutdown(
    shutdown: impl Future<Output = ()>,
    mut reporter: HealthReporter,
    readiness: watch::Receiver<Readiness>,
    drain: watch::Sender<bool>,
) {
    tokio::select! {
        () = shutdown => {}
        () = mirror_readiness(&reporter, readiness) => {}
    }
    drain.send_replace(true);
    for service in HEALTH_SERVICES.into_iter().chain([""]) {
        reporter.clear_service_status(service).await;
    }
}

async fn mirror_readiness(reporter: &HealthReporter, mut readiness: watch::Receiver<Readiness>) {
    while readiness.changed().await.is_ok() {
        let new_readiness = *readiness.borrow_and_update();
        set_serving_status(reporter, new_readiness).await;
    }
    std::future::pending::<()>().await;
}

/// Sets the gRPC health status of every service.
///
/// The service with the empty name is the server itself. It is `SERVING` from the start, as in
/// envoyproxy/ratelimit, and `NOT_SERVING` during a drain, because some proxies check only it.
async fn set_serving_status(reporter: &HealthReporter, readiness: Readiness) {
    let serving =
        |is_serving| if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in HEALTH_SERVICES {
        reporter.set_service_status(service, serving(readiness == Readiness::Ready)).await;
    }
    reporter.set_service_status("", serving(readiness != Readiness::Draining)).await;
}

fn reflection() -> Result<ServerReflectionServer<impl ServerReflection>, ReflectionError> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(ENVOY_DESCRIPTORS)
        .register_encoded_file_descriptor_set(PERMITS_DESCRIPTORS)
        .register_encoded_file_descriptor_set(LEASES_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
}
