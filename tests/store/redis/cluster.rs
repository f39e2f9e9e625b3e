//! A real Redis Cluster that loses nodes and moves slots.
//!
//! Each test prints its measurements.

use std::time::Duration;

use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::units::Nanos;
use sluicegate::store::fleet::MembershipHeartbeat;
use sluicegate::store::redis::{
    RedisOptions, RedisStore, RedisTopology, codec, inspect, membership,
};
use sluicegate::store::{CounterStore as _, FleetStore as _, Placement, StoreFailure, StoreReply};
use tokio::time::timeout;

use super::fallback::redis_at;
use super::fault_watch::print_row;
use super::load::{LoadResult, counted_hits, under_load};
use super::{
    check_domain, failures, failures_of_any_kind, limits_of, ready, serve, wait_until_ready,
};
use crate::support::cluster::Cluster;
use crate::support::process::Process;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, until};
use crate::support::{http1, ports};

/// The store timeout of the test that silences a primary.
const DEADLINE: Duration = Duration::from_secs(1);

const LIMIT: u32 = 10;

const LOST_PRIMARY: usize = 1;

fn key_of(domain: &str) -> Vec<u8> {
    let day = KeyStrategy::FixedWindow(Nanos::from_secs(86_400));
    codec::counter_key(
        &CounterKey::unique(domain, [("many", "load")].into_iter(), day),
        Placement::by_domain(domain),
        b"sluicegate",
    )
}

/// Returns three domains: the counters of domain number n are in a slot of primary number n.
fn domains(cluster: &Cluster) -> [String; 3] {
    let domain_of_primary = |number: usize| {
        let mut names = (0..).map(|name| format!("d{name}"));
        let is_there =
            |name: &String| cluster.owner_of_slot(codec::cluster_slot(&key_of(name))) == number;
        names.find(is_there).unwrap()
    };
    [domain_of_primary(0), domain_of_primary(1), domain_of_primary(2)]
}

/// Sends `LIMIT` + 2 checks and returns the number of allowed ones.
fn count_allowed(service: &Service, domain: &str, key: &str, value: &str) -> usize {
    let answers = (0..LIMIT + 2).map(|_| check_domain(service, domain, &[(key, value)]).status);
    answers.filter(|&status| status == 200).count()
}

/// Waits until the store denies. Redis replicates without waiting, so a failover may forget hits.
fn wait_until_denied(service: &Service, domain: &str, value: &str) {
    until("the counter goes on", || {
        match check_domain(service, domain, &[("error", value)]).status {
            429 => Ok(()),
            status => Err(format!("{status}: {}", service.log())),
        }
    })
    .unwrap();
}

/// Spends a new limit, and asserts its exact number of hits unless a store call failed.
fn wait_until_spent(service: &Service, domain: &str, value: &str) -> String {
    let mut attempt = 0;
    until("the limit is enforced", || {
        attempt += 1;
        let (before, value) = (failures_of_any_kind(service), format!("{value} {attempt}"));
        let allowed = count_allowed(service, domain, "error", &value);
        match failures_of_any_kind(service) - before {
            0 => {
                assert_eq!(allowed, LIMIT as usize, "{}", service.log());
                Ok(value)
            }
            failed => Err(format!("{failed} calls failed: {}", service.log())),
        }
    })
    .unwrap()
}

/// Makes a primary unavailable with `lose` and asserts the guarantees until its Redis replica has
/// taken over. Returns the load of each domain, and the service.
fn lose_primary(
    (what, flags): (&str, &[&str]),
    lose: impl FnOnce(&mut Process),
    restore: impl FnOnce(&mut Process),
) -> (Vec<LoadResult>, Service) {
    for_a_day_with_a_minute_left();
    let mut cluster = Cluster::with_replicas();
    let domains = domains(&cluster);
    let domains: Vec<_> = domains.iter().map(String::as_str).collect();
    let limits = limits_of(LIMIT, &domains);
    let service = serve(limits.path(), &cluster.url(), flags);
    wait_until_ready(&service);
    let kept: Vec<_> =
        domains.iter().map(|domain| wait_until_spent(&service, domain, "kept")).collect();
    cluster.wait_for_replicas();
    let (asked, normal) = under_load(&service, &domains, || {
        let began = now();
        lose(&mut cluster.primaries[LOST_PRIMARY]);
        let fails =
            || match check_domain(&service, domains[LOST_PRIMARY], &[("error", "while")]).status {
                400 => Ok(()),
                status => Err(status.to_string()),
            };
        until("its slots are not answered", fails).unwrap();
        let shows = || match ready(&service).text() {
            text if text.contains("is unavailable") => Ok(()),
            text => Err(text),
        };
        until("it shows", shows).unwrap();
        wait_until_denied(&service, domains[LOST_PRIMARY], &kept[LOST_PRIMARY]);
        began.elapsed()
    });
    wait_until_ready(&service);
    let harmed = &asked[LOST_PRIMARY];
    let [admitted, failed, all] =
        [harmed.count_of(200), harmed.count_of(400), harmed.statuses.values().sum()]
            .map(|count| count as u64);
    let forgotten = admitted.saturating_sub(counted_hits(&service, domains[LOST_PRIMARY]));
    let slowest = asked.iter().filter_map(|asked| asked.times.slowest()).max();
    let promised = "its slots alone fail until its replica took over";
    let counts = [failed, all - admitted - failed, forgotten];
    print_row(what, promised, slowest, &counts, Some(normal));
    for (number, asked) in asked.iter().enumerate() {
        // On a busy machine, a call to another primary may exceed a short store timeout.
        let most = if flags.is_empty() { 0 } else { asked.times.late_controls() };
        let (passed, all) = (asked.count_of(200), asked.statuses.values().sum::<usize>());
        let is_harmed = most < all - passed || passed == 0;
        let is_expected = if number == LOST_PRIMARY { passed < all } else { !is_harmed };
        assert!(is_expected, "{number}: {:?}\n{}", asked.statuses, service.log());
    }
    assert_eq!(admitted + failed, all, "{:?}", harmed.statuses);
    restore(&mut cluster.primaries[LOST_PRIMARY]);
    for (domain, kept) in domains.iter().zip(&kept) {
        wait_until_denied(&service, domain, kept);
        wait_until_spent(&service, domain, "after");
    }
    (asked, service)
}

/// With the long store timeout, a call that waited for the killed primary would time out.
#[test]
fn killed_primary_fails_only_its_slots_until_failover() {
    let what = "Cluster, a primary `kill -9`";
    let (_, service) = lose_primary((what, &[]), Process::kill, Process::start_again);
    assert_eq!(failures(&service, "timed_out"), 0, "{}", service.log());
}

#[test]
fn stopped_primary_fails_only_its_slots_until_failover() {
    let what = "Cluster, a primary SIGSTOP, later SIGCONT";
    let flags = ["--store-timeout", "1s"];
    let stop = |node: &mut Process| node.signal("STOP");
    let (asked, _) = lose_primary((what, &flags), stop, |node| node.signal("CONT"));
    for asked in asked {
        asked.times.assert_within(DEADLINE, what);
    }
}

/// The first check for the unassigned slot makes the Redis client `fred` close the connection to
/// the node, once. Later checks for this slot fail without being sent.
#[test]
fn unassigned_slot_does_not_disturb_other_slots() {
    for_a_day_with_a_minute_left();
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        node.call_ok(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let slot_of = |name: &String| codec::cluster_slot(&key_of(name));
    let mut names = (0..).map(|name| format!("d{name}"));
    let lost = names.find(|name| cluster.owner_of_slot(slot_of(name)) == LOST_PRIMARY).unwrap();
    let is_beside = |name: &String| cluster.owner_of_slot(slot_of(name)) == LOST_PRIMARY;
    let kept = names.find(|name| is_beside(name) && slot_of(name) != slot_of(&lost)).unwrap();
    let limits = limits_of(500, &[&lost, &kept]);
    let service = serve(limits.path(), &cluster.url(), &[]);
    wait_until_ready(&service);
    let slot = slot_of(&lost).to_string();
    for node in &cluster.primaries {
        node.call_ok(&["CLUSTER", "DELSLOTS", &slot]);
    }
    let check = |domain: &str| check_domain(&service, domain, &[("error", "value")]).status;
    let alone = || match (check(&lost), check(&kept)) {
        (400, 200) => Ok(()),
        other => Err(format!("{other:?}: {}", service.log())),
    };
    until("it fails alone", alone).unwrap();
    for asked in 0..100 {
        assert_eq!((check(&lost), check(&kept)), (400, 200), "{asked}: {}", service.log());
    }
    cluster.primaries[LOST_PRIMARY].call_ok(&["CLUSTER", "ADDSLOTS", &slot]);
    let answers = || if check(&lost) == 200 { Ok(()) } else { Err(service.log()) };
    until("its slot is answered again", answers).unwrap();
}

#[test]
fn moving_slot_loses_no_checks_or_hits() {
    for_a_day_with_a_minute_left();
    let cluster = Cluster::start();
    let domains = domains(&cluster);
    let limits = limits_of(500, &[&domains[0]]);
    let service = serve(
        limits.path(),
        &cluster.url(),
        &["--store-timeout", "20s", "--telemetry-log-level", "debug"],
    );
    wait_until_ready(&service);
    let asked = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let check = || check_domain(&service, &domains[0], &[("error", "moving")]).status;
                scope.spawn(move || (0..300).filter(|_| check() == 200).count())
            })
            .collect();
        let slot = codec::cluster_slot(&key_of(&domains[0]));
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            cluster.move_slot(slot, from, to);
        }
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    assert_eq!(asked, 500, "each admitted hit is counted once");
    assert_eq!(failures_of_any_kind(&service), 0, "{}", service.log());
    println!("observed: cluster, a slot moved three times: 0 questions failed, 500 of 500 passed");
}

fn script_calls(cluster: &Cluster) -> u64 {
    let calls_of_node = |node: &Process| -> u64 {
        let stats = node.call(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    cluster.primaries.iter().map(calls_of_node).sum()
}

#[test]
fn all_or_nothing_check_makes_one_call_per_slot() {
    for_a_day_with_a_minute_left();
    let (cluster, limits) = (Cluster::start(), tempfile::tempdir().unwrap());
    let rule =
        |key| format!("  - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 3}}}}\n");
    let text = format!(
        "domain: d\ncharge: all_or_nothing\ncolocate: tenant\ndescriptors:\n- key: tenant\n  descriptors:\n{}",
        ["a", "b", "c"].map(rule).concat()
    );
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let service = serve(limits.path(), &cluster.url(), &["--store-timeout", "20s"]);
    wait_until_ready(&service);
    let descriptor = |(tenant, key): (&str, &str)| {
        format!(
            r#"{{"entries":[{{"key":"tenant","value":"{tenant}"}},{{"key":"{key}","value":"v"}}]}}"#
        )
    };
    let check = |of: &[(&str, &str)]| {
        let all = of.iter().map(|its| descriptor(*its)).collect::<Vec<_>>().join(",");
        let body = format!(r#"{{"domain":"d","descriptors":[{all}]}}"#);
        let before = script_calls(&cluster);
        let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
        (reply.status, script_calls(&cluster) - before)
    };
    let five = [("x", "a"), ("x", "b"), ("x", "c"), ("y", "a"), ("y", "b")];
    // A starting service also calls scripts, so the smallest count of several tries is that of the
    // check alone.
    let calls = |times: usize, status: u16, of: &[(&str, &str)]| {
        let all = (0..times).map(|_| check(of));
        let all = all.inspect(|said| assert_eq!(said.0, status, "{of:?} {}", service.log()));
        all.map(|(_, calls)| calls).min().unwrap()
    };
    assert_eq!(calls(3, 200, &five), 2);
    assert_eq!(calls(3, 200, &[("z", "a"), ("z", "b")]), 1);
    assert_eq!(calls(3, 429, &[("z", "a"), ("z", "c")]), 1, "one slot charges nothing");
    assert_eq!(calls(3, 429, &[("y", "a"), ("z", "c")]), 2, "two slots charge each");
    assert_eq!(calls(1, 429, &[("z", "c")]), 1);
}

async fn heartbeat_members(redis: &RedisStore) -> Result<Vec<String>, StoreFailure> {
    let heartbeat = MembershipHeartbeat { node: "one".into(), record: Some("{}".into()) };
    let fleet = match redis.update_membership(&heartbeat) {
        StoreReply::Ready(fleet) => fleet,
        StoreReply::Pending(fleet) => timeout(PATIENCE, fleet).await.unwrap(),
    };
    Ok(fleet?.replicas.into_iter().map(|member| member.node.into()).collect())
}

/// Sends a heartbeat while its slot moves, and another one after the move, before the client knows
/// the new owner of the slot.
async fn heartbeat_follows_slot(flags: &[&str]) {
    let cluster = Cluster::of(flags, false);
    let at = redis_at(RedisTopology::Cluster(cluster.addresses()), Duration::from_secs(20));
    let slot = codec::cluster_slot(membership::members_key(&at.key_prefix).as_bytes());
    let (redis, connection) = RedisStore::new(at);
    let task = tokio::spawn(connection);
    let answers = || redis.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("the cluster is connected", answers).unwrap();
    let from = cluster.owner_of_slot(slot);
    let to = (from + 1) % cluster.primaries.len();
    cluster.begin_to_move(slot, from, to);
    // The old owner of the slot has no key in it, so it redirects the call to the new owner (ASK).
    assert_eq!(heartbeat_members(&redis).await, Ok(vec!["one".to_owned()]), "ASK {flags:?}");
    cluster.move_slot(slot, from, to);
    assert_eq!(heartbeat_members(&redis).await, Ok(vec!["one".to_owned()]), "MOVED {flags:?}");
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_succeed_while_their_slot_moves() {
    heartbeat_follows_slot(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_redirect_without_a_host_uses_the_current_host() {
    heartbeat_follows_slot(&["--cluster-preferred-endpoint-type", "unknown-endpoint"]).await;
}

#[test]
fn cluster_that_starts_late_is_used_despite_an_unassigned_slot() {
    for_a_day_with_a_minute_left();
    let cluster = Cluster::start();
    let domains = domains(&cluster);
    let domains: Vec<_> = domains.iter().map(String::as_str).collect();
    let limits = limits_of(LIMIT, &domains);
    cluster.nodes().for_each(|node| node.signal("STOP"));
    let service = serve(limits.path(), &cluster.url(), &[]);
    assert_eq!(check_domain(&service, domains[0], &[("allow", "v")]).status, 200);
    assert!(ready(&service).text().contains("is unavailable (unreachable)"));
    cluster.nodes().for_each(|node| node.signal("CONT"));
    wait_until_ready(&service);
    let slot = codec::cluster_slot(&key_of(domains[2])).to_string();
    cluster.nodes().for_each(|node| node.call_ok(&["CLUSTER", "DELSLOTS", &slot]));
    let fails = || match check_domain(&service, domains[2], &[("error", "v")]).status {
        400 => Ok(()),
        status => Err(status.to_string()),
    };
    until("nobody has the slot", fails).unwrap();
    for domain in &domains[..2] {
        assert_eq!(count_allowed(&service, domain, "error", "meanwhile"), LIMIT as usize);
    }
    cluster.primaries[2].call_ok(&["CLUSTER", "ADDSLOTS", &slot]);
    cluster.wait_until_whole();
    wait_until_ready(&service);
    assert_eq!(count_allowed(&service, domains[2], "error", "after"), LIMIT as usize);
}

#[test]
fn readiness_reports_a_cluster_that_rejects_the_password() {
    let cluster = Cluster::start();
    cluster.nodes().for_each(|node| node.call_ok(&["CONFIG", "SET", "requirepass", "sesame"]));
    let limits = limits_of(LIMIT, &["d"]);
    // A second, unreachable node must not hide that the cluster rejected the password.
    let url = format!("{},{}", cluster.url(), ports::free());
    let service = serve(limits.path(), &url, &[]);
    let is_named = || match ready(&service).text() {
        text if text.contains("is unavailable (not_permitted)") => Ok(()),
        text => Err(format!("{text}{}", service.log())),
    };
    until("the probe says that it is the password", is_named).unwrap();
    assert_eq!(check_domain(&service, "d", &[("allow", "v")]).status, 200);
    assert!(failures(&service, "not_permitted") > 0);
}

#[tokio::test]
async fn inspection_reaches_every_primary_from_any_node() {
    let cluster = Cluster::start();
    let seed = cluster.addresses()[2..].to_vec();
    let nodes =
        inspect::connect_all(&RedisOptions::new(RedisTopology::Cluster(seed))).await.unwrap();
    let mut found: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
    let mut wanted: Vec<_> = cluster.nodes().map(Process::address).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    for node in &nodes {
        let said = format!("{:?}", node.run_command(&["INFO", "replication"]).await);
        assert!(said.contains("role:master"), "{said}");
    }
}
