//! Serves `/counter`, `/refund` and `/reset`: reads, refunds and empties counters.
//!
//! Guarantees:
//! - Reading a counter charges no hits.
//! - Every change has an operator and a reason, and an entry in the audit log.
//! - A change is reported only if the store confirmed it. Otherwise the audit log has it as unconfirmed.
//! - A descriptor without a limit is an error.
//!
//! Not covered:
//! - Lease balances and deny caches in replicas: they stay until they expire.
//! - Checks between a refund and the reading of the counted hits: `counted` includes them.

use axum::http::StatusCode;
use serde_json::{Map, Value};
use smallvec::smallvec;

use super::ExplainQuery;
use crate::config::descriptor_text::{borrow_entries, format_entries};
use crate::engine::actions::{ActionError, AuditEntry, Operator};
use crate::engine::{CheckError, CountedHits, Decision, Engine, LimitStatus};
use crate::kernel::decision::{Check, Cost, Descriptor, Reason, StoreFailure};
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::Hits;

/// The reasons why reading or changing a counter fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum CounterError {
    #[error("exactly one descriptor is required, got {0}")]
    NotOneDescriptor(usize),
    #[error("no limit counts this descriptor ({0}); /explain shows the rule that matches")]
    NoCounter(&'static str),
    #[error(transparent)]
    Rejected(#[from] CheckError),
    #[error(transparent)]
    InvalidReason(#[from] ActionError),
    #[error("internal error: the change was aborted; the audit log has it if it was made")]
    Aborted,
    /// A fallback decided, because the store did not reply; the change is not confirmed.
    #[error(
        "the store is unavailable ({}), so the change is not confirmed; retry once it is \
         available",
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
            Self::Aborted => StatusCode::INTERNAL_SERVER_ERROR,
            Self::NotOneDescriptor(_)
            | Self::NoCounter(_)
            | Self::Rejected(_)
            | Self::InvalidReason(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// Reads the counter of one descriptor. Returns its state as JSON.
///
/// # Errors
/// [`CounterError`], with a message for the operator.
pub(super) async fn read_counter(
    engine: &Engine,
    query: &ExplainQuery,
) -> Result<Value, CounterError> {
    let check = single_check(query, Cost::Charge(Hits(0)))?;
    let decision = engine.inspect(&check).await?;
    ensure_has_limit(&decision)?;
    let counted = engine.counted_hits(check).await;
    Ok(counter_json(&decision, &counted))
}

/// Refunds the query's hits to the counter of one descriptor. Returns the counter's state as JSON.
///
/// # Errors
/// [`CounterError`], with a message for the operator.
pub(super) async fn refund_counter(
    engine: &Engine,
    query: &ExplainQuery,
    operator: Operator<'_>,
) -> Result<Value, CounterError> {
    engine.validate_operator(operator)?;
    let check = single_check(query, Cost::Refund(Hits(query.hits)))?;
    let entry = audit_entry(engine, query, ("refund", operator));
    let entry = AuditEntry { hits: Some(query.hits), ..entry };
    let decision = change_counters(engine, &check, entry).await?;
    let counted = engine.counted_hits(check).await;
    Ok(counter_json(&decision, &counted))
}

/// Makes the refunds of `check`, and appends `entry` to the audit log. If the store did not confirm
/// all of them, the entry says so, because some counters may have changed.
async fn change_counters(
    engine: &Engine,
    check: &Check<'_>,
    entry: AuditEntry,
) -> Result<Decision, CounterError> {
    let unconfirmed = || AuditEntry { value: Some("unconfirmed".into()), ..entry.clone() };
    let decision = match engine.decide(check).await {
        Ok(decision) => decision,
        Err(error) => {
            if matches!(error, CheckError::StoreUnavailable(_)) {
                engine.append_audit(unconfirmed()).await;
            }
            return Err(error.into());
        }
    };
    if let Err(error) = ensure_decided_by_store(engine, &decision) {
        engine.append_audit(unconfirmed()).await;
        return Err(error);
    }
    if decision.all_limits().iter().any(|status| status.decision.reason == Reason::Refunded) {
        engine.append_audit(entry).await;
    } else {
        ensure_has_limit(&decision)?;
    }
    Ok(decision)
}

fn single_check(query: &ExplainQuery, cost: Cost) -> Result<Check<'_>, CounterError> {
    let [entries] = &*query.descriptors else {
        return Err(CounterError::NotOneDescriptor(query.descriptors.len()));
    };
    Ok(Check { domain: &query.domain, descriptors: smallvec![descriptor(entries, cost)] })
}

/// Empties the counters of the query's descriptors. Returns the number of emptied counters.
///
/// # Errors
/// [`CounterError`], with a message for the operator.
pub(super) async fn reset_counters(
    engine: &Engine,
    query: &ExplainQuery,
    operator: Operator<'_>,
) -> Result<usize, CounterError> {
    engine.validate_operator(operator)?;
    let all_hits = Cost::Refund(Hits(EXACT_BOUND));
    let descriptors = query.descriptors.iter().map(|entries| descriptor(entries, all_hits));
    let check = Check { domain: &query.domain, descriptors: descriptors.collect() };
    let entry = audit_entry(engine, query, ("reset", operator));
    let decision = change_counters(engine, &check, entry).await?;
    // Only descriptors with a limit have a counter. The reply's
    // number shows the operator that a descriptor had none.
    match decision.all_limits().iter().filter(|status| status.decision.limit.is_some()).count() {
        0 => ensure_has_limit(&decision).map(|()| 0),
        some => Ok(some),
    }
}

pub(super) fn descriptor(entries: &[(String, String)], cost: Cost) -> Descriptor<'_> {
    let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    Descriptor { entries, cost, limit: None }
}

/// Returns an error if a fallback decided a descriptor of `decision`.
fn ensure_decided_by_store(engine: &Engine, decision: &Decision) -> Result<(), CounterError> {
    if decision.all_limits().iter().any(|status| status.decision.reason.is_fallback()) {
        // If the engine reports no store failure, only this one store call timed out.
        return Err(CounterError::StoreUnavailable(
            engine.store_failure().unwrap_or(StoreFailure::TimedOut),
        ));
    }
    Ok(())
}

fn audit_entry(
    engine: &Engine,
    query: &ExplainQuery,
    (action, operator): (&str, Operator<'_>),
) -> AuditEntry {
    let text = |entries: &Vec<(String, String)>| format_entries(borrow_entries(entries));
    let descriptors = query.descriptors.iter().map(text).collect::<Vec<_>>().join(" ");
    engine.audit_entry(action, &query.domain, operator).with_descriptor(descriptors)
}

/// Returns an error if the first descriptor has no limit.
fn ensure_has_limit(decision: &Decision) -> Result<(), CounterError> {
    let Some(LimitStatus { decision, .. }) = decision.statuses.first() else {
        return Err(CounterError::NotOneDescriptor(0));
    };
    let has_limit = decision.limit.is_some();
    has_limit.then_some(()).ok_or(CounterError::NoCounter(decision.reason.as_str()))
}

/// Formats the tightest limit of a descriptor and, for a list, all of its limits.
fn counter_json(decision: &Decision, counted: &[Option<CountedHits>]) -> Value {
    let counted = counted.iter().copied().chain(std::iter::repeat(None));
    let limits = decision.all_limits().iter().zip(counted);
    let limits: Vec<_> =
        limits.filter_map(|(status, counted)| limit_json(status, counted)).collect();
    let name = decision.statuses.first().and_then(limit_name).unwrap_or_default();
    let tightest = limits.iter().find(|limit| limit["limit"].as_str().unwrap_or_default() == name);
    let mut shown = tightest.cloned().unwrap_or_default();
    shown.insert("revision".to_owned(), decision.revision.0.into());
    if !decision.limit_statuses.is_empty() {
        shown.insert("limits".to_owned(), limits.into());
    }
    shown.into()
}

fn limit_name(LimitStatus { decision, .. }: &LimitStatus) -> Option<&str> {
    decision.limit.as_ref()?.name.as_deref()
}

fn limit_json(status: &LimitStatus, counted: Option<CountedHits>) -> Option<Map<String, Value>> {
    let decision = &status.decision;
    let limit = decision.limit.as_ref()?;
    let fields = [
        ("limit", limit_name(status).into()),
        ("requests", limit.requests.into()),
        ("period_nanoseconds", limit.period.0.into()),
        ("remaining", decision.headroom.remaining.0.into()),
        ("counted", counted.map(|hits| hits.counted).into()),
        ("to_refund", counted.and_then(|hits| hits.to_refund).into()),
        ("includes_leases", counted.map(|hits| hits.is_leased).into()),
        ("reset_after_nanoseconds", decision.headroom.reset_after.0.into()),
        ("reason", decision.reason.as_str().into()),
    ];
    Some(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
