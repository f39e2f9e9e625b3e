//! Applies the answer of a check to its stream.

use crate::headers::{denial_headers, rejection_headers};
use crate::limiter::{Answer, PermitRejection, RuleVerdict};
use crate::module::FilterModule;
use crate::stream::{EnvoyStream, LocalResponse};

/// The namespace of the dynamic metadata.
const NAMESPACE: &str = "sluicegate";

/// The HTTP status of requests that the failure mode denies.
const UNAVAILABLE: u16 = 503;

/// Writes the decision to the dynamic metadata for access logs. A plain allow writes nothing, because
/// it would cost more than the decision.
pub(crate) fn record_decision(stream: &mut impl EnvoyStream, answer: &Answer) {
    if answer.verdict == RuleVerdict::Allow {
        return;
    }
    stream.set_metadata(NAMESPACE, "decision", answer.verdict.as_str());
    if let Some(rule) = &answer.denied_by {
        stream.set_metadata(NAMESPACE, "denied_by", rule);
    }
}

/// Sends the response to a denied request.
pub(crate) fn send_denial(stream: impl EnvoyStream, module: &FilterModule, answer: &Answer) {
    if answer.verdict == RuleVerdict::FallbackDeny {
        let (headers, body, details) = (&[], "", "sluicegate_unavailable");
        stream.send_response(&LocalResponse { status: UNAVAILABLE, headers, body, details });
        return;
    }
    if let Some(PermitRejection { reply, reason }) = answer.rejection.as_deref() {
        let (headers, body) = (&rejection_headers(reply), &*reply.body);
        let details = &format!("sluicegate_{}", reason.as_str());
        stream.send_response(&LocalResponse { status: reply.status, headers, body, details });
        return;
    }
    let headers = &denial_headers(module.config.headers, answer);
    let (status, details) = match answer.ban_status {
        Some(status) => (status, "sluicegate_banned"),
        None => (module.config.status, "sluicegate_over_limit"),
    };
    let body = "";
    stream.send_response(&LocalResponse { status, headers, body, details });
}
