//! Applies forced decisions: an operator makes a rule allow or deny everything for a while.
//!
//! Guarantees:
//! - Forced decisions survive reloads until they expire.
//! - At most [`MOST`] rules have a forced decision, each for at most [`MAX_FORCED_DURATION`].
//! - Replicas that share a store, including new ones, have the same forced decisions after about a
//!   second.
//!
//! Not covered:
//! - The exchange between replicas: see the records of [`crate::engine::fleet::membership`].

mod replicated;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::Config;
use crate::config::forced_decision::{ForcedDecision, ForcedRule};
use crate::engine::Engine;
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use replicated::ForcedRules;
pub use replicated::{ForcedChange, MAX_FORCED_DURATION, MOST, verdict_name};

/// The forced decisions and the configuration that they apply to.
#[derive(Debug, Default)]
pub(super) struct ForcedDecisions(Mutex<ForcedState>);

#[derive(Debug, Default)]
struct ForcedState {
    /// The configuration as it was loaded, without forced decisions.
    loaded_config: Option<Arc<Config>>,
    rules: ForcedRules,
}

/// The reason why a forced decision cannot start or end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForceError {
    /// No configuration is loaded.
    #[error("no limits are loaded")]
    NoConfig,
    /// No rule with a limit matches the descriptor.
    #[error("no rate limit counts this descriptor; /explain says what it meets")]
    NoLimit,
    /// The duration is shorter than 1 s or longer than 24 h.
    #[error("a decision is forced for 1s to 24h")]
    TooLong,
    /// The largest number of forced decisions is reached.
    #[error("{MOST} decisions are forced already, which is the maximum; end one first")]
    TooMany,
    /// The rule has no forced decision to end.
    #[error("no decision is forced for this limit")]
    NotForced,
}

impl ForcedDecisions {
    /// Publishes the loaded configuration with the current forced decisions.
    pub(super) fn load(&self, written: Arc<Config>, now: Nanos, put: impl FnOnce(Arc<Config>)) {
        let mut inside = self.0.lock();
        inside.loaded_config = Some(written);
        inside.publish(now, put);
    }
}

impl ForcedState {
    fn publish(&mut self, now: Nanos, put: impl FnOnce(Arc<Config>)) {
        let held = self.rules.forced_at(now);
        let Some(written) = &self.loaded_config else { return };
        put(if held.is_empty() {
            Arc::clone(written)
        } else {
            Arc::new(written.with_forced_rules(&held))
        });
    }

    /// Returns the path of the rule whose limit applies to the descriptor.
    fn rule_path(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Box<str>, ForceError> {
        let written = self.loaded_config.as_ref().ok_or(ForceError::NoConfig)?;
        let domain = written.domains.get(domain).ok_or(ForceError::NoLimit)?;
        let found = domain.tree.lookup(entries.iter().copied()).ok_or(ForceError::NoLimit)?;
        let has_limit = !found.rule.limits.is_empty();
        has_limit.then(|| (&*found.rule.path).into()).ok_or(ForceError::NoLimit)
    }
}

impl Engine {
    /// Makes the limit of this descriptor return `verdict` for every check, at all replicas, for
    /// `duration`. Replaces an earlier forced decision.
    ///
    /// # Errors
    /// A duration outside 1 s to 24 h, no matching limit, or too many forced decisions.
    pub fn force_decision(
        &self,
        (domain, entries): (&str, &[(&str, &str)]),
        verdict: Verdict,
        duration: Nanos,
    ) -> Result<ForcedRule, ForceError> {
        if duration < Nanos::SECOND || MAX_FORCED_DURATION < duration {
            return Err(ForceError::TooLong);
        }
        let now = self.clock().now();
        let mut inside = self.forced_decisions.0.lock();
        let path = inside.rule_path(domain, entries)?;
        let others = |held: &&ForcedRule| *held.domain != *domain || held.path != path;
        let frozen = ForcedDecision { verdict, until: now.plus(duration) };
        if MOST <= inside.rules.forced_at(now).iter().filter(others).count()
            || !inside.rules.record((domain, &path), (Some(frozen), self.own_replica_name()), now)
        {
            return Err(ForceError::TooMany);
        }
        inside.publish(now, |config| self.activate_config(config));
        drop(inside);
        self.send_forced((domain, &path), Some((verdict, frozen.until)));
        Ok(ForcedRule { domain: domain.into(), path, decision: frozen })
    }

    /// Ends the forced decision for the limit of this descriptor, at all replicas. Returns the path
    /// of its rule.
    ///
    /// # Errors
    /// No matching limit, or no forced decision.
    pub fn end_forced_decision(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> Result<Box<str>, ForceError> {
        let now = self.clock().now();
        let mut inside = self.forced_decisions.0.lock();
        let path = inside.rule_path(domain, entries)?;
        let held = inside.rules.forced_at(now);
        if !held.iter().any(|held| *held.domain == *domain && held.path == path) {
            return Err(ForceError::NotForced);
        }
        if !inside.rules.record((domain, &path), (None, self.own_replica_name()), now) {
            return Err(ForceError::TooMany);
        }
        inside.publish(now, |config| self.activate_config(config));
        drop(inside);
        self.send_forced((domain, &path), None);
        Ok(path)
    }

    /// Returns the current forced decisions, sorted by domain and path of their rules.
    #[must_use]
    pub fn forced_decisions(&self) -> Vec<ForcedRule> {
        self.forced_decisions.0.lock().rules.forced_at(self.clock().now())
    }

    pub(super) fn forced_changes(&self) -> Vec<ForcedChange> {
        self.forced_decisions.0.lock().rules.changes(self.clock().now())
    }

    pub(super) fn apply_forced_changes(&self, told: &[ForcedChange]) {
        if told.is_empty() {
            return;
        }
        let now = self.clock().now();
        let mut inside = self.forced_decisions.0.lock();
        let mut news = told.iter().filter(|one| inside.rules.apply_change(one, now)).peekable();
        if news.peek().is_none() {
            return;
        }
        for ForcedChange { domain, limit, verdict: held, left_ms, by, .. } in news {
            let act = if held.is_some() { "force" } else { "unforce" };
            let (domain, limit, by, held) = (&**domain, &**limit, &**by, held.as_deref());
            let left_ms = held.map(|_| *left_ms);
            tracing::warn!(
                action = act,
                domain,
                limit,
                verdict = held,
                remaining_ms = left_ms,
                by,
                "another replica changed a forced decision"
            );
        }
        inside.publish(now, |config| self.activate_config(config));
    }

    fn own_replica_name(&self) -> &str {
        self.membership().map_or("", crate::engine::fleet::membership::Membership::replica_name)
    }
}
