//! Single properties of the limiter.

use sluicegate_kernel::concurrency::adaptive::AdaptiveAlgorithm;
use sluicegate_kernel::concurrency::limiter::{
    Limiter, LimiterConfig, LimiterEffect, LimiterEvent,
};
use sluicegate_kernel::concurrency::{RequestOutcome, Requester};
use sluicegate_kernel::units::Nanos;

use super::{START, adaptive_rules, ms, queue, release, rules, rules_for};

const STREAM: LimiterEvent =
    LimiterEvent::Acquire { lifetime: None, timeout: Nanos(u64::MAX), by: Requester::ANY };

#[test]
fn a_lowered_limit_waits_for_enough_releases() {
    let mut limiter = Limiter::new(&rules(4, Some(queue(9, ms(900)))), 0);
    let out: Vec<_> = (0..4)
        .map(|_| match limiter.step(START, STREAM)[..] {
            [LimiterEffect::Admit(permit)] => permit,
            ref other => panic!("{other:?}"),
        })
        .collect();
    limiter.step(START, LimiterEvent::Reload(rules(2, Some(queue(9, ms(900))))));
    let waits = limiter.step(START, STREAM);
    let [LimiterEffect::Queue(ticket)] = waits[..] else { panic!("{waits:?}") };
    for &permit in &out[..2] {
        assert!(limiter.step(START, release(permit)).is_empty(), "two are still in flight");
    }
    let effects = limiter.step(START, release(out[2]));
    assert!(
        matches!(effects[..], [LimiterEffect::Wake(woken, _)] if woken == ticket),
        "{effects:?}"
    );
}

#[test]
fn reused_slot_does_not_accept_its_old_permit() {
    let mut limiter = Limiter::new(&LimiterConfig::fixed(1), 0);
    let [LimiterEffect::Admit(first)] = limiter.step(START, STREAM)[..] else { panic!() };
    limiter.step(START, release(first));
    let [LimiterEffect::Admit(_)] = limiter.step(START, STREAM)[..] else { panic!() };
    assert_eq!(limiter.step(START, release(first))[..], [LimiterEffect::Unknown]);
    assert_eq!(limiter.in_flight(), 1, "the second one's permit was not given back");
}

#[test]
fn a_fence_admits_no_queued_request() {
    let mut limiter = Limiter::new(&rules(1, Some(queue(1, ms(500)))), 0);
    limiter.step(
        START,
        LimiterEvent::Acquire { lifetime: Some(ms(100)), timeout: ms(500), by: Requester::ANY },
    );
    let waits = limiter.step(START, STREAM);
    let [LimiterEffect::Queue(ticket)] = waits[..] else { panic!("{waits:?}") };
    let effects = limiter.step(START.plus(ms(200)), LimiterEvent::Fence);
    assert!(effects.contains(&LimiterEffect::TimedOut(ticket)), "{effects:?}");
    assert_eq!((limiter.in_flight(), limiter.queue_len()), (0, 0));
}

/// Fills the limit and releases all permits with success after 10 ms, until `end`.
fn use_the_limit(limiter: &mut Limiter, now: &mut Nanos, end: Nanos) {
    while *now < end {
        let out: Vec<_> = (0..limiter.limit())
            .filter_map(|_| match limiter.step(*now, STREAM)[..] {
                [LimiterEffect::Admit(permit)] => Some(permit),
                _ => None,
            })
            .collect();
        *now = now.plus(ms(10));
        for permit in out {
            limiter.step(*now, release(permit));
        }
    }
}

#[test]
fn a_paused_limit_does_not_grow_before_the_pause_ends() {
    for algorithm in [AdaptiveAlgorithm::Gradient2, AdaptiveAlgorithm::Aimd] {
        // A pause above 60 s counts as 60 s.
        for (pause, seconds) in [(2, 2), (90, 60)] {
            let rules = adaptive_rules(algorithm, 1_000, None);
            let mut limiter = Limiter::new(&LimiterConfig { limit: 4, ..rules }, 0);
            let mut now = START;
            limiter.step(now, LimiterEvent::PauseGrowth(Nanos::from_secs(pause)));
            // A shorter pause does not end the first one.
            limiter.step(now, LimiterEvent::PauseGrowth(ms(1)));
            let end = START.plus(Nanos::from_secs(seconds));
            while now < end {
                let next = now.plus(ms(10));
                use_the_limit(&mut limiter, &mut now, next);
                assert!(
                    limiter.limit() <= 4 || now == end,
                    "{algorithm:?} {} at {now:?}",
                    limiter.limit()
                );
            }
            use_the_limit(&mut limiter, &mut now, end.plus(Nanos::from_secs(5)));
            assert!(4 < limiter.limit(), "{algorithm:?} stays at {}", limiter.limit());
        }
    }
}

/// Source: `limiter.rs` guarantees that a step allocates only at a new maximum in flight.
#[test]
fn acquire_and_release_allocate_nothing() {
    let algorithms = [
        None,
        Some(AdaptiveAlgorithm::Gradient),
        Some(AdaptiveAlgorithm::Gradient2),
        Some(AdaptiveAlgorithm::Aimd),
    ];
    for (law, keep) in algorithms.into_iter().flat_map(|law| [(law, None), (law, Some(ms(300)))]) {
        // The limit starts at its upper bound, so that no later iteration reaches a new maximum in
        // flight.
        let rules = LimiterConfig { limit: 8, ..rules_for(law, 8, queue(4, ms(50))) };
        let mut limiter = Limiter::new(&rules, 0);
        let mut now = START;
        fill_and_drain(&mut limiter, now, keep);
        let allocated = allocation_counter::measure(|| {
            // Long enough for min RTT probes, with varying latencies and numbers in flight.
            for turn in 0..20_000 {
                now = now.plus(ms(1 + turn % 3));
                fill_and_drain(&mut limiter, now, keep);
            }
        });
        assert_eq!(allocated.count_total, 0, "{law:?} {keep:?}: {allocated:?}");
    }
}

/// Acquires up to eight permits and releases them in another order.
fn fill_and_drain(limiter: &mut Limiter, now: Nanos, max_duration: Option<Nanos>) {
    let mut out = [None; 8];
    for place in &mut out {
        let arrive =
            LimiterEvent::Acquire { lifetime: max_duration, timeout: Nanos(0), by: Requester::ANY };
        if let [LimiterEffect::Admit(permit)] = limiter.step(now, arrive)[..] {
            *place = Some(permit);
        }
    }
    let order = [5, 0, 7, 2, 6, 1, 4, 3];
    for (nth, permit) in (0..).zip(order).filter_map(|(nth, place)| Some((nth, out[place]?))) {
        if let Some(keep) = max_duration {
            limiter.step(now, LimiterEvent::Renew { permit, lifetime: keep });
        }
        let later = now.plus(Nanos(nth * 20_000));
        limiter.step(
            later,
            LimiterEvent::Release { permit, outcome: RequestOutcome::Success, rtt: None },
        );
    }
}
