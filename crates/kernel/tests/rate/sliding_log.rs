//! A sliding log allows at most N hits in any half-open period, like a complete log.

use proptest::prelude::*;
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::sliding_log::{ArrivalLog, SlidingLog};
use sluicegate_kernel::units::{Hits, Nanos};

use super::traffic::{
    Client, START, Trace, cases, greedy_client, headroom, is_allowed, play, sliding_logs, traces,
};

/// A complete log of all allowed hits, as (microsecond, hits).
#[derive(Default)]
struct Naive(Vec<(u64, u64)>);

impl Naive {
    /// Hits in the period that ends with `now`, inclusive.
    fn in_period(&self, limit: &SlidingLog, now: u64) -> u64 {
        let period = limit.period().0 / 1_000;
        self.0.iter().filter(|(at, _)| now < at + period).map(|(_, hits)| hits).sum()
    }

    fn allows(&self, limit: &SlidingLog, now: u64, hits: u64) -> bool {
        self.in_period(limit, now) + hits <= u64::from(limit.limit())
    }

    /// The shortest wait after which `hits` pass: until some entry is one period old.
    fn wait(&self, limit: &SlidingLog, now: u64, hits: u64) -> u64 {
        let period = limit.period().0 / 1_000;
        let mut ends: Vec<_> = self.0.iter().map(|(at, _)| at + period).collect();
        ends.retain(|end| now < *end);
        ends.sort_unstable();
        ends.into_iter().find(|end| self.allows(limit, *end, hits)).unwrap() - now
    }
}

/// Verifies the limit for every period that begins with an allowed check.
fn check_bound(limit: &SlidingLog, passed: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let period = limit.period().0 / 1_000;
    for (i, (from, _)) in passed.iter().enumerate() {
        let within = passed[i..].iter().take_while(|(at, _)| at - from < period);
        let sum: u64 = within.map(|(_, hits)| hits).sum();
        prop_assert!(sum <= u64::from(limit.limit()), "{} from {}", sum, from);
    }
    Ok(())
}

/// The final state of a trace, and its time.
fn replay(limit: &SlidingLog, trace: &Trace) -> (ArrivalLog, Nanos) {
    let (mut state, mut client) = (ArrivalLog::default(), Client::new());
    for check in trace {
        let hits = client.next(limit, &state, *check);
        client.observe(limit.charge(&mut state, client.now, hits));
    }
    (state, client.now)
}

fn remaining(limit: &SlidingLog, state: &ArrivalLog, now: Nanos) -> u64 {
    headroom(limit.peek(state, now, Hits(0))).unwrap().remaining.0
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn decisions_match_a_complete_log(
        limit in sliding_logs(), trace in traces(),
    ) {
        let mut naive = Naive::default();
        for decision in play(&limit, &trace) {
            let (now, hits) = (decision.at.0 / 1_000, decision.hits.0);
            match decision.step {
                CounterDecision::Allow(room) => {
                    prop_assert!(naive.allows(&limit, now, hits));
                    naive.0.push((now, hits));
                    let in_period = naive.in_period(&limit, now);
                    prop_assert_eq!(room.remaining.0, u64::from(limit.limit()) - in_period);
                }
                CounterDecision::Deny { retry_after, .. } => {
                    prop_assert!(!naive.allows(&limit, now, hits));
                    prop_assert_eq!(retry_after.0 / 1_000, naive.wait(&limit, now, hits));
                }
                _ => prop_assert!(u64::from(limit.limit()) < hits),
            }
        }
    }

    #[test]
    fn no_period_allows_more_than_the_limit(
        limit in sliding_logs(), trace in traces(),
    ) {
        let decisions = play(&limit, &trace);
        let passed: Vec<_> = decisions.iter().map(|a| (a.at.0 / 1_000, a.passed())).collect();
        check_bound(&limit, &passed)?;
    }

    #[test]
    fn a_greedy_client_gets_the_limit_every_period(
        limit in sliding_logs(), share in 30..=1_000_u64, denials in 1..15_usize,
    ) {
        let want = Hits((u64::from(limit.limit()) * share).div_ceil(1_000));
        let passed = greedy_client(&limit, START, want, denials);
        check_bound(&limit, &passed)?;
        // The client uses the whole limit at once, and all of it is free one period later.
        let times = usize::try_from(u64::from(limit.limit()) / want.0).unwrap();
        prop_assert_eq!(passed.len(), times * denials);
        let period = limit.period().0 / 1_000;
        for (i, (at, _)) in passed.iter().enumerate() {
            prop_assert_eq!(*at, START.0 / 1_000 + period * u64::try_from(i / times).unwrap());
        }
    }

    #[test]
    fn a_refund_removes_the_newest_hits(
        limit in sliding_logs(), trace in traces(), back in 0..3_000_u64,
    ) {
        let (mut state, now) = replay(&limit, &trace);
        let mut naive = Naive::default();
        for decision in play(&limit, &trace) {
            naive.0.push((decision.at.0 / 1_000, decision.passed()));
        }
        let mut owed = back;
        for (_, hits) in naive.0.iter_mut().rev() {
            let taken = owed.min(*hits);
            (*hits, owed) = (*hits - taken, owed - taken);
        }
        prop_assert!(is_allowed(limit.refund(&mut state, now, Hits(back))));
        for later in 0..=10 {
            let now = now.plus(Nanos(limit.period().0 / 10 * later));
            let in_period = naive.in_period(&limit, now.0 / 1_000);
            prop_assert_eq!(remaining(&limit, &state, now), u64::from(limit.limit()) - in_period);
        }
    }

    #[test]
    fn a_changed_limit_keeps_the_newest_hits(
        old in sliding_logs(), new in 0..2_000_u32, trace in traces(), hits in 0..3_u64,
    ) {
        let (mut state, now) = replay(&old, &trace);
        let mut naive = Naive::default();
        for decision in play(&old, &trace) {
            naive.0.push((decision.at.0 / 1_000, decision.passed()));
        }
        let new = SlidingLog::new(new, old.period()).unwrap();
        let peeked = new.peek(&state, now, Hits(hits));
        prop_assert_eq!(peeked, new.charge(&mut state, now, Hits(hits)));
        if is_allowed(peeked) {
            naive.0.push((now.0 / 1_000, hits));
        }
        for later in 0..=10 {
            let now = now.plus(Nanos(old.period().0 / 10 * later));
            let in_period = naive.in_period(&new, now.0 / 1_000);
            let expected = u64::from(new.limit()).saturating_sub(in_period);
            prop_assert_eq!(remaining(&new, &state, now), expected);
        }
    }

    #[test]
    fn a_clock_step_back_keeps_the_bound_and_expiry(
        limit in sliding_logs(),
        trace in traces(),
        backs in prop::collection::vec(0..1_500_u64, 1..4),
    ) {
        // The bound applies to true time, while the clock of the limit lags further and further.
        let (mut state, mut client, mut lag) = (ArrivalLog::default(), Client::new(), Nanos(0));
        let mut passed = Vec::new();
        for (i, check) in trace.iter().enumerate() {
            let hits = client.next(&limit, &state, *check);
            if i % 7 == 6 {
                let back = limit.period().0 / 1_000_000 * backs[i % backs.len()];
                lag = lag.plus(Nanos(back * 1_000));
            }
            let kernel_now = Nanos(client.now.0.saturating_sub(lag.0));
            let step = limit.charge(&mut state, kernel_now, hits);
            client.observe(step);
            if is_allowed(step) {
                passed.push((client.now.0 / 1_000, hits.0));
            }
            prop_assert!(limit.is_empty(&state, kernel_now.plus(limit.period())));
        }
        check_bound(&limit, &passed)?;
    }
}

#[test]
fn a_zero_limit_allows_only_peeks() {
    let (limit, mut state) = (SlidingLog::new(0, Nanos::SECOND).unwrap(), ArrivalLog::default());
    assert!(is_allowed(limit.charge(&mut state, START, Hits(0))));
    assert!(matches!(limit.charge(&mut state, START, Hits(1)), CounterDecision::ExceedsLimit(_)));
    assert!(limit.is_empty(&state, START));
}

#[test]
fn a_lowered_limit_drops_the_oldest_hits() {
    let limit = |hits| SlidingLog::new(hits, Nanos::from_secs(10)).unwrap();
    let at = |second| START.plus(Nanos::from_secs(second));
    let mut state = ArrivalLog::default();
    for second in 0..5 {
        limit(10).charge(&mut state, at(second), Hits(2));
    }
    assert!(!is_allowed(limit(3).charge(&mut state, at(5), Hits(1))));
    // After the limit is raised again, the three newest hits remain, from seconds 4, 4 and 3.
    assert_eq!(remaining(&limit(10), &state, at(5)), 7);
    assert_eq!(remaining(&limit(10), &state, at(13)), 8);
    assert_eq!(remaining(&limit(10), &state, at(14)), 10);
}

#[test]
fn hits_expire_exactly_one_period_later() {
    let (limit, mut state) = (SlidingLog::new(1, Nanos::SECOND).unwrap(), ArrivalLog::default());
    assert!(is_allowed(limit.charge(&mut state, START, Hits(1))));
    let end = Nanos(START.0 / 1_000 * 1_000).plus(Nanos::SECOND);
    assert!(!is_allowed(limit.charge(&mut state, Nanos(end.0 - 1), Hits(1))));
    assert!(is_allowed(limit.charge(&mut state, end, Hits(1))));
}
