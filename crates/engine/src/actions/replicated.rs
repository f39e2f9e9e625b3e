//! The changes to operator actions that replicas exchange, as pure functions.
//!
//! Guarantees:
//! - Replicas that exchange changes reach the same state, whatever the order of messages.
//! - Of two changes to a target the larger number wins; if equal, the larger replica name.
//! - A new change has a larger number than every change that its replica knows.
//! - A change is remembered longer than all changes that it replaced, so they cannot return.
//! - Messages contain remaining durations, not instants, so clocks may differ.
//! - The number and the size of remembered changes are bounded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::action::{ActionEffect, BoostSize};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// The largest number of actions that apply at the same time.
pub const MAX_ACTIONS: usize = 100;

/// The longest duration of an action.
pub const MAX_ACTION_DURATION: Nanos = Nanos::from_secs(24 * 60 * 60);

/// A change is remembered for this time after its action expired: until then, other replicas may
/// still send a change that it replaced.
pub(super) const REMEMBER_MARGIN: Nanos = Nanos::from_secs(60);

/// The largest number of remembered changes, including those of actions that ended early.
const MAX_CHANGES: usize = 2 * MAX_ACTIONS;

/// The room that is reserved for forced decisions of rules, in changes and in bytes: an emergency
/// must not fail because many keys had actions.
const RESERVED_CHANGES: usize = 20;
const RESERVED_BYTES: usize = 4 * 1024;

/// The largest total size of the texts in remembered changes, in bytes. Each replica sends them
/// with each heartbeat.
const MAX_TEXT_BYTES: usize = 16 * 1024;

/// The largest number of a change. JSON numbers are doubles, which are exact up to 2^53.
const MAX_NUMBER: u64 = 1 << 53;

/// The kind of an action. A target has at most one action of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActionKind {
    /// Shadow mode of all limits. Its target has no name.
    AllowEverything,
    /// A forced decision of a rule, which is named by its path.
    ForceRule,
    /// A forced decision of a key, which is named by its descriptor as text.
    ForceKey,
    /// A boost of a key, which is named by its descriptor as text.
    BoostKey,
    /// An amount of an id in a table, which is named by `id=ID,column=COLUMN`. The domain is the table.
    SetAmount,
}

impl ActionKind {
    const ALL: [Self; 5] =
        [Self::AllowEverything, Self::ForceRule, Self::ForceKey, Self::BoostKey, Self::SetAmount];

    /// Returns the name of the kind in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllowEverything => "allow_everything",
            Self::ForceRule => "force_rule",
            Self::ForceKey => "force_key",
            Self::BoostKey => "boost_key",
            Self::SetAmount => "set_amount",
        }
    }

    /// Returns the name of the part of the limits that an action of this kind changes.
    #[must_use]
    pub const fn scope(self) -> &'static str {
        match self {
            Self::AllowEverything => "everything",
            Self::ForceRule => "rule",
            Self::ForceKey | Self::BoostKey => "key",
            Self::SetAmount => "table",
        }
    }

    /// Returns the kind with this name in messages.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The rule or key of an action, and the kind of the action.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TargetKey {
    pub(super) domain: Box<str>,
    pub(super) kind: ActionKind,
    /// The path of the rule, or the descriptor as text.
    pub(super) name: Box<str>,
}

impl TargetKey {
    /// Returns the target with this name. All limits are one target, whatever a message calls it.
    pub(super) fn new(kind: ActionKind, domain: &str, name: &str) -> Self {
        let is_everything = kind == ActionKind::AllowEverything;
        let (domain, name) = if is_everything { ("", "") } else { (domain, name) };
        Self { domain: domain.into(), kind, name: name.into() }
    }
}

/// A remembered change to the action of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetChange {
    pub(super) number: u64,
    /// The replica that received the operator's call.
    replica: Box<str>,
    /// The effect and the expiry. `None` if an operator ended the action.
    pub(super) effect: Option<(ActionEffect, Nanos)>,
    /// The name of the operator.
    pub(super) by: Box<str>,
    pub(super) reason: Box<str>,
    remembered_until: Nanos,
}

impl TargetChange {
    fn applies_at(&self, now: Nanos) -> bool {
        self.effect.is_some_and(|(_, until)| now < until)
    }

    fn text_bytes(&self, target: &TargetKey) -> usize {
        let texts = [&target.domain, &target.name, &self.replica, &self.by, &self.reason];
        texts.iter().map(|text| text.len()).sum()
    }
}

/// A change to an action, as replicas send it to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActionChange {
    /// The domain of the rule or key.
    pub domain: Box<str>,
    /// The kind: `allow_everything`, `force_rule`, `force_key`, `boost_key` or `set_amount`.
    pub kind: Box<str>,
    /// The path of the rule, or the descriptor as text.
    pub target: Box<str>,
    /// `deny`, `allow`, `x2`, a number of requests or an amount. `None` if the action was ended.
    pub value: Option<Box<str>>,
    /// The time until the action expires, in milliseconds.
    pub left_ms: u64,
    /// The time for which the change is still sent, in milliseconds.
    pub known_ms: u64,
    /// The number of the change. Of two changes to a target, the larger number wins.
    pub number: u64,
    /// The replica that received the operator's call.
    pub replica: Box<str>,
    /// The name of the operator.
    pub by: Box<str>,
    /// The reason that the operator gave.
    pub reason: Box<str>,
}

/// The operator of a change, the reason, and the replica that received the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeAuthor<'a> {
    pub(super) by: &'a str,
    pub(super) reason: &'a str,
    pub(super) replica: &'a str,
}

/// The last change to each target.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplicatedActions(BTreeMap<TargetKey, TargetChange>);

impl ReplicatedActions {
    /// Records that an operator starts (`Some`) or ends (`None`) an action. Returns the number of
    /// the change, or `None` if there is no room for it.
    pub(super) fn record(
        &mut self,
        target: TargetKey,
        effect: Option<(ActionEffect, Nanos)>,
        author: ChangeAuthor<'_>,
        now: Nanos,
    ) -> Option<u64> {
        self.forget_expired(now);
        let largest_number = self.0.values().map(|change| change.number).max().unwrap_or(0);
        let replaced_until = self.0.get(&target).map_or(Nanos(0), |change| change.remembered_until);
        let ends_at = effect.map_or(now, |(_, until)| until).plus(REMEMBER_MARGIN);
        let number = largest_number.saturating_add(1).min(MAX_NUMBER);
        let change = TargetChange {
            number,
            replica: author.replica.into(),
            effect,
            by: author.by.into(),
            reason: author.reason.into(),
            remembered_until: ends_at.max(replaced_until),
        };
        self.insert_bounded(target, change).then_some(number)
    }

    /// Applies a change from another replica or from the audit log. Returns `true` if it starts,
    /// replaces or ends an action that has not expired.
    pub(super) fn apply_change(&mut self, received: &ActionChange, now: Nanos) -> bool {
        self.forget_expired(now);
        let after = |ms: u64, max: Nanos| now.plus(Nanos(ms.saturating_mul(1_000_000)).min(max));
        let until = after(received.left_ms, MAX_ACTION_DURATION);
        // An unknown kind or value comes from a later version of Sluicegate.
        let Some(kind) = ActionKind::parse(&received.kind) else { return false };
        let effect = match received.value.as_deref() {
            None => None,
            Some(value) => match parse_effect(kind, value) {
                Some(effect) => Some((effect, until)),
                None => return false,
            },
        };
        let target = TargetKey::new(kind, &received.domain, &received.target);
        let own = self.0.get(&target);
        let is_newer =
            own.is_none_or(|own| (own.number, &own.replica) < (received.number, &received.replica));
        if MAX_NUMBER < received.number || !is_newer {
            return false;
        }
        // Remember this change at least as long as the change that it replaces.
        let known_until = after(received.known_ms, MAX_ACTION_DURATION.plus(REMEMBER_MARGIN));
        let known_until = own.map_or(known_until, |own| own.remembered_until.max(known_until));
        let change = TargetChange {
            number: received.number,
            replica: received.replica.clone(),
            effect,
            by: received.by.clone(),
            reason: received.reason.clone(),
            remembered_until: known_until,
        };
        let has_effect = change.applies_at(now) || own.is_some_and(|own| own.applies_at(now));
        // Also store a change without an effect, so that no older change is applied later.
        self.insert_bounded(target, change) && has_effect
    }

    /// Returns the changes to send to other replicas.
    pub(super) fn changes(&self, now: Nanos) -> Vec<ActionChange> {
        let millis = |until: Nanos| until.since(now).0 / Nanos::MILLI.0;
        let remembered = self.0.iter().filter(|(_, change)| now < change.remembered_until);
        let changes = remembered.map(|(target, change)| ActionChange {
            domain: target.domain.clone(),
            kind: target.kind.as_str().into(),
            target: target.name.clone(),
            value: change.effect.map(|(effect, _)| effect_text(effect).into()),
            left_ms: change.effect.map_or(0, |(_, until)| millis(until)),
            known_ms: millis(change.remembered_until),
            number: change.number,
            replica: change.replica.clone(),
            by: change.by.clone(),
            reason: change.reason.clone(),
        });
        changes.collect()
    }

    /// Returns the actions that apply at `now`, sorted by domain, kind and target.
    pub(super) fn actions_at(
        &self,
        now: Nanos,
    ) -> impl Iterator<Item = (&TargetKey, &TargetChange)> {
        self.0.iter().filter(move |(_, change)| change.applies_at(now))
    }

    pub(super) fn applies_at(&self, target: &TargetKey, now: Nanos) -> bool {
        self.0.get(target).is_some_and(|change| change.applies_at(now))
    }

    fn forget_expired(&mut self, now: Nanos) {
        self.0.retain(|_, change| now < change.remembered_until);
    }

    fn insert_bounded(&mut self, target: TargetKey, change: TargetChange) -> bool {
        let (mut max_changes, mut max_bytes) = (MAX_CHANGES, MAX_TEXT_BYTES);
        if matches!(target.kind, ActionKind::AllowEverything | ActionKind::ForceRule) {
            max_changes += RESERVED_CHANGES;
            max_bytes += RESERVED_BYTES;
        }
        let others = self.0.iter().filter(|(other, _)| **other != target);
        let other_bytes: usize = others.map(|(other, change)| change.text_bytes(other)).sum();
        let fits = self.0.contains_key(&target) || self.0.len() < max_changes;
        if !fits || max_bytes < other_bytes + change.text_bytes(&target) {
            return false;
        }
        self.0.insert(target, change);
        true
    }
}

/// Returns the text of an effect in messages: `deny`, `allow`, `x2`, a number of requests or an amount.
#[must_use]
pub fn effect_text(effect: ActionEffect) -> String {
    match effect {
        ActionEffect::Force(verdict) => verdict_name(verdict).to_owned(),
        ActionEffect::Boost(size) => size.to_string(),
        ActionEffect::Set(amount) => amount.to_string(),
    }
}

fn parse_effect(kind: ActionKind, value: &str) -> Option<ActionEffect> {
    match (kind, value) {
        (ActionKind::BoostKey, size) => BoostSize::parse(size).map(ActionEffect::Boost),
        (ActionKind::SetAmount, amount) => amount.parse().ok().map(ActionEffect::Set),
        (ActionKind::AllowEverything, "deny") => None,
        (_, "deny") => Some(ActionEffect::Force(Verdict::Deny)),
        (_, "allow") => Some(ActionEffect::Force(Verdict::Allow)),
        _ => None,
    }
}

/// Returns the name of a verdict in files and messages.
#[must_use]
pub const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}

#[cfg(test)]
mod tests;
