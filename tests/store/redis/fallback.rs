//! Engine decisions without a store: the Redis client here never connects.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::value::Kind;
use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::grpc::call_timeout::caller_timeout;
use sluicegate::edge::grpc::convert;
use sluicegate::engine::{CheckError, Decision, DecisionPolicy, Engine, LocalFallback, Membership};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, LimitOverride, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision, Unit};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::redis::{RedisOptions, RedisStore, RedisTopology};
use sluicegate::store::{CounterStore as _, Store, StoreFailure};
use tonic::metadata::MetadataMap;

const LIMITS: &str = "domain: d
descriptors:
- {key: error, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: allow, rate_limit: {unit: day, requests_per_unit: 10, on_store_failure: allow}}
- {key: deny, rate_limit: {unit: day, requests_per_unit: 10, on_store_failure: deny}}
- {key: local, rate_limit: {unit: day, requests_per_unit: 10, on_store_failure: local}}
- {key: few, rate_limit: {unit: day, requests_per_unit: 2, on_store_failure: local}}
- {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1, on_store_failure: deny}}
";

pub(super) fn redis_at(topology: RedisTopology, deadline: Duration) -> RedisOptions {
    let key_prefix = "t".to_owned();
    RedisOptions {
        key_prefix,
        call_timeout: deadline,
        jitter_seed: 1,
        ..RedisOptions::new(topology)
    }
}

pub(super) fn engine_over(
    store: impl Store + 'static,
    clock: Clock,
    limits: &str,
    replicas: u32,
) -> Engine {
    let memory = Arc::new(MemoryStore::new(100, WhenFull::Deny, [1; 16]));
    let membership = Membership::new("me", 1, NonZeroU32::new(replicas).unwrap());
    let local = LocalFallback::new(memory, Arc::new(membership));
    let engine =
        Engine::new(clock, Arc::new(store), DecisionPolicy::default()).with_local_fallback(local);
    engine.publish(Arc::new(load([("d.yaml", limits.as_bytes())], Revision(1), false).unwrap().0));
    engine
}

fn engine(replicas: u32, limits: &str) -> Engine {
    let nowhere = redis_at(RedisTopology::Unix("/nowhere".into()), Duration::from_secs(20));
    let (redis, _never_run) = RedisStore::new(nowhere);
    assert_eq!(redis.current_failure(), Some(StoreFailure::Unreachable));
    engine_over(redis, Clock::manual(Nanos::from_secs(1_000_000)), limits, replicas)
}

pub(super) fn new_check<'a>(keys: &[&'a str], hits: u64) -> Check<'a> {
    let descriptor = |&key: &&'a str| Descriptor {
        entries: [(key, "v")].into_iter().collect(),
        cost: Cost::Charge(Hits(hits)),
        limit: None,
    };
    Check { domain: "d", descriptors: keys.iter().map(descriptor).collect() }
}

async fn check(engine: &Engine, keys: &[&str]) -> Result<Decision, CheckError> {
    engine.decide(&new_check(keys, 1)).await
}

fn verdicts(decision: &Decision) -> Vec<(Verdict, Reason)> {
    decision.statuses.iter().map(|s| (s.decision.verdict, s.decision.reason)).collect()
}

#[tokio::test]
async fn each_limit_uses_its_own_fallback() {
    let engine = engine(1, LIMITS);
    let answer = check(&engine, &["allow", "local", "shadow", "nothing"]).await.unwrap();
    assert_eq!(answer.verdict, Verdict::Allow);
    assert_eq!(
        verdicts(&answer),
        [
            (Verdict::Allow, Reason::StoreDownAllowed),
            (Verdict::Allow, Reason::StoreDownLocal),
            (Verdict::Allow, Reason::StoreDownDenied),
            (Verdict::Allow, Reason::NoLimit),
        ]
    );
    let denied = check(&engine, &["allow", "deny"]).await.unwrap();
    assert_eq!(denied.verdict, Verdict::Deny);
    assert_eq!(verdicts(&denied)[1], (Verdict::Deny, Reason::StoreDownDenied));
    assert_eq!(denied.retry_after, None, "nobody knows when it is back");
}

/// Sends one hit with an override of five requests per day.
async fn check_with_override(engine: &Engine, key: &str) -> Result<(Verdict, Reason), CheckError> {
    let mut asked = new_check(&[key], 1);
    asked.descriptors[0].limit = Some(LimitOverride { requests: 5, unit: Unit::Day });
    engine.decide(&asked).await.map(|answer| verdicts(&answer)[0])
}

#[tokio::test]
async fn override_keeps_the_fallback_of_its_limit() {
    let engine = engine(1, LIMITS);
    let refused = Err(CheckError::StoreUnavailable(StoreFailure::Unreachable));
    for (key, wanted) in [
        ("allow", Ok((Verdict::Allow, Reason::StoreDownAllowed))),
        ("deny", Ok((Verdict::Deny, Reason::StoreDownDenied))),
        ("error", refused.clone()),
        ("nothing", refused),
    ] {
        assert_eq!(check_with_override(&engine, key).await, wanted, "{key}");
    }
    for number in 1..=10 {
        let wanted = if number <= 5 { Verdict::Allow } else { Verdict::Deny };
        let found = check_with_override(&engine, "local").await.unwrap();
        assert_eq!(found, (wanted, Reason::StoreDownLocal), "{number}: by its own number");
    }
}

#[tokio::test]
async fn override_without_a_limit_uses_the_domain_fallback() {
    let words = "domain: d\ndefaults: {on_store_failure: allow}\ndescriptors:\n";
    let engine = engine(
        1,
        &format!(
            "{words}- {{key: free, rate_limit: {{unlimited: true}}}}
- {{key: deny, rate_limit: {{unit: day, requests_per_unit: 10, on_store_failure: deny}}}}\n"
        ),
    );
    for key in ["nothing", "free"] {
        let found = check_with_override(&engine, key).await;
        assert_eq!(found, Ok((Verdict::Allow, Reason::StoreDownAllowed)), "{key}");
    }
    assert_eq!(
        check_with_override(&engine, "deny").await,
        Ok((Verdict::Deny, Reason::StoreDownDenied))
    );
}

#[tokio::test]
async fn error_fallback_refuses_the_check_without_charging() {
    let engine = engine(1, LIMITS);
    for _ in 0..20 {
        let refused = check(&engine, &["local", "error"]).await;
        assert_eq!(
            refused.map(|_| ()),
            Err(CheckError::StoreUnavailable(StoreFailure::Unreachable))
        );
    }
    let left = check(&engine, &["local"]).await.unwrap().statuses[0].decision.headroom.remaining;
    assert_eq!(left, Hits(9));
}

fn force_decision(engine: &Engine, key: &str, verdict: Verdict) {
    crate::support::engine::force(engine, ("d", &[(key, "v")]), verdict, Nanos::from_secs(60));
}

#[tokio::test]
async fn a_forced_denial_overrides_an_error_fallback() {
    for charge in ["each", "all_or_nothing"] {
        let engine = engine(1, &format!("charge: {charge}\n{LIMITS}"));
        force_decision(&engine, "allow", Verdict::Deny);
        let denied = check(&engine, &["error", "allow", "deny"]).await.unwrap();
        assert_eq!(denied.verdict, Verdict::Deny, "{charge}");
        assert_eq!(
            verdicts(&denied),
            [
                (Verdict::Allow, Reason::Skipped),
                (Verdict::Deny, Reason::Forced),
                (Verdict::Deny, Reason::StoreDownDenied),
            ]
        );
        let refused = check(&engine, &["error"]).await.map(|_| ());
        assert_eq!(
            refused,
            Err(CheckError::StoreUnavailable(StoreFailure::Unreachable)),
            "{charge}"
        );
    }
}

/// Reason: the caller must know that its hits were not refunded.
#[tokio::test]
async fn failed_refund_is_an_error_despite_a_forced_denial() {
    let engine = engine(1, LIMITS);
    force_decision(&engine, "allow", Verdict::Deny);
    let mut asked = new_check(&["allow", "error"], 1);
    asked.descriptors[1].cost = Cost::Refund(Hits(3));
    let refused = engine.decide(&asked).await.map(|_| ());
    assert_eq!(refused, Err(CheckError::StoreUnavailable(StoreFailure::Unreachable)));
}

#[tokio::test]
async fn forced_allow_does_not_override_an_error_fallback() {
    let engine = engine(1, LIMITS);
    force_decision(&engine, "allow", Verdict::Allow);
    force_decision(&engine, "shadow", Verdict::Deny);
    for forced in ["allow", "shadow"] {
        let refused = check(&engine, &[forced, "error"]).await.map(|_| ());
        assert_eq!(
            refused,
            Err(CheckError::StoreUnavailable(StoreFailure::Unreachable)),
            "{forced}"
        );
    }
}

#[tokio::test]
async fn local_share_has_no_fractional_hits() {
    let engine = engine(3, LIMITS);
    for (key, whole_hits) in [("local", 3), ("few", 0)] {
        for number in 0..6 {
            let answer = check(&engine, &[key]).await.unwrap();
            let admitted = answer.verdict == Verdict::Allow;
            assert_eq!(admitted, number < whole_hits, "{key} {number}");
            assert_eq!(verdicts(&answer)[0].1, Reason::StoreDownLocal);
        }
    }
}

#[tokio::test]
async fn all_or_nothing_applies_to_local_shares() {
    let engine = engine(1, &format!("charge: all_or_nothing\n{LIMITS}"));
    assert_eq!(
        engine.decide(&new_check(&["local", "few"], 3)).await.unwrap().verdict,
        Verdict::Deny
    );
    let left = check(&engine, &["local"]).await.unwrap().statuses[0].decision.headroom.remaining;
    assert_eq!(left, Hits(9), "the denied question charged nothing");
}

#[tokio::test]
async fn empty_local_share_denies_all_or_nothing_without_charging() {
    let engine = engine(3, &format!("charge: all_or_nothing\n{LIMITS}"));
    let denied = check(&engine, &["local", "few"]).await.unwrap();
    assert_eq!(denied.verdict, Verdict::Deny);
    let left = check(&engine, &["local"]).await.unwrap().statuses[0].decision.headroom.remaining;
    assert_eq!(left, Hits(2), "three, less the one that just passed");
}

#[tokio::test]
async fn dynamic_metadata_contains_each_fallback_reason() {
    let asked = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: ["allow", "local", "nothing", "deny"].map(descriptor).to_vec(),
        hits_addend: 0,
    };
    let answer = check(&engine(1, LIMITS), &["allow", "local", "nothing", "deny"]).await.unwrap();
    let reporting = ReplyOptions { dynamic_metadata: true, ..ReplyOptions::default() };
    let metadata = convert::to_response(&asked, &answer, &reporting).dynamic_metadata.unwrap();
    let Some(Kind::ListValue(list)) = &metadata.fields["degraded"].kind else { panic!() };
    let said: Vec<_> = list.values.iter().map(|value| value.kind.clone().unwrap()).collect();
    let wanted =
        ["store_unavailable_allowed", "store_unavailable_local", "", "store_unavailable_denied"];
    assert_eq!(said, wanted.map(|reason| Kind::StringValue(reason.to_owned())));
}

pub(super) fn descriptor(key: &str) -> RateLimitDescriptor {
    let entry = Entry { key: key.to_owned(), value: "v".to_owned() };
    RateLimitDescriptor {
        entries: vec![entry],
        limit: None,
        hits_addend: None,
        ..Default::default()
    }
}

#[test]
fn grpc_timeout_is_shortened_by_two_ms_or_half() {
    let of = |text: &str| {
        let mut headers = MetadataMap::new();
        headers.insert("grpc-timeout", text.parse().unwrap());
        caller_timeout(&headers)
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
    assert_eq!(caller_timeout(&MetadataMap::new()), None);
}
