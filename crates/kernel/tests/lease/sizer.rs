//! Tests lease sizing from demand, unspent hits and fixed sizes.

use sluicegate_kernel::lease::sizer::{LeaseSizer, LeaseSizing};
use sluicegate_kernel::units::{Hits, Nanos};

const NOW: Nanos = Nanos(5_000_000_000);
const TERM: Nanos = Nanos::SECOND;

fn after(millis: u64) -> Nanos {
    NOW.plus(Nanos(millis * 1_000_000))
}

fn sizer(max_lease: u64) -> LeaseSizer {
    LeaseSizer::new(LeaseSizing::Learned, TERM, Hits(max_lease))
}

#[test]
fn lease_size_is_demand_minus_unspent_hits() {
    let mut sizer = sizer(1_000);
    sizer.record_check(NOW, Hits(400));
    assert_eq!(sizer.next_lease(NOW, Hits(0)).hits, Hits(400));
    sizer.record_unspent(NOW, Hits(50));
    assert_eq!(sizer.next_lease(NOW, Hits(0)).hits, Hits(355), "⌊400·400/450⌋");
}

#[test]
fn ten_second_demand_is_scaled_to_the_lease_duration() {
    let mut sizer = LeaseSizer::new(LeaseSizing::Learned, Nanos::from_secs(30), Hits(1_000));
    sizer.record_check(NOW, Hits(63));
    assert_eq!(
        sizer.next_lease(NOW, Hits(0)).hits,
        Hits(63),
        "no more than were asked for, of so few"
    );
    sizer.record_check(NOW, Hits(137));
    assert_eq!(sizer.next_lease(NOW, Hits(0)).hits, Hits(600), "200·30/10");
    sizer.record_unspent(NOW, Hits(50));
    assert_eq!(sizer.next_lease(NOW, Hits(0)).hits, Hits(480), "⌊600·200/250⌋");
    assert_eq!(sizer.expected_hits(NOW, Nanos::SECOND), Hits(20));
    // A period of the demand measurement began at 0, 5 s before `NOW`.
    for (at, demand) in [(0, 200), (4_999, 200), (7_500, 150), (15_000, 0)] {
        assert_eq!(sizer.demand(after(at)), Hits(demand), "after {at} ms");
    }
}

#[test]
fn a_small_demand_is_leased_without_the_current_check() {
    let mut sizer = sizer(1_000);
    for (asked, want) in [(1, 0), (1, 1), (2, 3), (60, 63), (40, 103), (152, 255), (4, 259)] {
        sizer.record_check(NOW, Hits(asked));
        assert_eq!(sizer.next_lease(NOW, Hits(1)).hits, Hits(want));
    }
}

#[test]
fn one_check_per_lease_duration_gets_no_lease() {
    let mut sizer = sizer(1_000);
    for term in 0..5 {
        sizer.record_check(after(2_000 * term), Hits(3));
        assert_eq!(sizer.next_lease(after(2_000 * term), Hits(3)).hits, Hits(0));
    }
}

#[test]
fn no_lease_exceeds_the_maximum() {
    let mut sizer = sizer(7);
    sizer.record_check(NOW, Hits(u64::MAX));
    assert_eq!(sizer.next_lease(NOW, Hits(0)).hits, Hits(7));
    assert_eq!(
        LeaseSizer::new(LeaseSizing::Fixed(Hits(9)), TERM, Hits(7)).next_lease(NOW, Hits(0)).hits,
        Hits(7)
    );
}

#[test]
fn demand_is_forgotten_after_two_lease_durations() {
    let mut sizer = sizer(1_000);
    sizer.record_check(NOW, Hits(100));
    for (at, demand) in [(0, 100), (999, 100), (1_000, 100), (1_250, 75), (1_999, 0), (2_000, 0)] {
        assert_eq!(sizer.demand(after(at)), Hits(demand), "after {at} ms");
    }
}

#[test]
fn hits_above_expected_demand_are_surplus() {
    let mut sizer = sizer(1_000);
    sizer.record_check(NOW, Hits(100));
    let half = Nanos(TERM.0 / 2);
    assert_eq!(sizer.surplus(NOW, Hits(100), half), Hits(50));
    assert_eq!(sizer.surplus(NOW, Hits(101), half), Hits(51));
    assert_eq!(sizer.surplus(NOW, Hits(1), Nanos(0)), Hits(1), "nothing will be");
    assert_eq!(
        sizer.surplus(NOW, Hits(99), half),
        Hits(0),
        "49 are less than half of it, and may be chance"
    );
    assert_eq!(sizer.surplus(NOW, Hits(50), half), Hits(0));
}

#[test]
fn a_refill_is_due_before_demand_empties_the_balance() {
    let mut sizer = sizer(1_000);
    sizer.record_check(NOW, Hits(100));
    let tenth = Nanos(TERM.0 / 10);
    assert!(!sizer.runs_low(NOW, Hits(1), tenth), "nothing was lent yet");
    sizer.record_lease(NOW, Hits(80));
    assert!(sizer.runs_low(NOW, Hits(10), tenth) && !sizer.runs_low(NOW, Hits(11), tenth));
    assert!(sizer.runs_low(NOW, Hits(16), TERM) && !sizer.runs_low(NOW, Hits(17), TERM), "a fifth");
    assert!(!LeaseSizer::new(LeaseSizing::Fixed(Hits(80)), TERM, Hits(100)).runs_low(
        NOW,
        Hits(1),
        TERM
    ));
}

#[test]
fn a_balance_runs_out_when_expected_demand_reaches_it() {
    let mut sizer = sizer(1_000);
    sizer.record_check(NOW, Hits(100));
    let tenth = Nanos(TERM.0 / 10);
    assert!(sizer.runs_out(NOW, Hits(10), tenth));
    assert!(!sizer.runs_out(NOW, Hits(11), tenth));
}

#[test]
fn a_refill_is_due_below_the_largest_check() {
    let mut sizer = sizer(1_000);
    let is_due = |sizer: &LeaseSizer, balance| sizer.runs_out(NOW, Hits(balance), Nanos(0));
    for hits in [1, 30, 1] {
        sizer.record_check(NOW, Hits(hits));
    }
    assert!(!is_due(&sizer, 1), "nothing was lent yet");
    sizer.record_lease(NOW, Hits(200));
    assert!(is_due(&sizer, 30) && !is_due(&sizer, 31), "the largest question");
    let mut small = sizer;
    small.record_check(NOW, Hits(64));
    assert!(is_due(&small, 50) && !is_due(&small, 51), "a quarter of the largest lease");
    assert!(is_due(&sizer, 0));
    let later = after(2_000);
    assert!(!sizer.runs_out(later, Hits(1), Nanos(0)), "forgotten in two terms");
}

#[test]
fn a_fixed_size_ignores_demand() {
    let fixed = LeaseSizer::new(LeaseSizing::Fixed(Hits(20)), TERM, Hits(100));
    let mut sizer = fixed;
    sizer.record_check(NOW, Hits(500));
    sizer.record_unspent(NOW, Hits(500));
    sizer.record_lease(NOW, Hits(500));
    assert_eq!(sizer, fixed);
    assert_eq!((sizer.next_lease(NOW, Hits(1)).hits, sizer.demand(NOW)), (Hits(20), Hits(20)));
    assert!(sizer.runs_out(NOW, Hits(4), Nanos(0)));
    assert!(!sizer.runs_out(NOW, Hits(5), Nanos(0)));
}
