//! Compatible keys of envoyproxy/ratelimit in a real Redis.
//!
//! Guarantees:
//! - Decisions equal those of the in-memory store.
//! - Stored keys and values equal those of envoyproxy/ratelimit.
//! - One check can charge compatible keys, native keys and two stores.
//!
//! Each mutation of the code below fails the named test:
//!
//! | mutation | test |
//! |---|---|
//! | duplicates not summed; refund below zero | `redis_and_memory_agree_on_every_rule` |
//! | shadow limit denies; denial reports the count after a refund | `redis_and_memory_agree_on_every_rule` |
//! | each store of an all-or-nothing check decides alone | `mixed_keys_and_stores_match_memory` |
//! | a denial charges all limits; shadow limit blocks | `stop_when_over_charges_only_the_denying_limits` |
//! | pipeline instead of the script | `checks_on_one_node_are_atomic` |
//! | everything in the main store | `per_second_limits_use_only_their_own_store` |
//! | a refund keeps a remembered denial | `remembered_denial_needs_no_redis_until_a_refund` |
//! | no jitter | `jitter_extends_each_key_expiry` |

mod faults;
mod rules;

use std::time::Duration;

use sluicegate::kernel::decision::{Cost, Enforcement, VoteGroup};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::{RedisStore, RedisTopology, StoreGroup, reference};
use sluicegate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, Outcomes, Placement, StoreFailure,
    StoreReply,
};
use tokio::task::JoinHandle;

use super::fallback::redis_at;
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::waiting::{self, for_a_day_with_a_minute_left, unix_seconds, until};

pub(super) const DAY: Nanos = Nanos::from_secs(86_400);

struct Connected {
    stores: StoreGroup,
    main: Redis,
    second: Redis,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn connected(options: reference::CompatOptions) -> Connected {
    for_a_day_with_a_minute_left();
    let (main, second) = (Redis::start(), Redis::start());
    let mut tasks = Vec::new();
    let stores = over(&main, Some(&second), options, &mut tasks);
    Connected { stores, main, second, tasks }
}

fn over(
    main: &Redis,
    second: Option<&Redis>,
    options: reference::CompatOptions,
    tasks: &mut Vec<JoinHandle<()>>,
) -> StoreGroup {
    let mut redis = |store: &Redis| {
        let place = RedisTopology::Unix(store.socket());
        let (redis, connection) = RedisStore::new(redis_at(place, Duration::from_secs(20)));
        tasks.push(tokio::spawn(connection));
        redis
    };
    let stores = StoreGroup::new(redis(main));
    let stores = match second {
        Some(second) => stores.with_per_second(redis(second)),
        None => stores,
    };
    let stores = stores.with_reference(options);
    let answers =
        || stores.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("redis is connected", answers).unwrap();
    stores
}

pub(super) fn now() -> Nanos {
    Nanos::from_secs(unix_seconds())
}

/// Charges all of `charges`. Removes the stored count from the outcomes, because the in-memory
/// store does not report it.
pub(super) async fn charge_all(
    backend: &dyn CounterStore,
    now: Nanos,
    charges: &Charges,
) -> Outcomes {
    let outcomes = match backend.charge(now, charges) {
        StoreReply::Ready(outcomes) => outcomes,
        StoreReply::Pending(reply) => reply.await,
    };
    let plain = |outcome| match outcome {
        ChargeOutcome::Counted(step, _) => ChargeOutcome::Decided(step),
        other => other,
    };
    outcomes.into_iter().map(plain).collect()
}

/// A daily limit under the compatible key `d_k_<name>_`.
pub(super) fn charge(name: &str, limit: u32, hits: u64) -> Charge {
    let entries = [("k", name)].into_iter();
    Charge {
        key: CounterKey::compatible("d", entries, KeyStrategy::FixedWindow(DAY)),
        strategy: Strategy::FixedWindow(FixedWindow::new(limit, Windows::Every(DAY)).unwrap()),
        cost: Cost::Charge(Hits(hits)),
        standing: Enforcement::default(),
        placement: Placement::default(),
        per_second: false,
    }
}

/// The limit of [`charge`] with a native key. The parity of the length of `name` selects the
/// strategy.
pub(super) fn native_charge(name: &str, limit: u32, hits: u64) -> Charge {
    let gcra = name.len().is_multiple_of(2);
    let key_strategy = if gcra { KeyStrategy::Gcra } else { KeyStrategy::SlidingLog };
    Charge {
        key: CounterKey::unique("d", [("k", name)].into_iter(), key_strategy),
        strategy: match key_strategy {
            KeyStrategy::Gcra => Strategy::Gcra(Gcra::new(limit, DAY, limit).unwrap()),
            _ => Strategy::SlidingLog(SlidingLog::new(limit, DAY).unwrap()),
        },
        ..charge(name, limit, hits)
    }
}

pub(super) fn charges(list: impl IntoIterator<Item = Charge>, mode: ChargeMode) -> Charges {
    Charges { list: list.into_iter().collect(), mode }
}

pub(super) const ALL: ChargeMode =
    ChargeMode::AllOrNothing { quota_for_all: false, quota_cannot_deny: false };

pub(super) fn any_standing(dice: &mut Dice) -> Enforcement {
    let group = dice.pick(&[
        VoteGroup::Enforced,
        VoteGroup::Enforced,
        VoteGroup::Quota,
        VoteGroup::Unlimited,
    ]);
    Enforcement { group, shadow: dice.once_in(5) }
}

pub(super) fn any_rule(dice: &mut Dice) -> ChargeMode {
    match dice.up_to(5) {
        0 => ChargeMode::Preview,
        1 | 2 => ChargeMode::Each,
        _ => ChargeMode::AllOrNothing {
            quota_for_all: dice.once_in(4),
            quota_cannot_deny: dice.once_in(4),
        },
    }
}

pub(super) fn stored_count(store: &Redis, name: &str, now: Nanos) -> Option<u64> {
    let start = now.0 / DAY.0 * 86_400;
    match store.command(&["GET", &format!("d_k_{name}_{start}")]) {
        Value::Nil => None,
        text => Some(text.text().parse().unwrap()),
    }
}

/// The script time of one call, in microseconds. It includes pauses of the machine.
async fn script_micros(connected: &Connected, charged: usize) -> u64 {
    connected.main.command(&["CONFIG", "RESETSTAT"]);
    let list = (0..charged).map(|_| charge("one", 1_000_000, 1));
    charge_all(&connected.stores, now(), &charges(list, ALL)).await;
    let stats = connected.main.command(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=1,usec="));
    line.unwrap().split(',').next().unwrap().parse().unwrap()
}

/// Reason: if the script compared each charge with all earlier ones, 8 times as many charges would
/// take 64 times as long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_time_grows_linearly_with_charges() {
    let at = connected(reference::CompatOptions::default());
    // Loads the script into Redis before the measurement.
    script_micros(&at, 1).await;
    // On a busy machine, it may take many calls until one has no pause.
    let (mut few, mut more) = (u64::MAX, u64::MAX);
    for _ in 0..500 {
        few = few.min(script_micros(&at, 125).await);
        more = more.min(script_micros(&at, 1_000).await);
        if more < 24 * few {
            return;
        }
    }
    panic!("125 charges took {few} µs, 1,000 took {more} µs");
}

/// Returns the part of an outcome that does not depend on a clock: `true` for a denial, and the
/// remaining hits.
pub(super) fn verdict_and_remaining(outcome: ChargeOutcome) -> (bool, Option<u64>) {
    match outcome {
        ChargeOutcome::Decided(
            CounterDecision::Allow(room)
            | CounterDecision::ExceedsLimit(room)
            | CounterDecision::Deny { headroom: room, .. },
        ) => (outcome.is_denial(), Some(room.remaining.0)),
        _ => (outcome.is_denial(), None),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_on_one_node_are_atomic() {
    for_a_day_with_a_minute_left();
    let main = Redis::start();
    let mut tasks = Vec::new();
    let now = now();
    for (name, stop, rule) in [("all", false, ALL), ("stop", true, ChargeMode::Each)] {
        let options = reference::CompatOptions {
            stop_when_over: stop,
            ..reference::CompatOptions::default()
        };
        let fleet =
            [0, 1].map(|_| std::sync::Arc::new(over(&main, None, options.clone(), &mut tasks)));
        let asks: Vec<_> = (0..400)
            .map(|number| {
                let stores = std::sync::Arc::clone(&fleet[number % 2]);
                let list = [
                    charge(&format!("{name} few"), 50, 1),
                    charge(&format!("{name} many"), 900, 1),
                ];
                tokio::spawn(async move {
                    let outcomes = charge_all(&*stores, now, &charges(list, rule)).await;
                    !outcomes.iter().any(ChargeOutcome::is_denial)
                })
            })
            .collect();
        let mut passed = 0;
        for asked in asks {
            passed += u64::from(asked.await.unwrap());
        }
        assert_eq!(passed, 50, "{name}");
        assert_eq!(stored_count(&main, &format!("{name} many"), now), Some(50), "{name}");
    }
    tasks.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sluicegate_and_envoyproxy_ratelimit_share_counters() {
    let prefix = "rl:".to_owned();
    let at = connected(reference::CompatOptions { prefix, jitter_secs: 300, ..Default::default() });
    let now = now();
    let key = format!("rl:d_k_shared_{}", now.0 / DAY.0 * 86_400);
    for turn in 0..6 {
        // The commands of envoyproxy/ratelimit for one hit.
        let count = at.main.command(&["INCRBY", &key, "1"]).int();
        at.main.command(&["EXPIRE", &key, "86400"]);
        assert_eq!(count, 2 * turn + 1);
        let asked = charges([charge("shared", 10, 1)], ChargeMode::Each);
        let outcome = charge_all(&at.stores, now, &asked).await[0];
        let count = u64::try_from(2 * turn + 2).unwrap();
        assert_eq!(
            verdict_and_remaining(outcome),
            (10 < count, Some(10_u64.saturating_sub(count)))
        );
        let left = at.main.command(&["TTL", &key]).int();
        assert!((86_390..86_700).contains(&left), "{left}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jitter_extends_each_key_expiry() {
    let expiries = async |jitter_secs| {
        let at =
            connected(reference::CompatOptions { jitter_secs, seed: seed(), ..Default::default() });
        let (now, began) = (now(), waiting::now());
        let key = format!("d_k_a_{}", now.0 / DAY.0 * 86_400);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..40 {
            charge_all(&at.stores, now, &charges([charge("a", 10, 1)], ChargeMode::Each)).await;
            seen.insert(at.main.command(&["TTL", &key]).int());
        }
        // A busy machine may read an expiry seconds later.
        (seen, 86_398 - i64::try_from(began.elapsed().as_secs()).unwrap())
    };
    let (fixed, least) = expiries(0).await;
    assert!(fixed.iter().all(|left| (least..=86_400).contains(left)), "{fixed:?}");
    let (drawn, least) = expiries(100).await;
    assert!(10 < drawn.len() && drawn.iter().all(|left| (least..86_500).contains(left)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn per_second_limits_use_only_their_own_store() {
    let mut at = connected(reference::CompatOptions::default());
    let now = now();
    let both = |per_second: bool, name: &str| {
        [charge(name, 10, 1), native_charge(name, 10, 1)].map(|it| Charge { per_second, ..it })
    };
    let list = [both(true, "second"), both(false, "day")].concat();
    let asked = charges(list, ChargeMode::Each);
    assert!(charge_all(&at.stores, now, &asked).await.iter().all(|it| !it.is_denial()));
    for (store, name) in [(&at.second, "second"), (&at.main, "day")] {
        assert_eq!(stored_count(store, name, now), Some(1), "{name}");
        assert_eq!(store.command(&["DBSIZE"]).int(), 2, "{name}");
    }
    at.second.kill();
    until("the loss is seen", || match at.stores.current_failure() {
        Some(_) => Ok(()),
        None => Err("nothing seen".to_owned()),
    })
    .unwrap();
    let outcomes = charge_all(&at.stores, now, &asked).await;
    assert_eq!(outcomes[..2], [ChargeOutcome::Failed(StoreFailure::Unreachable); 2]);
    assert_eq!(stored_count(&at.main, "day", now), Some(2));
    assert!(
        outcomes[2..].iter().all(|it| verdict_and_remaining(*it) == (false, Some(8))),
        "{outcomes:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remembered_denial_needs_no_redis_until_a_refund() {
    let mut at =
        connected(reference::CompatOptions { deny_cache_bytes: 100_000, ..Default::default() });
    let now = now();
    let one = |name: &str, hits| charges([charge(name, 1, hits)], ChargeMode::Each);
    charge_all(&at.stores, now, &one("a", 2)).await;
    charge_all(&at.stores, now, &one("b", 2)).await;
    let back = Charge { cost: Cost::Refund(Hits(2)), ..charge("b", 1, 0) };
    charge_all(&at.stores, now, &charges([back], ChargeMode::Each)).await;
    assert_eq!(
        verdict_and_remaining(charge_all(&at.stores, now, &one("b", 1)).await[0]),
        (false, Some(0))
    );
    charge_all(&at.stores, now, &one("b", 1)).await;
    at.main.kill();
    until("the loss is seen", || at.stores.current_failure().map(|_| ()).ok_or("not".to_owned()))
        .unwrap();
    for (hits, name) in [(0, "a"), (1, "a"), (1, "b")] {
        let outcome = charge_all(&at.stores, now, &one(name, hits)).await[0];
        assert_eq!(verdict_and_remaining(outcome), (true, Some(0)), "{name} {hits}");
    }
    let tomorrow = charge_all(&at.stores, now.plus(DAY), &one("a", 1)).await[0];
    assert_eq!(
        tomorrow,
        ChargeOutcome::Failed(StoreFailure::Unreachable),
        "another window, another key"
    );
}
