//! A limit that an operator holds at one answer: what it answers, for how long, and over reloads.

use std::num::NonZeroU32;
use std::sync::Arc;

use axum::Router;
use serde_json::{Value, json};
use sluicegate::backend::fleet::{Fleet, Member};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::config::frozen::{Frozen, Held};
use sluicegate::config::settings::{ResponseHeaders, Secret, Settings};
use sluicegate::config::{Config, load};
use sluicegate::edge::headers::Headers;
use sluicegate::edge::http::admin::{Admin, Loads, router};
use sluicegate::engine::freezer::{MOST, Refused};
use sluicegate::engine::{Engine, Local, Membership, Overrides, Planning, Policy};
use sluicegate::kernel::decision::{Cost, Descriptor, Override, Question, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision, Unit};

use super::admin::{call, spend};
use super::{engine, two_a_minute};

const KEY: &str = "?domain=d&descriptor=k=me";
const ME: (&str, &[(&str, &str)]) = ("d", &[("k", "me")]);

fn admin(engine: &Arc<Engine>) -> Router {
    let (token, loads) = (Secret::new("open-sesame"), Arc::new(Loads::default));
    router(Admin { token, debug_pages: false, engine: Arc::clone(engine), loads })
}

fn advance(engine: &Engine, by: Nanos) {
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(by);
}

#[tokio::test]
async fn a_limit_that_is_held_shut_denies_and_open_admits_and_neither_is_counted() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    let (status, said) = call(&admin, "POST", &format!("/freeze{KEY}&as=deny&for=10m")).await;
    assert_eq!((status, &said["limit"], &said["as"]), (200, &json!("d.k"), &json!("deny")));
    assert_eq!(said["replicas"], 1);
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    let (_, shown) = call(&admin, "GET", "/frozen").await;
    let [listed] = &shown["frozen"].as_array().unwrap()[..] else { panic!("{shown}") };
    assert!(
        listed.as_object().unwrap().iter().all(|(name, value)| said[name] == *value),
        "{shown}"
    );
    // Held anew, not twice.
    assert_eq!(call(&admin, "POST", &format!("/freeze{KEY}&as=allow&for=10m")).await.0, 200);
    assert_eq!(spend(&engine, 100).await, Verdict::Admit);
    assert_eq!(engine.frozen().len(), 1);
    assert_eq!(call(&admin, "POST", &format!("/thaw{KEY}")).await.0, 200);
    assert_eq!(spend(&engine, 2).await, Verdict::Admit, "nothing was counted meanwhile");
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    assert_eq!(call(&admin, "POST", &format!("/thaw{KEY}")).await.0, 400, "it is not held");
    assert_eq!(call(&admin, "GET", &format!("/freeze{KEY}&as=deny&for=10m")).await.0, 405);
}

/// Domain `d`: `k` has 600 a minute, `other` 10.
fn two_limits() -> Config {
    let text = "domain: d\ndescriptors:\n\
                - {key: k, rate_limit: {name: per-key, unit: minute, requests_per_unit: 600}}\n\
                - {key: other, rate_limit: {name: other, unit: minute, requests_per_unit: 10}}\n";
    load([("f", text.as_bytes())], Revision(2), false).unwrap().0
}

fn descriptor(key: &'static str, hits: u64, limit: Option<Override>) -> Descriptor<'static> {
    Descriptor { entries: smallvec::smallvec![(key, "me")], cost: Cost::Charge(Hits(hits)), limit }
}

#[tokio::test]
async fn headers_beside_a_limit_that_is_held_open_are_of_the_one_that_counts() {
    let engine = engine(two_limits());
    engine.freeze(ME, Verdict::Admit, Nanos::from_secs(60)).unwrap();
    let asked = [descriptor("k", 1, None), descriptor("other", 5, None)].into();
    let answer = engine.decide(&Question { domain: "d", descriptors: asked }).await.unwrap();
    assert_eq!((answer.verdict, answer.binding), (Verdict::Admit, Some(1)));
    let all = ResponseHeaders::All;
    let headers = Headers::chosen(&Settings { response_headers: all, ..Settings::default() });
    let sent = headers.of(&answer);
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

/// The answers to a request that carries one a minute, to the first hit and to the second, while its limit is held at
/// `held` and what requests carry may do what `overrides` says.
async fn with_a_limit_of_its_own(overrides: Overrides, held: Verdict) -> [(Verdict, Reason); 2] {
    let memory = Arc::new(Memory::new(1_000, WhenFull::Deny, [7; 16]));
    let planning = Planning { overrides, ..Planning::default() };
    let policy = Policy { planning, ..Policy::default() };
    let engine = Engine::new(Clock::manual(Nanos(0)), memory, policy);
    engine.publish(two_limits().into());
    engine.freeze(ME, held, Nanos::from_secs(60)).unwrap();
    let one = Some(Override { requests: 1, unit: Unit::Minute });
    let ask = async || {
        let asked = smallvec::smallvec![descriptor("k", 1, one)];
        let answer = engine.decide(&Question { domain: "d", descriptors: asked }).await.unwrap();
        (answer.verdict, answer.statuses[0].finding.reason)
    };
    [ask().await, ask().await]
}

#[tokio::test]
async fn a_limit_in_a_request_lets_no_held_limit_go_unless_it_takes_its_place() {
    for held in [Verdict::Deny, Verdict::Admit] {
        for overrides in [Overrides::Max, Overrides::Deny] {
            let answers = with_a_limit_of_its_own(overrides, held).await;
            assert_eq!(answers, [(held, Reason::Frozen); 2], "{overrides:?}");
        }
        let counted = [(Verdict::Admit, Reason::WithinLimit), (Verdict::Deny, Reason::OverLimit)];
        assert_eq!(with_a_limit_of_its_own(Overrides::Allow, held).await, counted);
    }
}

#[tokio::test]
async fn it_is_held_until_its_time_is_over_and_not_a_tick_longer() {
    let engine = engine(two_a_minute());
    let held = engine.freeze(ME, Verdict::Deny, Nanos::from_secs(60)).unwrap();
    assert_eq!(held.frozen.until, engine.clock().now().plus(Nanos::from_secs(60)));
    advance(&engine, Nanos(Nanos::from_secs(60).0 - 1));
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    advance(&engine, Nanos(1));
    assert_eq!(spend(&engine, 1).await, Verdict::Admit);
    assert_eq!(engine.frozen(), []);
}

#[tokio::test]
async fn a_reload_lets_nothing_go_and_a_rule_that_comes_back_is_held_still() {
    let engine = engine(two_a_minute());
    engine.freeze(ME, Verdict::Deny, Nanos::from_secs(60)).unwrap();
    engine.publish(two_a_minute().into());
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
    let empty = load([("f", &b"domain: d"[..])], Revision(9), false).unwrap().0;
    engine.publish(Arc::new(empty));
    assert_eq!(spend(&engine, 100).await, Verdict::Admit, "there is no such rule");
    engine.publish(two_a_minute().into());
    assert_eq!(spend(&engine, 1).await, Verdict::Deny);
}

#[tokio::test]
async fn hits_are_given_back_to_a_limit_that_is_held() {
    let engine = engine(two_a_minute());
    assert_eq!(spend(&engine, 2).await, Verdict::Admit);
    engine.freeze(ME, Verdict::Deny, Nanos::from_secs(10)).unwrap();
    assert_eq!(call(&admin(&engine), "POST", &format!("/reset{KEY}")).await.0, 200);
    engine.thaw(ME.0, ME.1).unwrap();
    assert_eq!(spend(&engine, 2).await, Verdict::Admit);
}

/// Two limits under one domain that is charged as a whole, or each for itself.
async fn second_after_a_held_first(charge: &str) -> (Vec<Reason>, u64) {
    let text = format!(
        "domain: d\ncharge: {charge}\ndescriptors:\n- key: k\n  rate_limit: {{unit: day, requests_per_unit: 9}}\n\
         - key: other\n  rate_limit: {{unit: day, requests_per_unit: 9}}\n"
    );
    let engine = engine(two_a_minute());
    engine.publish(Arc::new(load([("f", text.as_bytes())], Revision(2), false).unwrap().0));
    engine.freeze(ME, Verdict::Deny, Nanos::from_secs(10)).unwrap();
    let descriptor = |key: &'static str, hits| Descriptor {
        entries: smallvec::smallvec![(key, "me")],
        cost: Cost::Charge(Hits(hits)),
        limit: None,
    };
    let asked = [descriptor("k", 1), descriptor("other", 4)].into();
    let answer = engine.decide(&Question { domain: "d", descriptors: asked }).await.unwrap();
    assert_eq!(answer.verdict, Verdict::Deny);
    let reasons = answer.statuses.iter().map(|status| status.finding.reason).collect();
    let peek = smallvec::smallvec![descriptor("other", 0)];
    let look = engine.decide(&Question { domain: "d", descriptors: peek }).await.unwrap();
    (reasons, look.statuses[0].finding.room.remaining.0)
}

#[tokio::test]
async fn a_held_denial_spares_the_others_where_the_domain_is_charged_as_a_whole() {
    assert_eq!(
        second_after_a_held_first("each").await,
        (vec![Reason::Frozen, Reason::WithinLimit], 5)
    );
    assert_eq!(second_after_a_held_first("all_or_nothing").await.1, 9);
}

/// The answer to one hit of each of `keys`, in a domain that is charged as a whole, where `a` is held, `b` is used
/// up, both of the quota group, and `c` is enforced; and what is left of `c`'s nine.
async fn beside_a_held_member(held: Verdict, keys: &[&'static str]) -> (Verdict, u64) {
    let text = "domain: d\ncharge: all_or_nothing\ndescriptors:\n\
                - {key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: c, rate_limit: {unit: day, requests_per_unit: 9}}\n";
    let engine = engine(load([("f", text.as_bytes())], Revision(2), false).unwrap().0);
    engine.freeze(("d", &[("a", "me")]), held, Nanos::from_secs(10)).unwrap();
    let ask = async |keys: &[&'static str], hits| {
        let descriptors = keys.iter().map(|key| Descriptor {
            entries: smallvec::smallvec![(*key, "me")],
            cost: Cost::Charge(Hits(hits)),
            limit: None,
        });
        let asked = Question { domain: "d", descriptors: descriptors.collect() };
        engine.decide(&asked).await.unwrap()
    };
    ask(&["b"], 1).await;
    let verdict = ask(keys, 1).await.verdict;
    (verdict, ask(&["c"], 0).await.statuses[0].finding.room.remaining.0)
}

#[tokio::test]
async fn a_held_member_of_the_quota_group_has_its_vote_where_the_domain_is_charged_as_a_whole() {
    // One member of the group that admits is enough, and who is admitted is counted.
    let admitted = beside_a_held_member(Verdict::Admit, &["a", "b", "c"]).await;
    assert_eq!(admitted, (Verdict::Admit, 8));
    // All of it denies: nothing is counted.
    for keys in [&["a", "b", "c"][..], &["a", "c"]] {
        assert_eq!(beside_a_held_member(Verdict::Deny, keys).await, (Verdict::Deny, 9), "{keys:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_held_is_said_and_how_many_are_is_bounded() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    for (query, words) in [
        (format!("{KEY}&as=deny"), "`for` is needed"),
        (format!("{KEY}&for=1m"), "`as` is needed"),
        (format!("{KEY}&as=shut&for=1m"), "neither deny nor allow"),
        (format!("{KEY}&as=deny&for=soon"), "no duration"),
        (format!("{KEY}&as=deny&for=25h"), "1s to 24h"),
        (format!("{KEY}&as=deny&for=1m&hats=1"), "hats"),
        (format!("{KEY}&descriptor=k=you&as=deny&for=1m"), "one descriptor"),
        ("?domain=d&descriptor=other=x&as=deny&for=1m".to_owned(), "no rate limit counts"),
    ] {
        let (status, body) = call(&admin, "POST", &format!("/freeze{query}")).await;
        let said = matches!(&body, Value::String(text) if text.contains(words));
        assert!(status == 400 && said, "{query}: {body}");
    }
    let one = |n| format!("- key: k{n}\n  rate_limit: {{unit: day, requests_per_unit: 1}}\n");
    let many = (0..=MOST).map(one).collect::<Vec<_>>().concat();
    let text = format!("domain: d\ndescriptors:\n{many}");
    engine.publish(Arc::new(load([("f", text.as_bytes())], Revision(2), false).unwrap().0));
    let freeze = |n: usize| {
        let key = format!("k{n}");
        engine
            .freeze(("d", &[(&*key, "v")]), Verdict::Deny, Nanos::SECOND)
            .map(|held: Held| held.frozen)
    };
    (0..MOST).for_each(|n| assert!(matches!(freeze(n), Ok(Frozen { .. }))));
    assert_eq!(freeze(MOST), Err(Refused::Full));
    advance(&engine, Nanos::SECOND);
    assert!(freeze(MOST).is_ok(), "what is over makes room");
}

#[tokio::test]
async fn explain_says_of_a_limit_that_is_held_at_what_and_until_when() {
    let engine = engine(two_a_minute());
    let admin = admin(&engine);
    let explained = async || {
        let (status, shown) = call(&admin, "GET", &format!("/explain{KEY}&descriptor=u=v")).await;
        assert_eq!(status, 200, "{shown}");
        shown["descriptors"].clone()
    };
    let free = explained().await;
    for (verdict, word, answer) in
        [(Verdict::Deny, "deny", "denied"), (Verdict::Admit, "allow", "admitted")]
    {
        // To the first second that is not before its end.
        engine.freeze(ME, verdict, Nanos(600 * Nanos::SECOND.0 - 1)).unwrap();
        let held = explained().await;
        let said = held[0]["outcome"].as_str().unwrap();
        let wanted = format!("; an operator holds it at {word} until 1970-01-01T00:10:00Z");
        assert!(said.starts_with("limited by `d.k` (") && said.ends_with(&wanted), "{said}");
        let fresh = json!({"hits": 1, "verdict": answer, "remaining": null, "reset_after": null});
        assert_eq!(held[0]["rule"]["fresh"], fresh);
        assert_eq!(held[1], free[1], "the other one is not held");
    }
    engine.thaw(ME.0, ME.1).unwrap();
    assert_eq!(explained().await, free);
}

/// One of two replicas that share a store, before it has seen the other.
fn one_of_two() -> Arc<Engine> {
    let memory = Arc::new(Memory::new(1_000, WhenFull::Deny, [7; 16]));
    let membership = Arc::new(Membership::new("a", 1, NonZeroU32::MIN));
    let local = Local::new(Arc::clone(&memory), membership);
    let clock = Clock::manual(Nanos::from_secs(100));
    let engine = Arc::new(Engine::new(clock, memory, Policy::default()).with_local(local));
    engine.publish(Arc::new(two_a_minute()));
    engine
}

#[tokio::test]
async fn who_was_seen_before_the_store_was_silent_is_not_said_to_hear_of_it() {
    let engine = one_of_two();
    let admin = admin(&engine);
    let told = async || {
        let (status, said) = call(&admin, "POST", &format!("/freeze{KEY}&as=deny&for=10m")).await;
        assert_eq!(status, 200, "{said}");
        (said["replicas"].clone(), said["store_away"].clone())
    };
    let (alone, both) = ((json!(1), json!("late")), (json!(2), Value::Null));
    assert_eq!(told().await, alone, "nobody was seen yet");
    let member = |node: &str| Member { node: node.into(), silent: Nanos(0), record: "{}".into() };
    let fleet = Fleet { members: ["a", "b"].map(member).into(), before: None };
    engine.membership().unwrap().learn(fleet, engine.clock().now());
    assert_eq!(told().await, both);
    // After as long a silence the others do not count this replica any more.
    advance(&engine, Nanos::from_secs(5));
    assert_eq!(told().await, both);
    advance(&engine, Nanos(1));
    assert_eq!(told().await, alone);
    let (_, said) = call(&admin, "POST", &format!("/thaw{KEY}")).await;
    assert_eq!((&said["replicas"], &said["store_away"]), (&alone.0, &alone.1));
}
