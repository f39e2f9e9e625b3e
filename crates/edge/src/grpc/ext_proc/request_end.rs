//! Replies to the messages after the first one, and reads the usage of the response, until the request
//! ends.
//!
//! Guarantees:
//! - Every message that needs a reply gets one. It changes nothing, except for the header of fenced
//!   permits in the response.
//! - A reset by Envoy is a normal end, because Envoy resets most streams.

use std::error::Error as _;

use envoy_types::pb::envoy::service::ext_proc::v3::ProcessingRequest;
use futures_util::FutureExt as _;
use tonic::{Status, Streaming};

use super::budgets::ResponseUsage;
use super::replies::{
    ProcessingReplySender, to_processing_response, unchanged_reply, with_fence_header,
};
use super::upstream_answer::response_outcome;
use crate::engine::RequestPermits;
use crate::grpc::bounded_body::count_unreadable;
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome};
use crate::telemetry::event::Protocol;

/// Replies to messages until the request ends. Returns its outcome; `None` if it is unknown.
pub(super) async fn reply_until_end(
    permits: &RequestPermits,
    usage: &mut ResponseUsage,
    messages: &mut Streaming<ProcessingRequest>,
    replies: &ProcessingReplySender,
) -> Option<ReportedOutcome> {
    let mut outcome = ReportedOutcome::Known(RequestOutcome::Success);
    loop {
        let message = tokio::select! {
            biased;
            message = messages.message() => message,
            // Envoy closed the stream. Its last message, if any, has arrived already.
            () = replies.closed() => messages.message().now_or_never()?,
        };
        match message {
            Ok(None) => return Some(outcome),
            // Envoy resets the stream at the end of most requests, even complete ones.
            Err(status) if is_remote_reset(&status) => return Some(outcome),
            Err(status) => {
                report_invalid(&status, replies);
                return None;
            }
            Ok(Some(message)) => {
                outcome = response_outcome(outcome, &message);
                usage.read(&message);
                let reply = with_fence_header(unchanged_reply(&message)?, permits);
                // Frees the decoded message before sending, which may wait for Envoy.
                drop(message);
                // If the send fails, the request has ended, and the next message shows the outcome.
                let _is_sent = replies.send(Ok(to_processing_response(reply))).await;
            }
        }
    }
}

/// Returns `true` if Envoy reset this one stream, `false` for a lost connection.
fn is_remote_reset(status: &Status) -> bool {
    let is_reset = |error: &h2::Error| error.is_reset() && error.is_remote();
    causes(status).any(|cause| cause.downcast_ref().is_some_and(is_reset))
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(status.source(), |&cause| cause.source())
}

/// Counts an invalid message that follows the first message of a stream, and sends the error to
/// Envoy. Ignores a lost connection.
fn report_invalid(status: &Status, replies: &ProcessingReplySender) {
    if !causes(status).any(<dyn std::error::Error>::is::<hyper::Error>) {
        // The error is dropped if Envoy has not read the previous reply.
        let _sent = replies.try_send(Err(count_unreadable(status, Protocol::ExtProc)));
    }
}
