//! Tests of the error against the limit, with exact and with faulty model servers.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluicegate::bench::{AnswerCode, KeyedAnswer, LawError, LawStrategy, LimitLaw, law_error};
use sluicegate::kernel::units::{Nanos, Unit};

/// A check of a model: its send time, and the times until its decision and its reply.
#[derive(Clone, Copy, Debug)]
struct Sent {
    key: u32,
    at: u64,
    decided_after: u64,
    replied_after: u64,
}

fn fixed_window(requests: u64, hits: u64) -> LimitLaw {
    LimitLaw { requests, unit: Unit::Second, strategy: LawStrategy::FixedWindow, hits }
}

fn gcra(requests: u64, burst: u64, hits: u64) -> LimitLaw {
    LimitLaw { strategy: LawStrategy::Gcra { burst }, ..fixed_window(requests, hits) }
}

/// Decides the checks by `limit` in the order of their decisions.
fn answers(limit: &LimitLaw, sent: &[Sent]) -> Vec<KeyedAnswer> {
    let mut sent = sent.to_vec();
    sent.sort_by_key(|check| check.at + check.decided_after);
    // Of each key: used hits and their window, or the level of the bucket and its time.
    let (mut windows, mut levels) = (BTreeMap::new(), BTreeMap::new());
    let mut is_allowed = |check: &Sent| {
        let now = check.at + check.decided_after;
        match limit.strategy {
            LawStrategy::FixedWindow => {
                let used: &mut u64 = windows.entry((check.key, now / 1_000_000_000)).or_default();
                let is_allowed = *used + limit.hits <= limit.requests;
                *used += if is_allowed { limit.hits } else { 0 };
                is_allowed
            }
            LawStrategy::Gcra { burst } => {
                let full = u128::from(burst) * 1_000_000_000;
                let (level, last) = levels.entry(check.key).or_insert((full, now));
                *level = full.min(*level + u128::from((now - *last) * limit.requests));
                *last = now;
                let rest = level.checked_sub(u128::from(limit.hits) * 1_000_000_000);
                *level = rest.unwrap_or(*level);
                rest.is_some()
            }
        }
    };
    let answer = |check: Sent| KeyedAnswer {
        key: check.key,
        sent: Nanos(check.at),
        replied: Nanos(check.at + check.replied_after),
        code: if is_allowed(&check) { AnswerCode::Allow } else { AnswerCode::Deny },
    };
    sent.into_iter().map(answer).collect()
}

/// One check of one key every 10 ms for 3 s, decided and replied 1 ms later.
fn steady_checks() -> Vec<Sent> {
    let check = |n: u64| Sent {
        key: 7,
        at: n * 10_000_000,
        decided_after: 1_000_000,
        replied_after: 1_000_000,
    };
    (0..300).map(check).collect()
}

/// Hits over and under of a server with the limit `real`, measured against `law`.
fn error(real: &LimitLaw, law: &LimitLaw) -> (u64, u64) {
    let LawError { over, under, .. } = law_error(law, &mut answers(real, &steady_checks()));
    (over, under)
}

#[test]
fn a_window_of_three_more_is_three_hits_over_each_window() {
    assert_eq!(error(&fixed_window(23, 1), &fixed_window(20, 1)), (9, 0));
    assert_eq!(error(&fixed_window(20, 1), &fixed_window(20, 1)), (0, 0));
}

#[test]
fn a_window_of_two_fewer_is_two_hits_under_each_window() {
    assert_eq!(error(&fixed_window(18, 1), &fixed_window(20, 1)), (0, 6));
    assert_eq!(error(&fixed_window(18, 2), &fixed_window(20, 2)), (0, 6));
}

/// In 3 s, a bucket of burst 10 and 20 hits a second allows 10 + 3 × 20 hits, less one that the
/// last check comes too early for. Its law allows 1 ms × 20 hits more or less.
#[test]
fn a_larger_burst_is_over_by_its_difference() {
    assert_eq!(error(&gcra(20, 14, 1), &gcra(20, 10, 1)), (4, 0));
    assert_eq!(error(&gcra(20, 10, 1), &gcra(20, 10, 1)), (0, 0));
    let (over, under) = error(&gcra(20, 6, 1), &gcra(20, 10, 1));
    assert!(over == 0 && (3..=4).contains(&under), "{under}");
}

#[test]
fn a_server_that_allows_everything_is_over_by_the_rest() {
    let all = fixed_window(1_000_000, 1);
    assert_eq!(error(&all, &fixed_window(20, 1)), (300 - 3 * 20, 0));
    let (over, _) = error(&all, &gcra(20, 10, 1));
    assert!((300 - 71..=300 - 69).contains(&over), "{over}");
}

/// A check without a reply may be charged, so a denial may be right.
#[test]
fn checks_without_reply_are_not_denied_too_early() {
    for law in [fixed_window(20, 1), gcra(20, 20, 1)] {
        let mut found = answers(&law, &steady_checks());
        found[..20].iter_mut().for_each(|answer| answer.code = AnswerCode::Timeout);
        let LawError { over, under, .. } = law_error(&law, &mut found);
        assert_eq!((over, under), (0, 0));
    }
}

prop_compose! {
    fn random_check()(
        key in 0_u32..3,
        at in 0_u64..3_000_000_000,
        decided_after in 0_u64..50_000_000,
        reply in 0_u64..50_000_000,
    ) -> Sent {
        Sent { key, at, decided_after, replied_after: decided_after + reply }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn an_exact_server_has_no_error(
        sent in prop::collection::vec(random_check(), 0..300),
        (requests, burst, hits) in (1_u64..40, 1_u64..40, 1_u64..4),
    ) {
        for law in [fixed_window(requests, hits), gcra(requests, burst, hits)] {
            let LawError { allowed, denied, over, under } = law_error(&law, &mut answers(&law, &sent));
            prop_assert_eq!((over, under), (0, 0));
            prop_assert_eq!(allowed + denied, hits * sent.len() as u64);
        }
    }
}
