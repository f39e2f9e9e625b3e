//! Fixed windows count like envoyproxy/ratelimit, window by window.

use std::collections::HashMap;

use proptest::prelude::*;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use sluicegate_kernel::rate::limit::LimitError;
use sluicegate_kernel::rate::{self, CounterDecision, Headroom};
use sluicegate_kernel::units::{Hits, Nanos};

use super::traffic::{Client, Limit, START, cases, fixed_windows, is_allowed, play, traces};

fn every(limit: u32, seconds: u64) -> FixedWindow {
    FixedWindow::new(limit, Windows::Every(Nanos::from_secs(seconds))).unwrap()
}

/// Berlin days around the end of daylight saving time 2025: 24, 25 and 24 hours.
const STARTS: [Nanos; 4] = [
    Nanos::from_secs(1_761_343_200),
    Nanos::from_secs(1_761_343_200 + 86_400),
    Nanos::from_secs(1_761_343_200 + 86_400 + 90_000),
    Nanos::from_secs(1_761_343_200 + 86_400 + 90_000 + 86_400),
];

fn calendar(limit: u32) -> FixedWindow {
    FixedWindow::new(limit, Windows::Calendar { starts: STARTS }).unwrap()
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn windows_count_like_envoyproxy_ratelimit(limit in fixed_windows(), trace in traces()) {
        let mut counts = HashMap::<u64, u128>::new();
        for decision in play(&limit, &trace) {
            let window = decision.at.0 / limit.span().0;
            let count = counts.entry(window).or_default();
            *count += u128::from(decision.hits.0);
            let most = u128::from(limit.limit());
            let left = limit.span().0 - decision.at.0 / 1_000 * 1_000 % limit.span().0;
            let remaining = Hits(u64::try_from(most.saturating_sub(*count)).unwrap());
            let room = Headroom { remaining, reset_after: Nanos(left) };
            let expected = if *count <= most {
                CounterDecision::Allow(room)
            } else if most < u128::from(decision.hits.0) {
                CounterDecision::ExceedsLimit(room)
            } else {
                CounterDecision::Deny { retry_after: room.reset_after, headroom: room }
            };
            prop_assert_eq!(decision.step, expected);
        }
    }

    #[test]
    fn no_window_allows_more_than_the_limit(limit in fixed_windows(), trace in traces()) {
        let mut passed = HashMap::<u64, u64>::new();
        for decision in play(&limit, &trace) {
            let sum = passed.entry(decision.at.0 / limit.span().0).or_default();
            *sum += decision.passed();
            prop_assert!(*sum <= u64::from(limit.limit()));
        }
    }

    #[test]
    fn a_clock_step_back_keeps_the_latest_window(
        limit in fixed_windows(),
        trace in traces(),
        jumps in prop::collection::vec(-2_000..1_000_i64, 1..6),
    ) {
        let (mut state, mut client, mut latest) = (WindowCount::default(), Client::new(), Nanos(0));
        let span = i64::try_from(limit.span().0).unwrap();
        let mut count = 0_u64;
        for (check, jump) in trace.iter().zip(jumps.iter().cycle()) {
            let hits = client.next(&limit, &state, *check);
            client.now = Nanos(client.now.0.saturating_add_signed(span / 1_000 * jump));
            let before = state;
            client.observe(limit.charge(&mut state, client.now, hits));
            latest = latest.max(client.now);
            prop_assert_eq!(state.start.0, latest.0 - latest.0 % limit.span().0);
            count = if before.start == state.start { count + hits.0 } else { hits.0 };
            prop_assert_eq!(state.count, count);
        }
    }

    #[test]
    fn a_refund_changes_only_the_current_window(
        limit in fixed_windows(), asked in 0..1_000_u64, back in 0..2_000_u64, later in 0..3_u64,
    ) {
        let mut state = WindowCount::default();
        limit.charge(&mut state, START, Hits(asked));
        let now = START.plus(Nanos(limit.span().0 * later));
        let CounterDecision::Allow(room) = limit.refund(&mut state, now, Hits(back)) else {
            panic!("a refund was not admitted");
        };
        let left = if later == 0 { asked.saturating_sub(back) } else { 0 };
        prop_assert_eq!(state.count, left);
        prop_assert_eq!(room.remaining, Hits(u64::from(limit.limit())).less(Hits(left)));
    }

    #[test]
    fn a_changed_limit_keeps_the_count(
        old in 0..50_u32, new in 0..50_u32, asked in 0..60_u64, hits in 0..5_u64,
    ) {
        let mut state = WindowCount::default();
        every(old, 60).charge(&mut state, START, Hits(asked));
        let step = every(new, 60).charge(&mut state, START, Hits(hits));
        prop_assert_eq!(is_allowed(step), asked + hits <= u64::from(new));
    }
}

#[test]
fn a_zero_limit_allows_peeks_until_the_first_hit() {
    let (limit, mut state) = (every(0, 1), WindowCount::default());
    assert!(is_allowed(limit.charge(&mut state, START, Hits(0))));
    assert!(matches!(limit.charge(&mut state, START, Hits(1)), CounterDecision::ExceedsLimit(_)));
    assert!(!is_allowed(limit.charge(&mut state, START, Hits(0))));
}

#[test]
fn a_peek_is_denied_only_in_an_overfull_window() {
    let (limit, mut state) = (every(10, 60), WindowCount::default());
    limit.charge(&mut state, START, Hits(10));
    assert!(is_allowed(limit.charge(&mut state, START, Hits(0))));
    limit.charge(&mut state, START, Hits(5));
    assert_eq!(state.count, 15);
    assert!(matches!(limit.charge(&mut state, START, Hits(0)), CounterDecision::Deny { .. }));
}

#[test]
fn a_saturated_count_stays_over_the_limit() {
    let (limit, mut state) = (every(10, 60), WindowCount::default());
    assert!(matches!(
        limit.charge(&mut state, START, Hits(u64::MAX)),
        CounterDecision::ExceedsLimit(_)
    ));
    assert!(matches!(limit.charge(&mut state, START, Hits(1)), CounterDecision::Deny { .. }));
}

#[test]
fn a_count_saturates_at_the_largest_exact_double() {
    let (limit, mut state) = (every(10, 60), WindowCount::default());
    limit.charge(&mut state, START, Hits(u64::MAX));
    assert_eq!(state.count, (1 << 53) - 1);
    let CounterDecision::Allow(room) = limit.refund(&mut state, START, Hits((1 << 53) - 2)) else {
        panic!()
    };
    assert_eq!(room.remaining, Hits(9));
}

#[test]
fn windows_of_2_pow_53_microseconds_are_rejected() {
    let of = |micros: u64| FixedWindow::new(1, Windows::Every(Nanos(micros * 1_000)));
    let period = Nanos((1 << 53) * 1_000);
    assert_eq!(of(1 << 53), Err(LimitError::LongPeriod { period }));
    assert!(of((1 << 53) - 1).is_ok());
}

#[test]
fn a_calendar_window_lasts_its_whole_day() {
    let limit = calendar(5);
    for (window, hours) in [(0, 24), (1, 25), (2, 24)] {
        let mut state = WindowCount::default();
        let step = limit.charge(&mut state, STARTS[window], Hits(5));
        let reset_after = Nanos::from_secs(hours * 3_600);
        assert_eq!(step, CounterDecision::Allow(Headroom { remaining: Hits(0), reset_after }));
        assert_eq!(state.start, STARTS[window]);
        let last = Nanos(STARTS[window + 1].0 - 1_000);
        assert!(matches!(
            limit.charge(&mut state, last, Hits(1)),
            CounterDecision::Deny { retry_after: Nanos(1_000), .. }
        ));
    }
}

#[test]
fn a_calendar_window_ends_when_the_next_begins() {
    let (limit, mut state) = (calendar(5), WindowCount::default());
    limit.charge(&mut state, STARTS[0], Hits(9));
    assert!(is_allowed(limit.charge(&mut state, STARTS[1], Hits(5))));
    assert!(!is_allowed(limit.charge(&mut state, STARTS[1], Hits(1))));
    // After a clock step back, hits count into the current window.
    assert!(!is_allowed(limit.charge(&mut state, STARTS[0], Hits(1))));
    assert!(is_allowed(limit.charge(&mut state, STARTS[2], Hits(5))));
    assert_eq!(state, WindowCount { start: STARTS[2], count: 5 });
}

#[test]
fn projected_calendar_headroom_resets_each_day() {
    let strategy = rate::Strategy::FixedWindow(calendar(5));
    let hour = |hours: u64| Nanos::from_secs(3_600 * hours);
    let full = Headroom { remaining: Hits(0), reset_after: hour(2) };
    let at = STARTS[0].plus(hour(22));
    for (later, remaining, reset_after) in [
        (hour(1), 0, hour(1)),
        (hour(2), 5, hour(25)),
        (hour(26), 5, hour(1)),
        (hour(27), 5, hour(24)),
        (hour(60), 5, hour(0)),
    ] {
        let expected = Headroom { remaining: Hits(remaining), reset_after };
        assert_eq!(strategy.project(full, at, at.plus(later)), expected, "{later} later");
    }
}

#[test]
fn instants_outside_the_known_calendar_windows_are_stale_and_uncharged() {
    let (limit, mut state) = (calendar(5), WindowCount::default());
    limit.charge(&mut state, STARTS[1], Hits(3));
    let before = state;
    for now in [Nanos(0), Nanos(STARTS[0].0 - 1), STARTS[3], STARTS[3].plus(Nanos(1))] {
        assert_eq!(limit.peek(&state, now, Hits(1)), CounterDecision::OutsideWindows);
        assert_eq!(limit.charge(&mut state, now, Hits(1)), CounterDecision::OutsideWindows);
        assert_eq!(limit.refund(&mut state, now, Hits(1)), CounterDecision::OutsideWindows);
        assert_eq!(state, before);
    }
}

#[test]
fn a_calendar_count_expires_at_the_next_window() {
    let (limit, mut state) = (calendar(5), WindowCount::default());
    limit.charge(&mut state, STARTS[1], Hits(3));
    assert!(!limit.is_empty(&state, STARTS[1]));
    assert!(!limit.is_empty(&state, Nanos(STARTS[2].0 - 1)));
    assert!(limit.is_empty(&state, STARTS[2]));
    assert!(limit.is_empty(&state, STARTS[3].plus(Nanos::SECOND)));
}

#[test]
fn a_count_after_the_known_calendar_windows_keeps_its_window() {
    let beyond = WindowCount { start: STARTS[3], count: 4 };
    let (limit, mut state) = (calendar(5), beyond);
    assert!(is_allowed(limit.charge(&mut state, STARTS[1], Hits(1))));
    assert!(!is_allowed(limit.charge(&mut state, STARTS[1], Hits(1))));
    assert_eq!(state.start, STARTS[3]);
}

#[test]
fn invalid_windows_are_rejected() {
    let new = |windows| FixedWindow::new(1, windows);
    let window = Nanos(999_000);
    let short = LimitError::ShortWindow { window, shortest: Nanos::MILLI };
    assert_eq!(new(Windows::Every(window)), Err(short));
    let period = Nanos(1_000_500);
    assert_eq!(new(Windows::Every(period)), Err(LimitError::UnevenPeriod { period }));
    let mut starts = STARTS;
    starts[2] = starts[1];
    assert_eq!(new(Windows::Calendar { starts }), Err(LimitError::UnorderedWindows));
}
