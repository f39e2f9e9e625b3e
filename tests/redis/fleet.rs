//! Who is in the fleet, and what a limit is divided by when its store is gone.

use std::num::NonZeroU32;

use serde_json::Value as Json;
use sluicegate::backend::fleet::{Beat, Fleet, Member};
use sluicegate::backend::redis::{Batching, Redis, beat};
use sluicegate::backend::{Backend as _, Cause, Outcome, Reply, Rule};
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{AcquireRequest, Descriptor, Entry};
use sluicegate::engine::Membership;
use sluicegate::kernel::rate::Step;
use sluicegate::kernel::units::Nanos;

use super::{Store, ask, batch, limits, ready, serve, wait_until_whole};
use crate::http1;
use crate::service::Service;
use crate::support::resp::Value;
use crate::waiting::{for_a_day_with_a_minute_left, until};

const RECORDS: &str = "sluicegatesg:{fleet}:members";

pub(super) fn shown(service: &Service) -> Json {
    serde_json::from_slice(&http1::get(service.admin, "/fleet", &[]).unwrap().body).unwrap()
}

fn nodes(service: &Service) -> Vec<String> {
    let shown = shown(service);
    let members = shown["members"].as_array().unwrap();
    members.iter().map(|member| member["node"].as_str().unwrap().to_owned()).collect()
}

/// Waits until `service` sees exactly `wanted`.
pub(super) fn sees(service: &Service, wanted: &[&str]) {
    until("the fleet is seen", || {
        let seen = nodes(service);
        if seen == wanted { Ok(()) } else { Err(format!("{seen:?} {}", service.log())) }
    })
    .unwrap();
}

/// What the store has a record of.
fn records(store: &Store) -> Vec<String> {
    let mut names: Vec<_> = match store.tell(&["HKEYS", RECORDS]) {
        Value::Array(names) => names.iter().map(Value::text).collect(),
        other => panic!("{other:?}"),
    };
    names.sort();
    names
}

pub(super) fn member(
    limits: &std::path::Path,
    store: &Store,
    node: &str,
    more: &[&str],
) -> Service {
    member_within("100ms", limits, store, node, more)
}

pub(super) fn member_within(
    deadline: &str,
    limits: &std::path::Path,
    store: &Store,
    node: &str,
    more: &[&str],
) -> Service {
    let mut flags = vec!["--backend-deadline", deadline, "--node-id", node];
    flags.extend(["--drain-delay", "0s"].iter().chain(more));
    serve(limits, &store.url(), &flags)
}

fn admitted(fleet: &[&Service], value: &str) -> u32 {
    let passes = |service: &&Service| {
        (0..30).map(|_| u32::from(ask(service, "local", value) == 200)).sum::<u32>()
    };
    fleet.iter().map(passes).sum()
}

#[test]
fn replicas_without_their_store_admit_the_limit_between_them_and_no_more() {
    for_a_day_with_a_minute_left();
    let (mut store, files) = (Store::running(), [10, 9, 2].map(limits));
    for (file, limit) in files.iter().zip([10, 9, 2]) {
        let fleet = ["a", "b", "c"].map(|node| member(file.path(), &store, node, &[]));
        for service in &fleet {
            sees(service, &["a", "b", "c"]);
        }
        store.kill();
        for value in ["v", "w", "x"] {
            assert_eq!(admitted(&fleet.each_ref(), value), limit, "{value}");
        }
        let said = ready(&fleet[0]);
        assert_eq!(said.status, 200);
        assert!(said.text().contains("does not answer"), "{}", said.text());
        assert_eq!(http1::get(fleet[0].http, "/livez", &[]).unwrap().status, 200);
        drop(fleet);
        store.start(&["--port", "0"]);
    }
}

#[test]
fn a_replica_that_starts_in_an_outage_divides_by_replicas_min_and_takes_nothing_left_over() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::absent(), limits(14));
    let lonely = member(limits.path(), &store, "lonely", &["--replicas-min", "5"]);
    assert_eq!(admitted(&[&lonely], "v"), 2);
    let shown = shown(&lonely);
    assert_eq!((&shown["replicas"], &shown["seen_ms_ago"]), (&5.into(), &Json::Null));
}

#[test]
fn who_leaves_in_order_is_gone_at_once_and_who_is_killed_after_its_silence() {
    let (store, limits) = (Store::running(), limits(10));
    let stays = member(limits.path(), &store, "stays", &["--replicas-min", "2"]);
    let mut leaves = member(limits.path(), &store, "leaves", &[]);
    let killed = member(limits.path(), &store, "killed", &[]);
    sees(&stays, &["killed", "leaves", "stays"]);
    assert_eq!(shown(&stays)["replicas"], 3);
    let record = &shown(&stays)["members"][0];
    assert_eq!(record["build"], env!("CARGO_PKG_VERSION"));
    assert_eq!(record["revision"], 1);
    leaves.terminate();
    assert!(leaves.ended().unwrap().success());
    assert_eq!(records(&store), ["killed", "stays"]);
    drop(killed);
    assert_eq!(records(&store), ["killed", "stays"], "nobody told the store");
    sees(&stays, &["stays"]);
    assert_eq!(shown(&stays)["replicas"], 2, "never fewer than replicas_min");
}

#[test]
fn a_name_that_two_replicas_have_is_told() {
    let (store, limits) = (Store::running(), limits(10));
    let one = member(limits.path(), &store, "twin", &[]);
    let other = member(limits.path(), &store, "twin", &[]);
    let told = |service: &Service| service.log().contains("another replica has this node_id");
    until("they are told", || if told(&one) && told(&other) { Ok(()) } else { Err(one.log()) })
        .unwrap();
}

#[test]
fn without_a_name_each_replica_takes_one_of_its_own() {
    let (store, limits) = (Store::running(), limits(10));
    let fleet = [0, 1].map(|_| serve(limits.path(), &store.url(), &[]));
    fleet.iter().for_each(wait_until_whole);
    until("two are seen", || match nodes(&fleet[0]) {
        nodes if nodes.len() == 2 && nodes[0] != nodes[1] => Ok(()),
        nodes => Err(format!("{nodes:?}")),
    })
    .unwrap();
}

/// What the store answers to what `node` says of itself.
fn speaks(redis: &Redis, node: &str, record: Option<&str>) -> Result<Fleet, Cause> {
    let said = Beat { node: node.into(), record: record.map(Into::into) };
    let reply = redis.beat(&said);
    match reply {
        Reply::Later(reply) => tokio::runtime::Runtime::new().unwrap().block_on(reply),
        Reply::Now(fleet) => fleet,
    }
}

#[test]
fn a_store_without_memory_for_a_replicas_record_drops_nobody_elses() {
    let store = Store::running();
    let redis = batch::connected(&store, Batching::Off);
    let key = beat::key("t");
    // It last spoke in 1970.
    store.tell(&["HSET", &key, "silent", "1:{}"]);
    store.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(speaks(&redis, "me", Some("{}")), Err(Cause::OutOfMemory));
    let names = || {
        let names = store.tell(&["HKEYS", &key]);
        names.array().iter().map(Value::text).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["silent"]);
    store.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    let me = Member { node: "me".into(), silent: Nanos(0), record: "{}".into() };
    let alone = Fleet { members: vec![me], before: None };
    assert_eq!(speaks(&redis, "me", Some("{}")), Ok(alone));
    assert_eq!(names(), ["me"], "with memory a silent one goes");
    // Its own record of 1970 is not one that was alive.
    store.tell(&["HSET", &key, "me", "1:old"]);
    assert_eq!(speaks(&redis, "me", Some("{}")).unwrap().before, None);
    assert_eq!(names(), ["me"]);
    let left = Fleet { members: Vec::new(), before: Some("{}".into()) };
    assert_eq!(speaks(&redis, "me", None), Ok(left));
    assert_eq!(names(), Vec::<String>::new());
}

/// The user may count, and may not run one command of the script that says who is in the fleet, or such a script at all.
#[test]
fn a_script_that_the_user_may_not_run_leaves_the_connection_to_those_who_count() {
    let store = Store::running();
    let redis = batch::connected(&store, Batching::On);
    let made = || {
        let stats = store.tell(&["INFO", "stats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = made();
    for (denied, why) in [("-pexpire", Cause::Failing), ("-eval", Cause::NotPermitted)] {
        store.tell(&["ACL", "SETUSER", "default", denied]);
        assert_eq!(speaks(&redis, "me", Some("{}")), Err(why));
        assert_eq!(redis.trouble(), None);
        let charges = batch::charges("one", batch::window(), Rule::Each);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let outcomes = runtime.block_on(batch::ask(&redis, &charges));
        assert!(matches!(outcomes[0], Outcome::Stepped(Step::Admit(_))), "{outcomes:?}");
    }
    // This one's own.
    assert_eq!(made() - before, 3);
}

fn seen(nodes: &[&str], before: Option<&str>) -> Fleet {
    let member = |&node: &&str| Member { node: node.into(), silent: Nanos(0), record: "{}".into() };
    Fleet { members: nodes.iter().map(member).collect(), before: before.map(Into::into) }
}

#[test]
fn a_store_that_forgot_is_not_believed_before_all_had_the_time_to_speak_again() {
    let at = Nanos::from_secs;
    let membership = Membership::new("a", 0, NonZeroU32::MIN);
    assert_eq!(membership.replicas().get(), 1);
    membership.learn(seen(&["a"], None), at(100));
    membership.learn(seen(&["a", "b", "c"], Some("{}")), at(106));
    assert_eq!(membership.replicas().get(), 3);
    membership.learn(seen(&["a", "b"], Some("{}")), at(107));
    assert_eq!(membership.replicas().get(), 2, "one left");
    membership.learn(seen(&["a"], None), at(110));
    assert_eq!(membership.replicas().get(), 2, "forgotten, not gone");
    membership.learn(seen(&["a", "d"], Some("{}")), at(114));
    assert_eq!(membership.replicas().get(), 3, "a new one, and one that may yet speak");
    membership.learn(seen(&["a", "d"], Some("{}")), at(115));
    assert_eq!(membership.replicas().get(), 2, "it had its time");
}

#[test]
fn each_replica_shows_the_others_seats_at_the_ceilings_that_they_hold_together() {
    let (store, limits) = (Store::running(), tempfile::tempdir().unwrap());
    let text = "domain: edge\ndescriptors:\n- key: upstream\n  concurrency: {limit: 100, max_duration: 1s}\n";
    std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
    let quick = ["--fleet-heartbeat", "200ms", "--fleet-term", "2s"];
    let [holds, looks] = ["holds", "looks"].map(|node| member(limits.path(), &store, node, &quick));
    sees(&looks, &["holds", "looks"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let to = holds.door();
    let mut client = PermitsClient::new(runtime.block_on(to.connect()).unwrap());
    let entries = vec![Entry { key: "upstream".into(), value: "all".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    let mut number = 0;
    // Until the store is believed to know all that is out, and gives the first share.
    until("a seat", || {
        number += 1;
        let (id, domain) = (format!("request-{number:016}"), "edge".to_owned());
        let descriptors = descriptors.clone();
        let asked = AcquireRequest { id, domain, descriptors, max_wait_us: None };
        runtime.block_on(client.acquire(asked)).unwrap();
        let seen = shown(&looks);
        let seat = &seen["members"][0]["seats"][0];
        let number = |name: &str| seat[name].as_u64().unwrap_or(0);
        let is_held = seat["ceiling"] == "edge_upstream_all" && 0 < number("in_flight");
        let share = number("share");
        let own = &shown(&holds)["shares"]["ceilings"][0];
        let is_told = 0 < number("generation")
            && ["generation", "fences", "handoffs"].iter().all(|name| seat[name] == own[name]);
        let is_seen = is_held && is_told && 0 < share && share <= 100;
        if is_seen { Ok(()) } else { Err(format!("{seen}, itself {own}")) }
    })
    .unwrap();
    assert_eq!(shown(&looks)["members"][1]["seats"], Json::Array(Vec::new()));
}
