//! Fleet membership, and the division of limits among replicas during a store outage.

use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::Value as Json;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{AcquireRequest, Descriptor, Entry};
use sluicegate::engine::Membership;
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::fleet::{
    LiveReplica, MembershipHeartbeat, MembershipReply, REPLICA_TIMEOUT,
};
use sluicegate::store::redis::{Batching, RedisStore, membership};
use sluicegate::store::{
    ChargeMode, ChargeOutcome, CounterStore as _, FleetStore as _, StoreFailure, StoreReply,
};

use super::{batch, check, limits, ready, serve, wait_until_ready};
use crate::support::http1;
use crate::support::proxy::{Flow, Proxy, Upstream};
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

const RECORDS: &str = "sluicegatesg:{fleet}:members";

pub(super) fn fleet_page(service: &Service) -> Json {
    serde_json::from_slice(&http1::get(service.admin, "/fleet", &[]).unwrap().body).unwrap()
}

fn nodes(service: &Service) -> Vec<String> {
    let shown = fleet_page(service);
    let members = shown["live_replicas"].as_array().unwrap();
    members.iter().map(|member| member["replica"].as_str().unwrap().to_owned()).collect()
}

pub(super) fn wait_for_members(service: &Service, wanted: &[&str]) {
    until("the fleet is seen", || {
        let seen = nodes(service);
        if seen == wanted { Ok(()) } else { Err(format!("{seen:?} {}", service.log())) }
    })
    .unwrap();
}

fn records(store: &Redis) -> Vec<String> {
    let mut names: Vec<_> = match store.command(&["HKEYS", RECORDS]) {
        Value::Array(names) => names.iter().map(Value::text).collect(),
        other => panic!("{other:?}"),
    };
    names.sort();
    names
}

pub(super) fn start_replica(
    limits: &std::path::Path,
    store: &Redis,
    node: &str,
    more: &[&str],
) -> Service {
    let flags = ["--fleet-replica-name", node, "--listen-drain-delay", "0s"];
    serve(limits, &store.url(), &[&flags, more].concat())
}

fn admitted(fleet: &[&Service], value: &str) -> u32 {
    let passes = |service: &&Service| {
        (0..30).map(|_| u32::from(check(service, "local", value) == 200)).sum::<u32>()
    };
    fleet.iter().map(passes).sum()
}

#[test]
fn replicas_without_a_store_together_allow_the_limit() {
    for_a_day_with_a_minute_left();
    let (mut store, files) = (Redis::start(), [10, 9, 2].map(limits));
    for (file, limit) in files.iter().zip([10, 9, 2]) {
        let fleet = ["a", "b", "c"].map(|node| start_replica(file.path(), &store, node, &[]));
        for service in &fleet {
            wait_for_members(service, &["a", "b", "c"]);
        }
        store.kill();
        for value in ["v", "w", "x"] {
            assert_eq!(admitted(&fleet.each_ref(), value), limit, "{value}");
        }
        let readiness = ready(&fleet[0]);
        assert_eq!(readiness.status, 200);
        assert!(readiness.text().contains("is unavailable"), "{}", readiness.text());
        assert_eq!(http1::get(fleet[0].http, "/livez", &[]).unwrap().status, 200);
        drop(fleet);
        store.launch(&["--port", "0"]);
    }
}

#[test]
fn membership_tolerates_round_trips_below_the_deadline() {
    let (store, limits) = (Redis::start(), limits(10));
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let url = format!("redis://{}", proxy.address());
    let flags = ["--fleet-replica-name", "far"];
    let far = serve(limits.path(), &url, &flags);
    wait_for_members(&far, &["far"]);
    proxy.both(Flow::Delay(Duration::from_millis(75)));
    let _near = start_replica(limits.path(), &store, "near", &[]);
    wait_for_members(&far, &["far", "near"]);
}

#[test]
fn replica_started_in_an_outage_divides_limits_by_replicas_min() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::absent(), limits(14));
    let replica = start_replica(limits.path(), &store, "lonely", &["--fleet-min-replicas", "5"]);
    assert_eq!(admitted(&[&replica], "v"), 2);
    let shown = fleet_page(&replica);
    assert_eq!((&shown["replicas"], &shown["snapshot_age_ms"]), (&5.into(), &Json::Null));
}

#[test]
fn terminated_replicas_leave_the_fleet_at_once_and_killed_ones_later() {
    let (store, limits) = (Redis::start(), limits(10));
    let stays = start_replica(limits.path(), &store, "stays", &["--fleet-min-replicas", "2"]);
    let mut leaves = start_replica(limits.path(), &store, "leaves", &[]);
    let killed = start_replica(limits.path(), &store, "killed", &[]);
    wait_for_members(&stays, &["killed", "leaves", "stays"]);
    assert_eq!(fleet_page(&stays)["replicas"], 3);
    let record = &fleet_page(&stays)["live_replicas"][0];
    assert_eq!(record["build"], env!("CARGO_PKG_VERSION"));
    assert_eq!(record["revision"], 1);
    leaves.terminate();
    assert!(leaves.ended().unwrap().success());
    assert_eq!(records(&store), ["killed", "stays"]);
    let died = now();
    drop(killed);
    let is_known = records(&store).iter().any(|name| name == "killed");
    assert!(
        is_known || Duration::from_nanos(REPLICA_TIMEOUT.0) <= died.elapsed(),
        "nobody told the store"
    );
    wait_for_members(&stays, &["stays"]);
    assert_eq!(fleet_page(&stays)["replicas"], 2, "never fewer than fleet.min_replicas");
}

#[test]
fn a_duplicate_node_id_is_logged() {
    let (store, limits) = (Redis::start(), limits(10));
    let one = start_replica(limits.path(), &store, "twin", &[]);
    let other = start_replica(limits.path(), &store, "twin", &[]);
    let is_logged = |service: &Service| service.log().contains("another replica has this name");
    until("they are told", || {
        if is_logged(&one) && is_logged(&other) { Ok(()) } else { Err(one.log()) }
    })
    .unwrap();
}

#[test]
fn replicas_choose_distinct_default_node_ids() {
    let (store, limits) = (Redis::start(), limits(10));
    let fleet = [0, 1].map(|_| serve(limits.path(), &store.url(), &[]));
    fleet.iter().for_each(wait_until_ready);
    until("two are seen", || match nodes(&fleet[0]) {
        nodes if nodes.len() == 2 && nodes[0] != nodes[1] => Ok(()),
        nodes => Err(format!("{nodes:?}")),
    })
    .unwrap();
}

fn send_heartbeat(
    redis: &RedisStore,
    node: &str,
    record: Option<&str>,
) -> Result<MembershipReply, StoreFailure> {
    let heartbeat = MembershipHeartbeat { node: node.into(), record: record.map(Into::into) };
    let reply = redis.update_membership(&heartbeat);
    match reply {
        StoreReply::Pending(reply) => tokio::runtime::Runtime::new().unwrap().block_on(reply),
        StoreReply::Ready(fleet) => fleet,
    }
}

#[test]
fn a_full_redis_keeps_the_membership_records_of_other_replicas() {
    let store = Redis::start();
    let redis = batch::connected(&store, Batching::Off);
    let key = membership::members_key("t");
    // The last heartbeat of this record is from 1970.
    store.command(&["HSET", &key, "silent", "1:{}"]);
    store.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(send_heartbeat(&redis, "me", Some("{}")), Err(StoreFailure::OutOfMemory));
    let names = || {
        let names = store.command(&["HKEYS", &key]);
        names.array().iter().map(Value::text).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["silent"]);
    store.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let own_record = LiveReplica { node: "me".into(), silent_for: Nanos(0), record: "{}".into() };
    let alone = MembershipReply { replicas: vec![own_record], previous_record: None };
    assert_eq!(send_heartbeat(&redis, "me", Some("{}")), Ok(alone));
    assert_eq!(names(), ["me"], "with memory a silent one goes");
    // A replica's own record from 1970 has expired, so the reply contains no previous record.
    store.command(&["HSET", &key, "me", "1:old"]);
    assert_eq!(send_heartbeat(&redis, "me", Some("{}")).unwrap().previous_record, None);
    assert_eq!(names(), ["me"]);
    let left = MembershipReply { replicas: Vec::new(), previous_record: Some("{}".into()) };
    assert_eq!(send_heartbeat(&redis, "me", None), Ok(left));
    assert_eq!(names(), Vec::<String>::new());
}

/// The Redis user may run the charge script, but lacks the right for a command of the heartbeat
/// script, or for `EVAL`.
#[test]
fn heartbeat_without_acl_rights_keeps_the_connection_for_charges() {
    let store = Redis::start();
    let redis = batch::connected(&store, Batching::On);
    let made = || {
        let stats = store.command(&["INFO", "stats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = made();
    for (denied, why) in [("-pexpire", StoreFailure::Other), ("-eval", StoreFailure::NotPermitted)]
    {
        store.command(&["ACL", "SETUSER", "default", denied]);
        assert_eq!(send_heartbeat(&redis, "me", Some("{}")), Err(why));
        assert_eq!(redis.current_failure(), None);
        let charges = batch::charges("one", batch::window(), ChargeMode::Each);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let outcomes = runtime.block_on(batch::charge(&redis, &charges));
        assert!(
            matches!(outcomes[0], ChargeOutcome::Decided(CounterDecision::Allow(_))),
            "{outcomes:?}"
        );
    }
    // The test's own commands opened all three connections, so the store client opened none.
    assert_eq!(made() - before, 3);
}

fn fleet_of(nodes: &[&str], before: Option<&str>) -> MembershipReply {
    let member =
        |&node: &&str| LiveReplica { node: node.into(), silent_for: Nanos(0), record: "{}".into() };
    MembershipReply {
        replicas: nodes.iter().map(member).collect(),
        previous_record: before.map(Into::into),
    }
}

#[test]
fn replica_count_briefly_survives_store_data_loss() {
    let at = Nanos::from_secs;
    let membership = Membership::new("a", 0, NonZeroU32::MIN);
    assert_eq!(membership.replicas().get(), 1);
    membership.apply_reply(fleet_of(&["a"], None), at(100));
    membership.apply_reply(fleet_of(&["a", "b", "c"], Some("{}")), at(106));
    assert_eq!(membership.replicas().get(), 3);
    membership.apply_reply(fleet_of(&["a", "b"], Some("{}")), at(107));
    assert_eq!(membership.replicas().get(), 2, "one left");
    membership.apply_reply(fleet_of(&["a"], None), at(110));
    assert_eq!(membership.replicas().get(), 2, "forgotten, not gone");
    membership.apply_reply(fleet_of(&["a", "d"], Some("{}")), at(114));
    assert_eq!(membership.replicas().get(), 3, "a new one, and one that may yet speak");
    membership.apply_reply(fleet_of(&["a", "d"], Some("{}")), at(115));
    assert_eq!(membership.replicas().get(), 2, "it had its time");
}

#[test]
fn fleet_page_shows_shares_of_other_replicas() {
    let (store, limits) = (Redis::start(), tempfile::tempdir().unwrap());
    let text = "domain: edge\ndescriptors:\n- key: upstream\n  concurrency: {limit: 100, max_duration: 1s}\n";
    std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
    let quick = ["--fleet-heartbeat", "200ms", "--fleet-share-expiry", "2s"];
    let [first, second] =
        ["holds", "looks"].map(|node| start_replica(limits.path(), &store, node, &quick));
    wait_for_members(&second, &["holds", "looks"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let to = first.door();
    let mut client = PermitsClient::new(runtime.block_on(to.connect()).unwrap());
    let entries = vec![Entry { key: "upstream".into(), value: "all".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    let mut number = 0;
    // Repeats until the store knows all requests in flight and grants the first share.
    until("a seat", || {
        number += 1;
        let (id, domain) = (format!("request-{number:016}"), "edge".to_owned());
        let descriptors = descriptors.clone();
        let asked = AcquireRequest { id, domain, descriptors, max_wait_us: None };
        runtime.block_on(client.acquire(asked)).unwrap();
        let seen = fleet_page(&second);
        let state = &seen["live_replicas"][0]["largest_shares"][0];
        let number = |name: &str| state[name].as_u64().unwrap_or(0);
        let is_held = state["limit"] == "edge_upstream_all" && 0 < number("in_flight");
        let share = number("share");
        let own = &fleet_page(&first)["shares"]["shared"][0];
        let is_told = 0 < number("generation")
            && ["generation", "fences", "handoffs"].iter().all(|name| state[name] == own[name]);
        let is_seen = is_held && is_told && 0 < share && share <= 100;
        if is_seen { Ok(()) } else { Err(format!("{seen}, itself {own}")) }
    })
    .unwrap();
    assert_eq!(fleet_page(&second)["live_replicas"][1]["largest_shares"], Json::Array(Vec::new()));
}
