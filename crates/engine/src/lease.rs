//! The leases of this replica: which limits are leased, and the count of leased hits.
//!
//! Not covered:
//! - Borrowing, spending and returning hits (see [`sluicegate_lease::leases`]).

pub use sluicegate_lease::leases::*;

use crate::config::{Config, Limit, LimitMode};
use crate::kernel::units::Hits;
use crate::telemetry::event::{Event as _, LeasedHits, LeasedHitsEvent};

/// Applies a configuration. If its leased limits differ from those of `before`, all hits are
/// returned to the store soon.
pub(crate) fn apply_config(manager: &LeaseManager, before: Option<&Config>, config: &Config) {
    let leased = leased_rules(config);
    let are_changed = before.is_some_and(|before| leased_rules(before) != leased);
    manager.apply_limits(!leased.is_empty(), are_changed);
}

/// Counts leased hits in the metrics.
pub(crate) fn count_leased_hits(event: LeaseEvent, hits: Hits) {
    let event = match event {
        LeaseEvent::Borrowed => LeasedHitsEvent::Borrowed,
        LeaseEvent::Returned => LeasedHitsEvent::Returned,
        LeaseEvent::Expired => LeasedHitsEvent::Expired,
    };
    LeasedHits { hits, event }.emit();
}

/// Returns the leased limits with the paths of their rules, in order.
fn leased_rules(config: &Config) -> Vec<(&str, &Limit)> {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let leased = rules.flat_map(|rule| rule.limits.iter().map(|limit| (&*rule.path, limit)));
    let mut leased: Vec<_> =
        leased.filter(|(_, limit)| matches!(limit.mode, LimitMode::Leased(_))).collect();
    leased.sort_by_key(|(path, _)| *path);
    leased
}
