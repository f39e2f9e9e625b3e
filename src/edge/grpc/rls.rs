//! `envoy.service.ratelimit.v3.RateLimitService`: Envoy asks about a request.
//!
//! Guarantees: one question per call, one answer; an error carries no answer.
//! Leaves out: everything but the order of its four steps.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use super::convert;
use crate::edge::{Reporting, outcome};
use crate::engine::{Answer, Engine, Refusal};
use crate::telemetry::event::{Asked, Protocol};

/// The service.
#[derive(Debug)]
pub struct RateLimits {
    engine: Arc<Engine>,
    reporting: Reporting,
}

impl RateLimits {
    /// The service over `engine`.
    #[must_use]
    pub const fn new(engine: Arc<Engine>, reporting: Reporting) -> Self {
        Self { engine, reporting }
    }

    async fn answer(&self, request: &RateLimitRequest) -> Result<Answer, Refusal> {
        self.engine.decide(&convert::question(request, &self.reporting)?).await
    }
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let answer = self.answer(&request).await;
        Asked { protocol: Protocol::Grpc, outcome: outcome(&answer) }.emit();
        let answer = answer.map_err(|refused| convert::refusal(&refused))?;
        Ok(Response::new(convert::reply(&request, &answer, &self.reporting)))
    }
}
