//! Exact limits across processes, and the rows that they leave.

use sluicegate::store::postgres::Durability;

use super::{FLAGS, LIMIT, assert_limit_enforced};
use crate::store::redis::exact_limit::assert_exact_limit;
use crate::store::redis::{limits, serve, wait_until_ready};
use crate::support::http1;
use crate::support::postgres::{PgBouncer, Postgres};
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

#[test]
fn four_processes_over_postgres_allow_exactly_the_limit() {
    let server = Postgres::start();
    assert_exact_limit(&server.url(), &[]);
}

#[test]
fn four_processes_behind_a_pooler_allow_exactly_the_limit() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server);
    assert_exact_limit(&pooler.url(), &[]);
}

#[test]
fn replicas_share_counters_and_membership_through_postgres() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let fleet = [(); 2].map(|()| serve(limits.path(), &server.url(), &FLAGS));
    assert_limit_enforced(&fleet[0], "shared", 0);
    assert_limit_enforced(&fleet[1], "shared", LIMIT);
    until("both replicas are members", || {
        let reply = http1::get(fleet[0].admin, "/fleet", &[]).map_err(|error| error.to_string())?;
        let text = reply.text();
        if text.matches("incarnation").count() < 2 { Err(text) } else { Ok(()) }
    })
    .unwrap();
}

#[test]
fn empty_rows_are_deleted_and_others_stay() {
    let (server, limits) = (Postgres::start(), tempfile::tempdir().unwrap());
    let text = "domain: d\ndescriptors:\n\
                - key: short\n  rate_limit: {unit: second, requests_per_unit: 5}\n\
                - key: long\n  rate_limit: {unit: year, requests_per_unit: 5}\n";
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    let service = serve(limits.path(), &server.url(), &FLAGS);
    wait_until_ready(&service);
    for key in ["short", "long"] {
        assert_eq!(crate::store::redis::check(&service, key, "x"), 200);
    }
    let counters = "SELECT count(*) FROM sluicegate_state WHERE substring(key FROM 11 FOR 1) = 'c'";
    let is_one = || match server.sql(counters) {
        rows if rows == "1" => Ok(()),
        rows => Err(rows),
    };
    until("one row of two stays", is_one).unwrap();
    assert_eq!(server.sql(&format!("{counters} AND position('long'::bytea IN key) > 0")), "1");
}

#[test]
fn unlogged_counters_count_exactly() {
    let server = Postgres::start_empty();
    server.migrate(Durability::Unlogged);
    assert_exact_limit(&server.url(), &[]);
}

#[test]
fn a_counter_that_is_deleted_by_hand_starts_anew() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let service = serve(limits.path(), &server.url(), &FLAGS);
    for _ in 0..3 {
        assert_limit_enforced(&service, "shared", 0);
        server.sql("DELETE FROM sluicegate_state");
    }
}
