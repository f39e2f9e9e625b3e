//! Forced decisions: an operator makes a rule allow or deny everything for a while.
//!
//! Guarantees:
//! - Forced decisions survive reloads until they expire.
//! - At most [`MOST`] rules have a forced decision, each for at most [`MAX_FORCED_DURATION`].
//! - Replicas that share a store have the same forced decisions after about a second.

mod replicated;

use std::sync::Arc;

use parking_lot::Mutex;

use crate::config::Config;
use crate::config::forced_decision::{ForcedDecision, ForcedRule};
use crate::engine::Engine;
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;
use replicated::ForcedRules;
pub use replicated::{ForcedChange, verdict_name};

/// The largest number of rules with a forced decision.
pub const MOST: usize = 100;
/// The longest duration of a forced decision.
pub const MAX_FORCED_DURATION: Nanos = Nanos::from_secs(24 * 60 * 60);

#[derive(Debug, Default)]
pub(super) struct ForcedDecisions(Mutex<ForcedState>);

#[derive(Debug, Default)]
struct ForcedState {
    /// The configuration as loaded, without forced decisions.
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
    #[error("no rate limit counts this descriptor; see /explain")]
    NoLimit,
    /// The duration is shorter than 1 s or longer than 24 h.
    #[error("a limit is held for 1s to 24h")]
    TooLong,
    /// [`MOST`] rules already have a forced decision.
    #[error("{MOST} limits already have a forced decision, the maximum; end one first")]
    TooMany,
    /// The rule has no forced decision to end.
    #[error("this limit is not held")]
    NotForced,
}

impl ForcedDecisions {
    /// Stores a newly loaded configuration, and publishes it with the current forced decisions.
    pub(super) fn load(
        &self,
        loaded_config: Arc<Config>,
        now: Nanos,
        publish_config: impl FnOnce(Arc<Config>),
    ) {
        let mut state = self.0.lock();
        state.loaded_config = Some(loaded_config);
        state.publish(now, publish_config);
    }
}

impl ForcedState {
    fn publish(&mut self, now: Nanos, publish_config: impl FnOnce(Arc<Config>)) {
        let forced = self.rules.forced_at(now);
        let Some(loaded_config) = &self.loaded_config else { return };
        publish_config(if forced.is_empty() {
            Arc::clone(loaded_config)
        } else {
            Arc::new(loaded_config.with_forced_rules(&forced))
        });
    }

    /// Returns the path of the rule whose limit applies to the descriptor.
    fn rule_path(&self, domain: &str, entries: &[(&str, &str)]) -> Result<Box<str>, ForceError> {
        let config = self.loaded_config.as_ref().ok_or(ForceError::NoConfig)?;
        let domain = config.domains.get(domain).ok_or(ForceError::NoLimit)?;
        let matched = domain.tree.lookup(entries.iter().copied()).ok_or(ForceError::NoLimit)?;
        matched.rule.limit.as_ref().map(|_| matched.rule.path.clone()).ok_or(ForceError::NoLimit)
    }
}

impl Engine {
    /// Makes the matching rule return `verdict` for every check, at all replicas, for `duration`.
    /// Replaces an earlier forced decision.
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
        let mut state = self.forced_decisions.0.lock();
        let path = state.rule_path(domain, entries)?;
        let others = |other: &&ForcedRule| *other.domain != *domain || other.path != path;
        let forced = ForcedDecision { verdict, until: now.plus(duration) };
        if MOST <= state.rules.forced_at(now).iter().filter(others).count()
            || !state.rules.record((domain, &path), (Some(forced), self.own_replica_name()), now)
        {
            return Err(ForceError::TooMany);
        }
        state.publish(now, |config| self.activate_config(config));
        Ok(ForcedRule { domain: domain.into(), path, decision: forced })
    }

    /// Ends the forced decision of the matching rule, at all replicas. Returns the path of that
    /// rule.
    ///
    /// # Errors
    /// No matching limit, or no forced decision.
    pub fn end_forced_decision(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> Result<Box<str>, ForceError> {
        let now = self.clock().now();
        let mut state = self.forced_decisions.0.lock();
        let path = state.rule_path(domain, entries)?;
        let forced = state.rules.forced_at(now);
        if !forced.iter().any(|rule| *rule.domain == *domain && rule.path == path) {
            return Err(ForceError::NotForced);
        }
        if !state.rules.record((domain, &path), (None, self.own_replica_name()), now) {
            return Err(ForceError::TooMany);
        }
        state.publish(now, |config| self.activate_config(config));
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

    pub(super) fn apply_forced_changes(&self, changes: &[ForcedChange]) {
        if changes.is_empty() {
            return;
        }
        let now = self.clock().now();
        let mut state = self.forced_decisions.0.lock();
        let mut effective_changes =
            changes.iter().filter(|change| state.rules.apply_change(change, now)).peekable();
        if effective_changes.peek().is_none() {
            return;
        }
        for ForcedChange { domain, limit, verdict, left_ms, by, .. } in effective_changes {
            let action = if verdict.is_some() { "freeze" } else { "thaw" };
            let (domain, limit, by, verdict) = (&**domain, &**limit, &**by, verdict.as_deref());
            let left_ms = verdict.map(|_| *left_ms);
            tracing::warn!(
                action,
                domain,
                limit,
                verdict,
                remaining_ms = left_ms,
                by,
                "another replica changed a forced decision"
            );
        }
        state.publish(now, |config| self.activate_config(config));
    }

    fn own_replica_name(&self) -> &str {
        self.membership().map_or("", crate::engine::fleet::membership::Membership::replica_name)
    }
}
