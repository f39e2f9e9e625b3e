//! Serves `/counter`, `/grant` and `/reset`: reads counters and returns hits to them.
//!
//! Guarantees:
//! - Reading a counter charges no hits.
//! - Every change is logged with the counter's name.
//! - A change is reported and logged only if the store confirmed it.
//! - A descriptor without a limit gets an error that explains this.
//!
//! Not covered:
//! - Lease balances and deny caches of replicas: they expire on their own.

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

/// The reasons for which an action fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum CounterError {
    #[error("one descriptor is needed, and {0} are named")]
    NotOneDescriptor(usize),
    #[error("no limit counts this descriptor ({0}); /explain says what it meets")]
    NoCounter(&'static str),
    #[error(transparent)]
    Rejected(#[from] CheckError),
    /// The fallback decided, so the store's counter did not change.
    #[error(
        "the store of counters does not answer ({}), and no change is known of; ask again once it \
         does",
        .0.as_str()
    )]
    StoreUnavailable(StoreFailure),
}

impl CounterError {
    /// Returns the HTTP status: 503 for store failures, 400 for errors in the query.
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

/// Reads one counter or returns hits to it. Returns its new state as JSON.
///
/// # Errors
/// [`CounterError`], with a message for the operator.
pub(super) async fn run_action(
    engine: &Engine,
    query: &ExplainQuery,
    act: CounterAction,
) -> Result<Value, CounterError> {
    let [entries] = &*query.descriptors else {
        return Err(CounterError::NotOneDescriptor(query.descriptors.len()));
    };
    let descriptor = descriptor(entries, act.cost(Hits(query.hits)));
    let question = Check { domain: &query.domain, descriptors: smallvec![descriptor] };
    let answer = engine.decide(&question).await?;
    let shown = counter_json(&answer)?;
    if act == CounterAction::Grant {
        ensure_decided_by_store(engine, &answer)?;
        log_change("grant", query);
    }
    Ok(shown)
}

/// Empties the counters of these descriptors. Returns the number of counters.
///
/// # Errors
/// [`CounterError`], with a message for the operator.
pub(super) async fn reset_counters(
    engine: &Engine,
    query: &ExplainQuery,
) -> Result<usize, CounterError> {
    let all_hits = Cost::Refund(Hits(EXACT_BOUND));
    let descriptors = query.descriptors.iter().map(|entries| descriptor(entries, all_hits));
    let question = Check { domain: &query.domain, descriptors: descriptors.collect() };
    let answer = engine.decide(&question).await?;
    // Log also a partial success: some counters are empty.
    if answer.statuses.iter().any(|status| status.decision.reason == Reason::Refunded) {
        log_change("reset", query);
    }
    ensure_decided_by_store(engine, &answer)?;
    // The number shows that a descriptor among others has no limit.
    match answer.statuses.iter().filter(|status| status.decision.limit.is_some()).count() {
        0 => counter_json(&answer).map(|_| 0),
        some => Ok(some),
    }
}

fn descriptor(entries: &[(String, String)], cost: Cost) -> Descriptor<'_> {
    let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    Descriptor { entries, cost, limit: None }
}

/// Returns an error if a fallback decided any part of `answer`.
fn ensure_decided_by_store(engine: &Engine, answer: &Decision) -> Result<(), CounterError> {
    if answer.statuses.iter().any(|status| status.decision.reason.is_fallback()) {
        // Without a lasting failure, a single reply timed out.
        return Err(CounterError::StoreUnavailable(
            engine.store_failure().unwrap_or(StoreFailure::TimedOut),
        ));
    }
    Ok(())
}

fn log_change(act: &str, query: &ExplainQuery) {
    let named = |entries: &Vec<(String, String)>| format_entries(borrow_entries(entries));
    let descriptors = query.descriptors.iter().map(named).collect::<Vec<_>>().join(" ");
    let (domain, hits) = (&*query.domain, query.hits);
    // A warning, so that common log levels include it.
    tracing::warn!(action = act, domain, descriptors, hits, "admin changed a counter");
}

fn counter_json(answer: &Decision) -> Result<Value, CounterError> {
    let Some(finding) = answer.statuses.first().map(|status| &status.decision) else {
        return Err(CounterError::NotOneDescriptor(0));
    };
    let reason = finding.reason.as_str();
    let limit = finding.limit.as_ref().ok_or(CounterError::NoCounter(reason))?;
    Ok(json!({
        "limit": limit.name.as_deref(),
        "requests": limit.requests,
        "period_nanoseconds": limit.period.0,
        "remaining": finding.headroom.remaining.0,
        "reset_after_nanoseconds": finding.headroom.reset_after.0,
        "reason": reason,
        "revision": answer.revision.0,
    }))
}
