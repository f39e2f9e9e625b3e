//! The hits that a question holds in two stores until both have answered: what others see, what becomes
//! of them when their holder dies, and how long the question takes in all.

use std::time::Duration;

use sluicegate::backend::redis::{Address, Place, Redis, Stores};
use sluicegate::backend::{Backend as _, Cause, Charge, Charges, Outcome, Rule};
use sluicegate::clock::Clock;
use sluicegate::engine::{Answer, Engine};
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::{Hits, Nanos};
use tokio::task::JoinHandle;

use super::degrade::{engine_over, question, redis_at};
use super::reference::{ALL, ask, charges, gist, now as today, ours};
use super::{Store, serve, wait_until_whole};
use crate::http1;
use crate::service::Service;
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, soon, until};

/// Two stores, the second behind a proxy.
struct Two {
    main: Store,
    second: Store,
    proxy: Proxy,
}

impl Two {
    fn new() -> Self {
        let (main, second) = (Store::running(), Store::running());
        let proxy = Proxy::before(Upstream::Unix(second.socket()));
        Self { main, second, proxy }
    }

    /// In a test that is itself async.
    fn within() -> Self {
        std::thread::spawn(Self::new).join().unwrap()
    }

    fn connected(&self, deadline: Duration) -> (Stores, [JoinHandle<()>; 2]) {
        let address = self.proxy.address();
        let second = Address { host: address.ip().to_string(), port: address.port() };
        let redis = |place| {
            let (redis, connection) = Redis::new(redis_at(place, deadline));
            (redis, tokio::spawn(connection))
        };
        let (main, first) = redis(Place::Unix(self.main.socket()));
        let (second, other) = redis(Place::Tcp(second));
        let stores = Stores::new(main).with_per_second(second);
        let answers = || stores.trouble().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
        until("both are connected", answers).unwrap();
        (stores, [first, other])
    }

    fn serve(&self, limits: &std::path::Path) -> Service {
        let second = format!("redis://{}", self.proxy.address());
        let flags = ["--backend-per-second", &second, "--backend-deadline", "2s"];
        let service = serve(limits, &self.main.url(), &flags);
        wait_until_whole(&service);
        service
    }

    fn keys(&self) -> i64 {
        self.main.tell(&["DBSIZE"]).int()
    }
}

/// Ten a day by each strategy of ours, and as many of what lives in the second store.
const LIMITS: &str = "domain: d
charge: all_or_nothing
descriptors:
- {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: gcra, rate_limit: {unit: day, requests_per_unit: 10, strategy: gcra}}
- {key: sliding_window, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_window}}
- {key: sliding_log, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_log}}
- {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}
";

const KEYS: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];

/// Asks for so many of what each of `keys` limits and of what the second store has.
fn ask_for(service: &Service, keys: &[&str], hits: u64) -> Option<u16> {
    ask_only(service, &[keys, &["second"]].concat(), hits)
}

/// Asks for so many of what each of `keys` limits.
fn ask_only(service: &Service, keys: &[&str], hits: u64) -> Option<u16> {
    let entry = |key: &&str| format!(r#"{{"entries":[{{"key":"{key}","value":"v"}}]}}"#);
    let list = keys.iter().map(entry).collect::<Vec<_>>().join(",");
    let body = format!(r#"{{"domain":"d","descriptors":[{list}],"hitsAddend":{hits}}}"#);
    let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes()));
    reply.ok().map(|reply| reply.status)
}

#[test]
fn a_holder_that_is_killed_between_the_steps_leaves_nothing_charged_once_its_term_is_over() {
    is_given_back_after_a_kill(ask_for);
}

/// A question in one place has no step that looks for holds, but where it is denied.
#[test]
fn what_a_holder_that_was_killed_held_is_given_back_to_questions_in_one_place_too() {
    is_given_back_after_a_kill(ask_only);
}

#[expect(clippy::print_stdout, reason = "what was seen is what a test of a fault is for")]
fn is_given_back_after_a_kill(ask: fn(&Service, &[&str], u64) -> Option<u16>) {
    for_a_day_with_a_minute_left();
    let (two, dir) = (Two::new(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("d.yaml"), LIMITS).unwrap();
    let (first, next) = (two.serve(dir.path()), two.serve(dir.path()));
    let before = two.keys();
    // The second store holds what it is asked for, and nobody hears of it.
    two.proxy.set(Way::FromStore, Flow::Hold);
    std::thread::scope(|scope| {
        scope.spawn(|| ask_for(&first, &KEYS, 4));
        let held = || match two.keys() - before {
            keys if keys == 2 * i64::try_from(KEYS.len()).unwrap() => Ok(()),
            keys => Err(keys.to_string()),
        };
        until("all is held in the first store", held).unwrap();
        first.signal("KILL");
    });
    let died = now();
    two.proxy.pass();
    wait_until_whole(&next);
    for key in KEYS {
        assert_eq!(ask(&next, &[key], 7), Some(429), "{key}: 4 of 10 are still held");
    }
    for key in KEYS {
        until("what was held is given back", || match ask(&next, &[key], 10) {
            Some(200) => Ok(()),
            other => Err(format!("{key}: {other:?}")),
        })
        .unwrap();
        assert_eq!(ask(&next, &[key], 1), Some(429), "{key}: ten passed");
    }
    println!("observed: killed between two steps: given back {:?} later, of 4 s", died.elapsed());
}

/// Ten a day whose denials are remembered, and what lives in the second store.
const CACHED: &str = "domain: d
charge: all_or_nothing
descriptors:
- {key: cached, rate_limit: {unit: day, requests_per_unit: 10, mode: cached_deny}}
- {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}
";

fn replica(stores: Stores) -> Engine {
    engine_over(stores, Clock::manual(Nanos::from_secs(1_000_000_000)), CACHED, 1)
}

async fn cached(replica: &Engine, hits: u64) -> Answer {
    replica.decide(&question(&["cached"], hits)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_that_anothers_hold_caused_is_forgotten_when_that_would_be_over() {
    for_a_day_with_a_minute_left();
    let two = Two::within();
    let [(asks, _asking), (holds, _holding)] = [two.connected(PATIENCE), two.connected(PATIENCE)];
    let (asks, holds) = (replica(asks), replica(holds));
    assert_eq!(cached(&asks, 9).await.verdict, Verdict::Admit);
    two.proxy.set(Way::FromStore, Flow::Hold);
    let before = two.keys();
    let both = question(&["cached", "second"], 1);
    let mut holding = Box::pin(holds.decide(&both));
    let held = async {
        while two.keys() == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = &mut holding => panic!("{answer:?}"),
        () = held => {}
    }
    assert_eq!(cached(&asks, 1).await.verdict, Verdict::Deny, "nine are used, and one is held");
    drop(holding);
    two.proxy.pass();
    let given_back = async {
        while cached(&asks, 0).await.statuses[0].finding.room.remaining != Hits(1) {
            tokio::task::yield_now().await;
        }
    };
    soon("what it held is given back", given_back).await;
    let Clock::Manual(clock) = asks.clock() else { panic!() };
    let term = Nanos::from_secs(2 * PATIENCE.as_secs());
    clock.advance(Nanos(term.0 - 1));
    assert_eq!(cached(&asks, 1).await.verdict, Verdict::Deny, "remembered");
    clock.advance(Nanos(1));
    assert_eq!(cached(&asks, 1).await.verdict, Verdict::Admit, "one was left all the while");
}

fn both(hits: u64) -> Charges {
    let second = Charge { per_second: true, ..ours("in the second", 1_000, hits) };
    charges([ours("main", 10, hits), second], ALL)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_that_is_dropped_between_the_steps_gives_back_what_it_held() {
    let two = Two::within();
    let (stores, _tasks) = two.connected(PATIENCE * 2);
    two.proxy.set(Way::FromStore, Flow::Hold);
    let (now, asked) = (today(), both(4));
    let question = ask(&stores, now, &asked);
    let held = async {
        while two.keys() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        outcomes = question => panic!("{outcomes:?}"),
        () = held => {}
    }
    two.proxy.pass();
    let given_back = async {
        loop {
            let left = ask(&stores, now, &charges([ours("main", 10, 0)], Rule::Each)).await;
            if gist(left[0]).1 == Some(10) {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("what it held is given back", given_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_steps_together_take_no_longer_than_the_deadline() {
    let deadline = Duration::from_secs(3);
    let two = Two::within();
    let (stores, _tasks) = two.connected(deadline);
    let today = today();
    let timed = async || {
        let began = now();
        let outcomes = ask(&stores, today, &both(1)).await;
        (outcomes, began.elapsed())
    };
    // Each step has half of it.
    two.proxy.set(Way::FromStore, Flow::Delay(deadline / 3));
    let (outcomes, took) = timed().await;
    assert!(outcomes.iter().all(|outcome| !outcome.denies()), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Stepped(_)), "{outcomes:?}");
    assert!(deadline / 3 * 2 <= took && took < deadline + deadline / 3, "{took:?}");
    two.proxy.set(Way::FromStore, Flow::Hold);
    let (outcomes, took) = timed().await;
    assert_eq!(outcomes[1], Outcome::Failed(Cause::Late));
    assert!(matches!(outcomes[0], Outcome::Stepped(_)), "the other counts: {outcomes:?}");
    assert!(took < deadline + deadline / 3, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_takes_more_than_half_of_the_deadline_is_not_waited_for() {
    let deadline = Duration::from_millis(1_500);
    let two = Two::within();
    let (stores, _tasks) = two.connected(deadline);
    two.proxy.set(Way::FromStore, Flow::Delay(deadline / 3 * 2));
    let outcomes = ask(&stores, today(), &both(1)).await;
    assert_eq!(outcomes[1], Outcome::Failed(Cause::Late));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_gone_when_it_is_to_be_kept_is_not_said_to_be_charged() {
    let two = Two::within();
    let (stores, _tasks) = two.connected(PATIENCE * 2);
    two.proxy.set(Way::FromStore, Flow::Hold);
    let before = two.keys();
    let (today, asked) = (today(), both(4));
    let forgets = async {
        while two.keys() == before {
            tokio::task::yield_now().await;
        }
        two.main.tell(&["FLUSHALL"]);
        two.proxy.pass();
    };
    let both = async { tokio::join!(ask(&stores, today, &asked), forgets) };
    let (outcomes, ()) = tokio::time::timeout(3 * PATIENCE, both).await.expect("both steps");
    assert_eq!(outcomes[0], Outcome::Failed(Cause::Late));
    assert!(matches!(outcomes[1], Outcome::Stepped(_)), "{outcomes:?}");
}

/// Who gives up before the deadline tells nobody that the store is silent. What was to be held is given back, and that
/// is late after a term: the silence is known long before. A machine that stands still for that long, or for as long as
/// both steps may take while nobody has given up yet, may have five tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_silent_is_known_to_be_though_all_give_up_what_they_hold() {
    let (hurry, term) = (Duration::from_millis(5), Duration::from_secs(1));
    let two = Two::within();
    let mut took = Vec::new();
    for _ in 0..5 {
        let (stores, _tasks) = two.connected(hurry * 4);
        two.proxy.set(Way::FromStore, Flow::Hold);
        let (began, mut all_gave_up) = (now(), true);
        while stores.trouble().is_none() {
            let given_up = tokio::time::timeout(hurry, ask(&stores, today(), &both(1))).await;
            all_gave_up &= given_up.is_err() || stores.trouble().is_some();
            assert!(began.elapsed() < PATIENCE, "nobody knows");
        }
        took.push((began.elapsed(), all_gave_up));
        two.proxy.pass();
        if all_gave_up && began.elapsed() < term {
            return;
        }
    }
    panic!("known only when a hold's term was over: {took:?}");
}

/// What is held is given back by a call, also where the store did not say that it holds: not only when its term ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_answered_is_given_back() {
    let two = Two::within();
    let (stores, _tasks) = two.connected(Duration::from_secs(1));
    let calls = || {
        let said = two.second.tell(&["INFO", "commandstats"]).text();
        let line = said.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    // The script is there.
    ask(&stores, today(), &both(1)).await;
    let before = calls();
    two.proxy.set(Way::FromStore, Flow::Lose);
    let outcomes = ask(&stores, today(), &both(4)).await;
    assert_eq!(outcomes[1], Outcome::Failed(Cause::Late));
    let heard = || match calls() - before {
        2 => Ok(()),
        other => Err(format!("{other} calls")),
    };
    until("it is told to hold, and to give back", heard).unwrap();
}
