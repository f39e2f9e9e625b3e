//! A primary that real sentinels replace. Each test prints what it observed: the slowest answer, how many failed, how many were
//! answered wrongly, how many admitted hits the new primary had not heard of, and after how long all was normal.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use sluicegate::backend::redis::{Address, Options, Place, Sentinels, inspect};

use super::load::{counted, under_load};
use super::observed::tell;
use super::{RULES, apart, ask, limits, ready, serve, wait_until_whole};
use crate::service::Service;
use crate::support::process::Process;
use crate::support::sentinel::{NAME, Watched};
use crate::waiting::{for_a_day_with_a_minute_left, now, until};

const DEADLINE: Duration = Duration::from_millis(500);
/// What a caller may see above that: a connection of its own for each question, a crowded machine.
const MARGIN: Duration = Duration::from_millis(900);
const FLAGS: [&str; 2] = ["--backend-deadline", "500ms"];
const LIMIT: u32 = 10;

/// Holds that the store counts.
fn holds_the_limit(service: &Service, value: &str) {
    for rule in RULES {
        let answers = (0..LIMIT + 2).map(|_| ask(service, rule, value));
        let passed = answers.filter(|&status| status == 200).count();
        assert_eq!(passed, LIMIT as usize, "{rule}: {}", service.log());
    }
}

fn used_up(service: &Service, value: &str) -> Result<(), String> {
    match ask(service, "error", value) {
        429 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    }
}

/// Waits until the replica counts, and nobody else.
fn the_replica_counts(watched: &Watched, service: &Service) {
    let counts = || {
        let before = commands(&watched.replica)?;
        ask(service, "many", "counts");
        if before < commands(&watched.replica)? { Ok(()) } else { Err(service.log()) }
    };
    until("the new primary counts", counts).unwrap();
}

/// Scripts that this Redis ran for others than its primary.
fn commands(redis: &Process) -> Result<u64, String> {
    let stats = redis.try_tell(&["INFO", "commandstats"])?.text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    Ok(line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap()))
}

/// A primary is lost by `lose`, another takes over, and every question is answered in time.
fn a_primary_is_lost(
    (what, promised): (&str, &str),
    lose: impl FnOnce(&mut Watched),
    back: impl FnOnce(&mut Watched),
) {
    for_a_day_with_a_minute_left();
    let (mut watched, limits) = (Watched::start(), limits(LIMIT));
    let service = serve(limits.path(), &watched.url("redis+sentinel://"), &FLAGS);
    wait_until_whole(&service);
    holds_the_limit(&service, "kept");
    assert_eq!(watched.primary.tell(&["WAIT", "1", "20000"]).int(), 1);
    let (asked, normal) = under_load(&service, &["d"], || {
        let began = now();
        lose(&mut watched);
        the_replica_counts(&watched, &service);
        until("it counts on", || used_up(&service, "kept")).unwrap();
        began.elapsed()
    });
    let asked = &asked[0];
    wait_until_whole(&service);
    let [admitted, failed, all] =
        [asked.with(200), asked.with(400), asked.statuses.values().sum()].map(|count| count as u64);
    let forgotten = admitted.saturating_sub(counted(&service, "d"));
    let counts = [failed, all - admitted - failed, forgotten];
    tell(what, promised, Some(asked.slowest), &counts, Some(normal));
    assert!(asked.slowest < DEADLINE + MARGIN, "{asked:?}");
    assert_eq!(admitted + failed, all, "{asked:?}");
    assert_eq!(used_up(&service, "kept"), Ok(()), "what its replica had is not forgotten");
    watched.wait_until_named();
    back(&mut watched);
    watched.wait_until_swapped();
    the_replica_counts(&watched, &service);
    holds_the_limit(&service, "after");
}

#[test]
fn a_killed_primary_is_replaced_and_every_question_is_answered_in_time() {
    let back = |watched: &mut Watched| watched.primary.start_again();
    let what = "sentinels, primary `kill -9`";
    let promised = "every question in time; what the replica had is not forgotten";
    a_primary_is_lost((what, promised), |watched| watched.primary.kill(), back);
}

#[test]
fn a_stopped_primary_is_replaced_and_stays_so_when_it_wakes() {
    let back = |watched: &mut Watched| watched.primary.signal("CONT");
    let what = "sentinels, primary SIGSTOP, later SIGCONT";
    let promised = "the same; the old one is not gone back to";
    a_primary_is_lost((what, promised), |watched| watched.primary.signal("STOP"), back);
}

#[test]
fn a_primary_that_is_replaced_while_it_lives_is_left() {
    let by_hand = ["SENTINEL", "FAILOVER", NAME];
    let promised = "the same; the old one is left though it lives";
    let what = ("sentinels, failover by hand", promised);
    a_primary_is_lost(what, |watched| watched.sentinels[0].order(&by_hand), |_| {});
}

#[test]
fn one_sentinel_of_three_is_enough_and_none_says_so() {
    for_a_day_with_a_minute_left();
    let (mut watched, limits) = (Watched::start(), limits(LIMIT));
    watched.sentinels[0].kill();
    watched.sentinels[1].signal("STOP");
    let service = serve(limits.path(), &watched.url("redis+sentinel://"), &FLAGS);
    wait_until_whole(&service);
    holds_the_limit(&service, "one");
    watched.sentinels[2].kill();
    holds_the_limit(&service, "none: the connection is as good as ever");
    watched.primary.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
    let says = || match service.log() {
        log if log.contains("redis cannot be had") && log.contains("sentinel 127.0.0.1") => Ok(()),
        log => Err(log),
    };
    until("it says that no sentinel answers", says).unwrap();
    assert!(ready(&service).text().contains("does not answer (unreachable)"));
    watched.sentinels[2].start_again();
    wait_until_whole(&service);
    holds_the_limit(&service, "again");
}

#[test]
fn sentinels_that_were_not_named_are_found_and_asked_when_the_named_one_is_gone() {
    for_a_day_with_a_minute_left();
    let (mut watched, limits) = (Watched::start(), limits(LIMIT));
    let url = format!("redis+sentinel://{}/{NAME}", watched.sentinels[0].address());
    let service = serve(limits.path(), &url, &FLAGS);
    wait_until_whole(&service);
    let times = || service.log().matches("another sentinel was found").count();
    // By the look at the start, and by those who keep the connection.
    let found = || if times() == 4 { Ok(()) } else { Err(service.log()) };
    until("the other two are found", found).unwrap();
    watched.sentinels[0].kill();
    watched.sentinels[1].order(&["SENTINEL", "FAILOVER", NAME]);
    the_replica_counts(&watched, &service);
    assert_eq!(found(), Ok(()), "each is found once");
}

#[tokio::test]
async fn a_name_that_no_sentinel_knows_is_said_to_be_one() {
    let watched = Watched::start();
    let addresses = watched
        .sentinels
        .iter()
        .map(|sentinel| Address { host: "127.0.0.1".to_owned(), port: sentinel.port });
    let of = |primary: &str| Sentinels {
        addresses: addresses.clone().collect(),
        primary: primary.to_owned(),
        user: None,
        password: None,
    };
    let nodes = inspect::open(&Options::at(Place::Sentinel(of(NAME)))).await.unwrap();
    assert_eq!(nodes[0].at, watched.primary.address());
    let refused = inspect::open(&Options::at(Place::Sentinel(of("shoe")))).await.unwrap_err();
    assert!(refused.0.contains("knows no primary called shoe"), "{refused}");
}

const STRATEGIES: &str = "domain: d
descriptors:
- {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: gcra, rate_limit: {unit: day, requests_per_unit: 2, strategy: gcra}}
- {key: sliding_window, rate_limit: {unit: day, requests_per_unit: 2, strategy: sliding_window}}
- {key: sliding_log, rate_limit: {unit: day, requests_per_unit: 2, strategy: sliding_log}}
";

/// The line of the page on reliability that begins so, without the user's name.
fn rights(ends: &str) -> Vec<String> {
    let page = std::fs::read_to_string("docs/reliability.md").unwrap();
    let mut lines = page.lines().filter(|line| line.starts_with("ACL SETUSER gate "));
    let line = lines.find(|line| line.ends_with(ends)).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn the_rights_that_the_page_names_are_those_of_every_command_in_a_script() {
    let (page, mut missing) = (rights("+cluster|info"), Vec::new());
    for file in std::fs::read_dir("src/backend/redis/lua").unwrap() {
        let file = file.unwrap().path();
        // The page names its rights apart.
        if file.ends_with("reference.lua") {
            continue;
        }
        let rights = called_by(&file).into_iter().map(|command| format!("+{command}"));
        missing.extend(
            rights.filter(|right| !page.contains(right)).map(|right| (file.clone(), right)),
        );
    }
    assert!(missing.is_empty(), "{missing:?}");
}

/// What a script calls.
fn called_by(script: &Path) -> BTreeSet<String> {
    let script = std::fs::read_to_string(script).unwrap();
    let calls = ["call('", "try('"].map(|call| script.split(call).skip(1));
    let commands = calls.into_iter().flatten().filter_map(|rest| rest.split('\'').next());
    commands.map(str::to_lowercase).collect()
}

#[test]
fn the_doctor_tries_every_command_in_a_script_and_every_one_that_the_page_names() {
    let tried = called_by("src/cli/doctor/probe.lua".as_ref());
    let files = std::fs::read_dir("src/backend/redis/lua").unwrap();
    let called: BTreeSet<_> = files.flat_map(|file| called_by(&file.unwrap().path())).collect();
    assert_eq!(called.difference(&tried).collect::<Vec<_>>(), Vec::<&String>::new());
    // What is asked before any script, and of those that are no command of a script.
    let asked = "ping info client|id select script|load eval evalsha role asking cluster|slots cluster|info";
    let page = rights("+cluster|info")
        .into_iter()
        .filter_map(|right| right.strip_prefix('+').map(str::to_owned));
    let missing: Vec<_> = page
        .filter(|right| !tried.contains(right) && !asked.split(' ').any(|it| it == right))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn users_with_the_rights_that_the_page_names_and_no_more_are_enough() {
    for_a_day_with_a_minute_left();
    let (watched, limits) = (Watched::start(), limits(LIMIT));
    std::fs::write(limits.path().join("d.yaml"), STRATEGIES).unwrap();
    let holds = rights("+cluster|info");
    for redis in [&watched.primary, &watched.replica] {
        redis.order(&holds);
        redis.order(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    }
    for sentinel in &watched.sentinels {
        sentinel.order(&rights("+sentinel|sentinels"));
        sentinel.order(&["ACL", "SETUSER", "default", "-sentinel|get-master-addr-by-name"]);
    }
    let flags = ["--backend-sentinel-user", "gate", "--backend-sentinel-password", "s3cret"];
    let flags = [&FLAGS[..], &flags, &["--log-level", "trace"]].concat();
    let service = serve(&apart(&limits), &watched.url("redis+sentinel://gate:s3cret@"), &flags);
    wait_until_whole(&service);
    for round in 0..2 {
        for strategy in ["fixed_window", "gcra", "sliding_window", "sliding_log"] {
            let passed = (0..3).filter(|_| ask(&service, strategy, &round.to_string()) == 200);
            assert_eq!(passed.count(), 2, "{strategy}: {}", service.log());
        }
        watched.primary.order(&["SCRIPT", "FLUSH"]);
    }
    assert!(!service.log().contains("s3cret") && !service.said.contains("s3cret"));
    let without =
        serve(&limits.path().join("apart"), &watched.url("redis+sentinel://gate:s3cret@"), &FLAGS);
    let says = || match without.log() {
        log if log.contains("sentinel 127.0.0.1") && log.contains("NOPERM") => Ok(()),
        log => Err(log),
    };
    until("the password for Redis is not sent to sentinels", says).unwrap();
}
