//! Applies forced decisions: an operator makes a rule allow or deny everything for a while.
//!
//! Guarantees:
//! - Forced decisions survive reloads until they expire.
//! - At most [`MOST`] rules are forced, each for at most [`LONGEST`].
//! - Replicas that share a store agree after about a second, including new ones.
//!
//! Not covered:
//! - The transport between replicas: see the records of [`super::membership`].

mod holds;

use std::sync::Arc;

use parking_lot::Mutex;

use super::Engine;
use crate::config::Config;
use crate::config::frozen::{Frozen, Held};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use holds::Holds;
pub use holds::{Told, word};

/// The largest number of forced rules.
pub const MOST: usize = 100;
/// The longest duration of a forced decision.
pub const LONGEST: Nanos = Nanos::from_secs(24 * 60 * 60);

/// The forced decisions and the configuration that they apply to.
#[derive(Debug, Default)]
pub(super) struct Freezer(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    /// The configuration without forced decisions.
    written: Option<Arc<Config>>,
    holds: Holds,
}

/// The reason why a decision is not forced, or not released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No configuration is loaded.
    #[error("no limits are loaded")]
    NoConfig,
    /// No rule with a limit matches.
    #[error("no rate limit counts this descriptor; /explain says what it meets")]
    NoLimit,
    /// The duration is out of range.
    #[error("a limit is held for 1s to 24h")]
    TooLong,
    /// The largest number of forced decisions is reached.
    #[error("as many limits are held already as may be ({MOST}); let one go")]
    Full,
    /// The rule has no forced decision.
    #[error("this limit is not held")]
    NotHeld,
}

impl Freezer {
    /// Publishes `written` with the current forced decisions.
    pub(super) fn load(&self, written: Arc<Config>, now: Nanos, put: impl FnOnce(Arc<Config>)) {
        let mut inside = self.0.lock();
        inside.written = Some(written);
        inside.apply(now, put);
    }
}

impl Inside {
    fn apply(&mut self, now: Nanos, put: impl FnOnce(Arc<Config>)) {
        let held = self.holds.held(now);
        let Some(written) = &self.written else { return };
        put(if held.is_empty() { Arc::clone(written) } else { Arc::new(written.holding(&held)) });
    }

    /// Returns the path of the rule that limits the descriptor.
    fn path(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Box<str>, Refused> {
        let written = self.written.as_ref().ok_or(Refused::NoConfig)?;
        let domain = written.domains.get(domain).ok_or(Refused::NoLimit)?;
        let found = domain.tree.lookup(entries.iter().copied()).ok_or(Refused::NoLimit)?;
        found.rule.limit.as_ref().map(|_| found.rule.path.clone()).ok_or(Refused::NoLimit)
    }
}

impl Engine {
    /// Forces `verdict` for the limit of this descriptor, here and
    /// at the other replicas. Replaces an earlier forced decision.
    ///
    /// # Errors
    /// A duration outside 1 s to 24 h, no matching limit, or too many forced decisions.
    pub fn freeze(
        &self,
        (domain, entries): (&str, &[(&str, &str)]),
        verdict: Verdict,
        long: Nanos,
    ) -> Result<Held, Refused> {
        if long < Nanos::SECOND || LONGEST < long {
            return Err(Refused::TooLong);
        }
        let now = self.clock().now();
        let mut inside = self.freezer.0.lock();
        let path = inside.path(domain, entries)?;
        let others = |held: &&Held| *held.domain != *domain || held.path != path;
        let frozen = Frozen { verdict, until: now.plus(long) };
        if MOST <= inside.holds.held(now).iter().filter(others).count()
            || !inside.holds.change((domain, &path), (Some(frozen), self.own_name()), now)
        {
            return Err(Refused::Full);
        }
        inside.apply(now, |config| self.put_in_force(config));
        Ok(Held { domain: domain.into(), path, frozen })
    }

    /// Ends the forced decision for the limit of this descriptor,
    /// here and at the other replicas. Returns the path of the rule.
    ///
    /// # Errors
    /// No matching limit, or no forced decision.
    pub fn thaw(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Box<str>, Refused> {
        let now = self.clock().now();
        let mut inside = self.freezer.0.lock();
        let path = inside.path(domain, entries)?;
        let held = inside.holds.held(now);
        if !held.iter().any(|held| *held.domain == *domain && held.path == path) {
            return Err(Refused::NotHeld);
        }
        if !inside.holds.change((domain, &path), (None, self.own_name()), now) {
            return Err(Refused::Full);
        }
        inside.apply(now, |config| self.put_in_force(config));
        Ok(path)
    }

    /// Returns the current forced decisions by domain and path.
    #[must_use]
    pub fn frozen(&self) -> Vec<Held> {
        self.freezer.0.lock().holds.held(self.clock().now())
    }

    pub(super) fn told_of_holds(&self) -> Vec<Told> {
        self.freezer.0.lock().holds.told(self.clock().now())
    }

    pub(super) fn hear_of_holds(&self, told: &[Told]) {
        if told.is_empty() {
            return;
        }
        let now = self.clock().now();
        let mut inside = self.freezer.0.lock();
        let mut news = told.iter().filter(|one| inside.holds.hear(one, now)).peekable();
        if news.peek().is_none() {
            return;
        }
        for Told { domain, limit, held, left_ms, by, .. } in news {
            let act = if held.is_some() { "freeze" } else { "thaw" };
            let (domain, limit, by, held) = (&**domain, &**limit, &**by, held.as_deref());
            let left_ms = held.map(|_| *left_ms);
            tracing::warn!(
                act,
                domain,
                limit,
                held,
                left_ms,
                by,
                "another replica was told how a limit answers"
            );
        }
        inside.apply(now, |config| self.put_in_force(config));
    }

    fn own_name(&self) -> &str {
        self.membership().map_or("", super::membership::Membership::node)
    }
}
