//! Logs refused or failed deliveries of releases to other replicas as one condition.
//!
//! Guarantees:
//! - Failed deliveries to all replicas share one condition, so a fleet's restart logs few lines.

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

use crate::engine::fleet::membership::Peer;
use crate::telemetry::reason_log::{DueLine, QuietLog};

/// The failed deliveries to all other replicas.
#[derive(Debug, Default)]
pub(super) struct DeliveryLog(Mutex<QuietLog>);

impl DeliveryLog {
    pub(super) fn record_failure(&self, peer: &Peer, error: &Status) {
        let error = error.message();
        let Some(DueLine { times }) = self.0.lock().count(error, Instant::now()) else { return };
        tracing::warn!(
            replica = &*peer.replica_name,
            address = %peer.address,
            error,
            times,
            "failed to forward releases, their permits expire after max_duration"
        );
    }

    pub(super) fn record_success(&self) {
        if self.0.lock().record_success(Instant::now()) {
            tracing::info!("releases are forwarded again");
        }
    }
}
