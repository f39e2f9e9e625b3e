//! Tests the charge modes `each` and `all_or_nothing` on every store.

use std::mem::discriminant;

use sluicegate::kernel::decision::{Cost, Enforcement, VoteGroup};
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::ChargeOutcome;

use super::{
    DAY, NEW_YEAR, Stores, all_or_nothing, charge, each, execute, is_allowed, on_every_backend,
    remaining,
};

#[test]
fn charge_each_charges_despite_another_denial() {
    on_every_backend(2, |backend, strategy| {
        let both = each([charge("big", strategy, 1), charge("small", strategy, 3)]);
        let outcomes = execute(backend, NEW_YEAR, &both);
        assert!(is_allowed(outcomes[0]) && !is_allowed(outcomes[1]));
        assert_eq!(remaining(backend, NEW_YEAR, "big", strategy), 1);
    });
}

#[test]
fn all_or_nothing_charges_nothing_on_a_denial() {
    on_every_backend(2, |backend, strategy| {
        let both = all_or_nothing([charge("big", strategy, 1), charge("small", strategy, 3)]);
        let outcomes = execute(backend, NEW_YEAR, &both);
        let ChargeOutcome::Decided(CounterDecision::Allow(room)) = outcomes[0] else {
            panic!("{outcomes:?}")
        };
        assert_eq!(room.remaining, Hits(2), "what is left without the charge");
        assert!(!is_allowed(outcomes[1]));
        for name in ["big", "small"] {
            assert_eq!(remaining(backend, NEW_YEAR, name, strategy), 2, "{strategy:?}");
        }
    });
}

#[test]
fn all_or_nothing_does_not_charge_a_single_denial() {
    on_every_backend(2, |backend, strategy| {
        execute(backend, NEW_YEAR, &all_or_nothing([charge("a", strategy, 3)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 2, "{strategy:?}");
    });
}

#[test]
fn all_or_nothing_charges_all_when_all_allow() {
    on_every_backend(3, |backend, strategy| {
        let both = all_or_nothing([charge("a", strategy, 1), charge("b", strategy, 2)]);
        let outcomes = execute(backend, NEW_YEAR, &both);
        assert!(outcomes.iter().copied().all(is_allowed), "{strategy:?}: {outcomes:?}");
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 2);
        assert_eq!(remaining(backend, NEW_YEAR, "b", strategy), 1);
    });
}

#[test]
fn all_or_nothing_sums_repeated_counters() {
    on_every_backend(3, |backend, strategy| {
        let twice = |a, b| all_or_nothing([charge("a", strategy, a), charge("a", strategy, b)]);
        let outcomes = execute(backend, NEW_YEAR, &twice(2, 2));
        assert!(!outcomes.iter().copied().all(is_allowed), "{strategy:?}: {outcomes:?}");
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 3);
        let outcomes = execute(backend, NEW_YEAR, &twice(2, 1));
        assert!(outcomes.iter().copied().all(is_allowed), "{strategy:?}: {outcomes:?}");
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 0);
    });
}

#[test]
fn shadow_and_partial_quota_denials_still_charge_others() {
    let shadow = Enforcement { group: VoteGroup::Enforced, shadow: true };
    let quota = Enforcement { group: VoteGroup::Quota, shadow: false };
    on_every_backend(2, |backend, strategy| {
        let over = |name, standing| {
            let charge = charge(name, strategy, 3);
            super::Charge { standing, ..charge }
        };
        let within = super::Charge { standing: quota, ..charge("q", strategy, 1) };
        execute(backend, NEW_YEAR, &all_or_nothing([over("s", shadow), within.clone()]));
        assert_eq!(remaining(backend, NEW_YEAR, "q", strategy), 1, "shadow");
        execute(backend, NEW_YEAR, &all_or_nothing([over("p", quota), within]));
        assert_eq!(remaining(backend, NEW_YEAR, "q", strategy), 0, "one of the group passes");
        execute(backend, NEW_YEAR, &all_or_nothing([over("p", quota), charge("e", strategy, 1)]));
        assert_eq!(remaining(backend, NEW_YEAR, "e", strategy), 2, "all of the group denies");
    });
}

#[test]
fn a_refund_applies_despite_another_denial() {
    on_every_backend(3, |backend, strategy| {
        execute(backend, NEW_YEAR, &each([charge("a", strategy, 3)]));
        let refund = super::Charge { cost: Cost::Refund(Hits(2)), ..charge("a", strategy, 0) };
        execute(backend, NEW_YEAR, &all_or_nothing([refund, charge("b", strategy, 4)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 2, "{strategy:?}");
        assert_eq!(remaining(backend, NEW_YEAR, "b", strategy), 3, "{strategy:?}: nothing else is");
    });
}

/// The same strategy with 5 hits per day.
fn lowered(strategy: Strategy) -> Strategy {
    let same = |one: &Strategy| discriminant(one) == discriminant(&strategy);
    match strategy {
        Strategy::FixedWindow(window) if matches!(window.windows(), Windows::Calendar { .. }) => {
            super::calendar(5)
        }
        _ => super::strategies(5).into_iter().find(same).unwrap(),
    }
}

#[test]
fn a_refund_above_a_lowered_limit_denies_nothing() {
    on_every_backend(8, |backend, strategy| {
        execute(backend, NEW_YEAR, &each([charge("a", strategy, 8)]));
        let lowered = lowered(strategy);
        let refund = super::Charge { cost: Cost::Refund(Hits(1)), ..charge("a", lowered, 0) };
        let both = all_or_nothing([refund, charge("b", lowered, 1)]);
        let outcomes = execute(backend, NEW_YEAR, &both);
        assert!(
            matches!(outcomes[0], ChargeOutcome::Refunded(_)) && is_allowed(outcomes[1]),
            "{outcomes:?}"
        );
        assert_eq!(remaining(backend, NEW_YEAR, "b", lowered), 4, "{strategy:?}: it was charged");
    });
}

#[test]
fn a_changed_gcra_limit_keeps_its_debt_in_hits() {
    let old = Strategy::Gcra(Gcra::new(10, DAY, 10).unwrap());
    let new = Strategy::Gcra(Gcra::new(6, Nanos::from_secs(3_600), 6).unwrap());
    let stores = Stores::start();
    // A replica replaces the lease of an old limit, so only stores are tested.
    for backend in stores.stores() {
        let backend = &*backend;
        execute(backend, NEW_YEAR, &each([charge("a", old, 4)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", new), 2);
        execute(backend, NEW_YEAR, &each([charge("a", new, 1)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", new), 1);
        assert_eq!(remaining(backend, NEW_YEAR, "a", old), 5, "and back again");
    }
}
