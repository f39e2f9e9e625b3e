//! `/explain`: the explanation of [`crate::config::explain`], asked by a query.
//!
//! Guarantees: no counter is looked at or moved; of a ceiling it is told who is in flight, of a limit that an operator holds
//! at what and until when.
//! Leaves out: what the counters hold, so whether it would pass now.

use super::permits::ratio;
use crate::config::explain::{Explained, Explanation, Fresh, Now};
use crate::config::frozen::{Frozen, Held};
use crate::config::written::{borrowed, entries};
use crate::config::{self, Config};
use crate::engine::Engine;
use crate::engine::admit::Look;
use crate::engine::freezer::word;
use crate::kernel::decision::Verdict;
use crate::kernel::units::{Hits, Nanos};

/// What `/explain` is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// The domain.
    pub domain: String,
    /// The descriptors, each a list of keys and values.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// What the question would cost.
    pub hits: u64,
}

impl Explain {
    /// Reads the query's pairs.
    ///
    /// # Errors
    /// A sentence for the person who asked.
    pub fn read(query: Vec<(String, String)>) -> Result<Self, String> {
        let mut asked = Self { hits: 1, ..Self::default() };
        for (name, value) in query {
            match &*name {
                "domain" => asked.domain = value,
                "descriptor" => asked.descriptors.push(entries(&value)?),
                "hits" => asked.hits = hits(&value)?,
                _ => return Err(format!("`{name}` is not domain, descriptor or hits")),
            }
        }
        if asked.domain.is_empty() || asked.descriptors.is_empty() {
            // Several paths are asked so.
            return Err("a domain and at least one descriptor are needed after the path: \
                        ?domain=d&descriptor=k=v,k2=v2"
                .to_owned());
        }
        Ok(asked)
    }
}

fn hits(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("hits `{text}` is not a whole number"))
}

/// What `asked` would meet in `config` at `now`.
#[must_use]
pub fn explain(config: &Config, asked: &Explain, now: Nanos) -> Explanation {
    let descriptors: Vec<Vec<(&str, &str)>> =
        asked.descriptors.iter().map(|entries| borrowed(entries)).collect();
    config::explain::explain(config, &asked.domain, &descriptors, Hits(asked.hits), now)
}

/// Adds what no file says: who is in flight under each ceiling, and which limits are held.
pub(super) fn look(explained: &mut Explanation, asked: &Explain, engine: &Engine) {
    let frozen = engine.frozen();
    for (one, entries) in explained.descriptors.iter_mut().zip(&asked.descriptors) {
        if let Some(under) = &mut one.ceiling {
            under.now = engine.look(&asked.domain, &borrowed(entries)).map(now);
        }
        if let Some(held) = frozen.iter().find(|held| is_held(held, &asked.domain, one)) {
            hold(one, held.frozen);
        }
    }
}

/// Whether it is this one's limit that is held; what is unlimited is not.
fn is_held(held: &Held, domain: &str, one: &Explained) -> bool {
    let met = one.rule.as_ref().filter(|met| met.counter.is_some());
    *held.domain == *domain && met.is_some_and(|met| *held.path == *met.path)
}

/// Says at what it is held and until when. Nothing is counted meanwhile, so that there is nothing left to tell of.
fn hold(one: &mut Explained, frozen: Frozen) {
    let verdict = match frozen.verdict {
        Verdict::Admit => "admitted",
        Verdict::Deny => "denied",
    };
    if let Some(met) = &mut one.rule {
        let (remaining, reset_after) = (None, None);
        met.fresh = Fresh { hits: met.fresh.hits, verdict: verdict.into(), remaining, reset_after };
    }
    let (held, until) = (word(frozen.verdict), instant(frozen.until));
    one.outcome = format!("{}; an operator holds it at {held} until {until}", one.outcome);
}

/// RFC 3339, in UTC: the first whole second that is not before it.
fn instant(at: Nanos) -> String {
    let seconds = i64::try_from(at.as_secs_ceil()).ok();
    let at = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    at.map(|at| at.to_string()).unwrap_or_default()
}

fn now(look: Look) -> Now {
    Now {
        in_flight: look.load.in_flight.into(),
        waiting: u64::try_from(look.load.waiting).unwrap_or(u64::MAX),
        limit: look.load.limit.into(),
        rtt: look.rtt.map(|time| time.to_string()),
        min_rtt: look.min_rtt.map(|time| time.to_string()),
        gradient: look.gradient().map(ratio),
    }
}
