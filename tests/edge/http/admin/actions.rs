//! Tests of forced decisions: an operator makes a rule allow or deny everything for a while.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};
use sluicegate::clock::Clock;
use sluicegate::config::action::ActionEffect;
use sluicegate::config::settings::{ResponseHeaders, Settings};
use sluicegate::config::{Config, load};
use sluicegate::edge::headers::RateLimitHeaders;
use sluicegate::engine::actions::{ActionError, ActionKind, MAX_ACTIONS};
use sluicegate::engine::{
    DecisionPolicy, Engine, LocalFallback, Membership, OverridePolicy, PlanSettings,
};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, LimitOverride, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision, Unit};
use sluicegate::store::fleet::{LiveReplica, MembershipReply};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use super::{call, spend};
use crate::edge::{engine, two_a_minute};
use crate::support::engine::{end_forced_decision, force, try_act};

const KEY: &str = "?domain=d&descriptor=k=me";
const ME: (&str, &[(&str, &str)]) = ("d", &[("k", "me")]);

fn admin(engine: &Arc<Engine>) -> Router {
    super::admin_of(Arc::clone(engine), Some("open-sesame-please"))
}

fn advance(engine: &Engine, by: Nanos) {
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(by);
}

#[tokio::test]
async fn a_forced_decision_is_returned_and_not_counted() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    let (status, reply) = call(&admin, "POST", &format!("/force{KEY}&as=deny&for=10m")).await;
    assert_eq!((status, &reply["limit"], &reply["value"]), (200, &json!("d.k"), &json!("deny")));
    assert_eq!(reply["replicas"], 1);
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    let (_, shown) = call(&admin, "GET", "/actions").await;
    let [listed] = &shown["actions"].as_array().unwrap()[..] else { panic!("{shown}") };
    let wanted = json!({
        "action": "force", "scope": "rule", "domain": "d", "limit": "d.k", "descriptor": null,
        "verdict": "deny", "boost": null, "by": "admin", "reason": "ticket 7",
        "until_unix_ms": reply["until_unix_ms"],
    });
    assert_eq!(*listed, wanted);
    // This forced decision replaces the earlier forced decision for the same rule.
    assert_eq!(call(&admin, "POST", &format!("/force{KEY}&as=allow&for=10m")).await.0, 200);
    assert_eq!(spend(&engine, 100).await, Verdict::Allow);
    assert_eq!(engine.actions().len(), 1);
    assert_eq!(call(&admin, "POST", &format!("/unforce{KEY}")).await.0, 200);
    assert_eq!(spend(&engine, 2).await, Verdict::Allow, "nothing was counted meanwhile");
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    assert_eq!(call(&admin, "POST", &format!("/unforce{KEY}")).await.0, 400, "no forced decision");
    assert_eq!(call(&admin, "GET", &format!("/force{KEY}&as=deny&for=10m")).await.0, 405);
}

fn two_limits() -> Config {
    let text = "domain: d\ndescriptors:\n\
                - {key: k, rate_limit: {name: per-key, unit: minute, requests_per_unit: 600}}\n\
                - {key: other, rate_limit: {name: other, unit: minute, requests_per_unit: 10}}\n";
    load([("f", text.as_bytes())], Revision(2), false).unwrap().0
}

fn descriptor(key: &'static str, hits: u64, limit: Option<LimitOverride>) -> Descriptor<'static> {
    Descriptor { entries: smallvec::smallvec![(key, "me")], cost: Cost::Charge(Hits(hits)), limit }
}

#[tokio::test]
async fn response_headers_omit_a_limit_forced_to_allow() {
    let engine = engine(two_limits());
    force(&engine, ME, Verdict::Allow, Nanos::from_secs(60));
    let asked = [descriptor("k", 1, None), descriptor("other", 5, None)].into();
    let answer = engine.decide(&Check { domain: "d", descriptors: asked }).await.unwrap();
    assert_eq!((answer.verdict, answer.binding), (Verdict::Allow, Some(1)));
    let mut settings = Settings::default();
    settings.answers.headers = ResponseHeaders::All;
    let headers = RateLimitHeaders::from_settings(&settings);
    let sent = headers.for_decision(&answer);
    let sent: Vec<_> = sent.iter().map(|(name, value)| (*name, &**value)).collect();
    let wanted = [
        ("RateLimit-Limit", "10"),
        ("RateLimit-Remaining", "5"),
        ("RateLimit-Reset", "60"),
        ("RateLimit-Policy", r#""other";q=10;w=60"#),
        ("RateLimit", r#""other";r=5;t=60"#),
    ];
    assert_eq!(sent, wanted);
}

/// Returns the decisions for the first two hits of a request that overrides the limit with one hit
/// a minute. The rule has the forced decision `forced`.
async fn decisions_with_own_limit(
    overrides: OverridePolicy,
    held: Verdict,
) -> [(Verdict, Reason); 2] {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    let planning = PlanSettings { overrides, ..PlanSettings::default() };
    let policy = DecisionPolicy { planning, ..DecisionPolicy::default() };
    let engine = Engine::new(Clock::manual(Nanos(0)), memory, policy);
    engine.publish(two_limits().into());
    force(&engine, ME, held, Nanos::from_secs(60));
    let one = Some(LimitOverride { requests: 1, unit: Unit::Minute });
    let ask = async || {
        let asked = smallvec::smallvec![descriptor("k", 1, one)];
        let answer = engine.decide(&Check { domain: "d", descriptors: asked }).await.unwrap();
        (answer.verdict, answer.statuses[0].decision.reason)
    };
    [ask().await, ask().await]
}

#[tokio::test]
async fn only_an_override_that_replaces_the_rule_bypasses_a_forced_decision() {
    for held in [Verdict::Deny, Verdict::Allow] {
        for overrides in [OverridePolicy::Max, OverridePolicy::Deny] {
            let answers = decisions_with_own_limit(overrides, held).await;
            assert_eq!(answers, [(held, Reason::Forced); 2], "{overrides:?}");
        }
        let counted = [(Verdict::Allow, Reason::WithinLimit), (Verdict::Deny, Reason::OverLimit)];
        assert_eq!(decisions_with_own_limit(OverridePolicy::Allow, held).await, counted);
    }
}

#[tokio::test]
async fn a_forced_decision_ends_exactly_at_its_expiry() {
    let engine = engine(two_a_minute());
    force(&engine, ME, Verdict::Deny, Nanos::from_secs(60));
    assert_eq!(engine.actions()[0].action.until, engine.clock().now().plus(Nanos::from_secs(60)));
    advance(&engine, Nanos(Nanos::from_secs(60).0 - 1));
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    advance(&engine, Nanos(1));
    assert_eq!(spend(&engine, 1).await, Verdict::Allow);
    assert_eq!(engine.actions(), []);
}

#[tokio::test]
async fn forced_decisions_survive_reloads_and_removed_rules() {
    let engine = engine(two_a_minute());
    force(&engine, ME, Verdict::Deny, Nanos::from_secs(60));
    engine.publish(two_a_minute().into());
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    let empty = load([("f", &b"domain: d"[..])], Revision(9), false).unwrap().0;
    engine.publish(Arc::new(empty));
    assert_eq!(spend(&engine, 100).await, Verdict::Allow, "there is no such rule");
    engine.publish(two_a_minute().into());
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
}

#[tokio::test]
async fn counter_of_a_forced_rule_can_be_reset() {
    let engine = engine(two_a_minute());
    assert_eq!(spend(&engine, 2).await, Verdict::Allow);
    force(&engine, ME, Verdict::Deny, Nanos::from_secs(10));
    assert_eq!(call(&admin(&engine), "POST", &format!("/reset{KEY}")).await.0, 200);
    end_forced_decision(&engine, ME);
    assert_eq!(spend(&engine, 2).await, Verdict::Allow);
}

/// Checks two limits, and forces the first to deny. Returns the reason of each limit, and the
/// remaining hits of the second.
async fn check_after_forced_denial(charge: &str) -> (Vec<Reason>, u64) {
    let text = format!(
        "domain: d\ncharge: {charge}\ndescriptors:\n- key: k\n  rate_limit: {{unit: day, requests_per_unit: 9}}\n\
         - key: other\n  rate_limit: {{unit: day, requests_per_unit: 9}}\n"
    );
    let engine = engine(two_a_minute());
    engine.publish(Arc::new(load([("f", text.as_bytes())], Revision(2), false).unwrap().0));
    force(&engine, ME, Verdict::Deny, Nanos::from_secs(10));
    let descriptor = |key: &'static str, hits| Descriptor {
        entries: smallvec::smallvec![(key, "me")],
        cost: Cost::Charge(Hits(hits)),
        limit: None,
    };
    let asked = [descriptor("k", 1), descriptor("other", 4)].into();
    let answer = engine.decide(&Check { domain: "d", descriptors: asked }).await.unwrap();
    assert_eq!(answer.verdict, Verdict::Deny);
    let reasons = answer.statuses.iter().map(|status| status.decision.reason).collect();
    let peek = smallvec::smallvec![descriptor("other", 0)];
    let look = engine.decide(&Check { domain: "d", descriptors: peek }).await.unwrap();
    (reasons, look.statuses[0].decision.headroom.remaining.0)
}

#[tokio::test]
async fn a_forced_denial_charges_nothing_under_all_or_nothing() {
    assert_eq!(
        check_after_forced_denial("each").await,
        (vec![Reason::Forced, Reason::WithinLimit], 5)
    );
    assert_eq!(check_after_forced_denial("all_or_nothing").await.1, 9);
}

/// Charges one hit to each of `keys` in an all-or-nothing domain. The quota limit `a` has the
/// forced decision `forced`, the quota limit `b` is used up, and `c` has nine remaining hits. Returns
/// the verdict and the remaining hits of `c`.
async fn check_with_forced_quota_limit(forced: Verdict, keys: &[&'static str]) -> (Verdict, u64) {
    let text = "domain: d\ncharge: all_or_nothing\ndescriptors:\n\
                - {key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: c, rate_limit: {unit: day, requests_per_unit: 9}}\n";
    let engine = engine(load([("f", text.as_bytes())], Revision(2), false).unwrap().0);
    force(&engine, ("d", &[("a", "me")]), forced, Nanos::from_secs(10));
    let ask = async |keys: &[&'static str], hits| {
        let descriptors = keys.iter().map(|key| Descriptor {
            entries: smallvec::smallvec![(*key, "me")],
            cost: Cost::Charge(Hits(hits)),
            limit: None,
        });
        let asked = Check { domain: "d", descriptors: descriptors.collect() };
        engine.decide(&asked).await.unwrap()
    };
    ask(&["b"], 1).await;
    let verdict = ask(keys, 1).await.verdict;
    (verdict, ask(&["c"], 0).await.statuses[0].decision.headroom.remaining.0)
}

#[tokio::test]
async fn a_forced_quota_limit_votes_under_all_or_nothing() {
    // A single quota limit that allows is enough, so the check is allowed and charged.
    let admitted = check_with_forced_quota_limit(Verdict::Allow, &["a", "b", "c"]).await;
    assert_eq!(admitted, (Verdict::Allow, 8));
    // All quota limits of the check deny, so the check is denied and nothing is charged.
    for keys in [&["a", "b", "c"][..], &["a", "c"]] {
        assert_eq!(
            check_with_forced_quota_limit(Verdict::Deny, keys).await,
            (Verdict::Deny, 9),
            "{keys:?}"
        );
    }
}

#[tokio::test]
async fn invalid_or_excess_forced_decisions_are_rejected() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    for (query, words) in [
        (format!("{KEY}&as=deny"), "the parameter `for` is missing"),
        (format!("{KEY}&for=1m"), "the parameter `as` is missing"),
        (format!("{KEY}&as=shut&for=1m"), "`as` must be deny or allow, got `shut`"),
        (format!("{KEY}&as=deny&for=soon"), "`for` must be a duration such as 10m, got `soon`"),
        (format!("{KEY}&as=deny&for=25h"), "1s to 24h"),
        (format!("{KEY}&as=deny&for=1m&hats=1"), "hats"),
        (format!("{KEY}&descriptor=k=you&as=deny&for=1m"), "one descriptor"),
        ("?domain=d&descriptor=other=x&as=deny&for=1m".to_owned(), "no rate limit matches"),
    ] {
        let (status, body) = call(&admin, "POST", &format!("/force{query}")).await;
        let explains = matches!(&body, Value::String(text) if text.contains(words));
        assert!(status == 400 && explains, "{query}: {body}");
    }
    let one = |n| format!("- key: k{n}\n  rate_limit: {{unit: day, requests_per_unit: 1}}\n");
    let many = (0..=MAX_ACTIONS).map(one).collect::<Vec<_>>().concat();
    let text = format!("domain: d\ndescriptors:\n{many}");
    engine.publish(Arc::new(load([("f", text.as_bytes())], Revision(2), false).unwrap().0));
    let force_one = |n: usize| {
        let (key, deny) = (format!("k{n}"), ActionEffect::Force(Verdict::Deny));
        try_act(&engine, ("d", &[(&*key, "v")]), (ActionKind::ForceRule, deny), Nanos::SECOND)
    };
    (0..MAX_ACTIONS).for_each(|n| assert!(force_one(n).is_ok()));
    assert_eq!(force_one(MAX_ACTIONS), Err(ActionError::TooMany));
    advance(&engine, Nanos::SECOND);
    assert!(force_one(MAX_ACTIONS).is_ok(), "an expired action makes room");
}

#[tokio::test]
async fn explain_page_shows_the_forced_decision_and_its_end() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    let explained = async || {
        let (status, shown) = call(&admin, "GET", &format!("/explain{KEY}&descriptor=u=v")).await;
        assert_eq!(status, 200, "{shown}");
        shown["descriptors"].clone()
    };
    let free = explained().await;
    for (verdict, word) in [(Verdict::Deny, "deny"), (Verdict::Allow, "allow")] {
        // The shown end of the forced decision is rounded up to a whole second.
        force(&engine, ME, verdict, Nanos(600 * Nanos::SECOND.0 - 1));
        let held = explained().await;
        let outcome = held[0]["outcome"].as_str().unwrap();
        let wanted = format!("; an operator forces {word} until 1970-01-01T00:10:00Z");
        assert!(
            outcome.starts_with("limited by `d.k` (") && outcome.ends_with(&wanted),
            "{outcome}"
        );
        let fresh = json!({"hits": 1, "verdict": word, "remaining": null, "reset_after": null});
        assert_eq!(held[0]["rule"]["fresh"], fresh);
        assert_eq!(held[1], free[1], "the other one is not held");
    }
    end_forced_decision(&engine, ME);
    assert_eq!(explained().await, free);
}

/// The engine of one of two replicas with a shared store, before it has read the membership.
fn first_of_two_replicas() -> Arc<Engine> {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    let membership = Arc::new(Membership::new("a", 1, NonZeroU32::MIN));
    let local = LocalFallback::new(Arc::clone(&memory), membership);
    let clock = Clock::manual(Nanos::from_secs(100));
    let engine =
        Arc::new(Engine::new(clock, memory, DecisionPolicy::default()).with_local_fallback(local));
    engine.publish(Arc::new(two_a_minute()));
    engine
}

#[tokio::test]
async fn forced_decision_reply_counts_only_this_replica_while_store_is_silent() {
    let engine = first_of_two_replicas();
    let admin = admin(&engine);
    let announced = async || {
        let (status, reply) = call(&admin, "POST", &format!("/force{KEY}&as=deny&for=10m")).await;
        assert_eq!(status, 200, "{reply}");
        (reply["replicas"].clone(), reply["store_failure"].clone())
    };
    let (alone, both) = ((json!(1), json!("timed_out")), (json!(2), Value::Null));
    assert_eq!(announced().await, alone, "nobody was seen yet");
    let member =
        |node: &str| LiveReplica { node: node.into(), silent_for: Nanos(0), record: "{}".into() };
    let fleet = MembershipReply { replicas: ["a", "b"].map(member).into(), previous_record: None };
    engine.membership().unwrap().apply_reply(fleet, engine.clock().now());
    assert_eq!(announced().await, both);
    // Five seconds after the last reply, the known membership is too old to count replicas.
    advance(&engine, Nanos::from_secs(5));
    assert_eq!(announced().await, both);
    advance(&engine, Nanos(1));
    assert_eq!(announced().await, alone);
    let (_, reply) = call(&admin, "POST", &format!("/unforce{KEY}")).await;
    assert_eq!((&reply["replicas"], &reply["store_failure"]), (&alone.0, &alone.1));
}
