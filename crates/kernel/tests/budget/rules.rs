//! Rules of budgets, each in one example.

use sluicegate_kernel::budget::{
    Amount, Budget, BudgetPeriod, BudgetTerms, Denial, DenialCause, Hold, HoldId, MAX_ENTRIES,
    MAX_HOLDS, OnExpiry, Reserved, reserve_all,
};
use sluicegate_kernel::rate::fixed_window::Windows;
use sluicegate_kernel::units::Nanos;

use super::{LIMIT, terms};

fn reserve(budget: &mut Budget, terms: &BudgetTerms, id: u64, amount: u64, now: Nanos) -> Reserved {
    let mut holds = [Hold { budget, terms, amount: Amount(amount) }];
    reserve_all(&mut holds, HoldId(1, id), now)
}

fn cause(reserved: Reserved) -> DenialCause {
    match reserved {
        Reserved::Denied(Denial { cause, .. }) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_denial_names_its_cause() {
    let (terms, now) = (terms(1, OnExpiry::Charge), Nanos::from_secs(300_000));
    let mut budget = Budget::default();
    assert_eq!(cause(reserve(&mut budget, &terms, 1, 201, now)), DenialCause::ExceedsAmount);
    assert_eq!(reserve(&mut budget, &terms, 2, 150, now), Reserved::Held);
    assert_eq!(cause(reserve(&mut budget, &terms, 3, 51, now)), DenialCause::InFlight);
    budget.settle(&terms, HoldId(1, 2), Amount(150), now);
    let later = now.plus(Nanos::from_secs(100));
    assert_eq!(cause(reserve(&mut budget, &terms, 3, 51, later)), DenialCause::Spent);
    assert_eq!(budget.view(&terms, later).end, Some(Nanos::from_secs(300_300)));
    let shadow = BudgetTerms { is_enforced: false, ..terms };
    assert_eq!(reserve(&mut budget, &shadow, 3, 51, later), Reserved::Held);
    let starts = [1, 2, 3, 4].map(Nanos::from_secs);
    let period = BudgetPeriod::Each(Windows::Calendar { starts });
    let outside = BudgetTerms { period, ..terms };
    let outside = cause(reserve(&mut Budget::default(), &outside, 1, 1, now));
    assert_eq!(outside, DenialCause::OutsidePeriods);
}

#[test]
fn a_full_budget_forgets_the_oldest_ended_ids_first() {
    let (terms, mut now) = (terms(1, OnExpiry::Charge), Nanos::from_secs(300_000));
    let (mut budget, known) = (Budget::default(), MAX_ENTRIES as u64);
    assert_eq!(reserve(&mut budget, &terms, 0, 1, now), Reserved::Held);
    budget.top_up(&terms, HoldId(9, 0), Amount(1), now);
    for id in 1..known {
        now = now.plus(Nanos(1));
        budget.settle(&terms, HoldId(1, id), Amount(0), now);
    }
    assert_eq!(budget.usage().requests, known - 1);
    // The open hold and the top-up stay known, and the first settled id is forgotten.
    assert_eq!(reserve(&mut budget, &terms, 0, 1, now), Reserved::Repeated);
    assert_eq!(budget.top_up(&terms, HoldId(9, 0), Amount(1), now), Some(Amount(1)));
    assert_eq!(reserve(&mut budget, &terms, 2, 1, now), Reserved::Ended);
    assert_eq!(reserve(&mut budget, &terms, 1, 1, now), Reserved::Held);
    assert_eq!(reserve(&mut budget, &terms, 2, 1, now), Reserved::Held, "forgotten for 1");
    assert_eq!(reserve(&mut budget, &terms, 4, 1, now), Reserved::Ended);
    budget.cancel(&terms, HoldId(1, known), now);
    assert_eq!(reserve(&mut budget, &terms, 4, 1, now), Reserved::Held, "forgotten for another");
}

#[test]
fn a_budget_with_the_most_holds_denies() {
    let terms = BudgetTerms { amount: Amount(1 << 40), ..terms(1, OnExpiry::Charge) };
    let (mut budget, now) = (Budget::default(), Nanos::from_secs(300_000));
    for id in 0..u64::from(MAX_HOLDS) {
        assert_eq!(reserve(&mut budget, &terms, id, 1, now), Reserved::Held);
    }
    let next = u64::from(MAX_HOLDS);
    assert_eq!(cause(reserve(&mut budget, &terms, next, 1, now)), DenialCause::Full);
    let shadow = BudgetTerms { is_enforced: false, ..terms };
    assert_eq!(reserve(&mut budget, &shadow, next, 1, now), Reserved::Held);
    assert_eq!(budget.open_holds(), MAX_HOLDS, "a full budget in shadow mode takes no hold");
    budget.cancel(&terms, HoldId(1, 0), now);
    assert_eq!(reserve(&mut budget, &terms, next, 1, now), Reserved::Held);
}

/// A store's clock that was a year ahead left holds that would last a year.
#[test]
fn holds_of_a_clock_that_was_ahead_end_after_a_denial() {
    let (terms, ahead) = (terms(1, OnExpiry::Release), Nanos::from_secs(40_000_000));
    let mut budget = Budget::default();
    assert_eq!(reserve(&mut budget, &terms, 1, 200, ahead), Reserved::Held);
    let now = Nanos::from_secs(8_000_000);
    assert!(matches!(reserve(&mut budget, &terms, 2, 1, now), Reserved::Denied(_)));
    let later = now.plus(LIMIT).plus(LIMIT);
    assert_eq!(reserve(&mut budget, &terms, 2, 1, later), Reserved::Held);
}

#[test]
fn a_prepaid_budget_spends_its_top_ups_once() {
    let terms = BudgetTerms { period: BudgetPeriod::Prepaid, ..terms(0, OnExpiry::Charge) };
    let (mut budget, now) = (Budget::default(), Nanos::from_secs(300_000));
    assert_eq!(cause(reserve(&mut budget, &terms, 1, 1, now)), DenialCause::ExceedsAmount);
    for (amount, known) in [(100, None), (100, Some(Amount(100))), (20, Some(Amount(100)))] {
        assert_eq!(budget.top_up(&terms, HoldId(9, 1), Amount(amount), now), known);
    }
    assert_eq!(reserve(&mut budget, &terms, 2, 60, now), Reserved::Held);
    assert_eq!(cause(reserve(&mut budget, &terms, 3, 60, now)), DenialCause::InFlight);
    budget.settle(&terms, HoldId(1, 2), Amount(130), now);
    let years_later = now.plus(Nanos::from_secs(100_000_000));
    let refused = cause(reserve(&mut budget, &terms, 3, 60, years_later));
    assert_eq!(refused, DenialCause::Spent);
    assert_eq!(budget.keep_until(&terms, years_later), None);
    let view = budget.view(&terms, years_later);
    assert_eq!((view.credit, view.usage.settled, view.end), (Amount(100), Amount(130), None));
}

#[test]
fn a_charge_without_a_hold_is_never_lost() {
    let (terms, now) = (terms(1, OnExpiry::Charge), Nanos::from_secs(300_000));
    let mut budget = Budget::default();
    assert_eq!(reserve(&mut budget, &terms, 1, 150, now), Reserved::Held);
    for (amount, is_allowed) in [(0, true), (60, true), (0, false), (7, false)] {
        assert_eq!(budget.charge(&terms, Amount(amount), now), is_allowed);
    }
    let usage = budget.usage();
    assert_eq!((usage.settled, usage.requests, usage.excess), (Amount(67), 2, Amount(67)));
    assert!(budget.charge(&BudgetTerms { is_enforced: false, ..terms }, Amount(1), now));
}
