//! `/explain`: the explanation of [`crate::config::explain`], asked by a query.
//!
//! Guarantees: no counter is looked at or moved; of a ceiling it is told who is in flight.
//! Leaves out: what the counters hold, so whether it would pass now.

use crate::config::explain::{Explanation, Now};
use crate::config::{self, Config};
use crate::engine::Engine;
use crate::engine::admit::Look;
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
            return Err("a domain and at least one descriptor are needed: \
                        /explain?domain=d&descriptor=k=v,k2=v2"
                .to_owned());
        }
        Ok(asked)
    }
}

fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let entry = |part: &str| {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not an entry; one is written key=value"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.split(',').map(entry).collect()
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

/// Adds who is in flight under each ceiling.
pub(super) fn look(explained: &mut Explanation, asked: &Explain, engine: &Engine) {
    for (one, entries) in explained.descriptors.iter_mut().zip(&asked.descriptors) {
        if let Some(under) = &mut one.ceiling {
            under.now = engine.look(&asked.domain, &borrowed(entries)).map(now);
        }
    }
}

fn now(look: Look) -> Now {
    Now {
        in_flight: look.load.in_flight.into(),
        waiting: u64::try_from(look.load.waiting).unwrap_or(u64::MAX),
        limit: look.load.limit.into(),
        rtt: look.rtt.map(|time| time.to_string()),
        min_rtt: look.min_rtt.map(|time| time.to_string()),
    }
}

fn borrowed(entries: &[(String, String)]) -> Vec<(&str, &str)> {
    entries.iter().map(|(key, value)| (&**key, &**value)).collect()
}
