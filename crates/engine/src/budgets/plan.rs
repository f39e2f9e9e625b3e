//! Plans the budgets of a check: their keys, amounts and slots.
//!
//! Guarantees:
//! - Pure: a plan depends only on configuration, check and instant.
//! - Each budget is planned once, also if several descriptors meet it.

use smallvec::SmallVec;

use crate::config::budget::{BudgetRule, BudgetUnit, UsageRules};
use crate::config::prices::{Prices, TokenCounts};
use crate::config::table_limits::FromTable;
use crate::config::tree::{self, BudgetMatch};
use crate::config::{Config, Domain};
use crate::kernel::budget::Amount;
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Nanos;
use crate::store::Placement;
use crate::store::budgets::BudgetPart;
use crate::telemetry::event::{Event as _, UnknownTableId};

/// The budgets of a check.
#[derive(Debug)]
pub(super) struct BudgetPlan<'c> {
    pub(super) usage: &'c UsageRules,
    /// The prices of the check's model; `None` if it has none.
    prices: Option<Prices>,
    pub(super) budgets: SmallVec<[PlannedBudget<'c>; 2]>,
}

/// One budget of a check.
#[derive(Clone, Debug)]
pub(super) struct PlannedBudget<'c> {
    pub(super) rule: &'c BudgetRule,
    pub(super) key: CounterKey,
    placement: Placement,
    /// The amount of a period.
    pub(super) amount: Amount,
    /// The largest number of hits of the descriptors that meet the budget.
    pub(super) hits: u64,
}

/// The model has no price.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoPrice;

impl<'c> BudgetPlan<'c> {
    /// Plans the budgets of a check. `None` if it meets none.
    pub(super) fn new(config: &'c Config, check: &Check<'_>, now: Nanos) -> Option<Self> {
        let domain = config.domains.get(check.domain)?;
        let mut budgets = SmallVec::new();
        for descriptor in &check.descriptors {
            let Cost::Charge(hits) = descriptor.cost else { continue };
            for found in domain.tree.lookup_budgets(&descriptor.entries) {
                add_budget(&mut budgets, (config, domain), (descriptor, hits.0), &found, now);
            }
        }
        let usage = &domain.usage;
        let prices = prices_of(config, usage, check, now);
        (!budgets.is_empty()).then_some(Self { usage, prices, budgets })
    }

    /// Returns what `tokens` cost in the unit of a budget.
    pub(super) fn cost(&self, rule: &BudgetRule, tokens: &TokenCounts) -> Result<Amount, NoPrice> {
        let TokenCounts { input, cached_input, output, any } = *tokens;
        let number = match rule.unit {
            BudgetUnit::Tokens => tokens.total(),
            BudgetUnit::InputTokens => input.saturating_add(cached_input).saturating_add(any),
            BudgetUnit::OutputTokens => output.saturating_add(any),
            BudgetUnit::Money(_) => self.prices.ok_or(NoPrice)?.cost(tokens).0,
        };
        Ok(Amount::bounded(number))
    }

    /// Splits the budgets into those that `is_first` selects, and the others.
    pub(super) fn split(&self, is_first: impl Fn(&PlannedBudget<'c>) -> bool) -> (Self, Self) {
        let all = self.budgets.iter().cloned();
        let (first, second) = all.partition(|budget| is_first(budget));
        let (usage, prices) = (self.usage, self.prices);
        (Self { usage, prices, budgets: first }, Self { usage, prices, budgets: second })
    }

    /// Returns the budgets for a store call, with these amounts to reserve, settle or charge.
    pub(super) fn parts(
        &self,
        amounts: impl IntoIterator<Item = Amount>,
        is_shadow: bool,
        now: Nanos,
    ) -> SmallVec<[BudgetPart; 2]> {
        let part = |(planned, amount): (&PlannedBudget<'c>, Amount)| {
            let mut terms = planned.rule.terms_at(self.usage, planned.amount, now);
            terms.is_enforced &= !is_shadow;
            BudgetPart { key: planned.key.clone(), placement: planned.placement, terms, amount }
        };
        self.budgets.iter().zip(amounts).map(part).collect()
    }
}

fn add_budget<'c>(
    budgets: &mut SmallVec<[PlannedBudget<'c>; 2]>,
    (config, domain): (&'c Config, &'c Domain),
    (descriptor, hits): (&Descriptor<'_>, u64),
    found: &BudgetMatch<'c>,
    now: Nanos,
) {
    let entries = descriptor.entries.iter().take(found.entries).copied();
    let entries = tree::counter_entries(entries, &found.shared);
    let key = CounterKey::budget(&domain.name, entries.clone(), found.rule.unit.number());
    if let Some(known) = budgets.iter_mut().find(|known| known.key == key) {
        known.hits = known.hits.max(hits);
        return;
    }
    let Some(amount) = amount_of(config, found.rule, descriptor, now) else { return };
    let placement = placement_of(domain, entries);
    budgets.push(PlannedBudget { rule: found.rule, key, placement, amount, hits });
}

/// Returns the amount of a budget; `None` if a table says `unlimited`.
fn amount_of(
    config: &Config,
    rule: &BudgetRule,
    descriptor: &Descriptor<'_>,
    now: Nanos,
) -> Option<Amount> {
    let Some(column) = rule.from.as_deref() else { return Some(rule.amount) };
    let id = descriptor.entries.get(column.entry).map_or("", |(_, id)| *id);
    match config.tables.budget(column, id, now) {
        FromTable::Limit(amount) => Some(*amount),
        FromTable::RuleNumber => Some(rule.amount),
        // The table's budgets have an amount of 0 for a blocked id.
        FromTable::Blocked => Some(Amount(0)),
        FromTable::UnknownId => {
            UnknownTableId.emit();
            Some(rule.amount)
        }
        FromTable::Unlimited => None,
    }
}

/// Returns the placement of a budget in Redis Cluster. All budgets of a check share a slot: that of
/// `colocate`, else that of the domain.
fn placement_of<'a>(
    domain: &Domain,
    mut entries: impl Iterator<Item = (&'a str, &'a str)>,
) -> Placement {
    let colocated = domain.colocate.as_deref();
    let entry = colocated.and_then(|key| entries.find(|(name, _)| *name == key));
    entry.map_or_else(
        || Placement::by_domain(&domain.name),
        |(_, value)| Placement::by_value(&domain.name, value),
    )
}

/// Returns the prices of the model of a check. `None` without a table or a row.
fn prices_of(config: &Config, usage: &UsageRules, check: &Check<'_>, now: Nanos) -> Option<Prices> {
    let table = config.tables.table(usage.prices.as_deref()?)?;
    Prices::of_model(table, model_of(usage, check), now)
}

/// Returns the model of a check: the value of the first entry with the key of models, else an empty
/// text.
pub(super) fn model_of<'q>(usage: &UsageRules, check: &Check<'q>) -> &'q str {
    let mut entries = check.descriptors.iter().flat_map(|one| &one.entries);
    entries.find(|(key, _)| *key == &*usage.model).map_or("", |(_, value)| *value)
}
