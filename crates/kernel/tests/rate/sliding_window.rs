//! Sliding windows match exact fractions and stay within their interpolation bound.

use std::collections::HashMap;

use proptest::prelude::*;
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::sliding_window::{SlidingWindow, WindowPair};
use sluicegate_kernel::units::{Hits, Nanos};

use super::traffic::{
    Client, START, Trace, cases, greedy_client, headroom, is_allowed, play, sliding_windows, traces,
};

/// An exact model: the allowed hits of each aligned window, without expiry.
#[derive(Clone)]
struct Naive {
    limit: u128,
    period: u64,
    passed: HashMap<u64, u128>,
}

impl Naive {
    fn new(limit: &SlidingWindow) -> Self {
        let worth = limit.refill_rate();
        Self { limit: u128::from(worth.hits), period: worth.ticks.get(), passed: HashMap::new() }
    }

    fn in_window(&self, window: u64) -> u128 {
        self.passed.get(&window).copied().unwrap_or(0)
    }

    /// Returns `true` if prev·(P − e) + (cur + hits)·P ≤ L·P, at tick `now`. The current window
    /// began e ticks ago; prev and cur are the hits of the previous and the current window; L is
    /// the limit per period P.
    fn allows(&self, now: u64, hits: u64) -> bool {
        let window = now / self.period;
        let period = u128::from(self.period);
        let left = period - u128::from(now % self.period);
        let prev = window.checked_sub(1).map_or(0, |before| self.in_window(before));
        let wanted = self.in_window(window) + u128::from(hits);
        prev * left + wanted * period <= self.limit * period
    }

    fn charge(&mut self, now: u64, hits: u64) {
        *self.passed.entry(now / self.period).or_default() += u128::from(hits);
    }
}

/// Allowed hits, as (tick, hits).
fn passed(limit: &SlidingWindow, trace: &Trace) -> Vec<(u64, u64)> {
    let decisions = play(limit, trace);
    decisions.iter().map(|a| (limit.tick().floor(a.at), a.passed())).collect()
}

/// Verifies the bound: L + ⌊L·t/P⌋ hits in any t ≤ P ticks, and L in an aligned window.
fn check_bound(limit: &SlidingWindow, passed: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let naive = Naive::new(limit);
    for (i, (from, _)) in passed.iter().enumerate() {
        let (mut sum, mut aligned) = (0_u128, 0_u128);
        for (to, hits) in passed[i..].iter().take_while(|(to, _)| to - from <= naive.period) {
            sum += u128::from(*hits);
            let slid = naive.limit * u128::from(to - from) / u128::from(naive.period);
            prop_assert!(sum <= naive.limit + slid, "{} in {}..={}", sum, from, to);
            if to / naive.period == from / naive.period {
                aligned += u128::from(*hits);
                prop_assert!(aligned <= naive.limit);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn verdicts_match_exact_fractions(limit in sliding_windows(), trace in traces()) {
        let mut naive = Naive::new(&limit);
        for decision in play(&limit, &trace) {
            let now = limit.tick().floor(decision.at);
            let allows = decision.hits.0 == 0 || naive.allows(now, decision.hits.0);
            prop_assert_eq!(is_allowed(decision.step), allows);
            if allows {
                naive.charge(now, decision.hits.0);
            }
        }
    }

    #[test]
    fn retry_after_is_the_first_allowed_tick(
        most in 1..12_u32, period in 1..40_u64, trace in traces(),
    ) {
        let limit = SlidingWindow::new(most, Nanos(period * 1_000)).unwrap();
        let mut naive = Naive::new(&limit);
        for decision in play(&limit, &trace) {
            let now = limit.tick().floor(decision.at);
            match decision.step {
                CounterDecision::Allow(_) => naive.charge(now, decision.hits.0),
                CounterDecision::Deny { retry_after, .. } => {
                    let wait =
                        (1..=2 * period).find(|wait| naive.allows(now + wait, decision.hits.0));
                    prop_assert_eq!(retry_after, Nanos(wait.unwrap() * 1_000));
                }
                _ => prop_assert!(decision.hits.0 > u64::from(most)),
            }
        }
    }

    #[test]
    fn no_interval_exceeds_the_interpolation_bound(
        limit in sliding_windows(), trace in traces(),
    ) {
        check_bound(&limit, &passed(&limit, &trace))?;
    }

    #[test]
    fn a_greedy_client_stays_within_the_bound(
        limit in sliding_windows(), share in 30..=1_000_u64, late in 0..1_000_u64,
        denials in 1..15_usize,
    ) {
        let want = Hits((u64::from(limit.limit()) * share).div_ceil(1_000));
        let late = limit.refill_rate().ticks.get() / 1_000 * late;
        let start = START.plus(limit.tick().nanos(late));
        let passed = greedy_client(&limit, start, want, denials);
        check_bound(&limit, &passed)?;
    }

    #[test]
    fn a_clock_step_back_keeps_the_latest_window(
        limit in sliding_windows(),
        trace in traces(),
        jumps in prop::collection::vec(-2_000..1_000_i64, 1..6),
    ) {
        let (mut state, mut client, mut latest) = (WindowPair::default(), Client::new(), 0);
        let period = limit.refill_rate().ticks.get();
        let tick = i64::try_from(limit.tick().nanos(period).0 / 1_000).unwrap();
        for (check, jump) in trace.iter().zip(jumps.iter().cycle()) {
            let hits = client.next(&limit, &state, *check);
            client.now = Nanos(client.now.0.saturating_add_signed(tick * jump));
            let before = state;
            let step = limit.charge(&mut state, client.now, hits);
            client.observe(step);
            latest = latest.max(limit.tick().floor(client.now));
            let start = latest - latest % period;
            prop_assert_eq!(state.start, limit.tick().nanos(start));
            if before.start == state.start {
                let grown = if is_allowed(step) { hits.0 } else { 0 };
                prop_assert_eq!(u64::from(state.cur), u64::from(before.cur) + grown);
            }
        }
    }

    #[test]
    fn a_refund_changes_only_the_current_window(
        limit in sliding_windows(), first in 0..=1_000_u64, second in 0..=1_000_u64,
        back in 0..u64::MAX,
    ) {
        let part = |share| Hits(u64::from(limit.limit()) * share / 1_000);
        let period = limit.tick().nanos(limit.refill_rate().ticks.get());
        let mut state = WindowPair::default();
        limit.charge(&mut state, START, part(first));
        let now = START.plus(period);
        limit.charge(&mut state, now, part(second));
        let before = state;
        prop_assert!(is_allowed(limit.refund(&mut state, now, Hits(back))));
        prop_assert_eq!(state.prev, before.prev);
        prop_assert_eq!(u64::from(state.cur), u64::from(before.cur).saturating_sub(back));
    }

    #[test]
    fn a_changed_limit_keeps_both_counts(
        old in 1..50_u32, new in 0..50_u32, share in 0..=1_000_u32, hits in 1..5_u64,
        elapsed in 0..60_000_000_u64,
    ) {
        let minute = Nanos::from_secs(60);
        let (before, after) =
            (SlidingWindow::new(old, minute).unwrap(), SlidingWindow::new(new, minute).unwrap());
        let (mut state, begin) = (WindowPair::default(), Nanos::from_secs(60_000_000));
        let spent = Hits(u64::from(old * share / 1_000));
        before.charge(&mut state, begin, spent);
        let now = begin.plus(minute).plus(Nanos(elapsed * 1_000));
        let mut naive = Naive::new(&after);
        naive.charge(after.tick().floor(begin), spent.0);
        let step = after.charge(&mut state, now, Hits(hits));
        prop_assert_eq!(is_allowed(step), naive.allows(after.tick().floor(now), hits));
    }
}

#[test]
fn counts_above_a_lowered_limit_deny_until_they_fade() {
    let second = SlidingWindow::new(1, Nanos::SECOND).unwrap();
    let begin = Nanos::from_secs(1_000);
    let state = WindowPair { start: begin, prev: u32::MAX, cur: 0 };
    // 4,294,967,295·(P − e) ≤ 0 only if P = e.
    let step = second.peek(&state, begin, Hits(1));
    assert!(matches!(step, CounterDecision::Deny { retry_after: Nanos::SECOND, .. }), "{step:?}");
    let year = Nanos::from_secs(31_536_000);
    let longest = SlidingWindow::new(285_616_413, year).unwrap();
    let state = WindowPair { start: Nanos(0), prev: u32::MAX, cur: u32::MAX };
    assert_eq!(headroom(longest.peek(&state, begin, Hits(1))).unwrap().remaining, Hits(0));
}

#[test]
fn a_weight_beyond_64_bits_still_denies() {
    // 2^31 hits with 2^33 of 2^51 µs left weigh 2^64 hit·ticks.
    let limit = SlidingWindow::new(1, Nanos((1 << 51) * 1_000)).unwrap();
    let state = WindowPair { start: Nanos(0), prev: 1 << 31, cur: 0 };
    let now = Nanos(((1 << 51) - (1 << 33)) * 1_000);
    assert!(!is_allowed(limit.peek(&state, now, Hits(1))));
}

#[test]
fn a_changed_period_keeps_the_overlapping_counts() {
    let limit = |seconds| SlidingWindow::new(10, Nanos::from_secs(seconds)).unwrap();
    let (hour, minute) = (limit(3_600), limit(60));
    let at = |seconds: u64| Nanos::from_secs(3_600 * 1_000 + seconds);
    // At 12:30, eight hits count under a period of a minute. Under a period of an hour, they belong
    // to the window from 12:00.
    let mut state = WindowPair::default();
    minute.charge(&mut state, at(1_800), Hits(8));
    let left = |limit: &SlidingWindow, state: &WindowPair, seconds| {
        headroom(limit.peek(state, at(seconds), Hits(0))).unwrap().remaining
    };
    assert_eq!(left(&hour, &state, 1_800), Hits(2));
    let reset_after = headroom(hour.peek(&state, at(1_800), Hits(0))).unwrap().reset_after;
    assert_eq!(reset_after, Nanos::from_secs(1_800 + 3_600));
    assert!(is_allowed(hour.charge(&mut state, at(1_800), Hits(2))));
    assert_eq!(left(&hour, &state, 3_599), Hits(0));
    // Half of the next hour has passed, so half of the ten hits has faded.
    assert_eq!(left(&hour, &state, 5_400), Hits(5));
    assert_eq!(left(&hour, &state, 7_200), Hits(10));
    // Under a period of a minute again, the hits of the hour have expired.
    assert_eq!(left(&minute, &state, 3_000), Hits(10));
}

#[test]
fn the_bound_is_reached() {
    // Ten hits in the last microsecond of a window; half a window later, five more are allowed.
    let limit = SlidingWindow::new(10, Nanos::SECOND).unwrap();
    let (mut state, end) = (WindowPair::default(), Nanos::from_secs(2_000));
    assert!(is_allowed(limit.charge(&mut state, Nanos(end.0 - 1_000), Hits(10))));
    assert!(!is_allowed(limit.charge(&mut state, end, Hits(1))));
    let later = end.plus(Nanos(500_000_000));
    assert!(is_allowed(limit.charge(&mut state, later, Hits(5))));
    assert!(!is_allowed(limit.charge(&mut state, later, Hits(1))));
}
