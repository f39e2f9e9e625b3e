//! Waits for the first answer of the store before the ports open.
//!
//! Guarantees:
//! - The wait ends with the first answer of each store, or after `store.start_timeout`.
//! - Meanwhile, health probes on the HTTP port get answers.
//!
//! Not covered:
//! - An outage after the start.

use std::time::Duration;

use super::drain::ShutdownSignals;
use super::listeners::StartupListeners;
use super::startup_probes;
use super::store::waits_for_answer;
use crate::config::settings::Settings;
use crate::edge::health::Readiness;
use crate::engine::Engine;

/// Waits for the first answer of the store, at most for `store.start_timeout`. Meanwhile answers
/// health probes on the HTTP port. Returns `false` if a shutdown signal arrives first.
pub(super) async fn wait_for_store(
    settings: &Settings,
    engine: &Engine,
    bound: &StartupListeners,
    signals: &mut ShutdownSignals,
) -> bool {
    let StartupListeners::HttpOnly(http) = bound else { return true };
    let start_timeout = settings.store.start_timeout.get();
    let Some(start_timeout) = start_timeout.filter(|_| waits_for_answer(settings)) else {
        return true;
    };
    let answered = async {
        while engine.store_failure().is_some() {
            tokio::time::sleep(ANSWER_POLL_INTERVAL).await;
        }
    };
    let timeout = Duration::from(start_timeout);
    tokio::select! {
        never = startup_probes::answer_probes(http.as_ref(), Readiness::StoreUnavailable) => match never {},
        _ = signals.next() => false,
        answered = tokio::time::timeout(timeout, answered) => {
            if answered.is_err() {
                tracing::warn!(
                    "the store did not answer within store.start_timeout ({start_timeout}); serving with \
                     on_store_failure until it answers"
                );
            }
            true
        }
    }
}

/// The interval at which the start looks for the first answer of the store.
const ANSWER_POLL_INTERVAL: Duration = Duration::from_millis(2);
