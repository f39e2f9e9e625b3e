//! Limits that charge excess hits: reports are charged in full, and delay later checks.
//!
//! `all_strategies` checks the laws of every strategy for these limits, too.

use proptest::prelude::*;
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::rate::on_excess::OnExcess::Charge;
use sluicegate_kernel::rate::sliding_log::SlidingLog;
use sluicegate_kernel::rate::sliding_window::SlidingWindow;
use sluicegate_kernel::units::{Hits, Nanos};

use super::traffic::{
    Limit, START, cases, charging_fixed_windows, charging_gcras, charging_sliding_logs,
    charging_sliding_windows, headroom, is_allowed,
};

const HOUR: Nanos = Nanos::from_secs(3_600);
/// The start of an hour.
const NOON: Nanos = Nanos::from_secs(1_763_632_800);

fn gcra(requests: u32, burst: u32) -> Gcra {
    Gcra::with_on_excess(requests, HOUR, burst, Charge).unwrap()
}

/// Charges 100 per hour with checks of 0 hits and reports of 40, in turn. Returns the retry-after
/// of the check after the third report.
fn wait_after_three_reports<L: Limit>(limit: L) -> Nanos {
    let mut state = L::State::default();
    for _ in 0..3 {
        assert!(is_allowed(limit.step(&mut state, NOON, Hits(0))), "{limit:?}");
        limit.step(&mut state, NOON, Hits(40));
    }
    match limit.step(&mut state, NOON, Hits(0)) {
        CounterDecision::Deny { retry_after, headroom } => {
            assert_eq!(headroom.remaining, Hits(0));
            retry_after
        }
        other => panic!("{limit:?}: {other:?}"),
    }
}

#[test]
fn three_reports_of_40_exhaust_100() {
    // 120 hits are used, and 21 must be freed: one hit per 36 s.
    assert_eq!(wait_after_three_reports(gcra(100, 100)), Nanos::from_secs(21 * 36));
    let fixed = FixedWindow::new(100, Windows::Every(HOUR)).unwrap().with_on_excess(Charge);
    assert_eq!(wait_after_three_reports(fixed), HOUR);
    // In the next hour, 120 hits fade to 99 after 21/120 of the hour.
    let sliding = SlidingWindow::new(100, HOUR).unwrap().with_on_excess(Charge);
    assert_eq!(wait_after_three_reports(sliding), HOUR.plus(Nanos::from_secs(3_600 * 21 / 120)));
    let log = SlidingLog::new(100, HOUR).unwrap().with_on_excess(Charge);
    assert_eq!(wait_after_three_reports(log), HOUR);
}

#[test]
fn a_report_above_the_limit_itself_is_charged() {
    let (limit, mut state) = (gcra(100, 100), Tat::default());
    let step = limit.charge(&mut state, NOON, Hits(250));
    assert!(matches!(step, CounterDecision::ExceedsLimit(room) if room.remaining == Hits(0)));
    let later = NOON.plus(Nanos::from_secs(150 * 36));
    assert!(!is_allowed(limit.peek(&state, later, Hits(0))), "100 are still owed");
    assert!(is_allowed(limit.peek(&state, later.plus(Nanos::from_secs(36)), Hits(0))));
}

#[test]
fn a_changed_limit_keeps_the_debt_up_to_its_own_maximum() {
    let (charging, mut state) = (gcra(100, 100), Tat::default());
    charging.charge(&mut state, NOON, Hits(250));
    let plain = Gcra::new(100, HOUR, 100).unwrap();
    let converted = plain.convert(&state, &charging, NOON);
    assert_eq!(plain.debt(&converted, NOON), plain.capacity(), "at most one burst");
    let lowered = gcra(50, 50);
    let converted = lowered.convert(&state, &charging, NOON);
    let owed = lowered.debt(&converted, NOON) / lowered.refill_rate().ticks.get();
    assert_eq!(owed, 250, "the same hits under a lowered limit");
}

/// Reports are charged in full: whatever their order, the counter decides alike from then on.
fn order_is_irrelevant<L: Limit>(
    limit: L,
    reports: &[u32],
    shares: &[u16],
) -> Result<(), TestCaseError> {
    let (mut forth, mut back) = (L::State::default(), L::State::default());
    for (a, b) in reports.iter().zip(reports.iter().rev()) {
        limit.step(&mut forth, START, Hits(u64::from(*a)));
        limit.step(&mut back, START, Hits(u64::from(*b)));
    }
    let used: u64 = reports.iter().map(|hits| u64::from(*hits)).sum();
    let room = headroom(limit.ask(&forth, START, Hits(0))).unwrap();
    prop_assert_eq!(room.remaining, Hits(limit.most().saturating_sub(used)));
    for share in shares {
        let span = u128::from(limit.span().0) * u128::from(*share) / 1_000;
        let later = START.plus(Nanos(u64::try_from(span).unwrap()));
        for hits in [Hits(0), Hits(1), Hits(limit.most())] {
            prop_assert_eq!(limit.ask(&forth, later, hits), limit.ask(&back, later, hits));
        }
    }
    Ok(())
}

/// A refund of an excess report restores the headroom from before.
fn refund_restores<L: Limit>(limit: L, reports: &[u32]) -> Result<(), TestCaseError> {
    let mut state = L::State::default();
    for hits in reports {
        let before = headroom(limit.ask(&state, START, Hits(0)));
        let mut refunded = state.clone();
        limit.step(&mut refunded, START, Hits(u64::from(*hits)));
        limit.refund(&mut refunded, START, Hits(u64::from(*hits)));
        prop_assert_eq!(headroom(limit.ask(&refunded, START, Hits(0))), before);
        limit.step(&mut state, START, Hits(u64::from(*hits)));
    }
    Ok(())
}

fn reports() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![1..5_u32, 1..3_000_u32], 1..8)
}

fn shares() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(0..60_000_u16, 1..5)
}

/// Limits whose largest debt exceeds all reports, so that none is cut.
fn roomy_gcras() -> impl Strategy<Value = Gcra> {
    charging_gcras()
        .prop_filter("roomy", |limit| 21_000 < limit.max_debt() / limit.refill_rate().ticks.get())
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn reports_are_charged_in_full_in_any_order(
        gcra in roomy_gcras(),
        fixed in charging_fixed_windows(),
        sliding in charging_sliding_windows(),
        log in charging_sliding_logs(),
        reports in reports(),
        shares in shares(),
    ) {
        order_is_irrelevant(gcra, &reports, &shares)?;
        order_is_irrelevant(fixed, &reports, &shares)?;
        order_is_irrelevant(sliding, &reports, &shares)?;
        order_is_irrelevant(log, &reports, &shares)?;
    }

    #[test]
    fn a_refund_undoes_an_excess_report(
        gcra in roomy_gcras(),
        fixed in charging_fixed_windows(),
        sliding in charging_sliding_windows(),
        reports in reports(),
    ) {
        refund_restores(gcra, &reports)?;
        refund_restores(fixed, &reports)?;
        refund_restores(sliding, &reports)?;
    }

    #[test]
    fn a_gcra_debt_is_the_sum_of_its_reports(gcra in roomy_gcras(), reports in reports()) {
        let mut state = Tat::default();
        for hits in &reports {
            gcra.charge(&mut state, START, Hits(u64::from(*hits)));
        }
        let used: u64 = reports.iter().map(|hits| u64::from(*hits)).sum();
        prop_assert_eq!(gcra.debt(&state, START), used * gcra.refill_rate().ticks.get());
    }

    #[test]
    fn a_debt_is_at_most_1000_bursts(gcra in charging_gcras(), hits in 1..=u64::MAX) {
        let mut state = Tat::default();
        for _ in 0..3 {
            gcra.charge(&mut state, START, Hits(hits));
        }
        let debt = gcra.debt(&state, START);
        prop_assert!(debt <= 1_000 * gcra.capacity() && debt < 1 << 53);
        prop_assert!(gcra.capacity() <= gcra.max_debt());
    }
}
