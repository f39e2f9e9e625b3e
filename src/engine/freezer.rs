//! Rules that operators hold at one answer, over reloads and until their time is over.
//!
//! Guarantees: a configuration is put in force with what is held then, in the order in which it came; at most [`MOST`] rules are
//! held, each for [`LONGEST`] at most.
//! Leaves out: other replicas. Each is told by itself, so that one can be tried first.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Engine;
use crate::config::Config;
use crate::config::frozen::{Frozen, Held};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

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
    held: Vec<Held>,
}

/// Why a rule is not held, or not let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to hold.
    #[error("no limits are loaded yet")]
    NoConfig,
    /// No rule with a limit.
    #[error("no rate limit counts this descriptor; /explain says what it meets")]
    NoLimit,
    /// Not for so long, or for no time.
    #[error("a limit is held for 1s to 24h")]
    TooLong,
    /// Too many.
    #[error("{MOST} limits are held already; let one go")]
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
        self.held.retain(|held| now < held.frozen.until);
        let Some(written) = &self.written else { return };
        put(if self.held.is_empty() {
            Arc::clone(written)
        } else {
            Arc::new(written.holding(&self.held))
        });
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
    /// Holds the limit that counts this descriptor at `verdict` for so long; its path. A limit that is held
    /// already is held anew.
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
        inside.held.retain(|held| now < held.frozen.until);
        inside.held.retain(|held| *held.domain != *domain || held.path != path);
        if MOST <= inside.held.len() {
            return Err(Refused::Full);
        }
        let frozen = Frozen { verdict, until: now.plus(long) };
        let held = Held { domain: domain.into(), path, frozen };
        inside.held.push(held.clone());
        inside.apply(now, |config| self.put_in_force(config));
        Ok(held)
    }

    /// Lets the limit that counts this descriptor go; its path.
    ///
    /// # Errors
    /// Why not.
    pub fn thaw(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Box<str>, Refused> {
        let now = self.clock().now();
        let mut inside = self.freezer.0.lock();
        let path = inside.path(domain, entries)?;
        let before = inside.held.len();
        inside.held.retain(|held| *held.domain != *domain || held.path != path);
        if inside.held.len() == before {
            return Err(Refused::NotHeld);
        }
        inside.apply(now, |config| self.put_in_force(config));
        Ok(path)
    }

    /// What is held now, the oldest first.
    #[must_use]
    pub fn frozen(&self) -> Vec<Held> {
        let now = self.clock().now();
        let inside = self.freezer.0.lock();
        inside.held.iter().filter(|held| now < held.frozen.until).cloned().collect()
    }
}
