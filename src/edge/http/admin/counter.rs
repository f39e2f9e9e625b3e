//! `/counter`: what one counter holds, and hits given back to it.
//!
//! Guarantees: looking charges nothing; every change is one line of the log, which names the counter; what limits do not meet is said in words.
//! Leaves out: balances that replicas hold of leased limits, and denials that they remember: those end by themselves.

use serde_json::{Value, json};
use smallvec::smallvec;

use super::Explain;
use crate::engine::{Answer, Engine, Refusal};
use crate::kernel::decision::{Cost, Descriptor, Question};
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
}

/// Looks at the counter of one descriptor, or gives hits back to it; what it holds then, as JSON.
///
/// # Errors
/// In words, for the person who asked.
pub(super) async fn counter(engine: &Engine, asked: &Explain, act: Act) -> Result<Value, Wrong> {
    let [entries] = &*asked.descriptors else { return Err(Wrong::NotOne(asked.descriptors.len())) };
    let descriptor = Descriptor {
        entries: entries.iter().map(|(key, value)| (&**key, &**value)).collect(),
        cost: act.cost(Hits(asked.hits)),
        limit: None,
    };
    let question = Question { domain: &asked.domain, descriptors: smallvec![descriptor] };
    let answer = engine.decide(&question).await?;
    let shown = show(&answer)?;
    if act == Act::Grant {
        changed("grant", asked);
    }
    Ok(shown)
}

/// The line of the log for who asks later what became of a counter.
pub(super) fn changed(act: &str, asked: &Explain) {
    let named = |entries: &Vec<(String, String)>| {
        entries.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    };
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
