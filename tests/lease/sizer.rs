//! The laws of the sizer.

use sluicegate::kernel::lease::sizer::{Size, Sizer};
use sluicegate::kernel::units::{Hits, Nanos};

const NOW: Nanos = Nanos(5_000_000_000);
const TERM: Nanos = Nanos::SECOND;

fn after(millis: u64) -> Nanos {
    NOW.plus(Nanos(millis * 1_000_000))
}

fn sizer(most: u64) -> Sizer {
    Sizer::new(Size::Learned, TERM, Hits(most))
}

#[test]
fn a_lease_is_half_of_a_terms_demand_less_the_part_that_is_stranded() {
    let mut sizer = sizer(1_000);
    sizer.asked(NOW, Hits(400));
    assert_eq!(sizer.want(NOW, Hits(0)), Hits(200));
    sizer.stranded(NOW, Hits(50));
    assert_eq!(sizer.want(NOW, Hits(0)), Hits(177), "⌊200·400/450⌋");
}

#[test]
fn a_small_demand_is_lent_whole_and_the_question_at_hand_is_none() {
    let mut sizer = sizer(1_000);
    for (asked, want) in [(1, 0), (1, 1), (2, 3), (60, 63), (40, 64), (152, 128), (4, 130)] {
        sizer.asked(NOW, Hits(asked));
        assert_eq!(sizer.want(NOW, Hits(1)), Hits(want));
    }
}

#[test]
fn a_key_asked_for_once_a_term_is_lent_nothing() {
    let mut sizer = sizer(1_000);
    for term in 0..5 {
        sizer.asked(after(2_000 * term), Hits(3));
        assert_eq!(sizer.want(after(2_000 * term), Hits(3)), Hits(0));
    }
}

#[test]
fn no_lease_is_larger_than_the_most() {
    let mut sizer = sizer(7);
    sizer.asked(NOW, Hits(u64::MAX));
    assert_eq!(sizer.want(NOW, Hits(0)), Hits(7));
    assert_eq!(Sizer::new(Size::Fixed(Hits(9)), TERM, Hits(7)).want(NOW, Hits(0)), Hits(7));
}

#[test]
fn a_demand_is_forgotten_in_two_terms() {
    let mut sizer = sizer(1_000);
    sizer.asked(NOW, Hits(100));
    for (at, demand) in [(0, 100), (999, 100), (1_000, 100), (1_250, 75), (1_999, 0), (2_000, 0)] {
        assert_eq!(sizer.demand(after(at)), Hits(demand), "after {at} ms");
    }
}

#[test]
fn what_will_not_be_asked_for_is_surplus() {
    let mut sizer = sizer(1_000);
    sizer.asked(NOW, Hits(100));
    let half = Nanos(TERM.0 / 2);
    assert_eq!(sizer.surplus(NOW, Hits(60), half), Hits(10));
    assert_eq!(sizer.surplus(NOW, Hits(50), half), Hits(0));
}

#[test]
fn a_balance_runs_out_when_demand_takes_it() {
    let mut sizer = sizer(1_000);
    sizer.asked(NOW, Hits(100));
    let tenth = Nanos(TERM.0 / 10);
    assert!(sizer.runs_out(NOW, Hits(10), tenth));
    assert!(!sizer.runs_out(NOW, Hits(11), tenth));
}

#[test]
fn the_next_lease_is_due_when_the_largest_question_would_not_be_covered() {
    let mut sizer = sizer(1_000);
    let is_due = |sizer: &Sizer, balance| sizer.runs_out(NOW, Hits(balance), Nanos(0));
    for hits in [1, 30, 1] {
        sizer.asked(NOW, Hits(hits));
    }
    assert!(!is_due(&sizer, 1), "nothing was lent yet");
    sizer.lent(NOW, Hits(200));
    assert!(is_due(&sizer, 30) && !is_due(&sizer, 31), "the largest question");
    let mut small = sizer;
    small.asked(NOW, Hits(64));
    assert!(is_due(&small, 50) && !is_due(&small, 51), "a quarter of the largest lease");
    assert!(is_due(&sizer, 0));
    let later = after(2_000);
    assert!(!sizer.runs_out(later, Hits(1), Nanos(0)), "forgotten in two terms");
}

#[test]
fn a_fixed_size_learns_nothing() {
    let fixed = Sizer::new(Size::Fixed(Hits(20)), TERM, Hits(100));
    let mut sizer = fixed;
    sizer.asked(NOW, Hits(500));
    sizer.stranded(NOW, Hits(500));
    sizer.lent(NOW, Hits(500));
    assert_eq!(sizer, fixed);
    assert_eq!((sizer.want(NOW, Hits(1)), sizer.demand(NOW)), (Hits(20), Hits(20)));
    assert!(sizer.runs_out(NOW, Hits(4), Nanos(0)));
    assert!(!sizer.runs_out(NOW, Hits(5), Nanos(0)));
}
