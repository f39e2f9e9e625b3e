//! `/counter`, `/grant`, `/reset`: what a counter holds, and hits given back to it.
//!
//! Guarantees: looking charges nothing; every change is one line of the log, which names the counter; what limits do not meet is said in words;
//! a change is said to be made, and is logged, only where the store answered.
//! Leaves out: balances that replicas hold of leased limits, and denials that they remember: those end by themselves.

use axum::http::StatusCode;
use serde_json::{Value, json};
use smallvec::smallvec;

use super::Explain;
use crate::config::written::{borrowed, written};
use crate::engine::{Answer, Engine, Refusal};
use crate::kernel::decision::{Cause, Cost, Descriptor, Question, Reason};
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::Hits;

/// What is done to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing.
    Look,
    /// The asked hits are given back to it.
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

/// Why nothing was shown or done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Wrong {
    /// One counter at a time.
    #[error("one descriptor is needed, and {0} are named")]
    NotOne(usize),
    /// It meets no counter.
    #[error("no limit counts this descriptor ({0}); /explain says what it meets")]
    NoCounter(&'static str),
    /// It cannot be asked or was not answered.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// `on_backend_failure` answered, which changes no counter of the store's.
    #[error(
        "the store of counters does not answer ({}), and no change is known of; ask again once it \
         does",
        .0.as_str()
    )]
    Away(Cause),
}

impl Wrong {
    /// The status that says whose fault it is.
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Away(_) | Self::Refused(Refusal::BackendDown(_)) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::NotOne(_) | Self::NoCounter(_) | Self::Refused(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// Looks at the counter of one descriptor, or gives hits back to it; what it holds then, as JSON.
///
/// # Errors
/// In words, for the person who asked.
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

/// Gives back all hits that the counters of these descriptors hold; how many counters that are.
///
/// # Errors
/// In words, for the person who asked.
pub(super) async fn empty(engine: &Engine, asked: &Explain) -> Result<usize, Wrong> {
    let all = Cost::Refund(Hits(EXACT));
    let descriptors = asked.descriptors.iter().map(|entries| descriptor(entries, all));
    let question = Question { domain: &asked.domain, descriptors: descriptors.collect() };
    let answer = engine.decide(&question).await?;
    // Logged also where the store answered for some of them alone: those are empty.
    if answer.statuses.iter().any(|status| status.finding.reason == Reason::Refunded) {
        changed("reset", asked);
    }
    by_the_store(engine, &answer)?;
    // An uncounted one among others is told by the number.
    match answer.statuses.iter().filter(|status| status.finding.limit.is_some()).count() {
        0 => show(&answer).map(|_| 0),
        some => Ok(some),
    }
}

fn descriptor(entries: &[(String, String)], cost: Cost) -> Descriptor<'_> {
    let entries = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    Descriptor { entries, cost, limit: None }
}

/// Whether the store gave all of `answer`.
fn by_the_store(engine: &Engine, answer: &Answer) -> Result<(), Wrong> {
    if answer.statuses.iter().any(|status| status.finding.reason.is_degraded()) {
        // Without trouble now it was one answer that was late.
        return Err(Wrong::Away(engine.trouble().unwrap_or(Cause::Late)));
    }
    Ok(())
}

/// The line of the log for who asks later what became of a counter.
fn changed(act: &str, asked: &Explain) {
    let named = |entries: &Vec<(String, String)>| written(borrowed(entries));
    let descriptors = asked.descriptors.iter().map(named).collect::<Vec<_>>().join(" ");
    let (domain, hits) = (&*asked.domain, asked.hits);
    // As a warning, so that no usual level of the log leaves it out.
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
