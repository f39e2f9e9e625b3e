//! `/counter`: what one counter holds, and hits given back to it.
//!
//! Guarantees: looking charges nothing; nothing is changed where no token is set, and every change is one line of the log, which
//! names the counter; what limits do not meet is said in words.
//! Leaves out: balances that replicas hold of leased limits, and denials that they remember: those end by themselves.

use serde_json::{Value, json};
use smallvec::smallvec;

use super::Explain;
use crate::config::describe;
use crate::engine::{Answer, Engine, Refusal, Status};
use crate::kernel::decision::{Cost, Descriptor, Question};
use crate::kernel::units::Hits;

/// More than any counter holds: what is given back never leaves more than a counter at rest.
const ALL: Hits = Hits((1 << 53) - 1);

/// What is done to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    Look,
    /// The asked hits are given back to it.
    Grant,
    /// All its hits are.
    Reset,
}

impl Act {
    const fn cost(self, hits: Hits) -> Cost {
        match self {
            Self::Look => Cost::Charge(Hits(0)),
            Self::Grant => Cost::Refund(hits),
            Self::Reset => Cost::Refund(ALL),
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Grant => "grant",
            Self::Reset => "reset",
        }
    }
}

/// Why nothing was shown or done.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
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
pub async fn counter(engine: &Engine, asked: &Explain, act: Act) -> Result<Value, Wrong> {
    let [entries] = &*asked.descriptors else { return Err(Wrong::NotOne(asked.descriptors.len())) };
    let descriptor = Descriptor {
        entries: entries.iter().map(|(key, value)| (&**key, &**value)).collect(),
        cost: act.cost(Hits(asked.hits)),
        limit: None,
    };
    let question = Question { domain: &asked.domain, descriptors: smallvec![descriptor] };
    let answer = engine.decide(&question).await?;
    let shown = show(&answer)?;
    if act != Act::Look {
        let descriptor = describe_entries(entries);
        let (act, domain, hits) = (act.as_str(), &*asked.domain, asked.hits);
        tracing::info!(act, domain, descriptor, hits, "admin changed a counter");
    }
    Ok(shown)
}
