//! Sliding logs: at most N hits in any half-open interval of one period, against a log that
//! forgets nothing.

use proptest::prelude::*;
use sluicegate::kernel::rate::Step;
use sluicegate::kernel::rate::sliding_log::{Log, SlidingLog};
use sluicegate::kernel::units::{Hits, Nanos};

use super::traffic::{
    Client, START, Trace, cases, is_admitted, play, room, sliding_logs, traces, worst_client,
};

/// Every hit that ever passed, as (microsecond, hits).
#[derive(Default)]
struct Naive(Vec<(u64, u64)>);

impl Naive {
    /// Hits in the period up to and with `now`.
    fn held(&self, limit: &SlidingLog, now: u64) -> u64 {
        let period = limit.period().0 / 1_000;
        self.0.iter().filter(|(at, _)| now < at + period).map(|(_, hits)| hits).sum()
    }

    fn admits(&self, limit: &SlidingLog, now: u64, hits: u64) -> bool {
        self.held(limit, now) + hits <= u64::from(limit.limit())
    }

    /// The first wait after which `hits` pass: only where an arrival turns a period old can that
    /// be.
    fn wait(&self, limit: &SlidingLog, now: u64, hits: u64) -> u64 {
        let period = limit.period().0 / 1_000;
        let mut ends: Vec<_> = self.0.iter().map(|(at, _)| at + period).collect();
        ends.retain(|end| now < *end);
        ends.sort_unstable();
        ends.into_iter().find(|end| self.admits(limit, *end, hits)).unwrap() - now
    }
}

/// Holds the law against every interval that begins with an admission.
fn holds_everywhere(limit: &SlidingLog, passed: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let period = limit.period().0 / 1_000;
    for (i, (from, _)) in passed.iter().enumerate() {
        let within = passed[i..].iter().take_while(|(at, _)| at - from < period);
        let sum: u64 = within.map(|(_, hits)| hits).sum();
        prop_assert!(sum <= u64::from(limit.limit()), "{} from {}", sum, from);
    }
    Ok(())
}

/// The state at the end of a trace, and when that is.
fn after(limit: &SlidingLog, trace: &Trace) -> (Log, Nanos) {
    let (mut state, mut client) = (Log::default(), Client::new());
    for question in trace {
        let hits = client.next(limit, &state, *question);
        client.hear(limit.step(&mut state, client.now, hits));
    }
    (state, client.now)
}

fn left(limit: &SlidingLog, state: &Log, now: Nanos) -> u64 {
    room(limit.ask(state, now, Hits(0))).unwrap().remaining.0
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn every_answer_is_that_of_a_log_that_forgets_nothing(
        limit in sliding_logs(), trace in traces(),
    ) {
        let mut naive = Naive::default();
        for answer in play(&limit, &trace) {
            let (now, hits) = (answer.at.0 / 1_000, answer.hits.0);
            match answer.step {
                Step::Admit(room) => {
                    prop_assert!(naive.admits(&limit, now, hits));
                    naive.0.push((now, hits));
                    let held = naive.held(&limit, now);
                    prop_assert_eq!(room.remaining.0, u64::from(limit.limit()) - held);
                }
                Step::Deny { retry_after, .. } => {
                    prop_assert!(!naive.admits(&limit, now, hits));
                    prop_assert_eq!(retry_after.0 / 1_000, naive.wait(&limit, now, hits));
                }
                _ => prop_assert!(u64::from(limit.limit()) < hits),
            }
        }
    }

    #[test]
    fn no_interval_of_a_period_admits_more_than_the_limit(
        limit in sliding_logs(), trace in traces(),
    ) {
        let answers = play(&limit, &trace);
        let passed: Vec<_> = answers.iter().map(|a| (a.at.0 / 1_000, a.passed())).collect();
        holds_everywhere(&limit, &passed)?;
    }

    #[test]
    fn the_worst_client_gets_its_limit_in_every_period_and_no_more(
        limit in sliding_logs(), share in 30..=1_000_u64, denials in 1..15_usize,
    ) {
        let want = Hits((u64::from(limit.limit()) * share).div_ceil(1_000));
        let passed = worst_client(&limit, START, want, denials);
        holds_everywhere(&limit, &passed)?;
        // It takes all at once, and all of it comes back at once, a period later.
        let times = usize::try_from(u64::from(limit.limit()) / want.0).unwrap();
        prop_assert_eq!(passed.len(), times * denials);
        let period = limit.period().0 / 1_000;
        for (i, (at, _)) in passed.iter().enumerate() {
            prop_assert_eq!(*at, START.0 / 1_000 + period * u64::try_from(i / times).unwrap());
        }
    }

    #[test]
    fn a_refund_takes_the_newest_hits_back(
        limit in sliding_logs(), trace in traces(), back in 0..3_000_u64,
    ) {
        let (mut state, now) = after(&limit, &trace);
        let mut naive = Naive::default();
        for answer in play(&limit, &trace) {
            naive.0.push((answer.at.0 / 1_000, answer.passed()));
        }
        let mut owed = back;
        for (_, hits) in naive.0.iter_mut().rev() {
            let taken = owed.min(*hits);
            (*hits, owed) = (*hits - taken, owed - taken);
        }
        prop_assert!(is_admitted(limit.refund(&mut state, now, Hits(back))));
        for later in 0..=10 {
            let now = now.plus(Nanos(limit.period().0 / 10 * later));
            let held = naive.held(&limit, now.0 / 1_000);
            prop_assert_eq!(left(&limit, &state, now), u64::from(limit.limit()) - held);
        }
    }

    #[test]
    fn a_lowered_limit_keeps_the_newest_hits_and_a_raised_one_all(
        old in sliding_logs(), new in 0..2_000_u32, trace in traces(), hits in 0..3_u64,
    ) {
        let (mut state, now) = after(&old, &trace);
        let mut naive = Naive::default();
        for answer in play(&old, &trace) {
            naive.0.push((answer.at.0 / 1_000, answer.passed()));
        }
        let new = SlidingLog::new(new, old.period()).unwrap();
        let asked = new.ask(&state, now, Hits(hits));
        prop_assert_eq!(asked, new.step(&mut state, now, Hits(hits)));
        if is_admitted(asked) {
            naive.0.push((now.0 / 1_000, hits));
        }
        for later in 0..=10 {
            let now = now.plus(Nanos(old.period().0 / 10 * later));
            let held = naive.held(&new, now.0 / 1_000);
            let expected = u64::from(new.limit()).saturating_sub(held);
            prop_assert_eq!(left(&new, &state, now), expected);
        }
    }

    #[test]
    fn a_clock_that_steps_back_admits_no_more_and_holds_no_hit_longer_than_a_period(
        limit in sliding_logs(),
        trace in traces(),
        backs in prop::collection::vec(0..1_500_u64, 1..4),
    ) {
        // The law holds in true time; the kernel is told one that lags further and further.
        let (mut state, mut client, mut lag) = (Log::default(), Client::new(), Nanos(0));
        let mut passed = Vec::new();
        for (i, question) in trace.iter().enumerate() {
            let hits = client.next(&limit, &state, *question);
            if i % 7 == 6 {
                let back = limit.period().0 / 1_000_000 * backs[i % backs.len()];
                lag = lag.plus(Nanos(back * 1_000));
            }
            let told = Nanos(client.now.0.saturating_sub(lag.0));
            let step = limit.step(&mut state, told, hits);
            client.hear(step);
            if is_admitted(step) {
                passed.push((client.now.0 / 1_000, hits.0));
            }
            prop_assert!(limit.rested(&state, told.plus(limit.period())));
        }
        holds_everywhere(&limit, &passed)?;
    }
}

#[test]
fn a_limit_of_zero_denies_every_hit_and_answers_a_peek() {
    let (limit, mut state) = (SlidingLog::new(0, Nanos::SECOND).unwrap(), Log::default());
    assert!(is_admitted(limit.step(&mut state, START, Hits(0))));
    assert!(matches!(limit.step(&mut state, START, Hits(1)), Step::Never(_)));
    assert!(limit.rested(&state, START));
}

#[test]
fn hits_beyond_a_lowered_limit_are_forgotten_oldest_first() {
    let limit = |hits| SlidingLog::new(hits, Nanos::from_secs(10)).unwrap();
    let at = |second| START.plus(Nanos::from_secs(second));
    let mut state = Log::default();
    for second in 0..5 {
        limit(10).step(&mut state, at(second), Hits(2));
    }
    assert!(!is_admitted(limit(3).step(&mut state, at(5), Hits(1))));
    // Raised again: the three newest are still there, from seconds 4, 4 and 3.
    assert_eq!(left(&limit(10), &state, at(5)), 7);
    assert_eq!(left(&limit(10), &state, at(13)), 8);
    assert_eq!(left(&limit(10), &state, at(14)), 10);
}

#[test]
fn an_arrival_a_period_old_is_out_and_one_a_microsecond_younger_is_in() {
    let (limit, mut state) = (SlidingLog::new(1, Nanos::SECOND).unwrap(), Log::default());
    assert!(is_admitted(limit.step(&mut state, START, Hits(1))));
    let end = Nanos(START.0 / 1_000 * 1_000).plus(Nanos::SECOND);
    assert!(!is_admitted(limit.step(&mut state, Nanos(end.0 - 1), Hits(1))));
    assert!(is_admitted(limit.step(&mut state, end, Hits(1))));
}
