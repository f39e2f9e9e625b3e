//! The steps of the model.

use sluicegate_kernel::budget::{
    Amount, Budget, BudgetTerms, Ended, EndedHold, Hold, HoldId, Reserved, reserve_all,
};
use sluicegate_kernel::units::Nanos;

use super::{Action, BudgetFlaw, BudgetModel, BudgetModelState, Charge, Happens, History, Phase};

const fn id_of(at: usize) -> HoldId {
    HoldId(7, at as u64)
}

/// Takes a hold of this amount in each budget, or in none.
fn hold_in_all(
    budgets: &mut [Budget],
    terms: &[BudgetTerms],
    (id, amount): (HoldId, u64),
    now: Nanos,
) -> Reserved {
    let hold = |(budget, terms)| Hold { budget, terms, amount: Amount(amount) };
    let mut holds: Vec<_> = budgets.iter_mut().zip(terms).map(hold).collect();
    reserve_all(&mut holds, id, now)
}

/// True if a first reserve denies exactly in the first budget without enough free amount.
fn agrees(reserved: Reserved, amount: u64, free: &[u64]) -> bool {
    match (reserved, free.iter().position(|free| *free < amount)) {
        (Reserved::Held, None) => true,
        (Reserved::Denied(denial), Some(short)) => denial.index == short,
        _ => false,
    }
}

/// The reply to an end by the law.
fn expected_end(law: &History, charge: Charge) -> Ended {
    match law.phase {
        _ if !law.changes_with(charge) => Ended::Before,
        Phase::New => Ended::Unknown,
        Phase::Open => Ended::Now,
        Phase::Correctable | Phase::Settled | Phase::Over => Ended::Corrected,
    }
}

/// Ends a hold with the held amount or with nothing.
fn end_without_cost(
    budget: &mut Budget,
    terms: &BudgetTerms,
    id: HoldId,
    charge: Charge,
    now: Nanos,
) -> EndedHold {
    if charge == Charge::Held {
        budget.settle_held(terms, id, now)
    } else {
        budget.cancel(terms, id, now)
    }
}

impl BudgetModel {
    pub(super) fn tick(&self, state: &mut BudgetModelState) {
        state.tick += 1;
        for law in state.store.law.iter_mut().chain(&mut state.copy.law) {
            law.tick(self.rules);
        }
    }

    pub(super) fn reserve(&self, state: &mut BudgetModelState, at: usize, amount: u64) {
        let (now, periods) = (state.now(), self.periods_at(state.tick));
        let free = [0, 1].map(|index| self.free(state, index));
        let terms = [0, 1].map(|index| self.reserve_terms(state, index, amount));
        let law = &mut state.store.law[at];
        let first = law.first;
        let budgets = &mut state.store.budgets[first..];
        let reserved = hold_in_all(budgets, &terms[first..], (id_of(at), amount), now);
        state.replies_agree &= match law.phase {
            Phase::New => agrees(reserved, amount, &free[first..]),
            Phase::Open => reserved == Reserved::Repeated,
            Phase::Correctable | Phase::Settled | Phase::Over => reserved == Reserved::Ended,
        };
        if reserved == Reserved::Held {
            law.reserve(amount, periods, self.rules);
        }
        self.break_reserve(state, (id_of(at), amount), reserved);
        self.record(match reserved {
            Reserved::Held => Happens::Held,
            Reserved::Repeated => Happens::ReserveRepeated,
            Reserved::Ended => Happens::ReserveAfterEnd,
            Reserved::Denied(denial) if first + denial.index == 0 => Happens::DeniedByFirst,
            Reserved::Denied(_) => Happens::DeniedBySecond,
        });
    }

    /// The amount of a budget that is free by the law.
    fn free(&self, state: &BudgetModelState, index: usize) -> u64 {
        let held = state.held(index, self.periods_at(state.tick)[index]);
        self.unsettled(state, index).saturating_sub(held)
    }

    fn unsettled(&self, state: &BudgetModelState, index: usize) -> u64 {
        let period = self.periods_at(state.tick)[index];
        let settled: u64 = state.of_period(index, period).map(|law| law.bill).sum();
        self.amounts[index].saturating_sub(settled)
    }

    /// The terms for a reserve; the flaw ignores held amounts.
    fn reserve_terms(&self, state: &BudgetModelState, index: usize, amount: u64) -> BudgetTerms {
        let ignores = self.flaw == BudgetFlaw::HeldNotChecked;
        let is_allowed = ignores && amount <= self.unsettled(state, index);
        BudgetTerms { is_enforced: !is_allowed, ..self.terms(index) }
    }

    /// Adds the effect of a flaw to a reserve.
    fn break_reserve(
        &self,
        state: &mut BudgetModelState,
        (id, amount): (HoldId, u64),
        reserved: Reserved,
    ) {
        let (now, terms) = (state.now(), [0, 1].map(|index| self.terms(index)));
        let budgets = &mut state.store.budgets;
        match (self.flaw, reserved) {
            (BudgetFlaw::HoldInSettledAmount, Reserved::Held) => {
                for (budget, terms) in budgets.iter_mut().zip(&terms) {
                    budget.charge(terms, Amount(amount), now);
                }
            }
            (BudgetFlaw::FirstBudgetKeepsDeniedHold, Reserved::Denied(_)) => {
                hold_in_all(&mut budgets[..1], &terms[..1], (id, amount), now);
            }
            _ => {}
        }
    }

    pub(super) fn renew(&self, state: &mut BudgetModelState, at: usize) {
        let now = state.now();
        let is_open = state.store.law[at].phase == Phase::Open;
        let first = state.store.law[at].first;
        for (index, budget) in state.store.budgets.iter_mut().enumerate().skip(first) {
            let renewed = budget.renew(&self.terms(index), id_of(at), now);
            state.replies_agree &= renewed == is_open;
        }
        if is_open {
            self.record(Happens::Renewed);
        }
        state.store.law[at].renew(self.rules);
    }

    /// Ends a request in all its budgets.
    pub(super) fn end(&self, state: &mut BudgetModelState, at: usize, charge: Charge) {
        let periods = self.periods_at(state.tick);
        let law = state.store.law[at];
        let ended = expected_end(&law, charge);
        let expected = EndedHold { ended, counted: Amount(law.counted()) };
        for (index, period) in periods.into_iter().enumerate().skip(law.first) {
            let is_late = law.phase == Phase::Open && law.took[index] != period;
            let found = self.end_one(state, (at, index), charge, is_late);
            state.replies_agree &= found == expected;
            if is_late && charge != Charge::Nothing {
                self.record(Happens::SettledInLaterPeriod);
            }
        }
        state.store.law[at].end(charge, periods, self.rules);
        self.record(match (ended, charge) {
            (Ended::Now, Charge::Nothing) => Happens::Canceled,
            (Ended::Now, Charge::Held) => Happens::HeldSettled,
            (Ended::Now, Charge::Actual(_)) => Happens::Settled,
            (Ended::Corrected, Charge::Actual(_)) if law.was_canceled => {
                Happens::SettledAfterCancel
            }
            (Ended::Corrected, _) => Happens::CorrectedAfterExpiry,
            (Ended::Unknown, Charge::Actual(_)) => Happens::SettledWithoutHold,
            (Ended::Unknown, _) => Happens::UnknownMadeKnown,
            (Ended::Before, _) => Happens::EndRepeated,
        });
    }

    /// Ends the hold in one budget, with the effect of a flaw. `is_late` is true after its period.
    fn end_one(
        &self,
        state: &mut BudgetModelState,
        (at, index): (usize, usize),
        charge: Charge,
        is_late: bool,
    ) -> EndedHold {
        let (now, terms, id) = (state.now(), self.terms(index), id_of(at));
        let law = &state.store.law[at];
        let budget = &mut state.store.budgets[index];
        let Charge::Actual(cost) = charge else {
            return end_without_cost(budget, &terms, id, charge, now);
        };
        if self.flaw == BudgetFlaw::CancelIsFinal && law.was_canceled {
            return EndedHold { ended: Ended::Before, counted: Amount(law.bill) };
        }
        if self.flaw == BudgetFlaw::SettleInCurrentPeriod && is_late {
            budget.charge(&terms, Amount(cost), now);
            return budget.cancel(&terms, id, now);
        }
        let ended = budget.settle(&terms, id, Amount(cost), now);
        if self.flaw == BudgetFlaw::SettleNotIdempotent && ended.ended == Ended::Before {
            budget.charge(&terms, Amount(cost), now);
        }
        ended
    }

    /// Counts a step that the copy lacks. A store that does not wait replies at once.
    pub(super) fn acknowledge(&self, state: &mut BudgetModelState, action: Action) {
        if matches!(action, Action::Tick | Action::Copy | Action::FailOver) {
            return;
        }
        state.behind += 1;
        if !self.waits {
            state.learn_all();
        }
    }

    pub(super) fn copy(&self, state: &mut BudgetModelState) {
        state.copy = state.store.clone();
        state.behind = 0;
        if self.waits {
            state.learn_all();
        }
    }

    pub(super) fn fail_over(&self, state: &mut BudgetModelState) {
        let before = std::mem::replace(&mut state.store, state.copy.clone());
        state.behind = 0;
        state.faults += 1;
        if before.law != state.store.law {
            self.record(if state.lost() == 0 {
                Happens::LostUnacknowledged
            } else {
                Happens::LostAcknowledged
            });
        }
    }
}

impl BudgetModelState {
    /// All clients get the replies to all steps so far.
    fn learn_all(&mut self) {
        for (told, law) in self.told.iter_mut().zip(&self.store.law) {
            told.learn(law);
        }
    }
}
