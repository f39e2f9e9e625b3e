//! `each` and `all_or_nothing`.

use std::mem::discriminant;

use sluicegate::backend::Outcome;
use sluicegate::kernel::decision::{Cost, Group, Standing};
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::{Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{
    DAY, NEW_YEAR, Stores, admits, all_or_nothing, ask, charge, each, on_every_backend, remaining,
};

#[test]
fn each_charges_a_limit_though_another_denies() {
    on_every_backend(2, |backend, strategy| {
        let both = each([charge("big", strategy, 1), charge("small", strategy, 3)]);
        let outcomes = ask(backend, NEW_YEAR, &both);
        assert!(admits(outcomes[0]) && !admits(outcomes[1]));
        assert_eq!(remaining(backend, NEW_YEAR, "big", strategy), 1);
    });
}

#[test]
fn all_or_nothing_charges_nothing_when_one_denies_and_says_what_is_left() {
    on_every_backend(2, |backend, strategy| {
        let both = all_or_nothing([charge("big", strategy, 1), charge("small", strategy, 3)]);
        let outcomes = ask(backend, NEW_YEAR, &both);
        let Outcome::Stepped(Step::Admit(room)) = outcomes[0] else { panic!("{outcomes:?}") };
        assert_eq!(room.remaining, Hits(2), "what is left without the charge");
        assert!(!admits(outcomes[1]));
        for name in ["big", "small"] {
            assert_eq!(remaining(backend, NEW_YEAR, name, strategy), 2, "{strategy:?}");
        }
    });
}

#[test]
fn all_or_nothing_charges_a_lone_denied_question_nothing() {
    on_every_backend(2, |backend, strategy| {
        ask(backend, NEW_YEAR, &all_or_nothing([charge("a", strategy, 3)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 2, "{strategy:?}");
    });
}

#[test]
fn all_or_nothing_charges_all_when_all_admit() {
    on_every_backend(3, |backend, strategy| {
        let both = all_or_nothing([charge("a", strategy, 1), charge("b", strategy, 2)]);
        assert!(ask(backend, NEW_YEAR, &both).into_iter().all(admits));
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 2);
        assert_eq!(remaining(backend, NEW_YEAR, "b", strategy), 1);
    });
}

#[test]
fn all_or_nothing_weighs_one_counter_named_twice_by_the_sum() {
    on_every_backend(3, |backend, strategy| {
        let twice = |a, b| all_or_nothing([charge("a", strategy, a), charge("a", strategy, b)]);
        assert!(!ask(backend, NEW_YEAR, &twice(2, 2)).into_iter().all(admits), "{strategy:?}");
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 3);
        assert!(ask(backend, NEW_YEAR, &twice(2, 1)).into_iter().all(admits));
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 0);
    });
}

#[test]
fn a_shadow_denial_stops_no_charge_and_a_quota_denial_only_with_its_whole_group() {
    let shadow = Standing { group: Group::Enforced, shadow: true };
    let quota = Standing { group: Group::Quota, shadow: false };
    on_every_backend(2, |backend, strategy| {
        let over = |name, standing| {
            let charge = charge(name, strategy, 3);
            super::Charge { standing, ..charge }
        };
        let within = super::Charge { standing: quota, ..charge("q", strategy, 1) };
        ask(backend, NEW_YEAR, &all_or_nothing([over("s", shadow), within.clone()]));
        assert_eq!(remaining(backend, NEW_YEAR, "q", strategy), 1, "shadow");
        ask(backend, NEW_YEAR, &all_or_nothing([over("p", quota), within]));
        assert_eq!(remaining(backend, NEW_YEAR, "q", strategy), 0, "one of the group passes");
        ask(backend, NEW_YEAR, &all_or_nothing([over("p", quota), charge("e", strategy, 1)]));
        assert_eq!(remaining(backend, NEW_YEAR, "e", strategy), 2, "all of the group denies");
    });
}

#[test]
fn a_refund_is_made_even_beside_a_denial() {
    on_every_backend(3, |backend, strategy| {
        ask(backend, NEW_YEAR, &each([charge("a", strategy, 3)]));
        let refund = super::Charge { cost: Cost::Refund(Hits(2)), ..charge("a", strategy, 0) };
        ask(backend, NEW_YEAR, &all_or_nothing([refund, charge("b", strategy, 4)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", strategy), 2, "{strategy:?}");
        assert_eq!(remaining(backend, NEW_YEAR, "b", strategy), 3, "{strategy:?}: nothing else is");
    });
}

/// The same with 5 a day.
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
fn a_refund_to_a_counter_above_its_lowered_limit_denies_nobody() {
    on_every_backend(8, |backend, strategy| {
        ask(backend, NEW_YEAR, &each([charge("a", strategy, 8)]));
        let lowered = lowered(strategy);
        let refund = super::Charge { cost: Cost::Refund(Hits(1)), ..charge("a", lowered, 0) };
        let both = all_or_nothing([refund, charge("b", lowered, 1)]);
        let outcomes = ask(backend, NEW_YEAR, &both);
        assert!(matches!(outcomes[0], Outcome::Refunded(_)) && admits(outcomes[1]), "{outcomes:?}");
        assert_eq!(remaining(backend, NEW_YEAR, "b", lowered), 4, "{strategy:?}: it was charged");
    });
}

#[test]
fn a_changed_gcra_limit_keeps_its_debt_in_hits() {
    let old = Strategy::Gcra(Gcra::new(10, DAY, 10).unwrap());
    let new = Strategy::Gcra(Gcra::new(6, Nanos::from_secs(3_600), 6).unwrap());
    let stores = Stores::start();
    // Leased with `max_overshoot: 0` it may not be.
    for backend in stores.stores() {
        let backend = &*backend;
        ask(backend, NEW_YEAR, &each([charge("a", old, 4)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", new), 2);
        ask(backend, NEW_YEAR, &each([charge("a", new, 1)]));
        assert_eq!(remaining(backend, NEW_YEAR, "a", new), 1);
        assert_eq!(remaining(backend, NEW_YEAR, "a", old), 5, "and back again");
    }
}
