//! A replica whose clock is far from the clock of Redis.
//!
//! Guarantees:
//! - Calendar windows are recomputed once from the time of Redis.
//! - The retry charges nothing twice.

use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::engine::Engine;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::{RedisStore, RedisTopology};
use tokio::task::JoinHandle;

use super::fallback::{engine_over, new_check, redis_at};
use crate::support::engine::{end_forced_decision, force};
use crate::support::redis::Redis;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, until};

/// 2001-09-09. Calendar windows around it ended long ago.
const LONG_AGO: Nanos = Nanos::from_secs(1_000_000_000);

const RULES: &str = "domain: d
descriptors:
- {key: plain, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: month, rate_limit: {unit: month, requests_per_unit: 10, calendar: {time_zone: Europe/Berlin}}}
- {key: tight, rate_limit: {unit: day, requests_per_unit: 2}}
";

pub(super) struct Connected {
    pub(super) store: Redis,
    pub(super) engine: Engine,
    connection: JoinHandle<()>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

pub(super) fn connected(rules: &str) -> Connected {
    connected_within(rules, Duration::from_secs(20))
}

fn connected_within(rules: &str, deadline: Duration) -> Connected {
    for_a_day_with_a_minute_left();
    let store = Redis::start();
    let at = redis_at(RedisTopology::Unix(store.socket()), deadline);
    let (redis, connection) = RedisStore::new(at);
    let connection = tokio::spawn(connection);
    let engine = engine_over(redis, Clock::manual(LONG_AGO), rules, 1);
    let answers = || engine.store_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("redis is connected", answers).unwrap();
    Connected { store, engine, connection }
}

async fn check(connected: &Connected, keys: &[&str], hits: u64) -> (Verdict, Vec<Hits>) {
    let decision = connected.engine.decide(&new_check(keys, hits)).await.unwrap();
    let left = decision.statuses.iter().map(|status| status.decision.headroom.remaining).collect();
    (decision.verdict, left)
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_with_a_new_calendar_window_charges_other_limits_once() {
    let on = connected(RULES);
    for left in [9, 8, 7] {
        let both = check(&on, &["plain", "month"], 1).await;
        assert_eq!(both, (Verdict::Allow, vec![Hits(left), Hits(left)]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_decision_survives_a_retry_with_a_new_calendar_window() {
    let on = connected(RULES);
    let plain = ("d", &[("plain", "v")][..]);
    // By the clock of Redis, this forced decision expired long ago.
    force(&on.engine, plain, Verdict::Allow, Nanos::from_secs(60));
    for left in [9, 8, 7] {
        let (verdict, both) = check(&on, &["plain", "month"], 1).await;
        assert_eq!((verdict, both[1]), (Verdict::Allow, Hits(left)));
    }
    end_forced_decision(&on.engine, plain);
    assert_eq!(check(&on, &["plain"], 0).await.1, [Hits(10)], "it counts nothing meanwhile");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_or_nothing_survives_a_retry_with_a_new_calendar_window() {
    let on = connected(&format!("charge: all_or_nothing\n{RULES}"));
    let both = check(&on, &["plain", "month"], 1).await;
    assert_eq!(both, (Verdict::Allow, vec![Hits(9), Hits(9)]));
    let denied = check(&on, &["plain", "month", "tight"], 3).await;
    assert_eq!(denied, (Verdict::Deny, vec![Hits(9), Hits(9), Hits(0)]));
    let peeked = check(&on, &["plain", "month", "tight"], 0).await;
    assert_eq!(peeked.1, [Hits(9), Hits(9), Hits(2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_planned_again_for_a_new_window_spends_its_balance_once() {
    const LENT: &str = "- {key: lent, rate_limit: {unit: day, requests_per_unit: 100, mode: leased, max_overshoot: 0, lease_hits: 10}}\n";
    let on = connected(&format!("charge: all_or_nothing\n{RULES}{LENT}"));
    for hits in [89, 1] {
        assert_eq!(check(&on, &["lent"], hits).await.0, Verdict::Allow);
    }
    let balance = || on.engine.leases().map_or(Hits(0), |leases| leases.totals().hits);
    let all = || if balance() == Hits(10) { Ok(()) } else { Err(balance().to_string()) };
    until("all that is left is held here", all).unwrap();
    let both = check(&on, &["month", "lent"], 4).await;
    assert_eq!(both, (Verdict::Allow, vec![Hits(6), Hits(6)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_denial_charges_nothing_in_a_retry_with_a_new_calendar_window() {
    let on = connected(&format!("charge: all_or_nothing\n{RULES}"));
    let plain = ("d", &[("plain", "v")][..]);
    force(&on.engine, plain, Verdict::Deny, Nanos::from_secs(60));
    for _ in 0..3 {
        let (verdict, left) = check(&on, &["plain", "month", "tight"], 1).await;
        assert_eq!((verdict, &left[1..]), (Verdict::Deny, &[Hits(10), Hits(2)][..]));
    }
    assert_eq!(check(&on, &["month", "tight"], 0).await.1, [Hits(10), Hits(2)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unresponsive_store_is_detected_despite_short_caller_timeouts() {
    let allows = RULES.replace("10}}", "10, on_store_failure: allow}}");
    // First one check at a time, then also a second check that waits for a store call in flight.
    for together in [1, 2] {
        let on = connected_within(&allows, Duration::from_millis(200));
        assert_eq!(on.engine.store_failure(), None);
        on.store.signal("STOP");
        let began = now();
        let soon = Some(Nanos(20_000_000));
        while on.engine.store_failure().is_none() {
            let asked = new_check(&["plain"], 1);
            let asking = (0..together).map(|_| on.engine.decide_within(&asked, soon));
            for answer in futures_util::future::join_all(asking).await {
                assert_eq!(answer.unwrap().verdict, Verdict::Allow);
            }
            assert!(began.elapsed() < PATIENCE, "nobody knows");
        }
        on.store.signal("CONT");
        let answers =
            || on.engine.store_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
        until("redis answers again", answers).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_caller_timeout_opens_no_circuit_breaker() {
    let rules = RULES.replace("10}}", "10, on_store_failure: allow}}");
    // A decision that waits for the store takes at least this long.
    let on = connected_within(&rules, PATIENCE);
    on.store.signal("STOP");
    let began = now();
    for _ in 0..10 {
        let soon = Some(Nanos(20_000_000));
        let answer = on.engine.decide_within(&new_check(&["plain"], 1), soon).await.unwrap();
        assert_eq!(answer.verdict, Verdict::Allow);
        assert!(began.elapsed() < PATIENCE, "a decision waited for the store");
    }
    assert_eq!(on.engine.store_failure(), None);
    on.store.signal("CONT");
}
