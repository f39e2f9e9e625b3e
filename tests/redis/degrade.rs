//! What the engine answers for a Redis that is not there: nothing here ever connects.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::redis::{Batching, Options, Place, Redis};
use sluicegate::backend::{Backend as _, Cause};
use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::edge::grpc::rls::patience;
use sluicegate::engine::{Answer, Engine, Local, Policy, Refusal, part};
use sluicegate::kernel::decision::{Cost, Descriptor, Question, Reason, Verdict};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use tonic::metadata::MetadataMap;

const LIMITS: &str = "domain: d
descriptors:
- {key: error, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: allow, rate_limit: {unit: day, requests_per_unit: 10, on_backend_failure: allow}}
- {key: deny, rate_limit: {unit: day, requests_per_unit: 10, on_backend_failure: deny}}
- {key: local, rate_limit: {unit: day, requests_per_unit: 10, on_backend_failure: local}}
- {key: few, rate_limit: {unit: day, requests_per_unit: 2, on_backend_failure: local}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1, on_backend_failure: deny}}
";

pub(super) fn redis_at(place: Place, deadline: Duration) -> Options {
    let key_prefix = "t".to_owned();
    Options {
        place,
        user: None,
        password: None,
        database: 0,
        key_prefix,
        deadline,
        jitter: 1,
        batching: Batching::On,
    }
}

pub(super) fn engine_over(redis: Redis, clock: Clock, limits: &str, replicas: u32) -> Engine {
    let memory = Arc::new(Memory::new(100, WhenFull::Deny, [1; 16]));
    let local = Local { memory, replicas: NonZeroU32::new(replicas).unwrap() };
    let engine = Engine::new(clock, Arc::new(redis), Policy::default()).with_local(local);
    engine.publish(Arc::new(load([("d.yaml", limits.as_bytes())], Revision(1), false).unwrap().0));
    engine
}

fn engine(replicas: u32, limits: &str) -> Engine {
    let nowhere = redis_at(Place::Unix("/nowhere".into()), Duration::from_secs(20));
    let (redis, _never_run) = Redis::new(nowhere);
    assert_eq!(redis.trouble(), Some(Cause::Unreachable));
    engine_over(redis, Clock::manual(Nanos::from_secs(1_000_000)), limits, replicas)
}

pub(super) fn question<'a>(keys: &[&'a str], hits: u64) -> Question<'a> {
    let descriptor = |&key: &&'a str| Descriptor {
        entries: [(key, "v")].into_iter().collect(),
        cost: Cost::Charge(Hits(hits)),
        limit: None,
    };
    Question { domain: "d", descriptors: keys.iter().map(descriptor).collect() }
}

async fn ask(engine: &Engine, keys: &[&str]) -> Result<Answer, Refusal> {
    engine.decide(&question(keys, 1)).await
}

fn verdicts(answer: &Answer) -> Vec<(Verdict, Reason)> {
    answer.statuses.iter().map(|s| (s.finding.verdict, s.finding.reason)).collect()
}

#[tokio::test]
async fn each_limit_is_answered_by_its_own_rule_with_its_reason() {
    let engine = engine(1, LIMITS);
    let answer = ask(&engine, &["allow", "local", "shadow", "nothing"]).await.unwrap();
    assert_eq!(answer.verdict, Verdict::Admit);
    assert_eq!(
        verdicts(&answer),
        [
            (Verdict::Admit, Reason::BackendDownAllowed),
            (Verdict::Admit, Reason::BackendDownLocal),
            (Verdict::Admit, Reason::BackendDownDenied),
            (Verdict::Admit, Reason::NoLimit),
        ]
    );
    let denied = ask(&engine, &["allow", "deny"]).await.unwrap();
    assert_eq!(denied.verdict, Verdict::Deny);
    assert_eq!(verdicts(&denied)[1], (Verdict::Deny, Reason::BackendDownDenied));
    assert_eq!(denied.retry_after, None, "nobody knows when it is back");
}

#[tokio::test]
async fn one_limit_that_says_error_refuses_the_question_before_a_part_is_charged() {
    let engine = engine(1, LIMITS);
    for _ in 0..20 {
        let refused = ask(&engine, &["local", "error"]).await;
        assert_eq!(refused.map(|_| ()), Err(Refusal::BackendDown(Cause::Unreachable)));
    }
    let left = ask(&engine, &["local"]).await.unwrap().statuses[0].finding.room.remaining;
    assert_eq!(left, Hits(9));
}

#[tokio::test]
async fn a_part_admits_its_share_in_whole_hits_and_a_limit_below_the_replicas_has_none() {
    let engine = engine(3, LIMITS);
    for (key, whole_hits) in [("local", 3), ("few", 0)] {
        for number in 0..6 {
            let answer = ask(&engine, &[key]).await.unwrap();
            let admitted = answer.verdict == Verdict::Admit;
            assert_eq!(admitted, number < whole_hits, "{key} {number}");
            assert_eq!(verdicts(&answer)[0].1, Reason::BackendDownLocal);
        }
    }
}

#[tokio::test]
async fn all_or_nothing_holds_for_parts_too() {
    let engine = engine(1, &format!("charge: all_or_nothing\n{LIMITS}"));
    assert_eq!(
        engine.decide(&question(&["local", "few"], 3)).await.unwrap().verdict,
        Verdict::Deny
    );
    let left = ask(&engine, &["local"]).await.unwrap().statuses[0].finding.room.remaining;
    assert_eq!(left, Hits(9), "the denied question charged nothing");
}

#[test]
fn parts_together_are_at_most_the_limit_for_every_strategy_and_number_of_replicas() {
    let day = Nanos::from_secs(86_400);
    for limit in 1..=100 {
        let wholes = [
            Strategy::Gcra(Gcra::new(limit, day, limit).unwrap()),
            Strategy::FixedWindow(FixedWindow::new(limit, Windows::Every(day)).unwrap()),
            Strategy::SlidingWindow(SlidingWindow::new(limit, day).unwrap()),
            Strategy::SlidingLog(SlidingLog::new(limit, day).unwrap()),
        ];
        for (whole, replicas) in wholes.iter().flat_map(|whole| (1..=101).map(move |r| (whole, r)))
        {
            let part = part(whole, NonZeroU32::new(replicas).unwrap());
            assert_eq!(part.map_or(0, |part| part.most()), limit / replicas, "{whole:?}");
            let (Some(Strategy::Gcra(part)), Strategy::Gcra(whole)) = (part, whole) else {
                continue;
            };
            let per_day = |gcra: &Gcra| {
                let (worth, tick) = (gcra.worth(), gcra.tick().size().0);
                u128::from(worth.hits) * u128::from(day.0)
                    / (u128::from(worth.ticks.get()) * u128::from(tick))
            };
            assert!(per_day(&part) * u128::from(replicas) <= per_day(whole));
        }
    }
}

#[test]
fn a_caller_is_answered_a_margin_before_its_patience_ends() {
    let of = |text: &str| {
        let mut headers = MetadataMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        patience(&headers)
    };
    assert_eq!(of("20m"), Some(Nanos(18_000_000)));
    assert_eq!(of("20000u"), Some(Nanos(18_000_000)));
    assert_eq!(of("1S"), Some(Nanos(998_000_000)));
    assert_eq!(of("2H"), Some(Nanos(7_199_998_000_000)));
    assert_eq!(of("1M"), Some(Nanos(59_998_000_000)));
    assert_eq!(of("3m"), Some(Nanos(1_500_000)), "half, where the margin is more than that");
    assert_eq!(of("500n"), Some(Nanos(250)));
    for wrong in ["20", "m", "20x", "-1S", "123456789S", ""] {
        assert_eq!(of(wrong), None, "{wrong}");
    }
    assert_eq!(patience(&MetadataMap::new()), None);
}
