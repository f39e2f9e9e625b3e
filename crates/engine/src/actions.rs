//! Applies the actions of operators: forced decisions of rules and keys, and boosts of keys.
//!
//! Guarantees:
//! - Actions survive reloads until they expire.
//! - At most [`MAX_ACTIONS`] apply at the same time, each for at most [`MAX_ACTION_DURATION`].
//! - Replicas that share a store, including new ones, have the same actions after about a second.
//! - After a restart, actions continue from the audit log, if the store has one.
//!
//! Not covered:
//! - The exchange between replicas: see the records of [`crate::fleet::membership`].
//! - Concurrency limits, except in shadow mode of everything.

mod audit;
mod calls;
mod replicated;
mod request;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::config::Config;
use crate::config::action::{Action, ActionTarget};
use crate::config::descriptor_text::parse_entries;
use crate::config::tables::Table;
use crate::kernel::units::Nanos;
pub(super) use audit::AuditLog;
pub use audit::{AuditEntry, AuditPage, AuditRow};
pub use replicated::{
    ActionChange, ActionKind, MAX_ACTION_DURATION, MAX_ACTIONS, effect_text, verdict_name,
};
use replicated::{ChangeAuthor, ReplicatedActions, TargetChange, TargetKey};
pub use request::{
    ActionError, ActionRequest, MAX_OPERATOR_BYTES, MAX_REASON_BYTES, Operator, validate_reason,
};

/// The actions, and the configuration that they apply to.
#[derive(Debug, Default)]
pub(super) struct OperatorActions {
    state: Mutex<ActionState>,
    /// Notified when an operator changes an action, so that the next heartbeat is sent at once.
    pub(super) changed: Notify,
    /// The end of the shadow mode that an operator started, in nanoseconds of the wall clock; 0
    /// without one.
    shadow_until: AtomicU64,
}

#[derive(Debug, Default)]
struct ActionState {
    /// The configuration as it was loaded, with the tables and without actions.
    loaded_config: Option<Arc<Config>>,
    /// The last versions of the tables.
    tables: Arc<[Arc<Table>]>,
    replicated: ReplicatedActions,
}

/// An action that applies, and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveAction {
    /// The action.
    pub action: Action,
    /// The name of the operator.
    pub by: Box<str>,
    /// The reason that the operator gave.
    pub reason: Box<str>,
}

impl OperatorActions {
    /// Publishes the loaded configuration with the current actions.
    pub(super) fn load(&self, loaded: Arc<Config>, now: Nanos, publish: impl FnOnce(Arc<Config>)) {
        let mut state = self.state.lock();
        state.loaded_config = Some(if state.tables.is_empty() {
            loaded
        } else {
            Arc::new(loaded.with_tables(Arc::clone(&state.tables)))
        });
        self.publish(&state, now, publish);
    }

    /// Publishes the loaded configuration with other versions of the tables.
    pub(super) fn load_tables(
        &self,
        tables: Arc<[Arc<Table>]>,
        now: Nanos,
        publish: impl FnOnce(Arc<Config>),
    ) {
        let mut state = self.state.lock();
        let loaded = state.loaded_config.take();
        state.loaded_config =
            loaded.map(|loaded| Arc::new(loaded.with_tables(Arc::clone(&tables))));
        state.tables = tables;
        self.publish(&state, now, publish);
    }

    fn publish(&self, state: &ActionState, now: Nanos, publish: impl FnOnce(Arc<Config>)) {
        let is_everything =
            |action: &ActiveAction| action.action.target == ActionTarget::Everything;
        let until =
            state.active_at(now).find(is_everything).map_or(0, |found| found.action.until.0);
        self.shadow_until.store(until, Relaxed);
        state.publish(now, publish);
    }
}

impl ActionState {
    fn publish(&self, now: Nanos, publish: impl FnOnce(Arc<Config>)) {
        let actions: Vec<_> = self.active_at(now).map(|active| active.action).collect();
        let Some(loaded) = &self.loaded_config else { return };
        publish(if actions.is_empty() {
            Arc::clone(loaded)
        } else {
            Arc::new(loaded.with_actions(&actions))
        });
    }

    fn active_at(&self, now: Nanos) -> impl Iterator<Item = ActiveAction> {
        self.replicated.actions_at(now).filter_map(|(target, change)| active_action(target, change))
    }
}

fn active_action(target: &TargetKey, change: &TargetChange) -> Option<ActiveAction> {
    let (effect, until) = change.effect?;
    let TargetKey { domain, kind, name } = target;
    let target = match kind {
        ActionKind::AllowEverything => ActionTarget::Everything,
        ActionKind::ForceRule => ActionTarget::Rule(name.clone()),
        ActionKind::ForceKey | ActionKind::BoostKey => {
            ActionTarget::Key(parse_entries(name).ok()?.into())
        }
        ActionKind::SetAmount => match &*parse_entries(name).ok()? {
            [(_, id), (_, column)] => {
                ActionTarget::Amount { id: id.as_str().into(), column: column.as_str().into() }
            }
            _ => return None,
        },
    };
    let action = Action { domain: domain.clone(), target, effect, until };
    Some(ActiveAction { action, by: change.by.clone(), reason: change.reason.clone() })
}

fn log_applied_change(change: &ActionChange) {
    let ActionChange { domain, kind, target, value, left_ms, by, reason, replica, .. } = change;
    let state = if value.is_some() { "started" } else { "ended" };
    let left_ms = value.is_some().then_some(*left_ms);
    tracing::warn!(
        kind = &**kind,
        state,
        domain = &**domain,
        target = &**target,
        value = value.as_deref(),
        remaining_ms = left_ms,
        by = &**by,
        reason = &**reason,
        replica = &**replica,
        "another replica changed an action"
    );
}
