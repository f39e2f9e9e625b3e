//! Limits that admit by time: the interval, its adaptation, and turns that are given back.

mod model;

use proptest::prelude::*;
use sluicegate_kernel::concurrency::adaptive::Hundredths;
use sluicegate_kernel::concurrency::limiter::{
    AcquireDenial, Limiter, LimiterConfig, LimiterEffect, LimiterEvent, QueueConfig,
};
use sluicegate_kernel::concurrency::pace::{AdaptivePace, PaceConfig, WAKE_DELAY};
use sluicegate_kernel::concurrency::{Permit, RequestOutcome, Requester};
use sluicegate_kernel::units::Nanos;

const START: Nanos = Nanos::from_secs(1_000);

const fn ms(count: u64) -> Nanos {
    Nanos(count * Nanos::MILLI.0)
}

/// A constant pace of `rate` requests a second, with a queue of `size`.
fn paced(rate: u32, size: u32) -> LimiterConfig {
    let queue = (0 < size).then_some(QueueConfig { size, timeout: Nanos::from_secs(60) });
    let pace = Some(PaceConfig { unit: Nanos::SECOND, adaptive: None });
    LimiterConfig { queue, pace, ..LimiterConfig::fixed(rate) }
}

/// The same with 1 to 500 requests a second, `increase` 1 and `decrease` 0.8.
fn adaptive(rate: u32) -> LimiterConfig {
    let adaptive = AdaptivePace { min: 1, max: 500, increase: 1, decrease: Hundredths(80) };
    let pace = Some(PaceConfig { unit: Nanos::SECOND, adaptive: Some(adaptive) });
    LimiterConfig { pace, ..paced(rate, 0) }
}

const ACQUIRE: LimiterEvent =
    LimiterEvent::Acquire { lifetime: None, timeout: Nanos(u64::MAX), by: Requester::ANY };

const fn release(permit: Permit, outcome: RequestOutcome) -> LimiterEvent {
    LimiterEvent::Release { permit, outcome, rtt: None }
}

/// Acquires a permit at `now`, which must be admitted.
fn admit(limiter: &mut Limiter, now: Nanos) -> Permit {
    let effects = limiter.step(now, ACQUIRE);
    let [LimiterEffect::Admit(permit)] = effects[..] else { panic!("{effects:?} at {now:?}") };
    permit
}

fn is_denied(limiter: &mut Limiter, now: Nanos) -> bool {
    limiter.step(now, ACQUIRE)[..] == [LimiterEffect::Deny(AcquireDenial::LimitReached)]
}

fn millis_per_second(limiter: &Limiter) -> u64 {
    limiter.pace().unwrap().millis_per_second()
}

#[test]
fn a_constant_rate_admits_one_request_an_interval() {
    let mut limiter = Limiter::new(&paced(10, 0), 0);
    admit(&mut limiter, START);
    assert!(is_denied(&mut limiter, Nanos(START.plus(ms(100)).0 - 1)));
    admit(&mut limiter, START.plus(ms(100)));
    // Idle time gives no credit: a second request at once is denied.
    admit(&mut limiter, START.plus(Nanos::from_secs(60)));
    assert!(is_denied(&mut limiter, START.plus(Nanos::from_secs(60))));
    assert_eq!(limiter.in_flight(), 3, "no limit counts the requests in flight");
}

#[test]
fn waiting_requests_are_admitted_at_their_turns_in_order() {
    let mut limiter = Limiter::new(&paced(10, 2), 0);
    admit(&mut limiter, START);
    let effects = limiter.step(START, ACQUIRE);
    let [LimiterEffect::Queue(first)] = effects[..] else { panic!() };
    let effects = limiter.step(START, ACQUIRE);
    let [LimiterEffect::Queue(second)] = effects[..] else { panic!() };
    let full = LimiterEffect::Deny(AcquireDenial::QueueFull);
    assert_eq!(limiter.step(START, ACQUIRE)[..], [full]);
    for (turn, ticket) in [(1, first), (2, second)] {
        let due = START.plus(ms(100 * turn));
        assert_eq!(limiter.step(Nanos(due.0 - 1), LimiterEvent::Expire)[..], []);
        let effects = limiter.step(due, LimiterEvent::Expire);
        assert!(matches!(effects[..], [LimiterEffect::Wake(woken, _)] if woken == ticket));
    }
}

#[test]
fn an_arriving_request_does_not_overtake_a_waiting_one() {
    let mut limiter = Limiter::new(&paced(10, 2), 0);
    admit(&mut limiter, START);
    let effects = limiter.step(START, ACQUIRE);
    let [LimiterEffect::Queue(first)] = effects[..] else { panic!() };
    let effects = limiter.step(START.plus(ms(100)), ACQUIRE);
    assert!(
        matches!(effects[..], [LimiterEffect::Wake(woken, _), LimiterEffect::Queue(_)] if woken == first)
    );
}

#[test]
fn a_late_wake_delays_no_later_turn() {
    let mut limiter = Limiter::new(&paced(10, 2), 0);
    admit(&mut limiter, START);
    for _ in 0..2 {
        limiter.step(START, ACQUIRE);
    }
    let late = START.plus(ms(100)).plus(WAKE_DELAY);
    assert_eq!(limiter.step(late, LimiterEvent::Expire).len(), 1);
    assert_eq!(limiter.step(START.plus(ms(200)), LimiterEvent::Expire).len(), 1);
    // A wake that is later than the bound moves the later turns.
    limiter.step(START.plus(ms(200)), ACQUIRE);
    limiter.step(START.plus(ms(350)), LimiterEvent::Expire);
    let next = limiter.pace().unwrap().next_turn();
    assert_eq!(next, START.plus(ms(450)).since(WAKE_DELAY));
}

#[test]
fn success_adds_increase_by_rate_and_overload_multiplies() {
    let mut limiter = Limiter::new(&adaptive(10), 0);
    admit(&mut limiter, START);
    let second = admit(&mut limiter, START.plus(ms(100)));
    limiter.step(START.plus(ms(150)), release(second, RequestOutcome::Success));
    assert_eq!(millis_per_second(&limiter), 10_100, "10 + 1/10");
    // 1 s / 10.1, rounded up.
    assert_eq!(limiter.pace().unwrap().interval(), Nanos(99_009_901));
    let third = admit(&mut limiter, START.plus(ms(200)));
    limiter.step(START.plus(ms(250)), release(third, RequestOutcome::Success));
    assert_eq!(millis_per_second(&limiter), 10_199, "10.1 + 1/10.1 = 10.19901");
    let fourth = admit(&mut limiter, START.plus(ms(300)));
    limiter.step(START.plus(ms(301)), release(fourth, RequestOutcome::Dropped));
    assert_eq!(millis_per_second(&limiter), 8_159, "10.19901 × 0.8 = 8.15921");
    // The longer interval applies to the turn that is next: 1 s / 8.15921 = 122.56 ms.
    assert!(is_denied(&mut limiter, START.plus(ms(422))));
    admit(&mut limiter, START.plus(ms(423)));
}

#[test]
fn full_use_grows_the_rate_by_about_increase_a_second() {
    let mut limiter = Limiter::new(&adaptive(100), 0);
    let (mut now, end) = (START, START.plus(Nanos::from_secs(10)));
    while now < end {
        let permit = admit(&mut limiter, now);
        limiter.step(now, release(permit, RequestOutcome::Success));
        now = limiter.pace().unwrap().next_turn();
    }
    let rate = millis_per_second(&limiter);
    assert!((109_900..=110_100).contains(&rate), "{rate}");
}

#[test]
fn one_congestion_event_decreases_the_rate_once() {
    let mut limiter = Limiter::new(&adaptive(10), 0);
    let permits: Vec<_> =
        (0..4).map(|turn| admit(&mut limiter, START.plus(ms(100 * turn)))).collect();
    let now = START.plus(ms(350));
    for permit in permits {
        limiter.step(now, release(permit, RequestOutcome::Dropped));
        assert_eq!(millis_per_second(&limiter), 8_000);
    }
    let later = admit(&mut limiter, START.plus(ms(500)));
    limiter.step(START.plus(ms(510)), release(later, RequestOutcome::Dropped));
    assert_eq!(millis_per_second(&limiter), 6_400, "the request was admitted after the decrease");
}

#[test]
fn rate_grows_only_by_requests_that_use_half_of_it() {
    let mut limiter = Limiter::new(&adaptive(10), 0);
    let mut use_turn = |after: u64, outcome| {
        let now = START.plus(ms(after));
        let permit = admit(&mut limiter, now);
        limiter.step(now, release(permit, outcome));
        millis_per_second(&limiter)
    };
    assert_eq!(use_turn(0, RequestOutcome::Success), 10_000, "the first turn");
    assert_eq!(use_turn(201, RequestOutcome::Success), 10_000, "more than two intervals later");
    assert_eq!(use_turn(401, RequestOutcome::Ignored), 10_000, "no evidence");
    assert_eq!(use_turn(601, RequestOutcome::Success), 10_100, "two intervals later");
}

#[test]
fn rate_does_not_grow_while_the_backend_asks_to_wait() {
    let mut limiter = Limiter::new(&adaptive(10), 0);
    limiter.step(START, LimiterEvent::PauseGrowth(ms(250)));
    limiter.step(START, LimiterEvent::PauseGrowth(ms(50)));
    for (after, rate) in [(0, 10_000), (100, 10_000), (200, 10_000), (300, 10_100)] {
        let now = START.plus(ms(after));
        let permit = admit(&mut limiter, now);
        limiter.step(now, release(permit, RequestOutcome::Success));
        assert_eq!(millis_per_second(&limiter), rate, "after {after} ms");
    }
}

#[test]
fn rate_stays_between_its_bounds() {
    let mut limiter = Limiter::new(&adaptive(500), 0);
    let mut now = START;
    for _ in 0..3 {
        let permit = admit(&mut limiter, now);
        limiter.step(now, release(permit, RequestOutcome::Success));
        assert_eq!(millis_per_second(&limiter), 500_000);
        now = limiter.pace().unwrap().next_turn();
    }
    for _ in 0..60 {
        let permit = admit(&mut limiter, now);
        limiter.step(now, release(permit, RequestOutcome::Dropped));
        now = limiter.pace().unwrap().next_turn();
    }
    assert_eq!(millis_per_second(&limiter), 1_000);
}

#[test]
fn newest_turn_can_be_given_back_and_no_other() {
    let mut limiter = Limiter::new(&paced(10, 0), 0);
    let older = admit(&mut limiter, START);
    let newest = admit(&mut limiter, START.plus(ms(100)));
    let now = START.plus(ms(150));
    limiter.step(now, LimiterEvent::GiveBack(older));
    assert!(is_denied(&mut limiter, now));
    limiter.step(now, LimiterEvent::GiveBack(newest));
    admit(&mut limiter, now);
    assert!(is_denied(&mut limiter, now), "one turn was given back");
    limiter.step(now, LimiterEvent::GiveBack(newest));
    assert!(is_denied(&mut limiter, now), "a turn is given back once");
}

#[test]
fn a_turn_that_is_given_back_goes_to_a_waiting_request() {
    let mut limiter = Limiter::new(&paced(10, 2), 0);
    let permit = admit(&mut limiter, START);
    let effects = limiter.step(START, ACQUIRE);
    let [LimiterEffect::Queue(ticket)] = effects[..] else { panic!() };
    let effects = limiter.step(START.plus(ms(1)), LimiterEvent::GiveBack(permit));
    assert!(matches!(effects[..], [LimiterEffect::Wake(woken, _)] if woken == ticket));
}

#[test]
fn a_canceled_wait_takes_no_turn() {
    let mut limiter = Limiter::new(&paced(10, 2), 0);
    admit(&mut limiter, START);
    let effects = limiter.step(START, ACQUIRE);
    let [LimiterEffect::Queue(ticket)] = effects[..] else { panic!() };
    limiter.step(START, LimiterEvent::Cancel(ticket));
    admit(&mut limiter, START.plus(ms(100)));
}

#[test]
fn reload_keeps_turns_and_the_learned_rate() {
    let mut limiter = Limiter::new(&adaptive(10), 0);
    let permit = admit(&mut limiter, START);
    limiter.step(START.plus(ms(1)), release(permit, RequestOutcome::Dropped));
    limiter.step(START.plus(ms(1)), LimiterEvent::Reload(adaptive(50)));
    assert_eq!(millis_per_second(&limiter), 8_000);
    assert!(is_denied(&mut limiter, START.plus(ms(124))));
    limiter.step(START.plus(ms(124)), LimiterEvent::Reload(paced(100, 0)));
    assert_eq!(millis_per_second(&limiter), 100_000, "a constant rate replaces a learned one");
    admit(&mut limiter, START.plus(ms(124)));
    limiter.step(START.plus(ms(124)), LimiterEvent::Reload(LimiterConfig::fixed(3)));
    admit(&mut limiter, START.plus(ms(124)));
}

#[test]
fn a_limiter_is_not_idle_before_its_next_turn() {
    let config = LimiterConfig {
        pace: Some(PaceConfig { unit: Nanos::from_secs(3_600), adaptive: None }),
        ..LimiterConfig::fixed(1)
    };
    let mut limiter = Limiter::new(&config, 0);
    let permit = admit(&mut limiter, START);
    limiter.step(START, release(permit, RequestOutcome::Success));
    assert_eq!(limiter.idle_since(), Some(START.plus(Nanos::from_secs(3_600))));
}

#[test]
fn extreme_rates_do_not_overflow() {
    for (rate, unit) in [(0, 1), (1, u64::MAX), (u32::MAX, 1), (u32::MAX, u64::MAX)] {
        let adaptive =
            AdaptivePace { min: 0, max: u32::MAX, increase: u32::MAX, decrease: Hundredths(0) };
        let pace = Some(PaceConfig { unit: Nanos(unit), adaptive: Some(adaptive) });
        let mut limiter = Limiter::new(&LimiterConfig { pace, ..LimiterConfig::fixed(rate) }, 0);
        for outcome in [RequestOutcome::Dropped, RequestOutcome::Success] {
            let permit = admit(&mut limiter, Nanos(u64::MAX));
            limiter.step(Nanos(u64::MAX), release(permit, outcome));
            limiter.step(Nanos(u64::MAX), LimiterEvent::GiveBack(permit));
            assert!(1 <= limiter.limit());
        }
    }
}

proptest! {
    #[test]
    fn no_window_has_more_turns_than_the_rate(
        (rate, is_late) in (1_u32..2_000, any::<bool>()),
        arrivals in proptest::collection::vec((0_u64..30_000, 0_u64..4_000), 1..200),
    ) {
        let mut limiter = Limiter::new(&paced(rate, 50), 0);
        let interval = limiter.pace().unwrap().interval();
        let (mut now, mut turns) = (START, Vec::new());
        for (pause, delay) in arrivals {
            let arrival = now.plus(Nanos(pause * 1_000));
            // The timer fires at each turn before the arrival, or late.
            while limiter.queue_len() != 0 {
                let delay = if is_late { Nanos(delay * 1_000) } else { Nanos(0) };
                let due = limiter.pace().unwrap().next_turn().max(now).plus(delay);
                if arrival < due {
                    break;
                }
                now = due;
                let woken = limiter.step(now, LimiterEvent::Expire).len();
                turns.extend(std::iter::repeat_n(now, woken));
            }
            now = arrival;
            let effects = limiter.step(now, ACQUIRE);
            let is_admitted =
                |it: &&LimiterEffect| matches!(it, LimiterEffect::Admit(_) | LimiterEffect::Wake(..));
            turns.extend(std::iter::repeat_n(now, effects.iter().filter(is_admitted).count()));
        }
        let allowance = if is_late { WAKE_DELAY } else { Nanos(0) };
        for (first, start) in turns.iter().enumerate() {
            for (more, end) in turns[first..].iter().enumerate() {
                let time = end.since(*start).plus(allowance);
                prop_assert!(interval.0 * more as u64 <= time.0, "{more} turns more in {time:?}");
            }
        }
    }
}
