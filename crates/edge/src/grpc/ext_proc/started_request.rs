//! The permits and holds of a request that Envoy lets pass.

use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Reply;

use super::budgets::StreamHolds;
use super::replies::uncompressed_reply;
use crate::engine::RequestPermits;

/// What a request has until its end.
#[derive(Default)]
pub(super) struct StartedRequest {
    pub(super) permits: RequestPermits,
    pub(super) holds: Option<StreamHolds>,
}

impl StartedRequest {
    pub(super) fn is_empty(&self) -> bool {
        self.permits.is_empty() && self.holds.is_none()
    }
}

/// Adds the holds to the reply and to the permits of a request that may pass.
pub(super) fn with_holds(
    (reply, permits): (Reply, Option<RequestPermits>),
    holds: Option<StreamHolds>,
) -> (Reply, StartedRequest) {
    match (permits, holds) {
        (None, Some(mut holds)) => {
            // A request without permits was denied, and has no holds to settle.
            holds.usage = None;
            (reply, StartedRequest::default())
        }
        (None, None) => (reply, StartedRequest::default()),
        (Some(permits), None) => (reply, StartedRequest { permits, holds: None }),
        (Some(permits), holds) => (uncompressed_reply(), StartedRequest { permits, holds }),
    }
}

/// Renews holds for ever.
pub(super) async fn renew(holds: Option<&StreamHolds>) {
    match holds {
        Some(holds) => holds.renew().await,
        None => std::future::pending().await,
    }
}
