//! Sends checks over gRPC: `envoy.service.ratelimit.v3.RateLimitService`.

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

/// Sends checks over one gRPC connection, which is made again after a loss.
#[derive(Clone, Debug)]
pub struct GrpcSender {
    client: RateLimitServiceClient<Channel>,
}

impl GrpcSender {
    /// Creates the sender of a connection.
    #[must_use]
    pub fn new(channel: Channel) -> Self {
        let client = RateLimitServiceClient::new(channel);
        Self { client: client.max_decoding_message_size(MAX_REPLY_BYTES) }
    }

    /// Sends a check and waits for its reply.
    pub async fn send(&mut self, check: BenchCheck) -> AnswerCode {
        match self.client.should_rate_limit(to_message(check)).await {
            Ok(reply) => match Code::try_from(reply.get_ref().overall_code) {
                Ok(Code::Ok) => AnswerCode::Allow,
                Ok(Code::OverLimit) => AnswerCode::Deny,
                _ => AnswerCode::NoDecision,
            },
            Err(status) => code_of(&status),
        }
    }
}

/// A status with a cause is from this side of the connection.
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
        // Not of each descriptor: older servers do not read that.
        hits_addend: check.hits,
    }
}
