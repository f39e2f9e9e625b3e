//! GCRA allows at most B + ⌊t·N/P⌋ hits in any t ticks, and a greedy client gets them all.

use proptest::prelude::*;
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::units::{Hits, Nanos};

use super::traffic::{
    Client, START, Trace, cases, counts, gcras, greedy_client, headroom, is_allowed, play, traces,
};

/// The bound for t ticks: B + ⌊t·N/P⌋.
fn max_hits(limit: &Gcra, ticks: u64) -> u128 {
    let worth = limit.refill_rate();
    let earned = u128::from(ticks) * u128::from(worth.hits) / u128::from(worth.ticks.get());
    u128::from(limit.burst()) + earned
}

/// Verifies the bound for every interval between two allowed checks; `passed` is (tick, hits).
fn check_bound(limit: &Gcra, passed: &[(u64, u64)]) -> Result<(), TestCaseError> {
    for (i, (from, _)) in passed.iter().enumerate() {
        let mut sum = 0_u128;
        for (to, hits) in &passed[i..] {
            sum += u128::from(*hits);
            prop_assert!(sum <= max_hits(limit, to - from), "{} hits in {}..={}", sum, from, to);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn no_interval_allows_more_than_burst_plus_rate(
        limit in gcras(), trace in traces(),
    ) {
        let decisions = play(&limit, &trace);
        let passed: Vec<_> =
            decisions.iter().map(|a| (limit.tick().floor(a.at), a.passed())).collect();
        check_bound(&limit, &passed)?;
    }

    #[test]
    fn a_greedy_client_gets_exactly_burst_plus_rate(
        n in 1..50_u32,
        micros in prop_oneof![1..100_u64, 1..1_000_000_u64],
        burst in 2..30_u32,
        denials in 1..25_usize,
    ) {
        let limit = Gcra::new(n, Nanos(micros * 1_000), burst).unwrap();
        // If one tick earns more than B − 1 hits, a client that retries at whole ticks loses some.
        let worth = limit.refill_rate();
        prop_assume!(u64::from(worth.hits) <= u64::from(burst - 1) * worth.ticks.get());
        let passed = greedy_client(&limit, START, Hits(1), denials);
        check_bound(&limit, &passed)?;
        let (first, last) = (passed[0].0, passed[passed.len() - 1].0);
        let sum: u128 = passed.iter().map(|(_, hits)| u128::from(*hits)).sum();
        prop_assert_eq!(sum, max_hits(&limit, last - first));
    }

    #[test]
    fn greedy_multi_hit_checks_stay_within_the_bound(
        limit in gcras(), share in 30..=1_000_u64, denials in 1..15_usize,
    ) {
        let want = Hits((u64::from(limit.burst()) * share).div_ceil(1_000).max(1));
        check_bound(&limit, &greedy_client(&limit, START, want, denials))?;
    }

    #[test]
    fn a_clock_step_back_owes_at_most_one_burst(
        limit in gcras(),
        trace in traces(),
        backs in prop::collection::vec(0..1_000_000_u64, 1..4),
    ) {
        // The bound applies to true time, while the clock of the limit lags further and further.
        let (mut state, mut client, mut lag) = (Tat::default(), Client::new(), Nanos(0));
        let mut passed = Vec::new();
        for (i, check) in trace.iter().enumerate() {
            let hits = client.next(&limit, &state, *check);
            if i % 7 == 6 {
                lag = lag.plus(limit.tick().nanos(backs[i % backs.len()]));
            }
            let kernel_now = Nanos(client.now.0.saturating_sub(lag.0));
            let step = limit.charge(&mut state, kernel_now, hits);
            client.observe(step);
            if is_allowed(step) {
                passed.push((limit.tick().floor(client.now), hits.0));
            }
            let drained = kernel_now.plus(headroom(step).unwrap().reset_after);
            prop_assert!(limit.is_empty(&state, drained));
            let drain = limit.refill_rate().ticks.get() * u64::from(limit.burst());
            let ticks = drain.div_ceil(u64::from(limit.refill_rate().hits));
            prop_assert!(headroom(step).unwrap().reset_after <= limit.tick().nanos(ticks));
        }
        check_bound(&limit, &passed)?;
    }

    #[test]
    fn a_changed_limit_carries_the_debt_up_to_its_burst(
        old in gcras(), new in gcras(), trace in traces(),
    ) {
        let (state, now) = replay(&old, &trace);
        let left = headroom(old.peek(&state, now, Hits(0))).unwrap().remaining.0;
        let owed = u64::from(old.burst()) - left;
        let carried = new.convert(&state, &old, now);
        let room = headroom(new.peek(&carried, now, Hits(0))).unwrap();
        prop_assert_eq!(room.remaining.0, u64::from(new.burst()).saturating_sub(owed));
        // The debt drains in exactly the ticks that those hits take.
        let owed = u128::from(owed.min(u64::from(new.burst())));
        let worth = new.refill_rate();
        let ticks = (owed * u128::from(worth.ticks.get())).div_ceil(u128::from(worth.hits));
        let ticks = u64::try_from(ticks).unwrap();
        prop_assert_eq!(room.reset_after, new.tick().nanos(ticks));
        prop_assert!(new.is_empty(&carried, now.plus(room.reset_after)));
    }

    #[test]
    fn a_refund_reduces_the_debt_to_at_least_zero(
        limit in gcras(), trace in traces(), hits in counts(),
    ) {
        let (mut state, now) = replay(&limit, &trace);
        let before = headroom(limit.peek(&state, now, Hits(0))).unwrap().remaining;
        let CounterDecision::Allow(room) = limit.refund(&mut state, now, Hits(u64::from(hits))) else {
            panic!("a refund was not admitted");
        };
        let most = Hits(u64::from(limit.burst()));
        prop_assert_eq!(room.remaining, before.plus(Hits(u64::from(hits))).min(most));
        limit.refund(&mut state, now, Hits(u64::MAX));
        prop_assert_eq!(state, Tat::default());
    }
}

/// The final state of a trace, and its time.
fn replay(limit: &Gcra, trace: &Trace) -> (Tat, Nanos) {
    let (mut state, mut client) = (Tat::default(), Client::new());
    for check in trace {
        let hits = client.next(limit, &state, *check);
        client.observe(limit.charge(&mut state, client.now, hits));
    }
    (state, client.now)
}

#[test]
fn a_state_takes_twelve_bytes() {
    assert_eq!(size_of::<Tat>(), 12);
}

#[test]
fn an_idle_key_accumulates_at_most_one_burst() {
    let limit = Gcra::new(10, Nanos::SECOND, 5).unwrap();
    let mut state = Tat::default();
    assert!(is_allowed(limit.charge(&mut state, START, Hits(5))));
    let year_later = START.plus(Nanos::from_secs(31_536_000));
    assert!(is_allowed(limit.charge(&mut state, year_later, Hits(5))));
    assert!(!is_allowed(limit.charge(&mut state, year_later, Hits(1))));
}

#[test]
fn a_fractional_emission_interval_accumulates_no_error() {
    // 7 hits per second: 142,857.14… µs per hit. If this were rounded, an hour would be some hits
    // off.
    let limit = Gcra::new(7, Nanos::SECOND, 2).unwrap();
    let mut state = Tat::default();
    let (mut passed, mut now, end) = (0, START, START.plus(Nanos::from_secs(3_600)));
    while now <= end && passed <= 2 + 7 * 3_600 {
        match limit.charge(&mut state, now, Hits(1)) {
            CounterDecision::Allow(_) => passed += 1,
            CounterDecision::Deny { retry_after, .. } => {
                now = now.plus(retry_after.max(Nanos::MICRO));
            }
            step => panic!("{step:?}"),
        }
    }
    assert_eq!(passed, 2 + 7 * 3_600);
}

#[test]
fn a_clock_one_day_back_denies_for_one_emission_interval() {
    let limit = Gcra::new(10, Nanos::SECOND, 5).unwrap();
    let mut state = Tat::default();
    assert!(is_allowed(limit.charge(&mut state, START, Hits(1))));
    let yesterday = Nanos(START.0 - Nanos::from_secs(86_400).0);
    let step = limit.charge(&mut state, yesterday, Hits(1));
    assert!(
        matches!(step, CounterDecision::Deny { retry_after: Nanos(100_000_000), .. }),
        "{step:?}"
    );
    assert!(is_allowed(limit.charge(&mut state, yesterday.plus(Nanos(100_000_000)), Hits(1))));
}

#[test]
fn a_state_centuries_ahead_owes_one_burst() {
    // N = 2^10 and a state 2^54 ticks ahead: together 2^64 hit·ticks.
    let limit = Gcra::new(1 << 10, Nanos(1_000_001_000), 5).unwrap();
    let mut state = Tat { whole: START.0 / 1_000 + (1 << 54), frac: 0 };
    assert!(!is_allowed(limit.charge(&mut state, START, Hits(1))));
    assert!(limit.is_empty(&state, START.plus(Nanos::SECOND)));
}
