//! Serves the gRPC port: rate limits, `ext_authz`, `ext_proc`, permits, budgets, leases, access logs,
//! health and reflection.
//!
//! Guarantees:
//! - A vanished proxy with permit streams is detected within two seconds ([`PING_INTERVAL`] plus
//!   [`PERMIT_STREAM_PONG_TIMEOUT`]).
//! - Shutdown closes the listener at once, sends GOAWAY and finishes the open calls, without a time
//!   limit.

pub mod access_log;
mod bounded_body;
pub mod budgets;
mod call_batch;
pub mod call_timeout;
mod connections;
pub mod convert;
pub mod ext_authz;
pub mod ext_proc;
mod health_service;
pub mod incoming;
pub mod leases;
pub mod metadata;
pub mod peer;
pub mod peer_addresses;
pub mod permits;
mod ping_timer;
mod protobuf_fields;
mod reply_body;
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

use envoy_types::pb::envoy::service::auth::v3::authorization_server::AuthorizationServer;
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_server::ExternalProcessorServer;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Error as ReflectionError;
use tonic_reflection::server::v1::{ServerReflection, ServerReflectionServer};

use super::ReplyOptions;
use super::body_memory::BodyLimits;
use super::connection_gate::{ConnectionGate, ListenPort};
use super::health::Health;
use super::mirror::Mirror;
use crate::config::hooks::Hooks;
use crate::config::settings::ProxyAccess;
use crate::engine::Engine;
use crate::telemetry::event::Protocol;
use access_log::AccessLogService;
use budgets::BudgetsService;
use budgets::api::budgets_server::BudgetsServer;
use ext_authz::AuthorizationService;
use ext_proc::ExtProcService;
use health_service::HealthService;
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

/// The protobuf descriptors of Envoy's services for reflection, which the crate `envoy-types`
/// does not export. `tests/edge/grpc/reflection.rs` generates them and compares them with the crate.
const ENVOY_DESCRIPTORS: &[u8] = include_bytes!("../../../../proto/ratelimit.binpb");

const PERMITS_DESCRIPTORS: &[u8] = include_bytes!("../../../../proto/sluicegate/v1/permits.binpb");

const BUDGETS_DESCRIPTORS: &[u8] = include_bytes!("../../../../proto/sluicegate/v1/budgets.binpb");

const LEASES_DESCRIPTORS: &[u8] = include_bytes!("../../../../proto/sluicegate/v1/leases.binpb");

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
    let (drain, draining) = watch::channel(false);
    let health = HealthServer::new(HealthService::new(grpc.health.watch(), draining.clone()));
    let (engine, hooks) = (Arc::clone(&grpc.engine), Arc::clone(&grpc.hooks));
    let (reporting, bodies) = (grpc.reporting.clone(), grpc.bodies.clone());
    let permits_service = PermitsService::new(
        Arc::clone(&engine),
        reporting.clone(),
        bodies.clone(),
        draining.clone(),
    );
    let budgets = BudgetsService::new(Arc::clone(&engine), reporting.clone(), bodies.clone());
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
            .add_service(StatusCodeMapper(BudgetsServer::new(budgets), Protocol::Budgets))
            .add_service(StatusCodeMapper(LeasesServer::new(leases), Protocol::Leases))
            .add_service(TimedHealth(health, health_engine));
    if grpc.reflection {
        routes = routes.add_service(reflection()?);
    }
    let max_age = grpc.connection_age.map(|age| age.max_age);
    // Ends health `Watch` calls and permit streams, which would otherwise never end. Permit streams
    // end without an error.
    let shutdown = async move {
        shutdown.await;
        drain.send_replace(true);
    };
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

fn reflection() -> Result<ServerReflectionServer<impl ServerReflection>, ReflectionError> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(ENVOY_DESCRIPTORS)
        .register_encoded_file_descriptor_set(PERMITS_DESCRIPTORS)
        .register_encoded_file_descriptor_set(BUDGETS_DESCRIPTORS)
        .register_encoded_file_descriptor_set(LEASES_DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
}
