//! `envoy.service.ratelimit.v3.RateLimitService`: rate limit checks from Envoy.
//!
//! Guarantees:
//! - Each call gets one decision or one error.
//! - If the call has a `grpc-timeout`, the reply leaves before the timeout.
//!
//! Not covered:
//! - Reading and writing messages (see [`convert`]); deciding (see [`Engine`]).

use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::metadata::MetadataMap;
use tonic::{Response, Status};

use super::reserved::Call;
use super::{convert, reserved};
use crate::edge::{Reporting, outcome, tell};
use crate::engine::admit::with_wait;
use crate::engine::peers::Told;
use crate::engine::{Admitted, Answer, Engine, Refusal};
use crate::kernel::decision::{Question, Verdict};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Answered, Asked, Outcome, Protocol};
use crate::telemetry::stats::Method;
use crate::telemetry::trace;

/// The part of a caller's timeout that is reserved for sending the reply.
const MARGIN: Nanos = Nanos(2_000_000);

type Replied = Result<(RateLimitResponse, Outcome), Refusal>;

/// The service, for one client.
#[derive(Clone, Debug)]
pub struct RateLimits {
    engine: Arc<Engine>,
    reporting: Arc<Reporting>,
    source: Option<IpAddr>,
}

impl RateLimits {
    /// Creates the service over `engine`.
    #[must_use]
    pub fn new(engine: Arc<Engine>, reporting: Reporting) -> Self {
        Self { engine, reporting: Arc::new(reporting), source: None }
    }

    /// Returns the service for a client at `source`.
    #[must_use]
    pub fn asked_by(&self, source: Option<IpAddr>) -> Self {
        Self { source, ..self.clone() }
    }

    /// Decides `request`; `metadata` contains the call's headers.
    ///
    /// # Errors
    /// The gRPC status of a request that is refused.
    pub async fn answer(
        &self,
        metadata: &MetadataMap,
        mut request: RateLimitRequest,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let came = self.engine.clock().now();
        let header = |name: &str| metadata.get(name)?.to_str().ok();
        let span = trace::question(Protocol::Grpc, &header);
        let call = reserved::take_off(&mut request);
        if call == Ok(Call::Plain) {
            let decided = async {
                let replied = self.check(&request, patience(metadata)).await;
                self.told(replied, (came, Nanos(0)))
            };
            return span.around(decided).await;
        }
        // Boxed because the future is large and most calls end before they need it.
        Box::pin(span.around(async {
            let (replied, queued) = match call {
                Ok(call) => with_wait(self.reply((call, &request), patience(metadata))).await,
                Err(refusal) => (Err(refusal), Nanos(0)),
            };
            self.told(replied, (came, queued))
        }))
        .await
    }

    pub(super) fn refuse(&self, refusal: Refusal) -> Result<Response<RateLimitResponse>, Status> {
        self.told(Err(refusal), (self.engine.clock().now(), Nanos(0)))
    }

    /// Decides a check without reserved keys.
    async fn check(&self, request: &RateLimitRequest, timeout: Option<Nanos>) -> Replied {
        let question = convert::question(request, &self.reporting)?;
        let answer = self.engine.decide_within(&question, timeout).await?;
        Ok(self.shown(request, &answer))
    }

    /// Decides the call, or applies its release, within `patience`.
    async fn reply(
        &self,
        (call, request): (Call, &RateLimitRequest),
        patience: Option<Nanos>,
    ) -> Replied {
        match call {
            Call::Plain => self.check(request, patience).await,
            Call::Acquire { id, covered } => {
                let mut replied = self.acquire(request, (&id, &covered), patience).await?;
                if let Some(owner) = self.engine.owner() {
                    convert::name_owner(&mut replied.0, owner);
                }
                Ok(replied)
            }
            Call::Release { id, owner, outcome, rtt } => {
                self.engine.tell(Told::ended(&id, self.source, outcome, rtt), owner.as_deref());
                Ok((convert::released(request), Outcome::Admit))
            }
        }
    }

    async fn acquire(
        &self,
        request: &RateLimitRequest,
        (id, covered): (&str, &[usize]),
        patience: Option<Nanos>,
    ) -> Replied {
        let question = convert::question(request, &self.reporting);
        let question = question.inspect_err(|_| self.engine.pass_by(id))?;
        let under = covered.iter().filter_map(|&at| question.descriptors.get(at).cloned());
        let under = Question { domain: question.domain, descriptors: under.collect() };
        let first = covered.first().copied().unwrap_or_default();
        match self.engine.acquire((id, first), &under, &question, patience).await? {
            Admitted::Decided(answer, _) => Ok(self.shown(request, &answer)),
            Admitted::Rejected(rejection) => {
                Ok((convert::rejection(request, covered, &rejection), Outcome::Deny))
            }
        }
    }

    fn shown(&self, request: &RateLimitRequest, answer: &Answer) -> (RateLimitResponse, Outcome) {
        let outcome = match answer.verdict {
            Verdict::Admit => Outcome::Admit,
            Verdict::Deny => Outcome::Deny,
        };
        (convert::reply(request, answer, &self.reporting), outcome)
    }

    /// Converts the reply and counts the call. `came` is its arrival, `queued` the time in queues.
    fn told(
        &self,
        replied: Replied,
        (came, queued): (Nanos, Nanos),
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (reply, outcome) = match replied {
            Ok((reply, outcome)) => (Ok(Response::new(reply)), outcome),
            Err(refused) => {
                tell(&self.engine, &refused);
                (Err(convert::refusal(&refused)), outcome(&Err(refused)))
            }
        };
        Asked { protocol: Protocol::Grpc, outcome }.emit();
        let now = self.engine.clock().now();
        Answered { came, at: now, queued }.emit();
        if let Some(stats) = self.engine.stats() {
            stats.called(Method::ShouldRateLimit, now, now.since(came));
        }
        reply
    }
}

/// Returns the caller's `grpc-timeout` minus 2 ms, but at least half of it.
#[must_use]
pub fn patience(headers: &MetadataMap) -> Option<Nanos> {
    let whole = timeout(headers.get("grpc-timeout")?.to_str().ok()?)?;
    Some(whole.since(MARGIN).max(Nanos(whole.0 / 2)))
}

/// Parses a gRPC timeout: `20m` is 20 ms. At most eight digits
/// and a unit, as in the specification "gRPC over HTTP/2".
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
