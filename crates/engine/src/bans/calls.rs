//! Finds the bans of a check, counts its strikes, and lists, exchanges and lifts bans.

use smallvec::SmallVec;

use super::list::{
    BanChange, BanName, BannedCounter, MAX_FLEET_BYTES, MAX_PAGE_BANS, MAX_PAGE_BYTES,
    MIN_PAGE_BYTES,
};
use super::{Ban, BanPaths, Strike, ban_paths};
use crate::actions::{ActionError, AuditEntry, Operator, validate_reason};
use crate::active_config::ActiveConfig;
use crate::check_text::entries_text;
use crate::config::Limit;
use crate::config::descriptor_text::{borrow_entries, format_entries, parse_entries};
use crate::config::settings::DescriptorValues;
use crate::decide::charge_decision::ChargeDecision;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::path::{CheckPurpose, PreparedCheck};
use crate::decide::plan::CheckPlan;
use crate::events::BanAction;
use crate::kernel::decision::{Check, Cost, Descriptor, DescriptorDecision, Reason, Verdict};
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeOutcome, StoreFailure};
use crate::telemetry::event::{BanEvent, Event as _};
use crate::{AdmissionOutcome, Engine, RequestPermits};

/// The reason why a ban cannot be lifted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiftError {
    /// The reason is invalid, or no configuration is loaded.
    #[error(transparent)]
    Action(#[from] ActionError),
    /// The key is not banned.
    #[error("no ban of this descriptor applies; /bans lists all")]
    NotBanned,
    /// The store did not confirm the change.
    #[error(
        "the store is unavailable ({}), so the ban is not lifted; retry once it is available, or \
         force the decision of the key",
        .0.as_str()
    )]
    StoreUnavailable(StoreFailure),
}

impl Engine {
    /// Returns the decision of each charge of a check that a ban denies. No charge is made.
    #[inline]
    pub(crate) fn find_bans(
        &self,
        plan: &CheckPlan<'_>,
        now: Nanos,
    ) -> Option<SmallVec<[ChargeDecision; 2]>> {
        if self.bans.is_empty() { None } else { self.look_up_bans(plan, now) }
    }

    #[cold]
    fn look_up_bans(
        &self,
        plan: &CheckPlan<'_>,
        now: Nanos,
    ) -> Option<SmallVec<[ChargeDecision; 2]>> {
        let mut has_penalty = false;
        for (limit, charge) in charged_limits(plan) {
            has_penalty |= limit.is_some();
            if matches!(charge.cost, Cost::Refund(_)) {
                return None;
            }
        }
        if !has_penalty {
            return None;
        }
        let list = self.bans.list.read();
        let mut is_banned = false;
        let decisions = charged_limits(plan).map(|(limit, charge)| {
            let left = limit.and_then(|_| list.left(charge.key.as_bytes(), now));
            is_banned |= left.is_some();
            left.map_or(ChargeDecision::NotCharged, ChargeDecision::Banned)
        });
        let decisions = decisions.collect();
        is_banned.then_some(decisions)
    }

    /// Returns the decision of a request that a ban denies, before it gets permits or waits in a
    /// queue. While a recording runs, a ban is found later.
    pub(crate) fn deny_banned(&self, check: &Check<'_>) -> Option<AdmissionOutcome> {
        if self.bans.is_empty() || self.recorder.is_on() {
            return None;
        }
        let config = self.active.load();
        let (config, now) = (config.as_deref()?, self.clock.now());
        let (plan, purpose) = (CheckPlan::default(), CheckPurpose::Decide);
        let mut prepared = PreparedCheck { config, check, now, plan, purpose };
        self.plan(&mut prepared);
        let decisions = self.find_bans(&prepared.plan, now)?;
        self.count_planned(&mut prepared);
        let decision = self.write_decision(&prepared, decisions.into_iter());
        Some(AdmissionOutcome::Decided(decision, RequestPermits::default()))
    }

    /// Counts a denial by a limit of a denied check as a strike, if the limit has a penalty.
    pub(crate) fn count_strike(
        &self,
        prepared: &PreparedCheck<'_, '_>,
        (index, decision): (usize, &DescriptorDecision),
        charge: &Charge,
    ) {
        let Some(limit) = prepared.plan.limits.get(index).and_then(penalized) else { return };
        let is_denial = decision.verdict == Verdict::Deny
            && matches!(decision.reason, Reason::OverLimit | Reason::LargerThanLimit);
        if is_denial && matches!(charge.cost, Cost::Charge(Hits(1..))) {
            self.add_strike(prepared, (index, limit), charge);
        }
    }

    #[cold]
    fn add_strike(
        &self,
        prepared: &PreparedCheck<'_, '_>,
        (index, limit): (usize, &Limit),
        charge: &Charge,
    ) {
        let PreparedCheck { config, check, plan, .. } = prepared;
        let descriptor = plan.with_descriptors(check).nth(index).map(|(_, descriptor)| descriptor);
        let name = descriptor
            .and_then(|descriptor| ban_name(config, check.domain, &descriptor.entries, limit));
        if let (Some(name), Some(penalty)) = (name, &limit.penalty) {
            let (charge, penalty) = (charge.clone(), (**penalty).clone());
            self.strike(Strike { name, charge, penalty });
        }
    }

    /// Returns the bans that apply now, sorted by domain and descriptor.
    #[must_use]
    pub fn bans(&self) -> Vec<Ban> {
        let (now, values) = (self.clock.now(), self.policy.descriptor_values);
        let Some(config) = self.config() else { return Vec::new() };
        let list = self.bans.list.read();
        let ban = |(name, until): (&BanName, Nanos)| {
            let BanPaths { rule, limit } = ban_paths(&config, name)?;
            let descriptor = match values {
                DescriptorValues::Shown => name.descriptor.to_string(),
                _ => entries_text(&borrow_entries(&parse_entries(&name.descriptor).ok()?), values),
            };
            Some(Ban { domain: name.domain.clone(), descriptor, rule, limit, until })
        };
        list.active(now).filter_map(ban).collect()
    }

    /// Returns the number of bans that apply now.
    #[must_use]
    pub fn ban_count(&self) -> u64 {
        let count = self.bans.list.read().active(self.clock.now()).count();
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// Returns the changes to bans for the next heartbeat.
    pub(crate) fn ban_changes(&self) -> Vec<BanChange> {
        if self.bans.is_empty() {
            return Vec::new();
        }
        let replicas = self.membership().map_or(1, |membership| membership.replicas().get());
        let replicas = usize::try_from(replicas).unwrap_or(usize::MAX);
        let bytes = (MAX_FLEET_BYTES / replicas).clamp(MIN_PAGE_BYTES, MAX_PAGE_BYTES);
        self.bans.change(|list| list.page(self.clock.now(), bytes))
    }

    /// Applies the changes of one other replica. Changes about limits that this configuration does
    /// not have are ignored, and so are those beyond one message.
    pub(crate) fn apply_ban_changes(&self, changes: &[BanChange]) {
        let active = self.active.load();
        let Some(config) = active.as_deref().filter(|_| !changes.is_empty()) else { return };
        let now = self.clock.now();
        for change in changes.iter().take(MAX_PAGE_BANS) {
            if let Some(counter) = self.banned_counter(config, &change.name()) {
                self.bans.change(|list| list.apply(change, &counter, now));
            }
        }
    }

    /// Ends the bans of limits that the configuration does not have, or that lost their penalty.
    pub(crate) fn reload_bans(&self, config: &ActiveConfig) {
        if !self.bans.is_empty() {
            let find = |name: &BanName| self.banned_counter(config, name);
            self.bans.change(|list| list.find_counters(find));
        }
    }

    /// Lifts the bans of a descriptor at all replicas, and removes its strikes. Returns the entry for
    /// the audit log.
    ///
    /// # Errors
    /// An invalid reason, no ban, or a store that did not confirm.
    pub async fn lift_bans(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        operator: Operator<'_>,
    ) -> Result<AuditEntry, LiftError> {
        validate_reason(operator.reason)?;
        let config = self.active.load_full().ok_or(ActionError::NoConfig)?;
        let mut strikes = self.penalties_of(&config, domain, entries);
        let now = self.clock.now();
        strikes.retain(|strike| {
            self.bans.list.read().left(strike.charge.key.as_bytes(), now).is_some()
        });
        let first = strikes.first().ok_or(LiftError::NotBanned)?;
        let limit = ban_paths(&config, &first.name).map(|paths| paths.rule);
        let descriptor = first.name.descriptor.to_string();
        for strike in &strikes {
            let outcomes = self.charge_store(now, &strike.lift(), None).await;
            for outcome in outcomes {
                if let ChargeOutcome::Failed(failure) = outcome {
                    return Err(LiftError::StoreUnavailable(failure));
                }
            }
            self.bans.change(|list| list.lift(&strike.name, now));
            BanEvent::Lifted.emit();
            let path = ban_paths(&config, &strike.name).map(|paths| paths.limit);
            self.send_ban(BanAction::Lifted(operator), (&strike.name, path), now);
        }
        self.actions.changed.notify_one();
        let entry = self.audit_entry("lift", domain, operator).with_descriptor(descriptor);
        Ok(AuditEntry { limit, ..entry })
    }

    /// Returns the counter of a ban in this configuration.
    fn banned_counter(&self, config: &ActiveConfig, name: &BanName) -> Option<BannedCounter> {
        let entries = parse_entries(&name.descriptor).ok()?;
        let limits = self.penalties_of(config, &name.domain, &borrow_entries(&entries));
        limits.iter().find(|strike| strike.name == *name).map(Strike::counter)
    }

    /// Returns the limits of a descriptor with a penalty, as strikes that are not counted.
    fn penalties_of(
        &self,
        config: &ActiveConfig,
        domain: &str,
        entries: &[(&str, &str)],
    ) -> Vec<Strike> {
        // A refund is planned despite a forced decision.
        let cost = Cost::Refund(Hits(0));
        let descriptor = Descriptor { entries: entries.into(), cost, limit: None };
        let check = Check { domain, descriptors: [descriptor].into_iter().collect() };
        let mut plan = CheckPlan::default();
        plan.fill(config, &check, self.policy.planning, self.clock.now());
        let strikes = charged_limits(&plan).filter_map(|(limit, charge)| {
            let limit = limit?;
            let name = ban_name(config, domain, entries, limit)?;
            let penalty = limit.penalty.as_deref()?.clone();
            Some(Strike { name, charge: charge.clone(), penalty })
        });
        strikes.collect()
    }
}

/// Returns the charges of a plan, each with its limit if that has a penalty.
fn charged_limits<'p, 'c>(
    plan: &'p CheckPlan<'c>,
) -> impl Iterator<Item = (Option<&'c Limit>, &'p Charge)> {
    let charged = plan.limits.iter().filter(|limit| limit.is_charged());
    charged.map(penalized).zip(&plan.charges.list)
}

/// Returns the limit if it has a penalty, and is not in shadow mode.
fn penalized<'c>(limit: &LimitPlan<'c>) -> Option<&'c Limit> {
    match limit {
        LimitPlan::Charged(rule, limit) if limit.penalty.is_some() && !rule.shadow => Some(limit),
        _ => None,
    }
}

/// Returns the name of the ban of a descriptor. Descriptors that share a counter have the same.
fn ban_name(
    config: &ActiveConfig,
    domain: &str,
    entries: &[(&str, &str)],
    limit: &Limit,
) -> Option<BanName> {
    let tree = &config.domains.get(domain)?.tree;
    let (_, key) = tree.rule_and_key(entries.iter().copied())?;
    let key = key.iter().map(|(key, value)| (&**key, &**value));
    Some(BanName {
        domain: domain.into(),
        descriptor: format_entries(key).into(),
        limit: limit.name.as_deref().unwrap_or_default().into(),
    })
}
