//! Serves gRPC health checks (`grpc.health.v1.Health`).
//!
//! Guarantees:
//! - `Watch` of an unknown service replies `SERVICE_UNKNOWN` and stays open, as the protocol says.
//! - `Watch` sends a status only if it changed.
//! - Shutdown ends all `Watch` calls, which would otherwise delay it.

use std::pin::Pin;

use envoy_types::pb::envoy::service::auth::v3::authorization_server::SERVICE_NAME as AUTHORIZATION;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME as RATE_LIMITS;
use futures_util::stream::{self, Stream};
use tokio::sync::watch;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::health::Readiness;

/// The service name in gRPC health checks for the whole process, as in envoyproxy/ratelimit.
const PROCESS_SERVICE: &str = "ratelimit";

type StatusReply = Result<HealthCheckResponse, Status>;

#[derive(Clone, Debug)]
pub(super) struct HealthService {
    readiness: watch::Receiver<Readiness>,
    draining: watch::Receiver<bool>,
}

/// The service that a health check names.
#[derive(Clone, Copy)]
enum CheckedService {
    /// The empty name: the server itself. It serves from the start, as in envoyproxy/ratelimit, and
    /// no longer during a drain, because some proxies check only it.
    Server,
    /// A service that serves while this process is ready.
    Checks,
    Unknown,
}

impl CheckedService {
    fn named(name: &str) -> Self {
        match name {
            "" => Self::Server,
            PROCESS_SERVICE | RATE_LIMITS | AUTHORIZATION => Self::Checks,
            _ => Self::Unknown,
        }
    }

    const fn status(self, readiness: Readiness) -> ServingStatus {
        let is_serving = match self {
            Self::Server => !matches!(readiness, Readiness::Draining),
            Self::Checks => matches!(readiness, Readiness::Ready),
            Self::Unknown => return ServingStatus::ServiceUnknown,
        };
        if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

impl HealthService {
    pub(super) const fn new(
        readiness: watch::Receiver<Readiness>,
        draining: watch::Receiver<bool>,
    ) -> Self {
        Self { readiness, draining }
    }

    /// Waits for a change of the readiness. Returns `None` if this process drains first.
    async fn changed(&mut self) -> Option<()> {
        tokio::select! {
            biased;
            Ok(()) = self.readiness.changed() => Some(()),
            _ = self.draining.wait_for(|is_draining| *is_draining) => None,
        }
    }

    /// Returns the next status that differs from `last`.
    async fn next_status(
        &mut self,
        service: CheckedService,
        last: Option<ServingStatus>,
    ) -> Option<ServingStatus> {
        loop {
            let status = service.status(*self.readiness.borrow_and_update());
            if last != Some(status) {
                return Some(status);
            }
            self.changed().await?;
        }
    }
}

#[async_trait]
impl Health for HealthService {
    type WatchStream = Pin<Box<dyn Stream<Item = StatusReply> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = CheckedService::named(&request.get_ref().service);
        match service.status(*self.readiness.borrow()) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("unknown service")),
            status => Ok(Response::new(response(status))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let service = CheckedService::named(&request.get_ref().service);
        let statuses = stream::unfold((self.clone(), None), move |(mut health, last)| async move {
            let status = health.next_status(service, last).await?;
            Some((Ok(response(status)), (health, Some(status))))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}
