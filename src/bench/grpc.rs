//! Sends checks over gRPC: `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::{Arc, OnceLock};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tonic::Status;
use tonic::transport::Channel;

use super::answer::AnswerCode;
use super::checks::{BenchCheck, Entries};

/// The largest reply. A longer one is an error.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// The longest text of an error, in characters.
const MAX_ERROR_CHARS: usize = 200;

/// Sends checks over one gRPC connection, which is made again after a loss.
#[derive(Clone, Debug)]
pub struct GrpcSender {
    client: RateLimitServiceClient<Channel>,
    first_error: FirstError,
}

/// The first error of all senders, as text of at most [`MAX_ERROR_CHARS`] characters.
pub type FirstError = Arc<OnceLock<String>>;

impl GrpcSender {
    /// Creates the sender of a connection.
    #[must_use]
    pub fn new(channel: Channel, first_error: FirstError) -> Self {
        let client = RateLimitServiceClient::new(channel);
        Self { client: client.max_decoding_message_size(MAX_REPLY_BYTES), first_error }
    }

    /// Sends a check and waits for its reply.
    pub async fn send(&mut self, check: BenchCheck) -> AnswerCode {
        match self.client.should_rate_limit(to_message(check)).await {
            Ok(reply) => match Code::try_from(reply.get_ref().overall_code) {
                Ok(Code::Ok) => AnswerCode::Allow,
                Ok(Code::OverLimit) => AnswerCode::Deny,
                _ => AnswerCode::NoDecision,
            },
            Err(status) => {
                self.first_error.get_or_init(|| error_text(&status));
                code_of(&status)
            }
        }
    }
}

fn error_text(status: &Status) -> String {
    let message: String = status.message().chars().take(MAX_ERROR_CHARS).collect();
    format!("{}: {}", code_of(status), message.escape_debug())
}

/// tonic gives a cause only to a status of its own, such as of a lost connection.
fn code_of(status: &Status) -> AnswerCode {
    match std::error::Error::source(status) {
        Some(_) => AnswerCode::TransportError,
        None => AnswerCode::Grpc(status.code().into()),
    }
}

fn to_message(check: BenchCheck) -> RateLimitRequest {
    let entry = |(key, value)| Entry { key, value };
    let descriptor = |entries: Entries| RateLimitDescriptor {
        entries: entries.into_iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: check.domain,
        descriptors: check.descriptors.into_iter().map(descriptor).collect(),
        // The field of the request: older servers ignore that of a descriptor.
        hits_addend: check.hits,
    }
}
