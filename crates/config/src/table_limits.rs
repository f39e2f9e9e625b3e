//! The limits whose numbers come from tables (field `from`).
//!
//! A rule says which column of which table it reads. The number of a limit is the own amount of the
//! row, else that of its plan, else the rule's own number.
//!
//! Guarantees:
//! - A check finds its limit with one lookup in the table, and one by number.
//! - The number is not part of the counter's key, so the hits stay when it changes.
//! - A number that the limit cannot count is not used: the rule's own number applies.
//!
//! Not covered:
//! - The rows (see `tables`).

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::num::NonZeroU32;
use std::sync::Arc;

use fnv::FnvHasher;
use sluicegate_tables::{Amount, ColumnNumber, Lookup, Table};

use crate::budget::BudgetRule;
use crate::concurrency::ConcurrencyLimit;
use crate::kernel::budget::Amount as BudgetAmount;
use crate::kernel::concurrency::MAX_WEIGHT;
use crate::kernel::lease::Overshoot;
use crate::kernel::lease::sizer::{self, LeaseSizing};
use crate::kernel::proxy_rule::TableRow;
use crate::kernel::units::{Hits, Nanos};
use crate::table_column::TableColumn;
use crate::{Limit, LimitMode};

/// The limit that a table has for an id.
#[derive(Clone, Copy, Debug)]
pub enum FromTable<'c, L> {
    /// The rule's own number applies: the row has no amount in this column, or the service does not
    /// have the table.
    RuleNumber,
    /// The rule's own number applies, because the table has no row with this id.
    UnknownId,
    /// The limit with the amount of the table.
    Limit(&'c L),
    /// No limit applies.
    Unlimited,
    /// Every request is denied.
    Blocked,
}

/// The tables of a configuration, and the limits that read them.
#[derive(Clone, Debug, Default)]
pub struct TableLimits {
    pub(crate) tables: Arc<[Arc<Table>]>,
    rates: Vec<Slot<Limit>>,
    permits: Vec<Slot<ConcurrencyLimit>>,
    budgets: Vec<Slot<BudgetAmount>>,
    weights: Vec<Slot<u32>>,
    /// The amounts that operators set.
    set: Arc<[SetAmount]>,
    version: u32,
}

/// An amount that an operator set for an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetAmount {
    pub(crate) table: Box<str>,
    pub(crate) column: Box<str>,
    pub(crate) id: Box<str>,
    pub(crate) amount: Amount,
    pub(crate) until: Nanos,
}

/// The limits of one rule for the numbers of a column.
#[derive(Clone, Debug)]
struct Slot<L> {
    source: Option<(Arc<Table>, ColumnNumber)>,
    by_number: Arc<ByNumber<L>>,
    /// The limit of a blocked id, if such a limit exists.
    blocked: Option<L>,
    /// The amounts that operators set, with their ends. They precede those of the table.
    set: HashMap<Box<str>, (Amount, Nanos)>,
}

// The numbers come from the operator's own table, so a keyed hash is unnecessary.
type ByNumber<L> = HashMap<NonZeroU32, L, BuildHasherDefault<FnvHasher>>;

impl<L> Default for Slot<L> {
    fn default() -> Self {
        let (by_number, set) = (Arc::default(), HashMap::new());
        Self { source: None, by_number, blocked: None, set }
    }
}

impl<L> Slot<L> {
    fn lookup(&self, id: &str, now: Nanos) -> FromTable<'_, L> {
        let set = if self.set.is_empty() { None } else { self.set.get(id) };
        if let Some((amount, _)) = set.filter(|(_, until)| now < *until) {
            return self.limit_of(Lookup::Found(*amount));
        }
        let Some((table, column)) = &self.source else { return FromTable::RuleNumber };
        self.limit_of(table.lookup(id, *column, now))
    }

    #[inline]
    fn limit_of(&self, found: Lookup) -> FromTable<'_, L> {
        match found {
            Lookup::UnknownId => FromTable::UnknownId,
            Lookup::NoAmount => FromTable::RuleNumber,
            Lookup::Found(Amount::Unlimited) => FromTable::Unlimited,
            Lookup::Found(Amount::Blocked) => {
                self.blocked.as_ref().map_or(FromTable::Blocked, FromTable::Limit)
            }
            Lookup::Found(Amount::Number(number)) => {
                self.by_number.get(&number).map_or(FromTable::RuleNumber, FromTable::Limit)
            }
        }
    }

    /// Returns the limits for the column in the newest version of its table. Computes nothing if no
    /// number is new.
    fn renewed(
        &self,
        wanted: &TableColumn,
        (tables, set): (&[Arc<Table>], &[SetAmount]),
        (resize, blocked): (impl Fn(NonZeroU32) -> Option<L>, Option<L>),
    ) -> Self
    where
        L: Clone,
    {
        let table = tables.iter().find(|table| *table.name() == *wanted.table);
        let source =
            table.and_then(|table| Some((Arc::clone(table), table.column(&wanted.column)?)));
        let numbers = |slot: &Option<(Arc<Table>, ColumnNumber)>| {
            slot.as_ref().and_then(|(table, column)| table.numbers(*column).cloned())
        };
        let mut by_number = match (numbers(&source), numbers(&self.source)) {
            (Some(numbers), Some(before)) if Arc::ptr_eq(&numbers, &before) => {
                Arc::clone(&self.by_number)
            }
            (numbers, _) => {
                let numbers = numbers.iter().flat_map(|numbers| numbers.iter());
                let limits = numbers.filter_map(|number| Some((*number, resize(*number)?)));
                Arc::new(limits.collect())
            }
        };
        let set = set.iter().filter(|set| set.table == wanted.table && set.column == wanted.column);
        for set in set.clone() {
            if let Amount::Number(number) = set.amount
                && !by_number.contains_key(&number)
                && let Some(limit) = resize(number)
            {
                Arc::make_mut(&mut by_number).insert(number, limit);
            }
        }
        let set = set.map(|set| (set.id.clone(), (set.amount, set.until))).collect();
        Self { source, by_number, blocked, set }
    }
}

impl TableLimits {
    /// Returns these limits with other versions of the tables, and with the amounts that operators
    /// set. The first argument has all limits of the configuration that read tables.
    pub(crate) fn with_tables<'d>(
        &self,
        (read_by_rates, read_by_permits, read_by_budgets, weight_columns): (
            impl Iterator<Item = (&'d Limit, &'d TableColumn)>,
            impl Iterator<Item = (&'d ConcurrencyLimit, &'d TableColumn)>,
            impl Iterator<Item = (&'d BudgetRule, &'d TableColumn)>,
            impl Iterator<Item = &'d TableColumn>,
        ),
        tables: Arc<[Arc<Table>]>,
        set: &[SetAmount],
    ) -> Self {
        let sources = (&*tables, set);
        let (mut rates, mut permits) = (self.rates.clone(), self.permits.clone());
        let (mut budgets, mut weights) = (self.budgets.clone(), self.weights.clone());
        for (limit, column) in read_by_rates {
            let resize = |number: NonZeroU32| rate_limit_for(limit, column, number);
            renew(&mut rates, column, sources, (resize, None));
        }
        for (limit, column) in read_by_permits {
            let resize = |number: NonZeroU32| Some(limit.resized(number.get()));
            renew(&mut permits, column, sources, (resize, Some(limit.blocked())));
        }
        for (budget, column) in read_by_budgets {
            let amount = |number: u64| BudgetAmount(number.saturating_mul(budget.unit.scale()));
            let resize = |number: NonZeroU32| Some(amount(number.get().into()));
            renew(&mut budgets, column, sources, (resize, Some(amount(0))));
        }
        for column in weight_columns {
            let weight = |number: NonZeroU32| Some(number.get().min(MAX_WEIGHT));
            renew(&mut weights, column, sources, (weight, Some(1)));
        }
        let (set, version) = (set.into(), self.version.wrapping_add(1));
        Self { tables, rates, permits, budgets, weights, set, version }
    }

    /// The number of this set of tables. Grows with each change.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Returns `true` if a concurrency limit reads a table.
    #[must_use]
    pub fn has_concurrency_limits(&self) -> bool {
        !self.permits.is_empty()
    }

    /// The tables.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        &self.tables
    }

    /// Returns the table with this name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<&Arc<Table>> {
        self.tables.iter().find(|table| table.name() == name)
    }

    /// Returns the rows whose amounts may differ from those of `before`; `None` if too many differ.
    #[must_use]
    pub fn changed_since(&self, before: &Self) -> Option<Vec<TableRow>> {
        let mut rows = Vec::new();
        for table in &*self.tables {
            let earlier = before.table(table.name())?;
            let ids = table.changed_since(earlier)?;
            rows.extend(ids.iter().map(|id| TableRow::new(table.name(), id)));
        }
        let in_one = |a: &'_ [SetAmount], b: &'_ [SetAmount]| {
            let differs = a.iter().filter(|set| !b.contains(set));
            differs.map(|set| TableRow::new(&set.table, &set.id)).collect::<Vec<_>>()
        };
        rows.extend(in_one(&self.set, &before.set));
        rows.extend(in_one(&before.set, &self.set));
        Some(rows)
    }

    /// Returns the instant after `now` at which an amount of an id ends; `None` if none ends.
    #[must_use]
    pub fn next_end(&self, row: &TableRow, now: Nanos) -> Option<Nanos> {
        let is_own = |set: &&SetAmount| *set.table == *row.table && *set.id == *row.id;
        let set = self.set.iter().filter(is_own).map(|set| set.until);
        let table = self.table(&row.table);
        let own = table.and_then(|table| table.own_amounts(table.row(&row.id)?).1);
        set.chain(own).filter(|end| now < *end).min()
    }

    /// Returns the rate limit of an id at the instant `now`.
    #[must_use]
    pub fn rate_limit(&self, column: &TableColumn, id: &str, now: Nanos) -> FromTable<'_, Limit> {
        let slot = self.rates.get(column.slot as usize);
        slot.map_or(FromTable::RuleNumber, |slot| slot.lookup(id, now))
    }

    /// Returns the concurrency limit of an id at the instant `now`.
    #[must_use]
    pub fn concurrency_limit(
        &self,
        column: &TableColumn,
        id: &str,
        now: Nanos,
    ) -> FromTable<'_, ConcurrencyLimit> {
        let slot = self.permits.get(column.slot as usize);
        slot.map_or(FromTable::RuleNumber, |slot| slot.lookup(id, now))
    }

    /// Returns the amount of the budget of an id at the instant `now`.
    #[must_use]
    pub fn budget(
        &self,
        column: &TableColumn,
        id: &str,
        now: Nanos,
    ) -> FromTable<'_, BudgetAmount> {
        let slot = self.budgets.get(column.slot as usize);
        slot.map_or(FromTable::RuleNumber, |slot| slot.lookup(id, now))
    }

    /// Returns the weight of a customer at the instant `now`, 1 to [`MAX_WEIGHT`]. `None` if the table
    /// has no row for it, or the service has no such column.
    #[must_use]
    pub fn weight(&self, column: &TableColumn, id: &str, now: Nanos) -> Option<u32> {
        let slot = self.weights.get(column.slot as usize)?;
        if slot.source.is_none() && slot.set.is_empty() {
            return None;
        }
        match slot.lookup(id, now) {
            FromTable::Limit(weight) => Some(*weight),
            FromTable::Unlimited => Some(MAX_WEIGHT),
            FromTable::RuleNumber | FromTable::Blocked => Some(1),
            FromTable::UnknownId => None,
        }
    }

    /// Returns a sentence about the row of an id and its amount.
    #[must_use]
    pub fn describe(&self, column: &TableColumn, id: &str, now: Nanos) -> String {
        let TableColumn { table: name, column: column_name, .. } = column;
        let is_it = |set: &&SetAmount| {
            set.table == *name && set.column == *column_name && *set.id == *id && now < set.until
        };
        if let Some(SetAmount { amount, .. }) = self.set.iter().find(is_it) {
            return format!("table `{name}`, `{id}`: an operator set `{column_name}` to {amount}");
        }
        let Some(table) = self.table(name) else {
            return format!("no table `{name}` is loaded, so the rule's own number applies");
        };
        let Some(row) = table.row(id) else {
            return format!("table `{name}` has no row `{id}`, so the rule's own number applies");
        };
        let amount = table.column(column_name).and_then(|found| table.amount(row, found, now));
        let plan = table.plan_name(row).map(|plan| format!(" with plan `{plan}`"));
        let row = format!("table `{name}`, row `{id}`{}", plan.unwrap_or_default());
        match amount {
            Some(amount) => format!("{row}: `{column_name}` is {amount}"),
            None => format!("{row}: no `{column_name}`, so the rule's own number applies"),
        }
    }
}

/// Returns the rate limit for a number. A leased limit whose overshoot would be less than one hit is
/// counted exactly.
fn rate_limit_for(limit: &Limit, column: &TableColumn, number: NonZeroU32) -> Option<Limit> {
    let mut sized = limit.resized(number.get()).ok()?;
    let max_lease = sizer::max_lease(sized.strategy.max_at_once());
    let LimitMode::Leased(terms) = &mut sized.mode else { return Some(sized) };
    if matches!(terms.sizing, LeaseSizing::Fixed(hits) if max_lease < hits) {
        terms.sizing = LeaseSizing::Learned;
    }
    if let Overshoot::Occupying(_) = terms.overshoot {
        terms.overshoot = Overshoot::Occupying(max_lease);
    }
    if let Overshoot::AtMost(hits) = terms.overshoot {
        let requests = u64::from(number.get());
        let part = column.overshoot_part.map(|part| requests.saturating_mul(part) / 10_000);
        let hits = part.unwrap_or(hits.0).min(requests);
        terms.overshoot = Overshoot::AtMost(Hits(hits));
        if hits == 0 {
            sized.mode = LimitMode::Strict;
        }
    }
    Some(sized)
}

fn renew<L: Clone>(
    slots: &mut Vec<Slot<L>>,
    column: &TableColumn,
    sources: (&[Arc<Table>], &[SetAmount]),
    limits: (impl Fn(NonZeroU32) -> Option<L>, Option<L>),
) {
    let index = column.slot as usize;
    if slots.len() <= index {
        slots.resize_with(index + 1, Slot::default);
    }
    if let Some(slot) = slots.get_mut(index) {
        *slot = slot.renewed(column, sources, limits);
    }
}
