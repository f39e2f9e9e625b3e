//! Failover of a primary by real sentinels.
//!
//! Each test prints the slowest decision, failed and wrong decisions, lost hits and the recovery
//! time.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use sluicegate::store::redis::{Address, RedisOptions, RedisTopology, SentinelOptions, inspect};

use super::fault_watch::print_row;
use super::load::{LoadResult, counted_hits, under_load};
use super::{
    RULES, check, failures, failures_of_any_kind, limits, move_to_subfolder, ready, serve,
    wait_until_ready,
};
use crate::support::process::Process;
use crate::support::sentinel::{NAME, Watched};
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

/// The store timeout of the test that silences the primary.
const DEADLINE: Duration = Duration::from_millis(500);

const LIMIT: u32 = 10;

fn assert_limit_enforced(service: &Service, value: &str) {
    let allowed = RULES.map(|rule| count_allowed(service, rule, value));
    assert_eq!(allowed, [LIMIT as usize; 4], "{}", service.log());
}

/// Sends `LIMIT` + 2 checks and returns the number of allowed ones.
fn count_allowed(service: &Service, rule: &str, value: &str) -> usize {
    (0..LIMIT + 2).filter(|_| check(service, rule, value) == 200).count()
}

/// Spends new limits, and asserts their exact numbers of hits unless a store call failed. Returns
/// the descriptor value.
fn wait_until_spent(service: &Service, value: &str) -> String {
    let mut attempt = 0;
    until("the limits are enforced", || {
        attempt += 1;
        let (before, value) = (failures_of_any_kind(service), format!("{value} {attempt}"));
        let allowed = RULES.map(|rule| count_allowed(service, rule, &value));
        match failures_of_any_kind(service) - before {
            0 => {
                assert_eq!(allowed, [LIMIT as usize; 4], "{}", service.log());
                Ok(value)
            }
            failed => Err(format!("{failed} calls failed: {}", service.log())),
        }
    })
    .unwrap()
}

/// Waits until the store decides, and asserts that it denies.
fn wait_until_denied(service: &Service, value: &str) {
    until("the store decides", || match check(service, "error", value) {
        400 => Err(service.log()),
        status => {
            assert_eq!(status, 429, "counts go on: {}", service.log());
            Ok(())
        }
    })
    .unwrap();
}

fn wait_until_replica_counts(watched: &Watched, service: &Service) {
    let counts = || {
        let before = script_calls(&watched.replica)?;
        check(service, "many", "counts");
        if before < script_calls(&watched.replica)? { Ok(()) } else { Err(service.log()) }
    };
    until("the new primary counts", counts).unwrap();
}

/// Returns the number of script calls that clients sent to `redis`, without calls that its primary
/// replicated.
fn script_calls(redis: &Process) -> Result<u64, String> {
    let stats = redis.try_call(&["INFO", "commandstats"])?.text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    Ok(line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap()))
}

/// A fault for [`lose_primary`], the guarantee, and the flags of the service.
struct PrimaryFault<'f> {
    what: &'f str,
    promised: &'f str,
    flags: &'f [&'f str],
}

/// Makes the primary unavailable with `lose`. Asserts that a Redis replica takes over. Returns the
/// load and the service.
fn lose_primary(
    fault: &PrimaryFault<'_>,
    lose: impl FnOnce(&mut Watched),
    back: impl FnOnce(&mut Watched),
) -> (LoadResult, Service) {
    for_a_day_with_a_minute_left();
    let (mut watched, limits) = (Watched::start(), limits(LIMIT));
    let service = serve(limits.path(), &watched.url("redis+sentinel://"), fault.flags);
    wait_until_ready(&service);
    let kept = wait_until_spent(&service, "kept");
    assert_eq!(watched.primary.call(&["WAIT", "1", "120000"]).int(), 1);
    let (mut asked, normal) = under_load(&service, &["d"], || {
        let began = now();
        lose(&mut watched);
        watched.fail_over(0);
        wait_until_replica_counts(&watched, &service);
        wait_until_denied(&service, &kept);
        began.elapsed()
    });
    let asked = asked.remove(0);
    wait_until_ready(&service);
    let [admitted, failed, all] =
        [asked.count_of(200), asked.count_of(400), asked.statuses.values().sum()]
            .map(|count| count as u64);
    let forgotten = admitted.saturating_sub(counted_hits(&service, "d"));
    let counts = [failed, all - admitted - failed, forgotten];
    print_row(fault.what, fault.promised, asked.times.slowest(), &counts, Some(normal));
    assert_eq!(admitted + failed, all, "{:?}", asked.statuses);
    // The Redis replica has not forgotten the hits.
    wait_until_denied(&service, &kept);
    watched.wait_until_named();
    back(&mut watched);
    watched.wait_until_swapped();
    wait_until_replica_counts(&watched, &service);
    wait_until_spent(&service, "after");
    (asked, service)
}

/// With the long store timeout, a call that waited for the killed primary would time out.
#[test]
fn killed_primary_fails_over_without_late_decisions() {
    let fault = PrimaryFault {
        what: "sentinels, primary `kill -9`",
        promised: "no late decision; replicated hits are kept",
        flags: &[],
    };
    let back = |watched: &mut Watched| watched.primary.start_again();
    let (_, service) = lose_primary(&fault, |watched| watched.primary.kill(), back);
    assert_eq!(failures(&service, "timed_out"), 0, "{}", service.log());
}

#[test]
fn stopped_primary_is_not_used_after_it_resumes() {
    let fault = PrimaryFault {
        what: "sentinels, primary SIGSTOP, later SIGCONT",
        promised: "the same; no return to the old primary",
        flags: &["--store-timeout", "500ms"],
    };
    let back = |watched: &mut Watched| watched.primary.signal("CONT");
    let (asked, _) = lose_primary(&fault, |watched| watched.primary.signal("STOP"), back);
    asked.times.assert_within(DEADLINE, fault.what);
}

#[test]
fn after_a_manual_failover_the_old_primary_is_not_used() {
    let fault = PrimaryFault {
        what: "sentinels, failover by hand",
        promised: "the same; no calls to the old primary",
        flags: &[],
    };
    let (_, service) = lose_primary(&fault, |_| {}, |_| {});
    assert_eq!(failures(&service, "timed_out"), 0, "{}", service.log());
}

#[test]
fn one_of_three_sentinels_is_enough() {
    for_a_day_with_a_minute_left();
    let (mut watched, limits) = (Watched::start(), limits(LIMIT));
    watched.sentinels[0].kill();
    watched.sentinels[1].signal("STOP");
    let service = serve(limits.path(), &watched.url("redis+sentinel://"), &[]);
    wait_until_ready(&service);
    assert_limit_enforced(&service, "one");
    watched.sentinels[2].kill();
    assert_limit_enforced(&service, "none: the connection is as good as ever");
    watched.primary.call(&["CLIENT", "KILL", "TYPE", "normal"]);
    let says = || match service.log() {
        log if log.contains("redis unavailable") && log.contains("sentinel 127.0.0.1") => Ok(()),
        log => Err(log),
    };
    until("it says that no sentinel answers", says).unwrap();
    assert!(ready(&service).text().contains("is unavailable (unreachable)"));
    watched.sentinels[2].start_again();
    wait_until_ready(&service);
    assert_limit_enforced(&service, "again");
}

#[test]
fn discovered_sentinels_replace_the_configured_one() {
    for_a_day_with_a_minute_left();
    let (mut watched, limits) = (Watched::start(), limits(LIMIT));
    let url = format!("redis+sentinel://{}/{NAME}", watched.sentinels[0].address());
    let service = serve(limits.path(), &url, &[]);
    wait_until_ready(&service);
    let times = || service.log().matches("redis sentinel discovered").count();
    // The inspection at start discovers the two other sentinels, and so does the store connection.
    // The inspection is repeated if a busy machine delays its first attempt.
    let found = until("the other two are found", || match times() {
        found @ 4.. => Ok(found),
        _ => Err(service.log()),
    });
    let found = found.unwrap();
    watched.sentinels[0].kill();
    watched.fail_over(1);
    wait_until_replica_counts(&watched, &service);
    assert_eq!(times(), found, "each is found once: {}", service.log());
}

#[tokio::test]
async fn an_unknown_primary_name_is_reported() {
    let watched = Watched::start();
    let addresses = watched
        .sentinels
        .iter()
        .map(|sentinel| Address { host: "127.0.0.1".to_owned(), port: sentinel.port });
    let of = |primary: &str| SentinelOptions {
        addresses: addresses.clone().collect(),
        primary_name: primary.to_owned(),
        user: None,
        password: None,
    };
    let nodes =
        inspect::connect_all(&RedisOptions::new(RedisTopology::Sentinel(of(NAME)))).await.unwrap();
    assert_eq!(nodes[0].address, watched.primary.address());
    let refused = inspect::connect_all(&RedisOptions::new(RedisTopology::Sentinel(of("shoe"))))
        .await
        .unwrap_err();
    assert!(refused.0.contains("unknown primary `shoe`"), "{refused}");
}

const STRATEGIES: &str = "domain: d
descriptors:
- {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: gcra, rate_limit: {unit: day, requests_per_unit: 2, strategy: gcra}}
- {key: sliding_window, rate_limit: {unit: day, requests_per_unit: 2, strategy: sliding_window}}
- {key: sliding_log, rate_limit: {unit: day, requests_per_unit: 2, strategy: sliding_log}}
";

/// The words of the ACL line in `docs/guides/share-limits-through-redis.md` that ends with `ends`.
fn documented_rights(ends: &str) -> Vec<String> {
    let page = std::fs::read_to_string("docs/guides/share-limits-through-redis.md").unwrap();
    let mut lines = page.lines().filter(|line| line.starts_with("ACL SETUSER gate "));
    let line = lines.find(|line| line.ends_with(ends)).unwrap();
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn documented_acl_rights_cover_all_script_commands() {
    let (page, mut missing) = (documented_rights("+cluster|info"), Vec::new());
    for file in std::fs::read_dir("crates/store/src/redis/lua").unwrap() {
        let file = file.unwrap().path();
        // The document lists the rights of this script separately.
        if file.ends_with("reference.lua") {
            continue;
        }
        let rights = commands_called_by(&file).into_iter().map(|command| format!("+{command}"));
        missing.extend(
            rights.filter(|right| !page.contains(right)).map(|right| (file.clone(), right)),
        );
    }
    assert!(missing.is_empty(), "{missing:?}");
}

fn commands_called_by(script: &Path) -> BTreeSet<String> {
    let script = std::fs::read_to_string(script).unwrap();
    let calls = ["call('", "try('"].map(|call| script.split(call).skip(1));
    let commands = calls.into_iter().flatten().filter_map(|rest| rest.split('\'').next());
    commands.map(str::to_lowercase).collect()
}

#[test]
fn doctor_tries_all_script_and_documented_commands() {
    let tried = commands_called_by("src/cli/doctor/probe.lua".as_ref());
    let files = std::fs::read_dir("crates/store/src/redis/lua").unwrap();
    let called: BTreeSet<_> =
        files.flat_map(|file| commands_called_by(&file.unwrap().path())).collect();
    assert_eq!(called.difference(&tried).collect::<Vec<_>>(), Vec::<&String>::new());
    // Commands that the client sends outside scripts.
    let asked = "ping info client|id select script|load eval evalsha role asking cluster|slots cluster|info";
    let page = documented_rights("+cluster|info")
        .into_iter()
        .filter_map(|right| right.strip_prefix('+').map(str::to_owned));
    let missing: Vec<_> = page
        .filter(|right| !tried.contains(right) && !asked.split(' ').any(|it| it == right))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_documented_acl_rights_are_sufficient() {
    for_a_day_with_a_minute_left();
    let (watched, limits) = (Watched::start(), limits(LIMIT));
    std::fs::write(limits.path().join("d.yaml"), STRATEGIES).unwrap();
    let holds = documented_rights("+cluster|info");
    for redis in [&watched.primary, &watched.replica] {
        redis.call_ok(&holds);
        redis.call_ok(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]);
    }
    for sentinel in &watched.sentinels {
        sentinel.call_ok(&documented_rights("+sentinel|sentinels"));
        sentinel.call_ok(&["ACL", "SETUSER", "default", "-sentinel|get-master-addr-by-name"]);
    }
    let flags = ["--store-sentinel-user", "gate", "--compat-store-sentinel-password", "s3cret"];
    let flags = [&flags[..], &["--telemetry-log-level", "trace"]].concat();
    let service =
        serve(&move_to_subfolder(&limits), &watched.url("redis+sentinel://gate:s3cret@"), &flags);
    wait_until_ready(&service);
    for round in 0..2 {
        for strategy in ["fixed_window", "gcra", "sliding_window", "sliding_log"] {
            let passed = (0..3).filter(|_| check(&service, strategy, &round.to_string()) == 200);
            assert_eq!(passed.count(), 2, "{strategy}: {}", service.log());
        }
        watched.primary.call_ok(&["SCRIPT", "FLUSH"]);
    }
    assert!(!service.log().contains("s3cret") && !service.said.contains("s3cret"));
    let without =
        serve(&limits.path().join("apart"), &watched.url("redis+sentinel://gate:s3cret@"), &[]);
    let says = || match without.log() {
        log if log.contains("sentinel 127.0.0.1") && log.contains("NOPERM") => Ok(()),
        log => Err(log),
    };
    until("the password for Redis is not sent to sentinels", says).unwrap();
}
