//! Serves `/counter`, `/grant` and `/reset`: reads, refunds and empties counters.
//!
//! Guarantees:
//! - Reading a counter charges no hits.
//! - Every change is logged with the domain and the descriptors.
//! - A change is reported and logged only if the store confirmed it.
//! - A descriptor without a limit is an error.
//!
//! Not covered: lease balances and deny caches in replicas, which stay until they expire.

use axum::http::StatusCode;
use serde_json::{Value, json};
use smallvec::smallvec;

use super::ExplainQuery;
use crate::config::descriptor_text::{borrow_entries, format_entries};
use crate::engine::{CheckError, Decision, Engine};
use crate::kernel::decision::{Check, Cost, Descriptor, Reason, StoreFailure};
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::Hits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CounterAction {
    Read,
    Grant,
}

impl CounterAction {
    const fn cost(self, hits: Hits) -> Cost {
        match self {
            Self::Read => Cost::Charge(Hits(0)),
            Self::Grant => Cost::Refund(hits),
        }
    }
}

/// The reason why reading or changing a counter failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CounterError {
    #[error("one descriptor is needed, but the query has {0}")]
    NotOneDescriptor(usize),
    #[error("no limit counts this descriptor ({0}); see /explain")]
    NoCounter(&'static str),
    #[error(transparent)]
    Rejected(#[from] CheckError),
    /// A fallback decided, because the store did not reply. The change is not confirmed.
    #[error(
        "the store of counters does not answer ({}), so no change is confirmed; try again",
        .0.as_str()
    )]
    StoreUnavailable(StoreFailure),
}

impl CounterError {
    /// Returns the HTTP status: 503 for a store failure, 400 for an error in the query.
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::StoreUnavailable(_) | Self::Rejected(CheckError::StoreUnavailable(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::NotOneDescriptor(_) | Self::NoCounter(_) | Self::Rejected(_) => {
                StatusCode::BAD_REQUEST
            }
        }
    }
}

/// Reads or refunds the counter of one descriptor. Returns the counter's state as JSON.
///
/// # Errors
/// [`CounterError`], with a message for the operator.
pub(super) async fn run_action(
    engine: &Engine,
    query: &ExplainQuery,
    action: CounterAction,
) -> Result<Value, CounterError> {
    let [entries] = &*query.descriptors else {
        return Err(CounterError::NotOneDescriptor(query.descriptors.len()));
    };
    let descriptor = descriptor(entries, action.cost(Hits(query.hits)));
    let check = Check { domain: &query.domain, descriptors: smallvec![descriptor] };
    let decision = engine.decide(&check).await?;
    let body = counter_json(&decision)?;
    if action == CounterAction::Grant {
        ensure_decided_by_store(engine, &decision)?;
        log_change("grant", query);
    }
    Ok(body)
}

/// Empties the counters of the query's descriptors. Returns the number of emptied counters.
///
/// # Errors
/// [`CounterError`], with a message for the operator.
pub(super) async fn reset_counters(
    engine: &Engine,
    query: &ExplainQuery,
) -> Result<usize, CounterError> {
    let all_hits = Cost::Refund(Hits(EXACT_BOUND));
    let descriptors = query.descriptors.iter().map(|entries| descriptor(entries, all_hits));
    let check = Check { domain: &query.domain, descriptors: descriptors.collect() };
    let decision = engine.decide(&check).await?;
    // Logged even after a partial success, because some counters are empty.
    if decision.statuses.iter().any(|status| status.decision.reason == Reason::Refunded) {
        log_change("reset", query);
    }
    ensure_decided_by_store(engine, &decision)?;
    // The count shows the operator if a descriptor had no limit, and thus no counter.
    match decision.statuses.iter().filter(|status| status.decision.limit.is_some()).count() {
        0 => counter_json(&decision).map(|_| 0),
        count => Ok(count),
    }
}

fn descriptor(entries: &[(String, String)], cost: Cost) -> Descriptor<'_> {
    let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    Descriptor { entries, cost, limit: None }
}

/// Returns an error if a fallback decided a descriptor of `decision`.
fn ensure_decided_by_store(engine: &Engine, decision: &Decision) -> Result<(), CounterError> {
    if decision.statuses.iter().any(|status| status.decision.reason.is_fallback()) {
        // Without a known store failure, only this store call timed out.
        return Err(CounterError::StoreUnavailable(
            engine.store_failure().unwrap_or(StoreFailure::TimedOut),
        ));
    }
    Ok(())
}

fn log_change(action: &str, query: &ExplainQuery) {
    let descriptor_text = |entries: &Vec<(String, String)>| format_entries(borrow_entries(entries));
    let descriptors = query.descriptors.iter().map(descriptor_text).collect::<Vec<_>>().join(" ");
    let (domain, hits) = (&*query.domain, query.hits);
    // A warning, because common log levels include warnings.
    tracing::warn!(action, domain, descriptors, hits, "admin changed a counter");
}

fn counter_json(decision: &Decision) -> Result<Value, CounterError> {
    let Some(descriptor_decision) = decision.statuses.first().map(|status| &status.decision) else {
        return Err(CounterError::NotOneDescriptor(0));
    };
    let reason = descriptor_decision.reason.as_str();
    let limit = descriptor_decision.limit.as_ref().ok_or(CounterError::NoCounter(reason))?;
    Ok(json!({
        "limit": limit.name.as_deref(),
        "requests": limit.requests,
        "period_nanoseconds": limit.period.0,
        "remaining": descriptor_decision.headroom.remaining.0,
        "reset_after_nanoseconds": descriptor_decision.headroom.reset_after.0,
        "reason": reason,
        "revision": decision.revision.0,
    }))
}
