//! `PgBouncer` in transaction mode gives each transaction another server connection: no statement is
//! lost, and no session setting stays.

use std::path::Path;
use std::thread;

use crate::cli::doctor::doctor_at;
use crate::store::redis::{check, limits, serve, wait_until_ready};
use crate::support::postgres::{PgBouncer, Postgres};
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

use super::FLAGS;

const CALLERS: usize = 6;
const CHECKS: usize = 20;

/// A case from the field: two replicas, several clients. 26 of 100 to 192 of 240 checks failed.
#[test]
fn no_check_fails_behind_a_pool_of_any_size() {
    for_a_day_with_a_minute_left();
    let server = Postgres::start();
    for size in [1, 3, 12] {
        let pooler = PgBouncer::start_with_pool(&server, size);
        let limits = Path::new("tests/field/doctor-blind-to-pgbouncer/limits.yaml");
        let fleet = [(); 2].map(|()| serve(limits, &pooler.url(), &FLAGS));
        fleet.iter().for_each(wait_until_ready);
        let value = format!("of {size}");
        let statuses: Vec<u16> = thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|at| {
                    let (service, value) = (&fleet[at % 2], &value);
                    let call = move |_| check(service, "hot", value);
                    scope.spawn(move || (0..CHECKS).map(call).collect::<Vec<_>>())
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        let failed = statuses.iter().filter(|status| **status != 200).count();
        assert_eq!(failed, 0, "{size}: {}", fleet[0].log());
        let log = fleet.iter().map(Service::log).collect::<String>();
        assert!(log.contains("statements are not prepared"), "{size}: {log}");
        assert!(!log.contains("does not exist"), "{size}: {log}");
        for (setting, default) in [
            ("enable_seqscan", "on"),
            ("lock_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
        ] {
            for _ in 0..size {
                assert_eq!(pooler.sql(&format!("show {setting}")), default, "{size}: {setting}");
            }
        }
    }
}

#[test]
fn doctor_finds_the_pooler_as_serve_does() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(&server);
    let (_, direct, _) = doctor_at(&server.url(), &[]);
    assert!(!direct.contains("pooler"), "{direct}");
    let (_, report, _) = doctor_at(&pooler.url(), &[]);
    assert!(report.contains("(a pooler in transaction mode)"), "{report}");
    assert!(!report.contains("error["), "{report}");
    let (_, prepared, _) = doctor_at(&pooler.url(), &["--store-postgres-prepare", "true"]);
    assert!(prepared.contains("error[pooler]") && prepared.contains("to auto"), "{prepared}");
    let (_, text, _) = doctor_at(&pooler.url(), &["--store-postgres-prepare", "false"]);
    assert!(!text.contains("error["), "{text}");
}

#[test]
fn direct_connections_prepare_statements() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(1_000));
    let service = serve(limits.path(), &server.url(), &FLAGS);
    wait_until_ready(&service);
    assert_eq!(check(&service, "deny", "k"), 200);
    assert!(!service.log().contains("statements are not prepared"), "{}", service.log());
}
