//! `migrate`, `serve` and `doctor` with tables that are missing, old, new or forbidden.

use std::process::Output;

use super::{FLAGS, LIMIT, assert_limit_enforced};
use crate::store::redis::bans::assert_bans;
use crate::store::redis::forced_decisions::{
    assert_counter_changes, assert_forced_decisions, assert_key_actions,
};
use crate::store::redis::{check, limits, serve};
use crate::support::postgres::Postgres;
use crate::support::service::{refused, sluicegate};
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

fn run(command: &str, url: &str, flags: &[&str]) -> Output {
    sluicegate().arg(command).args(["--store-url", url]).args(flags).output().unwrap()
}

/// Runs `doctor` with a long store timeout, so that a busy machine is not a finding.
fn doctor(url: &str) -> String {
    text(&run("doctor", url, &FLAGS))
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?} {}{}", output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn refusal_of_serve(url: &str) -> (Option<i32>, String) {
    let limits = limits(LIMIT);
    let mut command = sluicegate();
    command.args(["serve", "--store-url", url, "--limits-paths"]).arg(limits.path());
    for port in ["grpc", "http", "admin", "metrics", "peer"] {
        command.args([&format!("--listen-{port}-port"), "0"]);
    }
    refused(&mut command)
}

#[test]
fn serve_refuses_missing_and_newer_tables_with_the_fix() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start_empty(), limits(LIMIT));
    let (status, said) = refusal_of_serve(&server.url());
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("has no tables of sluicegate; run `sluicegate migrate"), "{said}");

    let service = serve(limits.path(), &server.url(), &[&FLAGS[..], &["--migrate"]].concat());
    assert_limit_enforced(&service, "migrated", 0);
    drop(service);

    server.sql("INSERT INTO sluicegate_schema (version) VALUES (2)");
    let (status, said) = refusal_of_serve(&server.url());
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("version 2, and this program knows only 1; install a newer"), "{said}");
    let newer = text(&run("migrate", &server.url(), &[]));
    assert!(newer.starts_with("Some(2)") && newer.contains("install a newer"), "{newer}");
}

#[test]
fn concurrent_migrations_create_the_tables_once() {
    let server = Postgres::start_empty();
    let all: Vec<_> = std::thread::scope(|scope| {
        let tasks: Vec<_> =
            (0..4).map(|_| scope.spawn(|| text(&run("migrate", &server.url(), &[])))).collect();
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    let created = all.iter().filter(|said| said.contains("created the tables, version 1"));
    assert_eq!(created.count(), 1, "{all:?}");
    let unchanged = all.iter().filter(|said| said.contains("nothing to migrate"));
    assert_eq!(unchanged.count(), 3, "{all:?}");
}

#[test]
fn migrate_changes_the_durability_and_doctor_shows_it() {
    let server = Postgres::start();
    let persistence =
        || server.sql("SELECT relpersistence FROM pg_class WHERE relname = 'sluicegate_state'");
    assert_eq!(persistence(), "p");
    run("migrate", &server.url(), &["--store-postgres-durability", "unlogged"]);
    assert_eq!(persistence(), "u");
    let said = doctor(&server.url());
    assert!(said.starts_with("Some(0)") && said.contains("warning[durability]"), "{said}");
    run("migrate", &server.url(), &[]);
    assert_eq!(persistence(), "p");
    let said = doctor(&server.url());
    assert!(said.contains("findings: 0 errors, 0 warnings"), "{said}");
}

#[test]
fn the_documented_role_suffices_and_a_weaker_one_is_explained() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    server.sql("CREATE ROLE app LOGIN");
    let url = format!("postgres://app@{}/postgres", server.host());
    let said = doctor(&url);
    assert!(said.starts_with("Some(1)") && said.contains("error[write]"), "{said}");
    assert!(said.contains("permission denied"), "{said}");
    let service = serve(limits.path(), &url, &FLAGS);
    let is_logged = || match service.log() {
        log if log.contains("GRANT SELECT, INSERT, UPDATE, DELETE ON sluicegate_state") => Ok(()),
        log => Err(log),
    };
    until("the log names the missing rights", is_logged).unwrap();
    assert_eq!(check(&service, "allow", "refused"), 200);
    let grant =
        "GRANT SELECT, INSERT, UPDATE, DELETE ON sluicegate_state, sluicegate_schema TO app";
    server.sql(grant);
    assert_limit_enforced(&service, "granted", 0);
}

#[test]
fn migrate_needs_the_url_of_a_postgres() {
    let said = text(&run("migrate", "memory", &[]));
    assert!(
        said.starts_with("Some(2)") && said.contains("set --store-url to postgres://"),
        "{said}"
    );
}

#[test]
fn ask_changes_counters_and_decisions_in_postgres() {
    let server = Postgres::start();
    assert_counter_changes(&server.url());
    assert_forced_decisions(&server.url());
}

#[test]
fn actions_on_keys_survive_a_restart_with_postgres() {
    let server = Postgres::start();
    assert_key_actions(&server.url());
}

#[test]
fn bans_in_postgres_reach_all_replicas() {
    let server = Postgres::start();
    assert_bans(&server.url());
}
