//! The budgets of one `ext_proc` stream: reads the usage from the response, and settles at its end.
//!
//! Guarantees:
//! - A response that ended with its usage settles the used tokens.
//! - An error of the provider (status 400 to 599) without usage costs nothing.
//! - Every other end charges the held amount: an aborted response, or one without usage.
//! - While the stream is open, its holds are renewed.
//!
//! Not covered:
//! - Compressed responses: the request is sent without `accept-encoding`.
//! - A replica that drains or dies: the holds expire.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use ring::rand::SystemRandom;
use sluicegate_usage::UsageReader;
use tonic::Status;

use super::header_lines::{HeaderLines, headers_by_name};
use crate::ReplyOptions;
use crate::body_memory::{BodyLimits, BodyMemory};
use crate::config::prices::TokenCounts;
use crate::engine::Engine;
use crate::engine::budgets::RequestUsage;
use crate::grpc::bounded_body::memory_full;
use crate::grpc::convert;
use crate::permits::ReservedPart;

/// The holds of a stream. Dropping them settles them.
pub(super) struct StreamHolds {
    engine: Arc<Engine>,
    options: Arc<ReplyOptions>,
    request: RateLimitRequest,
    id: String,
    renew_every: Duration,
    /// What the request used so far. `None` leaves the holds to their expiry.
    pub(super) usage: Option<RequestUsage>,
    /// The memory of `request`.
    _memory: Arc<BodyMemory>,
}

/// Reads the response of a stream.
#[derive(Default)]
pub(super) struct ResponseUsage {
    status: Option<u16>,
    reader: Option<UsageReader>,
    is_complete: bool,
}

impl ResponseUsage {
    /// Reads a message of the response.
    pub(super) fn read(&mut self, message: &ProcessingRequest) {
        match &message.request {
            Some(Message::ResponseHeaders(message)) => {
                let headers = headers_by_name(message.headers.as_ref());
                let text = |name| headers.get(name).map(HeaderLines::first);
                self.status = text(":status").and_then(|status| status.parse().ok());
                self.reader = text("content-type").and_then(UsageReader::new);
                self.is_complete |= message.end_of_stream;
            }
            Some(Message::ResponseBody(body)) => {
                if let Some(reader) = &mut self.reader {
                    reader.push(&body.body);
                }
                self.is_complete |= body.end_of_stream;
            }
            Some(Message::ResponseTrailers(_)) => self.is_complete = true,
            _ => {}
        }
    }

    /// Returns what the request used, at the end of the stream.
    pub(super) fn usage(&self) -> RequestUsage {
        let reader = self.reader.as_ref().filter(|_| self.is_complete);
        match (reader.and_then(token_counts), self.status) {
            (Some(tokens), _) => RequestUsage::Tokens(tokens),
            (None, Some(400..=599)) => RequestUsage::Nothing,
            (None, _) => RequestUsage::Unknown,
        }
    }
}

/// Returns the usage of a complete reply. `None` if its input or output is unknown: a stream of events
/// may end before its output is reported. One JSON text without output, as of embeddings, used none.
fn token_counts(reader: &UsageReader) -> Option<TokenCounts> {
    let usage = reader.usage();
    let none = (!reader.has_events()).then_some(0);
    let (input, output) = (usage.input?, usage.output.or(none)?);
    let cached_input = usage.cached_input.unwrap_or(0).min(input);
    let input = input.saturating_sub(cached_input);
    let tokens = TokenCounts { input, cached_input, output, any: 0 };
    (0 < tokens.total()).then_some(tokens)
}

impl StreamHolds {
    /// Creates the holds of a request that reserves under `id`. `None` if it meets no budget.
    pub(super) fn new(
        (engine, options): (&Arc<Engine>, &Arc<ReplyOptions>),
        request: &RateLimitRequest,
        bodies: &BodyLimits,
    ) -> Result<Option<Self>, Status> {
        let check = convert::to_check(request, options).ok();
        let renew_every = check.and_then(|check| engine.renewal_interval_of_holds(&check));
        let Some(renew_every) = renew_every else { return Ok(None) };
        let memory = bodies.charge(convert::memory_bytes(request)).map_err(memory_full)?;
        let id = random_id().ok_or_else(|| Status::internal("no random numbers"))?;
        Ok(Some(Self {
            engine: Arc::clone(engine),
            options: Arc::clone(options),
            request: request.clone(),
            id,
            renew_every: Duration::from_nanos(renew_every.0),
            // Until Envoy has the reply, nothing is sent to the provider.
            usage: Some(RequestUsage::Nothing),
            _memory: memory,
        }))
    }

    /// The reserve of the request.
    pub(super) fn reserve(&self) -> ReservedPart<'_> {
        ReservedPart { id: &self.id, budgets: None, tokens: None }
    }

    /// Renews the holds for as long as the stream is open.
    pub(super) async fn renew(&self) {
        loop {
            tokio::time::sleep(self.renew_every).await;
            if let Ok(check) = convert::to_check(&self.request, &self.options) {
                // If the store fails, the next renewal may be in time.
                drop(self.engine.renew_budgets(&check, &self.id, None).await);
            }
        }
    }
}

impl Drop for StreamHolds {
    fn drop(&mut self) {
        let (Some(usage), Ok(runtime)) = (self.usage, tokio::runtime::Handle::try_current()) else {
            return;
        };
        let (engine, options) = (Arc::clone(&self.engine), Arc::clone(&self.options));
        let (request, id) = (std::mem::take(&mut self.request), std::mem::take(&mut self.id));
        runtime.spawn(async move {
            if let Ok(check) = convert::to_check(&request, &options)
                && let Err(error) = engine.settle(&check, &id, usage, None).await
            {
                // The holds expire.
                engine.log_refusal(&request.domain, &error);
            }
        });
    }
}

/// Returns an id that no other request has.
fn random_id() -> Option<String> {
    let random = ring::rand::generate::<[u8; 16]>(&SystemRandom::new()).ok()?;
    Some(format!("{:032x}", u128::from_ne_bytes(random.expose())))
}
