//! Limits that charge excess hits, on every store and for every strategy.

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::on_excess::OnExcess::Charge as CHARGE;
use sluicegate::kernel::rate::{CounterDecision, Headroom, Strategy};
use sluicegate::kernel::units::Hits;
use sluicegate::store::{ChargeMode, ChargeOutcome, Charges, CounterStore};

use super::{
    Charge, DAY, NEW_YEAR, all_or_nothing, charge, each, execute, is_allowed, on_every_store,
};

/// The same limit, which charges excess hits.
fn charging(strategy: Strategy) -> Strategy {
    match strategy {
        Strategy::Gcra(limit) => {
            let limit = Gcra::with_on_excess(limit.burst(), DAY, limit.burst(), CHARGE).unwrap();
            assert_eq!(limit.capacity() / limit.refill_rate().ticks, u64::from(limit.burst()));
            Strategy::Gcra(limit)
        }
        Strategy::FixedWindow(limit) => Strategy::FixedWindow(limit.with_on_excess(CHARGE)),
        Strategy::SlidingWindow(limit) => Strategy::SlidingWindow(limit.with_on_excess(CHARGE)),
        Strategy::SlidingLog(limit) => Strategy::SlidingLog(limit.with_on_excess(CHARGE)),
    }
}

fn ask(store: &dyn CounterStore, strategy: Strategy, hits: u64) -> ChargeOutcome {
    execute(store, NEW_YEAR, &each([charge("a", strategy, hits)]))[0]
}

fn room(outcome: ChargeOutcome) -> Headroom {
    match outcome {
        ChargeOutcome::Decided(
            CounterDecision::Allow(room)
            | CounterDecision::Deny { headroom: room, .. }
            | CounterDecision::ExceedsLimit(room),
        )
        | ChargeOutcome::Refunded(CounterDecision::Allow(room)) => room,
        other => panic!("{other:?}"),
    }
}

fn refund(store: &dyn CounterStore, strategy: Strategy, hits: u64) -> u64 {
    let refund = Charge { cost: Cost::Refund(Hits(hits)), ..charge("a", strategy, 0) };
    room(execute(store, NEW_YEAR, &each([refund]))[0]).remaining.0
}

#[test]
fn three_reports_of_40_exhaust_100() {
    on_every_store(100, |store, strategy| {
        let strategy = charging(strategy);
        for left in [60, 20] {
            assert!(is_allowed(ask(store, strategy, 0)), "{strategy:?}");
            assert_eq!(room(ask(store, strategy, 40)).remaining, Hits(left), "{strategy:?}");
        }
        assert!(is_allowed(ask(store, strategy, 0)), "{strategy:?}");
        assert!(!is_allowed(ask(store, strategy, 40)), "{strategy:?}");
        for hits in [0, 1, 0] {
            let outcome = ask(store, strategy, hits);
            let ChargeOutcome::Decided(CounterDecision::Deny { headroom, .. }) = outcome else {
                panic!("{strategy:?}: {outcome:?}")
            };
            assert_eq!(headroom.remaining, Hits(0), "{strategy:?}");
        }
    });
}

#[test]
fn a_refund_first_pays_for_the_excess() {
    on_every_store(10, |store, strategy| {
        let strategy = charging(strategy);
        ask(store, strategy, 8);
        ask(store, strategy, 7);
        // A log knows only its newest 10 hits.
        let excess = if matches!(strategy, Strategy::SlidingLog(_)) { 0 } else { 5 };
        assert_eq!(refund(store, strategy, excess), 0, "{strategy:?}");
        assert_eq!(refund(store, strategy, 3), 3, "{strategy:?}");
        assert!(is_allowed(ask(store, strategy, 3)), "{strategy:?}");
    });
}

#[test]
fn a_report_above_the_limit_itself_is_charged() {
    on_every_store(10, |store, strategy| {
        let strategy = charging(strategy);
        let outcome = ask(store, strategy, 25);
        assert!(
            matches!(outcome, ChargeOutcome::Decided(CounterDecision::ExceedsLimit(_))),
            "{strategy:?}: {outcome:?}"
        );
        assert!(!is_allowed(ask(store, strategy, 0)), "{strategy:?}");
    });
}

#[test]
fn a_preview_charges_no_excess() {
    on_every_store(10, |store, strategy| {
        let strategy = charging(strategy);
        let list = [charge("a", strategy, 11), charge("a", strategy, 0)].into_iter().collect();
        let preview = Charges { list, mode: ChargeMode::Preview };
        assert!(!is_allowed(execute(store, NEW_YEAR, &preview)[0]), "{strategy:?}");
        assert_eq!(room(ask(store, strategy, 0)).remaining, Hits(10), "{strategy:?}");
    });
}

/// The engine charges such limits with `ChargeMode::Each`, so a store treats them as any other.
#[test]
fn all_or_nothing_charges_excess_only_by_itself() {
    on_every_store(10, |store, strategy| {
        let strategy = charging(strategy);
        let outcomes = execute(
            store,
            NEW_YEAR,
            &all_or_nothing([charge("a", strategy, 4), charge("b", strategy, 11)]),
        );
        assert!(!is_allowed(outcomes[1]), "{strategy:?}");
        assert_eq!(room(ask(store, strategy, 0)).remaining, Hits(10), "{strategy:?}");
    });
}
