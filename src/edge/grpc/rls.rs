//! `envoy.service.ratelimit.v3.RateLimitService`: Envoy asks about a request.
//!
//! Guarantees: one question per call, one answer; an error carries no answer; where the caller says
//! how long it waits (`grpc-timeout`), the answer leaves before that.
//! Leaves out: everything but the order of its four steps.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::convert;
use crate::edge::{Reporting, outcome};
use crate::engine::{Answer, Engine, Refusal};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Answered, Asked, Protocol};

/// What of a caller's time is kept for the way back to it.
const MARGIN: Nanos = Nanos(2_000_000);

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

    async fn answer(
        &self,
        request: &RateLimitRequest,
        patience: Option<Nanos>,
    ) -> Result<Answer, Refusal> {
        let question = convert::question(request, &self.reporting)?;
        self.engine.decide_within(&question, patience).await
    }
}

/// How long the caller waits, less the margin or, where that is longer, half of it.
#[must_use]
pub fn patience(headers: &MetadataMap) -> Option<Nanos> {
    let whole = timeout(headers.get("grpc-timeout")?.to_str().ok()?)?;
    Some(whole.since(MARGIN).max(Nanos(whole.0 / 2)))
}

/// `20m` as 20 ms. Source: gRPC over HTTP/2, `Timeout`: at most eight digits and a unit.
fn timeout(text: &str) -> Option<Nanos> {
    let (value, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit: u64 = match unit {
        "H" => 3_600_000_000_000,
        "M" => 60_000_000_000,
        "S" => 1_000_000_000,
        "m" => 1_000_000,
        "u" => 1_000,
        "n" => 1,
        _ => return None,
    };
    let value: u64 = Some(value).filter(|value| value.len() <= 8)?.parse().ok()?;
    value.checked_mul(unit).map(Nanos)
}

#[tonic::async_trait]
impl RateLimitService for RateLimits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let patience = patience(request.metadata());
        let (request, decoded) = (request.into_inner(), self.engine.clock().now());
        let answer = self.answer(&request, patience).await;
        Asked { protocol: Protocol::Grpc, outcome: outcome(&answer) }.emit();
        let reply = match answer {
            Ok(answer) => Ok(Response::new(convert::reply(&request, &answer, &self.reporting))),
            Err(refused) => Err(convert::refusal(&refused)),
        };
        Answered { took: self.engine.clock().now().since(decoded) }.emit();
        reply
    }
}
