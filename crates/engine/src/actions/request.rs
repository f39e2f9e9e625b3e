//! Starts and ends actions for an operator.
//!
//! Guarantees:
//! - Every change has an operator and a reason, and returns the entry for the audit log.
//! - An action that cannot have its effect is refused, and nothing changes.

use super::{
    ActionKind, ActionState, AuditEntry, ChangeAuthor, MAX_ACTION_DURATION, MAX_ACTIONS, TargetKey,
    effect_text,
};
use crate::Engine;
use crate::config::action::{ActionEffect, BoostSize};
use crate::config::descriptor_text::format_entries;
use crate::config::tables::Amount;
use crate::config::{Limit, Rule, TableColumn};
use crate::kernel::rate::limit::LimitError;
use crate::kernel::units::Nanos;

/// The largest size of a reason, in bytes.
pub const MAX_REASON_BYTES: usize = 200;

/// The largest size of an operator's name, in bytes.
pub const MAX_OPERATOR_BYTES: usize = 100;

/// The operator who changes something, and the reason.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    /// The name: of the operator's token, or from the trusted header.
    pub name: &'a str,
    /// The reason, one line of text.
    pub reason: &'a str,
}

/// The target of a change to an action.
#[derive(Clone, Copy, Debug)]
pub struct ActionRequest<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The keys and values of one descriptor.
    pub entries: &'a [(&'a str, &'a str)],
    /// The kind. [`ActionKind::ForceRule`] applies to the rule that matches the descriptor.
    pub kind: ActionKind,
    /// The operator and the reason.
    pub operator: Operator<'a>,
}

/// The reason why an action cannot start or end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// No configuration is loaded.
    #[error("no limits are loaded")]
    NoConfig,
    /// No rule with a rate limit matches the descriptor.
    #[error("no rate limit matches this descriptor; /explain shows the lookup")]
    NoLimit,
    /// The duration is shorter than 1 s or longer than 24 h.
    #[error("`for` must be 1s to 24h")]
    InvalidDuration,
    /// There is no reason, or it is longer than [`MAX_REASON_BYTES`], or it has control characters.
    #[error("a reason is required: one line of at most {MAX_REASON_BYTES} bytes, &reason=ticket+7")]
    InvalidReason,
    /// The largest number of actions is reached.
    #[error("{MAX_ACTIONS} actions apply already, which is the maximum; end one first")]
    TooMany,
    /// Too many actions were ended before their expiry: each is remembered until then.
    #[error(
        "too many actions were started or ended recently, and each is remembered until its expiry; \
         force the decision of the whole rule, or change the limits file"
    )]
    NoRoom,
    /// There is no action to end.
    #[error("no action of this kind applies to this descriptor; /actions lists all")]
    NotActive,
    /// A number of requests for a rule with several limits.
    #[error("the rule has {0} limits, so a number does not say which; use a factor: &factor=2")]
    SeveralLimits(usize),
    /// The boosted limit is not larger than the configured one.
    #[error("the limit is {0} already; a boost needs a larger number")]
    NotLarger(u32),
    /// No limit reads the column.
    #[error("no limit reads `{0}`; a rule needs `from: {0}`")]
    NoColumn(Box<str>),
    /// A limit cannot count the amount.
    #[error("the amount does not work: {0}")]
    InvalidAmount(Box<str>),
    /// A table has the number of the limit.
    #[error("the limit comes from the table `{0}`, so use `sluicegate table set` for the id")]
    FromTable(Box<str>),
    /// The strategy cannot count the boosted limit.
    #[error("the boosted limit does not work: {0}")]
    InvalidLimit(#[from] LimitError),
}

impl ActionState {
    /// Returns the rule whose limit applies to the descriptor, and the entries of the counter as
    /// text.
    fn rule_and_key(&self, request: &ActionRequest<'_>) -> Result<(&Rule, Box<str>), ActionError> {
        let config = self.loaded_config.as_ref().ok_or(ActionError::NoConfig)?;
        let domain = config.domains.get(request.domain).ok_or(ActionError::NoLimit)?;
        let entries = request.entries.iter().copied();
        let (rule, key) = domain.tree.rule_and_key(entries).ok_or(ActionError::NoLimit)?;
        if rule.limits.is_empty() {
            return Err(ActionError::NoLimit);
        }
        let key = key.iter().map(|(key, value)| (&**key, &**value));
        Ok((rule, format_entries(key).into()))
    }

    /// Returns an error unless a limit reads the column, and can count the amount.
    fn validate_amount(
        &self,
        request: &ActionRequest<'_>,
        amount: Amount,
    ) -> Result<(), ActionError> {
        let config = self.loaded_config.as_ref().ok_or(ActionError::NoConfig)?;
        let column = request.entries.last().map_or("", |(_, column)| *column);
        let is_read = |(read, _): (&TableColumn, &str)| {
            *read.table == *request.domain && *read.column == *column
        };
        if !config.table_columns().any(is_read) {
            return Err(ActionError::NoColumn(format!("{}.{column}", request.domain).into()));
        }
        let Amount::Number(number) = amount else { return Ok(()) };
        let checked = config.check_table_number(request.domain, column, number);
        checked.map_err(|problem| ActionError::InvalidAmount(problem.into()))
    }

    fn target(&self, request: &ActionRequest<'_>) -> Result<TargetKey, ActionError> {
        if request.kind == ActionKind::AllowEverything {
            return Ok(TargetKey::new(request.kind, "", ""));
        }
        let (domain, kind) = (request.domain.into(), request.kind);
        let name = match kind {
            ActionKind::SetAmount => format_entries(request.entries.iter().copied()).into(),
            ActionKind::ForceRule => (&*self.rule_and_key(request)?.0.path).into(),
            ActionKind::AllowEverything | ActionKind::ForceKey | ActionKind::BoostKey => {
                self.rule_and_key(request)?.1
            }
        };
        Ok(TargetKey { domain, kind, name })
    }
}

impl Engine {
    /// Starts an action for `duration`, at all replicas. Replaces an earlier action of the same kind
    /// on the same target. Returns the entry for the audit log.
    ///
    /// # Errors
    /// A duration outside 1 s to 24 h, an invalid reason, no matching limit, an effect that is
    /// impossible, or too many actions.
    pub fn start_action(
        &self,
        request: &ActionRequest<'_>,
        effect: ActionEffect,
        duration: Nanos,
    ) -> Result<AuditEntry, ActionError> {
        if duration < Nanos::SECOND || MAX_ACTION_DURATION < duration {
            return Err(ActionError::InvalidDuration);
        }
        validate_reason(request.operator.reason)?;
        let now = self.clock().now();
        let mut state = self.actions.state.lock();
        let target = state.target(request)?;
        match effect {
            ActionEffect::Boost(size) => {
                validate_boost(size, &state.rule_and_key(request)?.0.limits)?;
            }
            ActionEffect::Set(amount) => state.validate_amount(request, amount)?,
            ActionEffect::Force(_) => {}
        }
        let others = state.replicated.actions_at(now).filter(|(other, _)| **other != target);
        if MAX_ACTIONS <= others.count() {
            return Err(ActionError::TooMany);
        }
        let entry = self.action_entry(request, &state, Some((effect, duration)))?;
        self.record_change(&mut state, (target, request), Some((effect, now.plus(duration))), entry)
    }

    /// Ends an action at all replicas. Returns the entry for the audit log.
    ///
    /// # Errors
    /// An invalid reason, no matching limit, or no such action.
    pub fn end_action(&self, request: &ActionRequest<'_>) -> Result<AuditEntry, ActionError> {
        validate_reason(request.operator.reason)?;
        let now = self.clock().now();
        let mut state = self.actions.state.lock();
        let target = state.target(request)?;
        if !state.replicated.applies_at(&target, now) {
            return Err(ActionError::NotActive);
        }
        let entry = self.action_entry(request, &state, None)?;
        self.record_change(&mut state, (target, request), None, entry)
    }

    fn record_change(
        &self,
        state: &mut ActionState,
        (target, request): (TargetKey, &ActionRequest<'_>),
        effect: Option<(ActionEffect, Nanos)>,
        entry: AuditEntry,
    ) -> Result<AuditEntry, ActionError> {
        let now = self.clock().now();
        let Operator { name: by, reason } = request.operator;
        let author = ChangeAuthor { by, reason, replica: self.own_replica_name() };
        let number =
            state.replicated.record(target, effect, author, now).ok_or(ActionError::NoRoom)?;
        self.actions.publish(state, now, |config| self.activate_config(config));
        self.actions.changed.notify_one();
        let entry = AuditEntry { number: Some(number), ..entry };
        self.send_action(&entry);
        Ok(entry)
    }

    fn action_entry(
        &self,
        request: &ActionRequest<'_>,
        state: &ActionState,
        effect: Option<(ActionEffect, Nanos)>,
    ) -> Result<AuditEntry, ActionError> {
        let action = match (request.kind, effect) {
            (ActionKind::BoostKey, Some(_)) => "boost",
            (ActionKind::BoostKey, None) => "unboost",
            (ActionKind::SetAmount, Some(_)) => "set",
            (ActionKind::SetAmount, None) => "unset",
            (_, Some(_)) => "force",
            (_, None) => "unforce",
        };
        let entry = AuditEntry {
            kind: Some(request.kind.as_str().into()),
            value: effect.map(|(effect, _)| effect_text(effect).into()),
            duration_ms: effect.map(|(_, duration)| duration.0 / Nanos::MILLI.0),
            ..self.audit_entry(action, request.domain, request.operator)
        };
        if request.kind == ActionKind::AllowEverything {
            return Ok(entry);
        }
        if request.kind == ActionKind::SetAmount {
            let row = format_entries(request.entries.iter().copied());
            return Ok(entry.with_descriptor(row));
        }
        let (rule, key) = state.rule_and_key(request)?;
        let limit = Some((&*rule.path).into());
        Ok(AuditEntry { limit, ..entry }.with_descriptor(key.into()))
    }
}

/// Returns an error without a reason, or with one that is too long or has several lines.
///
/// # Errors
/// [`ActionError::InvalidReason`].
pub fn validate_reason(reason: &str) -> Result<(), ActionError> {
    let is_valid = !reason.trim().is_empty()
        && reason.len() <= MAX_REASON_BYTES
        && !reason.chars().any(char::is_control);
    is_valid.then_some(()).ok_or(ActionError::InvalidReason)
}

fn validate_boost(size: BoostSize, limits: &[Limit]) -> Result<(), ActionError> {
    if let (BoostSize::Requests(_), several @ 2..) = (size, limits.len()) {
        return Err(ActionError::SeveralLimits(several));
    }
    for limit in limits {
        if let Some(column) = &limit.from {
            return Err(ActionError::FromTable(column.table.clone()));
        }
        if size.apply(limit.requests) <= limit.requests {
            return Err(ActionError::NotLarger(limit.requests));
        }
        limit.boosted(size)?;
    }
    Ok(())
}
