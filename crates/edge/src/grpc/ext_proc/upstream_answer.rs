//! Reads the upstream's answer from the response messages of an `ext_proc` stream.
//!
//! Guarantees:
//! - The gRPC status counts in the trailers, and in the headers of an answer without a message.

use envoy_types::pb::envoy::config::core::v3::HeaderMap;
use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;

use super::header_lines::{HeaderLines, headers_by_name};
use crate::hook::parse_retry_after;
use crate::kernel::concurrency::{ReportedOutcome, UpstreamAnswer};

/// Returns the outcome of the request after `message`, given the outcome before it.
pub(super) fn response_outcome(
    outcome: ReportedOutcome,
    message: &ProcessingRequest,
) -> ReportedOutcome {
    match (&message.request, outcome) {
        (Some(Message::ResponseHeaders(headers)), _) => {
            ReportedOutcome::Answered(answer_in_headers(headers.headers.as_ref()))
        }
        (Some(Message::ResponseTrailers(trailers)), ReportedOutcome::Answered(answer)) => {
            let grpc = answer_in_headers(trailers.trailers.as_ref()).grpc.or(answer.grpc);
            ReportedOutcome::Answered(UpstreamAnswer { grpc, ..answer })
        }
        _ => outcome,
    }
}

fn answer_in_headers(headers: Option<&HeaderMap>) -> UpstreamAnswer {
    let headers = headers_by_name(headers);
    let text = |name| headers.get(name).map(HeaderLines::first);
    UpstreamAnswer {
        http: text(":status").and_then(|status| status.parse().ok()),
        grpc: text("grpc-status").and_then(|code| code.parse().ok()),
        has_latency: true,
        retry_after: text("retry-after").and_then(parse_retry_after),
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    use envoy_types::pb::envoy::service::ext_proc::v3::{HttpBody, HttpHeaders, HttpTrailers};

    use super::*;
    use crate::kernel::concurrency::{OverloadAnswers, RequestOutcome};
    use crate::kernel::units::Nanos;

    type Headers<'h> = &'h [(&'h str, &'h str)];

    fn header_map(headers: Headers<'_>) -> HeaderMap {
        let header = |&(key, value): &(&str, &str)| HeaderValue {
            key: key.into(),
            raw_value: value.into(),
            ..HeaderValue::default()
        };
        HeaderMap { headers: headers.iter().map(header).collect() }
    }

    fn after_response(headers: Headers<'_>, trailers: Option<Headers<'_>>) -> ReportedOutcome {
        let headers = HttpHeaders { headers: Some(header_map(headers)), ..HttpHeaders::default() };
        let body = HttpBody { body: b"grpc-status: 8".into(), ..HttpBody::default() };
        let trailers =
            trailers.map(|trailers| HttpTrailers { trailers: Some(header_map(trailers)) });
        let messages = [Message::ResponseHeaders(headers), Message::ResponseBody(body)];
        let messages = messages.into_iter().chain(trailers.map(Message::ResponseTrailers));
        messages.fold(RequestOutcome::Success.into(), |outcome, message| {
            let request = Some(message);
            response_outcome(outcome, &ProcessingRequest { request, ..Default::default() })
        })
    }

    #[test]
    fn retry_after_is_read_from_the_response_headers_in_seconds() {
        for (value, wanted) in [
            ("7", Some(Nanos::from_secs(7))),
            ("0", Some(Nanos(0))),
            ("4294967295", Some(Nanos::from_secs(4_294_967_295))),
            ("4294967296", None),
            ("-1", None),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ] {
            let headers = [(":status", "429"), ("retry-after", value)];
            let outcome = after_response(&headers, Some(&[("grpc-status", "8")]));
            assert_eq!(outcome.retry_after(), wanted, "{value}");
        }
    }

    #[test]
    fn status_and_grpc_status_determine_the_request_outcome() {
        let grpc = (":status", "200");
        for (headers, trailers, outcome) in [
            (&[(":status", "200")][..], None, RequestOutcome::Success),
            (&[(":status", "404")], None, RequestOutcome::Success),
            (&[(":status", "429")], None, RequestOutcome::Dropped),
            (&[(":status", "500")], None, RequestOutcome::Dropped),
            (&[(":status", "503")], None, RequestOutcome::Dropped),
            (&[grpc], Some(&[("grpc-status", "0")][..]), RequestOutcome::Success),
            (&[grpc], Some(&[("grpc-status", "8")]), RequestOutcome::Dropped),
            (&[grpc], Some(&[("x", "y"), ("grpc-status", "14")]), RequestOutcome::Dropped),
            (&[grpc], Some(&[("grpc-status", "5")]), RequestOutcome::Ignored),
            (&[grpc, ("grpc-status", "8")], None, RequestOutcome::Dropped),
            (&[grpc, ("grpc-status", "13")], None, RequestOutcome::Ignored),
            (&[grpc, ("grpc-status", "8")], Some(&[]), RequestOutcome::Dropped),
        ] {
            let found = OverloadAnswers::DEFAULT.classify(after_response(headers, trailers));
            assert_eq!(found, outcome, "{headers:?} {trailers:?}");
        }
    }
}
