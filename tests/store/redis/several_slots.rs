//! Checks across several slots of a real Cluster, with compatible and native keys.
//!
//! Each mutation of the code below fails the named test:
//!
//! | mutation | test |
//! |---|---|
//! | each slot of an all-or-nothing check decides alone | `checks_across_slots_are_charged_as_with_each` |
//! | no peek before the charges | `stop_when_over_charges_only_the_denying_slots` |
//! | pipeline without redirects | `a_moving_slot_loses_no_hits` |

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::redis::{RedisStore, RedisTopology, StoreGroup, codec, reference};
use sluicegate::store::{Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, Outcomes};
use tokio::task::JoinHandle;

use super::fallback::redis_at;
use super::reference::{
    ALL, DAY, any_rule, any_standing, charge, charge_all, charges, native_charge, now,
    verdict_and_remaining,
};
use crate::support::cluster::Cluster;
use crate::support::dice::{Dice, seed};
use crate::support::resp::Value;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

struct Connected {
    stores: Arc<StoreGroup>,
    task: JoinHandle<()>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn connected(cluster: &Cluster, options: reference::CompatOptions) -> Connected {
    for_a_day_with_a_minute_left();
    let place = RedisTopology::Cluster(cluster.addresses());
    let (redis, connection) = RedisStore::new(redis_at(place, Duration::from_secs(20)));
    let task = tokio::spawn(connection);
    let stores = StoreGroup::new(redis).with_reference(options);
    let answers =
        || stores.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("the cluster is connected", answers).unwrap();
    Connected { stores: Arc::new(stores), task }
}

async fn left(stores: &StoreGroup, now: Nanos, peek: Charge) -> u64 {
    verdict_and_remaining(charge_all(stores, now, &charges([peek], ChargeMode::Each)).await[0])
        .1
        .unwrap()
}

type Kind = fn(&str, u32, u64) -> Charge;

/// Several slots cannot be charged all-or-nothing, only each by itself.
fn mode_across_slots(charges: &Charges) -> ChargeMode {
    let slot = |charge: &Charge| match charge.key.compatible_bytes() {
        Some(_) => None,
        None => Some(codec::cluster_slot(&codec::counter_key(&charge.key, charge.placement, b"t"))),
    };
    let slots: Vec<_> = charges.list.iter().map(slot).collect();
    let is_one_slot =
        slots.len() == 1 || slots[0].is_some() && slots.iter().all(|at| *at == slots[0]);
    match charges.mode {
        ChargeMode::AllOrNothing { .. } if !is_one_slot => ChargeMode::Each,
        mode => mode,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_across_slots_are_charged_as_with_each() {
    let cluster = Cluster::start();
    let at = connected(&cluster, reference::CompatOptions::default());
    let memory = MemoryStore::new(10_000, WhenFull::Deny, [3; 16]);
    let (seed, now) = (seed(), now());
    let mut dice = Dice::new(seed);
    for trace in 0..40 {
        for step in 0..20 {
            let one = |dice: &mut Dice| {
                let limit = dice.pick(&[2, 5, 9, 20]);
                let hits = dice.pick(&[0, 1, 1, 1, 2, 6]);
                let kind: Kind = dice.pick(&[native_charge as Kind, charge]);
                let one = kind(&format!("{trace} {limit}"), limit, hits);
                Charge { standing: any_standing(dice), ..one }
            };
            let list: Vec<_> = (0..=dice.up_to(4)).map(|_| one(&mut dice)).collect();
            let asked = charges(list, any_rule(&mut dice));
            let gists = |outcomes: Outcomes| {
                outcomes.into_iter().map(verdict_and_remaining).collect::<Vec<_>>()
            };
            let expected = Charges { mode: mode_across_slots(&asked), ..asked.clone() };
            let expected = gists(charge_all(&memory, now, &expected).await);
            let got = gists(charge_all(&*at.stores, now, &asked).await);
            assert_eq!(got, expected, "SLUICEGATE_SEED={seed} {trace}.{step}: {asked:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_when_over_charges_only_the_denying_slots() {
    let options =
        reference::CompatOptions { stop_when_over: true, ..reference::CompatOptions::default() };
    let cluster = Cluster::start();
    let at = connected(&cluster, options);
    let now = now();
    for passed in 0..6 {
        let list = ["few", "many"].map(|name| charge(name, if name == "few" { 3 } else { 9 }, 1));
        let outcomes = charge_all(&*at.stores, now, &charges(list, ChargeMode::Each)).await;
        assert_eq!(verdict_and_remaining(outcomes[0]).0, 3 <= passed);
    }
    assert_eq!(left(&at.stores, now, charge("many", 9, 0)).await, 6);
}

/// Runs 200 concurrent checks of both limits. Returns the number of allowed checks and the
/// remaining hits of the larger limit.
async fn check_both_concurrently(
    connected: &Connected,
    now: Nanos,
    kind: Kind,
    (name, mode): (&str, ChargeMode),
) -> (u64, u64) {
    let (few, many) = (format!("{name} few"), format!("{name} much"));
    let asks = (0..200).map(|_| {
        let stores = Arc::clone(&connected.stores);
        let asked = charges([kind(&many, 1_000, 1), kind(&few, 10, 1)], mode);
        tokio::spawn(async move {
            !charge_all(&*stores, now, &asked).await.iter().any(ChargeOutcome::is_denial)
        })
    });
    let passed = join_all(asks).await.into_iter().map(|asked| u64::from(asked.unwrap())).sum();
    (passed, left(&connected.stores, now, kind(&many, 1_000, 0)).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_across_slots_allow_exactly_the_limit() {
    let (cluster, now) = (Cluster::start(), now());
    let at = connected(&cluster, reference::CompatOptions::default());
    // The length of the name selects the strategy (see `native_charge`).
    for (name, kind) in
        [("theirs", charge as Kind), ("ours", native_charge as Kind), ("our", native_charge)]
    {
        let (passed, left) = check_both_concurrently(&at, now, kind, (name, ALL)).await;
        assert_eq!((passed, left), (10, 800), "{name}: charged as with `each`");
    }
}

/// Concurrent checks may each pass the peek, as in envoyproxy/ratelimit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_that_stop_when_over_allow_exactly_the_limit() {
    let options =
        reference::CompatOptions { stop_when_over: true, ..reference::CompatOptions::default() };
    let (cluster, now) = (Cluster::start(), now());
    let at = connected(&cluster, options);
    for (name, mode) in [("each", ChargeMode::Each), ("all", ALL)] {
        let (passed, left) = check_both_concurrently(&at, now, charge, (name, mode)).await;
        assert_eq!(passed, 10, "{name}");
        assert!((800..=990).contains(&left), "{name}: {left}");
        for _ in 0..3 {
            let list = [("much", 1_000), ("few", 10)]
                .map(|(of, limit)| charge(&format!("{name} {of}"), limit, 1));
            charge_all(&*at.stores, now, &charges(list, mode)).await;
        }
        let after = self::left(&at.stores, now, charge(&format!("{name} much"), 1_000, 0)).await;
        assert_eq!(after, left, "{name}: the peek stops these");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_moving_slot_loses_no_hits() {
    let cluster = Cluster::start();
    let at = connected(&cluster, reference::CompatOptions::default());
    let now = now();
    let start = now.0 / DAY.0 * 86_400;
    let slot = codec::cluster_slot(format!("d_k_moving_{start}").as_bytes());
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let stores = Arc::clone(&at.stores);
            tokio::spawn(async move {
                let mut passed = 0;
                for number in 0..300_u64 {
                    // A third of the calls are single commands, and a third are scripts.
                    let (hits, rule) =
                        if number % 3 == 0 { (0, ChargeMode::Preview) } else { (1, ALL) };
                    let asked = charges([charge("moving", 500, hits)], rule);
                    let outcome = charge_all(&*stores, now, &asked).await[0];
                    let rule = if number % 3 == 1 { ChargeMode::Each } else { ALL };
                    let outcomes =
                        charge_all(&*stores, now, &charges([charge("moving", 500, 1)], rule)).await;
                    for outcome in [outcome, outcomes[0]] {
                        assert!(matches!(outcome, ChargeOutcome::Decided(_)), "{outcome:?}");
                    }
                    passed += u64::from(hits == 1 && !outcome.is_denial());
                    passed += u64::from(!outcomes[0].is_denial());
                }
                passed
            })
        })
        .collect();
    let owner = cluster.owner_of_slot(slot);
    for step in 0..3 {
        cluster.move_slot(slot, (owner + step) % 3, (owner + step + 1) % 3);
    }
    let passed: u64 = join_all(clients).await.into_iter().map(Result::unwrap).sum();
    assert_eq!(passed, 500, "each admitted hit is counted once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counter_in_a_moving_slot_still_expires() {
    let cluster = Cluster::start();
    let at = connected(&cluster, reference::CompatOptions::default());
    let now = now();
    let slot = codec::cluster_slot(b"{moving}");
    // Charges each key once, in pipelines that are longer than a node reads at once.
    let clients: Vec<_> = (0..4)
        .map(|client| {
            let stores = Arc::clone(&at.stores);
            tokio::spawn(async move {
                for question in 0..12 {
                    let name = |number| format!("{{moving}} {client} {question} {number}");
                    let list = (0..300).map(|number| charge(&name(number), 10, 1));
                    charge_all(&*stores, now, &charges(list, ChargeMode::Each)).await;
                }
            })
        })
        .collect();
    let owner = cluster.owner_of_slot(slot);
    for step in 0..3 {
        cluster.move_slot(slot, (owner + step) % 3, (owner + step + 1) % 3);
    }
    for client in clients {
        client.await.unwrap();
    }
    let node = &cluster.primaries[owner];
    let all = node.call(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "20000"]);
    let keys: Vec<_> = all.array().iter().map(Value::text).collect();
    assert!(3_000 < keys.len(), "{}", keys.len());
    until("all expire", || {
        let stays = |key: &&String| node.call(&["TTL", key]).int() < 0;
        keys.iter().find(stays).map_or(Ok(()), |key| Err(key.clone()))
    })
    .unwrap();
}
