//! Lists the operator actions of an engine, applies changes from other replicas, and tells if shadow
//! mode is on.

use super::{ActiveAction, log_applied_change};
use crate::Engine;
use crate::actions::replicated::ActionChange;
use crate::kernel::units::Nanos;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// Returns the end of shadow mode of everything: `None` if it is off, the largest instant if the
    /// setting `answers.shadow_mode` is on.
    pub(crate) fn shadow_end(&self) -> Option<Nanos> {
        if self.policy.is_shadow {
            return Some(Nanos(u64::MAX));
        }
        let until = Nanos(self.actions.shadow_until.load(Relaxed));
        (until != Nanos(0) && self.clock().now() < until).then_some(until)
    }

    /// Returns `true` in shadow mode of everything.
    #[inline]
    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow_end().is_some()
    }

    /// Returns the actions that apply now, sorted by domain, kind and target.
    #[must_use]
    pub fn actions(&self) -> Vec<ActiveAction> {
        self.actions.state.lock().active_at(self.clock().now()).collect()
    }

    /// Returns the changes to actions that other replicas need.
    pub(crate) fn action_changes(&self) -> Vec<ActionChange> {
        self.actions.state.lock().replicated.changes(self.clock().now())
    }

    /// Applies changes from other replicas or from the audit log.
    pub(crate) fn apply_action_changes(&self, received: &[ActionChange]) {
        if received.is_empty() {
            return;
        }
        let now = self.clock().now();
        let mut state = self.actions.state.lock();
        let applied = received.iter().filter(|change| state.replicated.apply_change(change, now));
        if applied.map(log_applied_change).count() != 0 {
            self.actions.publish(&state, now, |config| self.activate_config(config));
        }
    }

    pub(crate) fn own_replica_name(&self) -> &str {
        self.membership().map_or("", crate::fleet::membership::Membership::replica_name)
    }
}
