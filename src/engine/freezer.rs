//! Rules that operators hold at one answer, over reloads and until their time is over.
//!
//! Guarantees: a configuration is put in force with what is held then, in the order in which it came; at most [`MOST`] rules are
//! held, each for [`LONGEST`] at most; replicas that share a store hold the same about a second later, one that starts among them.
//! Leaves out: how they tell each other: with the record of each ([`super::membership`]).

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

/// Most rules that are held at one time.
pub const MOST: usize = 100;
/// The longest that a rule is held.
pub const LONGEST: Nanos = Nanos::from_secs(24 * 60 * 60);

/// What is held, and what the files say.
#[derive(Debug, Default)]
pub(super) struct Freezer(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    /// As the files have it.
    written: Option<Arc<Config>>,
    holds: Holds,
}

/// Why a rule is not held, or not let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to hold.
    #[error("no limits are loaded")]
    NoConfig,
    /// No rule with a limit.
    #[error("no rate limit counts this descriptor; /explain says what it meets")]
    NoLimit,
    /// Not for so long, or for no time.
    #[error("a limit is held for 1s to 24h")]
    TooLong,
    /// Too many.
    #[error("as many limits are held already as may be ({MOST}); let one go")]
    Full,
    /// It is not held.
    #[error("this limit is not held")]
    NotHeld,
}

impl Freezer {
    /// Puts what was written in force, with what is held.
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

    /// The path of the rule that counts a descriptor.
    fn path(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Box<str>, Refused> {
        let written = self.written.as_ref().ok_or(Refused::NoConfig)?;
        let domain = written.domains.get(domain).ok_or(Refused::NoLimit)?;
        let found = domain.tree.lookup(entries.iter().copied()).ok_or(Refused::NoLimit)?;
        found.rule.limit.as_ref().map(|_| found.rule.path.clone()).ok_or(Refused::NoLimit)
    }
}

impl Engine {
    /// Holds the limit that counts this descriptor at `verdict` for so long, here and at the replicas that hear of it. A limit
    /// that is held already is held anew.
    ///
    /// # Errors
    /// Why not.
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

    /// Lets the limit that counts this descriptor go, here and at the replicas that hear of it; its path.
    ///
    /// # Errors
    /// Why not.
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

    /// What is held now, by domain and path.
    #[must_use]
    pub fn frozen(&self) -> Vec<Held> {
        self.freezer.0.lock().holds.held(self.clock().now())
    }

    /// What other replicas are to hold as well.
    pub(super) fn told_of_holds(&self) -> Vec<Told> {
        self.freezer.0.lock().holds.told(self.clock().now())
    }

    /// Holds and lets go what other replicas tell of.
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
