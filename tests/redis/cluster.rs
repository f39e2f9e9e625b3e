//! A real Cluster that loses nodes and moves slots. Each test prints what it observed.

use std::time::Duration;

use sluicegate::backend::fleet::Beat;
use sluicegate::backend::redis::{Options, Place, Redis, beat, codec, inspect};
use sluicegate::backend::{Backend as _, Cause, Home, Reply};
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::units::Nanos;
use tokio::time::timeout;

use super::degrade::redis_at;
use super::load::{counted, under_load};
use super::observed::tell;
use super::{ask_of, failures, failures_of_any_kind, limits_of, ready, serve, wait_until_whole};
use crate::http1;
use crate::service::Service;
use crate::support::cluster::Cluster;
use crate::support::ports;
use crate::support::process::Process;
use crate::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, until};

const DEADLINE: Duration = Duration::from_millis(500);
/// What a caller may see above that: a connection of its own for each question, a crowded machine.
const MARGIN: Duration = Duration::from_millis(900);
const FLAGS: [&str; 2] = ["--backend-deadline", "500ms"];
const LIMIT: u32 = 10;
/// The primary that is lost.
const LOST: usize = 1;

/// The key that a counter of this domain has.
fn key_of(domain: &str) -> Vec<u8> {
    let day = Counting::FixedWindow(Nanos::from_secs(86_400));
    codec::key(
        &CounterKey::injective(domain, [("many", "load")].into_iter(), day),
        Home::of_all(domain),
        b"sluicegate",
    )
}

/// A domain in the slots of each primary.
fn domains(cluster: &Cluster) -> [String; 3] {
    let of = |number: usize| {
        let mut names = (0..).map(|name| format!("d{name}"));
        let is_there = |name: &String| cluster.owner_of_slot(codec::slot(&key_of(name))) == number;
        names.find(is_there).unwrap()
    };
    [of(0), of(1), of(2)]
}

/// How many of `LIMIT` and two questions pass.
fn passed(service: &Service, domain: &str, key: &str, value: &str) -> usize {
    let answers = (0..LIMIT + 2).map(|_| ask_of(service, domain, &[(key, value)]).status);
    answers.filter(|&status| status == 200).count()
}

fn used_up(service: &Service, domain: &str, value: &str) -> Result<(), String> {
    match ask_of(service, domain, &[("error", value)]).status {
        429 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    }
}

/// Loses a primary by `lose` and holds what is promised until its replica has taken over.
fn a_primary_is_lost(what: &str, lose: impl FnOnce(&mut Process), back: impl FnOnce(&mut Process)) {
    for_a_day_with_a_minute_left();
    let mut cluster = Cluster::with_replicas();
    let domains = domains(&cluster);
    let domains: Vec<_> = domains.iter().map(String::as_str).collect();
    let limits = limits_of(LIMIT, &domains);
    let service = serve(limits.path(), &cluster.url(), &FLAGS);
    wait_until_whole(&service);
    for domain in &domains {
        assert_eq!(passed(&service, domain, "error", "kept"), LIMIT as usize);
    }
    cluster.wait_for_replicas();
    let (asked, normal) = under_load(&service, &domains, || {
        let began = now();
        lose(&mut cluster.primaries[LOST]);
        let fails = || match ask_of(&service, domains[LOST], &[("error", "while")]).status {
            400 => Ok(()),
            status => Err(status.to_string()),
        };
        until("its slots are not answered", fails).unwrap();
        let shows = || match ready(&service).text() {
            text if text.contains("does not answer") => Ok(()),
            text => Err(text),
        };
        until("it shows", shows).unwrap();
        until("its slots are answered again", || used_up(&service, domains[LOST], "kept")).unwrap();
        began.elapsed()
    });
    wait_until_whole(&service);
    let harmed = &asked[LOST];
    let [admitted, failed, all] =
        [harmed.with(200), harmed.with(400), harmed.statuses.values().sum()]
            .map(|count| count as u64);
    let forgotten = admitted.saturating_sub(counted(&service, domains[LOST]));
    let slowest = asked.iter().map(|asked| asked.slowest).max();
    let promised = "its slots alone fail until its replica took over";
    let counts = [failed, all - admitted - failed, forgotten];
    tell(what, promised, slowest, &counts, Some(normal));
    for (number, asked) in asked.iter().enumerate() {
        assert!(asked.slowest < DEADLINE + MARGIN, "{number}: {asked:?}");
        let is_harmed = asked.statuses.len() != 1 || asked.with(200) == 0;
        assert_eq!(is_harmed, number == LOST, "{number}: {asked:?}\n{}", service.log());
    }
    assert_eq!(admitted + failed, all, "{harmed:?}");
    back(&mut cluster.primaries[LOST]);
    for domain in &domains {
        assert_eq!(used_up(&service, domain, "kept"), Ok(()), "counts go on");
        assert_eq!(passed(&service, domain, "error", "after"), LIMIT as usize);
    }
}

#[test]
fn a_killed_primary_fails_its_slots_alone_until_its_replica_takes_over() {
    a_primary_is_lost("Cluster, a primary `kill -9`", Process::kill, Process::start_again);
}

#[test]
fn a_stopped_primary_fails_its_slots_alone_until_its_replica_takes_over() {
    let what = "Cluster, a primary SIGSTOP, later SIGCONT";
    a_primary_is_lost(what, |node| node.signal("STOP"), |node| node.signal("CONT"));
}

/// Who asks for it before that is known costs its node's connection once (`fred` ends it), and then nobody asks.
#[test]
fn a_slot_that_no_node_has_fails_alone_until_one_has_it() {
    for_a_day_with_a_minute_left();
    let cluster = Cluster::start();
    for node in cluster.nodes() {
        node.order(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let slot_of = |name: &String| codec::slot(&key_of(name));
    let mut names = (0..).map(|name| format!("d{name}"));
    let lost = names.find(|name| cluster.owner_of_slot(slot_of(name)) == LOST).unwrap();
    let is_beside = |name: &String| cluster.owner_of_slot(slot_of(name)) == LOST;
    let kept = names.find(|name| is_beside(name) && slot_of(name) != slot_of(&lost)).unwrap();
    let limits = limits_of(500, &[&lost, &kept]);
    let service = serve(limits.path(), &cluster.url(), &FLAGS);
    wait_until_whole(&service);
    let slot = slot_of(&lost).to_string();
    for node in &cluster.primaries {
        node.order(&["CLUSTER", "DELSLOTS", &slot]);
    }
    let ask = |domain: &str| ask_of(&service, domain, &[("error", "value")]).status;
    let alone = || match (ask(&lost), ask(&kept)) {
        (400, 200) => Ok(()),
        other => Err(format!("{other:?}: {}", service.log())),
    };
    until("it fails alone", alone).unwrap();
    for asked in 0..100 {
        assert_eq!((ask(&lost), ask(&kept)), (400, 200), "{asked}: {}", service.log());
    }
    cluster.primaries[LOST].order(&["CLUSTER", "ADDSLOTS", &slot]);
    let answers = || if ask(&lost) == 200 { Ok(()) } else { Err(service.log()) };
    until("its slot is answered again", answers).unwrap();
}

#[test]
fn a_slot_that_moves_costs_no_question_and_no_count() {
    for_a_day_with_a_minute_left();
    let cluster = Cluster::start();
    let domains = domains(&cluster);
    let limits = limits_of(500, &[&domains[0]]);
    let service = serve(
        limits.path(),
        &cluster.url(),
        &["--backend-deadline", "20s", "--log-level", "debug"],
    );
    wait_until_whole(&service);
    let asked = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let ask = || ask_of(&service, &domains[0], &[("error", "moving")]).status;
                scope.spawn(move || (0..300).filter(|_| ask() == 200).count())
            })
            .collect();
        let slot = codec::slot(&key_of(&domains[0]));
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            cluster.move_slot(slot, from, to);
        }
        clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    assert_eq!(asked, 500, "each admitted hit is counted once");
    assert_eq!(failures_of_any_kind(&service), 0, "{}", service.log());
    println!("observed: cluster, a slot moved three times: 0 questions failed, 500 of 500 passed");
}

/// Script calls that the nodes have run so far.
fn script_calls(cluster: &Cluster) -> u64 {
    let of = |node: &Process| -> u64 {
        let stats = node.tell(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    cluster.primaries.iter().map(of).sum()
}

#[test]
fn a_question_about_many_counters_in_two_slots_is_a_call_for_each_slot_and_step() {
    for_a_day_with_a_minute_left();
    let (cluster, limits) = (Cluster::start(), tempfile::tempdir().unwrap());
    let rule =
        |key| format!("  - {{key: {key}, rate_limit: {{unit: day, requests_per_unit: 3}}}}\n");
    let text = format!(
        "domain: d\ncharge: all_or_nothing\ncolocate: tenant\ndescriptors:\n- key: tenant\n  descriptors:\n{}",
        ["a", "b", "c"].map(rule).concat()
    );
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let service = serve(limits.path(), &cluster.url(), &["--backend-deadline", "20s"]);
    wait_until_whole(&service);
    let descriptor = |(tenant, key): (&str, &str)| {
        format!(
            r#"{{"entries":[{{"key":"tenant","value":"{tenant}"}},{{"key":"{key}","value":"v"}}]}}"#
        )
    };
    let ask = |of: &[(&str, &str)]| {
        let all = of.iter().map(|its| descriptor(*its)).collect::<Vec<_>>().join(",");
        let body = format!(r#"{{"domain":"d","descriptors":[{all}]}}"#);
        let before = script_calls(&cluster);
        let said = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
        (said.status, script_calls(&cluster) - before)
    };
    let five = [("x", "a"), ("x", "b"), ("x", "c"), ("y", "a"), ("y", "b")];
    // Others call scripts as well, when a service has just started: the fewest of several times are the question's own.
    let calls = |times: usize, status: u16, of: &[(&str, &str)]| {
        let all = (0..times).map(|_| ask(of));
        let all = all.inspect(|said| assert_eq!(said.0, status, "{of:?} {}", service.log()));
        all.map(|(_, calls)| calls).min().unwrap()
    };
    assert_eq!(calls(3, 200, &five), 4, "held, and kept");
    let also_elsewhere = [("z", "a"), ("z", "b"), ("y", "a")];
    assert_eq!(calls(3, 429, &also_elsewhere), 3, "held where it can be, and given back there");
    assert_eq!(calls(3, 200, &[("z", "a"), ("z", "b")]), 1, "one slot decides by itself");
    assert_eq!(calls(3, 429, &[("z", "a")]), 1);
}

/// Who is in the fleet, by the answer to a beat of `one`.
async fn members(redis: &Redis) -> Result<Vec<String>, Cause> {
    let beat = Beat { node: "one".into(), record: Some("{}".into()) };
    let fleet = match redis.beat(&beat) {
        Reply::Now(fleet) => fleet,
        Reply::Later(fleet) => timeout(PATIENCE, fleet).await.unwrap(),
    };
    Ok(fleet?.members.into_iter().map(|member| member.node.into()).collect())
}

/// Moves the slot of the fleet's records and beats meanwhile: once where it is half way, and once
/// where it is there but nobody has looked.
async fn a_beat_follows_its_slot(flags: &[&str]) {
    let cluster = Cluster::of(flags, false);
    let at = redis_at(Place::Cluster(cluster.addresses()), Duration::from_secs(20));
    let slot = codec::slot(beat::key(&at.key_prefix).as_bytes());
    let (redis, connection) = Redis::new(at);
    let task = tokio::spawn(connection);
    let answers = || redis.trouble().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("the cluster is connected", answers).unwrap();
    let from = cluster.owner_of_slot(slot);
    let to = (from + 1) % cluster.primaries.len();
    cluster.begin_to_move(slot, from, to);
    // There is no record yet: whoever asks for it is sent on.
    assert_eq!(members(&redis).await, Ok(vec!["one".to_owned()]), "ASK {flags:?}");
    cluster.move_slot(slot, from, to);
    assert_eq!(members(&redis).await, Ok(vec!["one".to_owned()]), "MOVED {flags:?}");
    task.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replicas_beat_follows_its_slot() {
    a_beat_follows_its_slot(&[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_names_a_port_alone_is_understood_to_mean_its_own_host() {
    a_beat_follows_its_slot(&["--cluster-preferred-endpoint-type", "unknown-endpoint"]).await;
}

#[test]
fn a_cluster_that_comes_later_is_taken_and_a_slot_without_an_owner_fails_alone() {
    for_a_day_with_a_minute_left();
    let cluster = Cluster::start();
    let domains = domains(&cluster);
    let domains: Vec<_> = domains.iter().map(String::as_str).collect();
    let limits = limits_of(LIMIT, &domains);
    cluster.nodes().for_each(|node| node.signal("STOP"));
    let service = serve(limits.path(), &cluster.url(), &FLAGS);
    assert_eq!(ask_of(&service, domains[0], &[("allow", "v")]).status, 200);
    assert!(ready(&service).text().contains("does not answer (unreachable)"));
    cluster.nodes().for_each(|node| node.signal("CONT"));
    wait_until_whole(&service);
    let slot = codec::slot(&key_of(domains[2])).to_string();
    cluster.nodes().for_each(|node| node.order(&["CLUSTER", "DELSLOTS", &slot]));
    let fails = || match ask_of(&service, domains[2], &[("error", "v")]).status {
        400 => Ok(()),
        status => Err(status.to_string()),
    };
    until("nobody has the slot", fails).unwrap();
    for domain in &domains[..2] {
        assert_eq!(passed(&service, domain, "error", "meanwhile"), LIMIT as usize);
    }
    cluster.primaries[2].order(&["CLUSTER", "ADDSLOTS", &slot]);
    cluster.wait_until_whole();
    wait_until_whole(&service);
    assert_eq!(passed(&service, domains[2], "error", "after"), LIMIT as usize);
}

#[test]
fn a_cluster_that_refuses_us_from_the_start_is_named_as_that() {
    let cluster = Cluster::start();
    cluster.nodes().for_each(|node| node.order(&["CONFIG", "SET", "requirepass", "sesame"]));
    let limits = limits_of(LIMIT, &["d"]);
    // One that is away says less, whoever is heard last.
    let url = format!("{},{}", cluster.url(), ports::free());
    let service = serve(limits.path(), &url, &FLAGS);
    let is_named = || match ready(&service).text() {
        text if text.contains("does not answer (not_permitted)") => Ok(()),
        text => Err(format!("{text}{}", service.log())),
    };
    until("the probe says that it is the password", is_named).unwrap();
    assert_eq!(ask_of(&service, "d", &[("allow", "v")]).status, 200);
    assert!(failures(&service, "not_permitted") > 0);
}

#[tokio::test]
async fn inspection_reaches_every_primary_from_any_node() {
    let cluster = Cluster::start();
    let seed = cluster.addresses()[2..].to_vec();
    let nodes = inspect::open(&Options::at(Place::Cluster(seed))).await.unwrap();
    let mut found: Vec<_> = nodes.iter().map(|node| node.at.clone()).collect();
    let mut wanted: Vec<_> = cluster.nodes().map(Process::address).collect();
    found.sort();
    wanted.sort();
    assert_eq!(found, wanted);
    for node in &nodes {
        let said = format!("{:?}", node.ask(&["INFO", "replication"]).await);
        assert!(said.contains("role:master"), "{said}");
    }
}
