//! Charges and lease messages, applied to the rows of counters.
//!
//! Guarantees:
//! - The kernel decides, so the results equal those of the memory store.
//! - An all-or-nothing check changes all of its counters or none.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::super::lease::{LeaseMessage, LeaseOutcome};
use super::super::{
    Charge, ChargeMode, ChargeOutcome, Charges, Outcomes, StoreFailure, is_allowed,
};
use super::queue::StoreOperation;
use super::rows::{RowKey, RowKind, Rows, row_key};
use crate::kernel::decision::Cost;
use crate::kernel::lease::counter::{AnyCounter, headroom_of};
use crate::kernel::lease::table::LeaseTable;
use crate::kernel::rate::fixed_window::WindowCount;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::sliding_log::ArrivalLog;
use crate::kernel::rate::sliding_window::WindowPair;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// The row of a counter.
#[derive(Debug, Default, Serialize, Deserialize)]
struct CounterRow {
    /// `None` before the first charge.
    state: Option<CounterState>,
    leases: LeaseTable,
    empty_at: Nanos,
}

/// The state of a counter, by strategy.
#[derive(Debug, Serialize, Deserialize)]
enum CounterState {
    /// GCRA, with the limit to which the debt belongs.
    Gcra(Gcra, Tat),
    FixedWindow(WindowCount),
    SlidingWindow(WindowPair),
    SlidingLog(ArrivalLog),
}

impl CounterRow {
    fn read(rows: &Rows, key: &[u8]) -> Result<Self, StoreFailure> {
        Ok(rows.read(key)?.unwrap_or_default())
    }

    fn write(&self, rows: &mut Rows, key: &[u8]) -> Result<(), StoreFailure> {
        rows.write(key, self, self.empty_at.max(self.leases.expires_at()))
    }

    /// Returns the counter, with its state converted to `strategy`, and the leases.
    fn open<'r>(
        &'r mut self,
        strategy: &'r Strategy,
        now: Nanos,
    ) -> Result<(AnyCounter<'r>, &'r mut LeaseTable), StoreFailure> {
        let state = self.state.get_or_insert_with(|| CounterState::empty(strategy));
        state.convert(strategy, now);
        Ok((state.counter(strategy).ok_or(StoreFailure::WrongType)?, &mut self.leases))
    }

    fn charge(
        &mut self,
        strategy: &Strategy,
        now: Nanos,
        cost: Cost,
    ) -> Result<CounterDecision, StoreFailure> {
        let (mut counter, _) = self.open(strategy, now)?;
        let decision = match cost {
            Cost::Charge(hits) => counter.charge(now, hits),
            Cost::Refund(hits) => counter.refund_newest(now, hits),
        };
        self.set_empty_at(decision, now);
        Ok(decision)
    }

    fn peek(
        &mut self,
        strategy: &Strategy,
        now: Nanos,
        hits: Hits,
    ) -> Result<CounterDecision, StoreFailure> {
        Ok(self.open(strategy, now)?.0.peek(now, hits))
    }

    fn set_empty_at(&mut self, decision: CounterDecision, now: Nanos) {
        if decision != CounterDecision::OutsideWindows {
            self.empty_at = now.plus(headroom_of(decision).reset_after);
        }
    }
}

impl CounterState {
    fn empty(strategy: &Strategy) -> Self {
        match strategy {
            Strategy::Gcra(limit) => Self::Gcra(*limit, Tat::default()),
            Strategy::FixedWindow(_) => Self::FixedWindow(WindowCount::default()),
            Strategy::SlidingWindow(_) => Self::SlidingWindow(WindowPair::default()),
            Strategy::SlidingLog(_) => Self::SlidingLog(ArrivalLog::default()),
        }
    }

    /// Converts a debt to the limit of `strategy`.
    fn convert(&mut self, strategy: &Strategy, now: Nanos) {
        if let (Self::Gcra(from, state), Strategy::Gcra(limit)) = (self, strategy)
            && from != limit
        {
            *state = limit.convert(state, from, now);
            *from = *limit;
        }
    }

    /// Returns the counter with this state. `None` if the state is of another strategy.
    fn counter<'s>(&'s mut self, strategy: &'s Strategy) -> Option<AnyCounter<'s>> {
        match (self, strategy) {
            (Self::Gcra(_, state), Strategy::Gcra(limit)) => Some(AnyCounter::Gcra(limit, state)),
            (Self::FixedWindow(state), Strategy::FixedWindow(limit)) => {
                Some(AnyCounter::FixedWindow(limit, state))
            }
            (Self::SlidingWindow(state), Strategy::SlidingWindow(limit)) => {
                Some(AnyCounter::SlidingWindow(limit, state))
            }
            (Self::SlidingLog(state), Strategy::SlidingLog(limit)) => {
                Some(AnyCounter::SlidingLog(limit, state))
            }
            _ => None,
        }
    }
}

/// The charges of one check.
pub(super) struct ChargeOperation {
    charges: Charges,
    keys: Vec<RowKey>,
    /// The outcomes whose rows are saved.
    saved: Vec<Option<ChargeOutcome>>,
}

impl ChargeOperation {
    pub(super) fn new(charges: &Charges, prefix: &str) -> Self {
        let key = |charge: &Charge| row_key(prefix, RowKind::Counter, charge.key.as_bytes());
        Self {
            charges: charges.clone(),
            keys: charges.list.iter().map(key).collect(),
            saved: vec![None; charges.list.len()],
        }
    }

    /// Makes the charge `index`, and writes its row.
    fn charge(&self, rows: &mut Rows, index: usize) -> Result<ChargeOutcome, StoreFailure> {
        let (now, key, charge) = (rows.now(), &self.keys[index], &self.charges.list[index]);
        let mut row = CounterRow::read(rows, key)?;
        let is_new = row.state.is_none();
        let decision = row.charge(&charge.strategy, now, charge.cost)?;
        if !is_new || now < row.empty_at {
            row.write(rows, key)?;
        }
        Ok(match charge.cost {
            _ if decision == CounterDecision::OutsideWindows => ChargeOutcome::Stale(now),
            Cost::Charge(_) => ChargeOutcome::Decided(decision),
            Cost::Refund(_) => ChargeOutcome::Refunded(decision),
        })
    }

    /// Returns the outcome that charge `index` would have after all charges before it.
    fn preview(&self, rows: &Rows, index: usize) -> Result<ChargeOutcome, StoreFailure> {
        let charge = &self.charges.list[index];
        let Cost::Charge(hits) = charge.cost else {
            return self.peek(rows, index, Hits(0)).map(ChargeOutcome::Refunded);
        };
        let earlier = (0..index).filter(|&other| self.keys[other] == self.keys[index]);
        let earlier = earlier.filter_map(|other| match self.charges.list[other].cost {
            Cost::Charge(hits) => Some(hits),
            Cost::Refund(_) => None,
        });
        let total = earlier.fold(hits, Hits::plus);
        Ok(match self.peek(rows, index, total)? {
            CounterDecision::OutsideWindows => ChargeOutcome::Stale(rows.now()),
            decision => ChargeOutcome::Decided(decision),
        })
    }

    fn peek(&self, rows: &Rows, index: usize, hits: Hits) -> Result<CounterDecision, StoreFailure> {
        let mut row = CounterRow::read(rows, &self.keys[index])?;
        row.peek(&self.charges.list[index].strategy, rows.now(), hits)
    }

    /// Makes all charges if `admits` accepts their previews, else none. Refunds are always made.
    fn charge_atomically(
        &self,
        rows: &mut Rows,
        admits: impl FnOnce(&[ChargeOutcome]) -> bool,
    ) -> Result<Outcomes, StoreFailure> {
        let all = 0..self.keys.len();
        let previews: Outcomes =
            all.clone().map(|index| self.preview(rows, index)).collect::<Result<_, _>>()?;
        let is_admitted = admits(&previews);
        all.map(|index| match self.charges.list[index].cost {
            Cost::Charge(_) if !is_admitted => match previews[index] {
                denial if denial.is_denial() => Ok(denial),
                _ => self.peek(rows, index, Hits(0)).map(ChargeOutcome::Decided),
            },
            Cost::Charge(_) | Cost::Refund(_) => self.charge(rows, index),
        })
        .collect()
    }
}

impl StoreOperation for ChargeOperation {
    type Reply = Outcomes;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn has_independent_rows(&self) -> bool {
        match self.charges.mode {
            ChargeMode::Each => true,
            // A preview saves nothing.
            ChargeMode::Preview => false,
            ChargeMode::AllOrNothing { .. } => self.keys.len() == 1,
        }
    }

    fn keep_saved(&mut self, reply: &Outcomes, saved: &HashSet<RowKey>) {
        for ((kept, key), outcome) in self.saved.iter_mut().zip(&self.keys).zip(reply) {
            if saved.contains(key) {
                *kept = Some(*outcome);
            }
        }
    }

    fn apply(&self, rows: &mut Rows) -> Result<Outcomes, StoreFailure> {
        for key in &self.keys {
            // An unreadable row must not fail the check after another row changed.
            CounterRow::read(rows, key)?;
        }
        match self.charges.mode {
            ChargeMode::Each => (0..self.keys.len())
                .map(|at| self.saved[at].map_or_else(|| self.charge(rows, at), Ok))
                .collect(),
            ChargeMode::Preview => self.charge_atomically(rows, |_| false),
            ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } => self
                .charge_atomically(rows, |previews| {
                    is_allowed(&self.charges.list, previews, quota_for_all, quota_cannot_deny)
                }),
        }
    }
}

/// One lease message.
pub(super) struct LeaseOperation {
    message: LeaseMessage,
    keys: [RowKey; 1],
}

impl LeaseOperation {
    pub(super) fn new(message: &LeaseMessage, prefix: &str) -> Self {
        let key = row_key(prefix, RowKind::Counter, message.key.as_bytes());
        Self { message: message.clone(), keys: [key] }
    }
}

impl StoreOperation for LeaseOperation {
    type Reply = LeaseOutcome;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn apply(&self, rows: &mut Rows) -> Result<LeaseOutcome, StoreFailure> {
        let LeaseMessage { strategy, terms, sender, borrow, .. } = &self.message;
        let (now, key) = (rows.now(), &self.keys[0]);
        let mut row = CounterRow::read(rows, key)?;
        let (mut counter, leases) = row.open(strategy, now)?;
        let Some(reply) = leases.apply(&mut counter, terms, now, *sender, borrow) else {
            return Ok(LeaseOutcome::Superseded);
        };
        if reply.decision == CounterDecision::OutsideWindows {
            return Ok(LeaseOutcome::Stale(now));
        }
        let state = row.peek(strategy, now, Hits(0))?;
        row.set_empty_at(state, now);
        row.write(rows, key)?;
        Ok(LeaseOutcome::Applied(reply))
    }
}
