//! A request with permits, from its admission to its end.
//!
//! | Envoy's response code details | outcome of the request |
//! |---|---|
//! | `via_upstream`, complete response | the rules of the limit decide by status and gRPC code |
//! | `via_upstream`, incomplete response | the same, but never a success |
//! | the upstream failed or timed out | dropped |
//! | the client left, or Envoy responded | ignored |
//!
//! Guarantees:
//! - The permits are released once: at the end of the stream, or when the filter is destroyed.
//! - The latency ends with the last byte of the upstream, not of the client.
//!
//! Source of the details: Envoy's documentation, "Response Code Details".

use crate::limiter::Permits;
use crate::stream::{EnvoyStream, HeaderMap};
use sluicegate_proxy::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use sluicegate_proxy::kernel::units::Nanos;

/// The beginnings of details that mean a failed upstream.
const UPSTREAM_FAILURES: [&[u8]; 3] = [b"upstream_", b"no_healthy_upstream", b"response_timeout"];

/// A request with permits.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    permits: Permits,
    answer: UpstreamAnswer,
    latency: Option<Nanos>,
}

impl InFlightRequest {
    /// Returns `None` for a request without permits.
    pub(crate) fn new(permits: Permits) -> Option<Self> {
        let is_limited = !permits.is_empty();
        is_limited.then(|| Self { permits, answer: UpstreamAnswer::default(), latency: None })
    }

    pub(crate) fn on_response_headers(&mut self, stream: &impl EnvoyStream, is_end: bool) {
        let map = HeaderMap::Response;
        self.answer = UpstreamAnswer {
            http: number(stream, map, ":status"),
            grpc: number(stream, map, "grpc-status"),
            has_latency: false,
            retry_after: number(stream, map, "retry-after")
                .map(|seconds: u32| Nanos::from_secs(seconds.into())),
        };
        self.on_response_data(is_end);
    }

    pub(crate) fn on_response_trailers(&mut self, stream: &impl EnvoyStream) {
        let grpc = number(stream, HeaderMap::ResponseTrailers, "grpc-status");
        self.answer.grpc = grpc.or(self.answer.grpc);
        self.on_response_data(true);
    }

    /// Ends the latency with the last part of the response.
    pub(crate) fn on_response_data(&mut self, is_end: bool) {
        if is_end {
            self.latency = self.permits.age();
        }
    }

    /// Releases the permits at the end of the stream.
    pub(crate) fn release(self, stream: &impl EnvoyStream) {
        let answer = UpstreamAnswer { has_latency: self.latency.is_some(), ..self.answer };
        let details = stream.response_code_details().unwrap_or_default();
        self.permits.release(outcome(details, answer), self.latency);
    }
}

fn outcome(details: &[u8], answer: UpstreamAnswer) -> ReportedOutcome {
    if details == b"via_upstream" {
        return ReportedOutcome::Answered(answer);
    }
    let has_failed = UPSTREAM_FAILURES.iter().any(|failure| details.starts_with(failure));
    if has_failed { RequestOutcome::Dropped } else { RequestOutcome::Ignored }.into()
}

/// Returns the first value of a header as a number.
fn number<T: std::str::FromStr>(
    stream: &impl EnvoyStream,
    map: HeaderMap,
    name: &str,
) -> Option<T> {
    let value = stream.header(map, name, 0)?.bytes;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use sluicegate_proxy::kernel::concurrency::OverloadAnswers;

    use super::*;

    #[test]
    fn the_details_decide_the_outcome() {
        let answer = |http, has_latency| UpstreamAnswer {
            http: Some(http),
            has_latency,
            ..UpstreamAnswer::default()
        };
        let rows = [
            ("via_upstream", answer(200, true), RequestOutcome::Success),
            ("via_upstream", answer(200, false), RequestOutcome::Ignored),
            ("via_upstream", answer(503, true), RequestOutcome::Dropped),
            (
                "upstream_reset_before_response_started{overflow}",
                answer(503, true),
                RequestOutcome::Dropped,
            ),
            (
                "upstream_reset_after_response_started{x}",
                answer(200, false),
                RequestOutcome::Dropped,
            ),
            ("response_timeout", answer(504, true), RequestOutcome::Dropped),
            ("no_healthy_upstream", answer(503, true), RequestOutcome::Dropped),
            // The client did not send its whole request.
            ("request_overall_timeout", answer(408, true), RequestOutcome::Ignored),
            ("downstream_remote_disconnect", answer(200, false), RequestOutcome::Ignored),
            ("rbac_access_denied_matched_policy[none]", answer(403, true), RequestOutcome::Ignored),
            ("direct_response", answer(200, true), RequestOutcome::Ignored),
            ("", UpstreamAnswer::default(), RequestOutcome::Ignored),
        ];
        for (details, answer, expected) in rows {
            let outcome = outcome(details.as_bytes(), answer);
            assert_eq!(OverloadAnswers::DEFAULT.classify(outcome), expected, "{details}");
        }
    }
}
