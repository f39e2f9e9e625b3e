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

use super::Explain;
use crate::config::written::{borrowed, written};
use crate::engine::{Answer, Engine, Refusal};
use crate::kernel::decision::{Cause, Cost, Descriptor, Question, Reason};
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::Hits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Look,
    Grant,
}

impl Act {
    const fn cost(self, hits: Hits) -> Cost {
        match self {
            Self::Look => Cost::Charge(Hits(0)),
            Self::Grant => Cost::Refund(hits),
        }
    }
}

/// The reasons for which an action fails.
#[derive(Debug, thiserror::Error)]
pub(super) enum Wrong {
    #[error("one descriptor is needed, and {0} are named")]
    NotOne(usize),
    #[error("no limit counts this descriptor ({0}); /explain says what it meets")]
    NoCounter(&'static str),
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The fallback decided, so the store's counter did not change.
    #[error(
        "the store of counters does not answer ({}), and no change is known of; ask again once it \
         does",
        .0.as_str()
    )]
    Away(Cause),
}

impl Wrong {
    /// Returns the HTTP status: 503 for store failures, 400 for errors in the query.
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Away(_) | Self::Refused(Refusal::BackendDown(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::NotOne(_) | Self::NoCounter(_) | Self::Refused(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// Reads one counter or returns hits to it. Returns its new state as JSON.
///
/// # Errors
/// [`Wrong`], with a message for the operator.
pub(super) async fn counter(engine: &Engine, asked: &Explain, act: Act) -> Result<Value, Wrong> {
    let [entries] = &*asked.descriptors else { return Err(Wrong::NotOne(asked.descriptors.len())) };
    let descriptor = descriptor(entries, act.cost(Hits(asked.hits)));
    let question = Question { domain: &asked.domain, descriptors: smallvec![descriptor] };
    let answer = engine.decide(&question).await?;
    let shown = show(&answer)?;
    if act == Act::Grant {
        by_the_store(engine, &answer)?;
        changed("grant", asked);
    }
    Ok(shown)
}

/// Empties the counters of these descriptors. Returns the number of counters.
///
/// # Errors
/// [`Wrong`], with a message for the operator.
pub(super) async fn empty(engine: &Engine, asked: &Explain) -> Result<usize, Wrong> {
    let all = Cost::Refund(Hits(EXACT));
    let descriptors = asked.descriptors.iter().map(|entries| descriptor(entries, all));
    let question = Question { domain: &asked.domain, descriptors: descriptors.collect() };
    let answer = engine.decide(&question).await?;
    // Log also a partial success: some counters are empty.
    if answer.statuses.iter().any(|status| status.finding.reason == Reason::Refunded) {
        changed("reset", asked);
    }
    by_the_store(engine, &answer)?;
    // The number shows that a descriptor among others has no limit.
    match answer.statuses.iter().filter(|status| status.finding.limit.is_some()).count() {
        0 => show(&answer).map(|_| 0),
        some => Ok(some),
    }
}

fn descriptor(entries: &[(String, String)], cost: Cost) -> Descriptor<'_> {
    let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    Descriptor { entries, cost, limit: None }
}

/// Returns an error if a fallback decided any part of `answer`.
fn by_the_store(engine: &Engine, answer: &Answer) -> Result<(), Wrong> {
    if answer.statuses.iter().any(|status| status.finding.reason.is_degraded()) {
        // Without a lasting failure, a single reply timed out.
        return Err(Wrong::Away(engine.trouble().unwrap_or(Cause::Late)));
    }
    Ok(())
}

fn changed(act: &str, asked: &Explain) {
    let named = |entries: &Vec<(String, String)>| written(borrowed(entries));
    let descriptors = asked.descriptors.iter().map(named).collect::<Vec<_>>().join(" ");
    let (domain, hits) = (&*asked.domain, asked.hits);
    // A warning, so that common log levels include it.
    tracing::warn!(act, domain, descriptors, hits, "admin changed a counter");
}

fn show(answer: &Answer) -> Result<Value, Wrong> {
    let Some(finding) = answer.statuses.first().map(|status| &status.finding) else {
        return Err(Wrong::NotOne(0));
    };
    let reason = finding.reason.as_str();
    let limit = finding.limit.as_ref().ok_or(Wrong::NoCounter(reason))?;
    Ok(json!({
        "limit": limit.name.as_deref(),
        "requests": limit.requests,
        "period_nanoseconds": limit.period.0,
        "remaining": finding.room.remaining.0,
        "reset_after_nanoseconds": finding.room.reset_after.0,
        "reason": reason,
        "revision": answer.revision.0,
    }))
}
