//! Passwords, TLS and several hosts.

use super::{FLAGS, LIMIT, assert_limit_enforced};
use crate::store::redis::{check, limits, serve, wait_until_ready};
use crate::support::certificates::Authority;
use crate::support::ports;
use crate::support::postgres::Postgres;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

fn wait_for_log(service: &Service, why: &str) {
    let is_logged = || match service.log() {
        log if log.contains("postgres unavailable") && log.contains(why) => Ok(()),
        log => Err(log),
    };
    until(why, is_logged).unwrap();
}

#[test]
fn a_rotated_password_file_is_used_for_the_next_connection() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let grant =
        "GRANT SELECT, INSERT, UPDATE, DELETE ON sluicegate_state, sluicegate_schema TO app";
    server.sql("CREATE ROLE app LOGIN PASSWORD 'first'");
    server.sql(grant);
    server.set_authentication("local all postgres trust\nlocal all app scram-sha-256\n");
    let secrets = tempfile::tempdir().unwrap();
    let file = secrets.path().join("password");
    std::fs::write(&file, "wrong\n").unwrap();
    let url = format!("postgres://app@{}/postgres", server.host());
    let flags = [&FLAGS[..], &["--store-password-file", file.to_str().unwrap()]].concat();
    let service = serve(limits.path(), &url, &flags);
    wait_for_log(&service, "correct the password in store.url or store.password_file");
    assert_eq!(check(&service, "allow", "refused"), 200);
    std::fs::write(&file, "first\n").unwrap();
    assert_limit_enforced(&service, "first", 0);
    server.sql("ALTER ROLE app PASSWORD 'second'");
    std::fs::write(&file, "second\n").unwrap();
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app'";
    let ended = server.sql("SELECT clock_timestamp()");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    let are_new = || {
        let [all, new] = ["", &format!(" AND backend_start > '{ended}'")]
            .map(|filter| server.sql(&format!("{sessions}{filter}")));
        if new == all && new != "0" { Ok(()) } else { Err(format!("{new} of {all}")) }
    };
    until("all connections are new", are_new).unwrap();
    assert_limit_enforced(&service, "second", 0);
    assert!(!service.log().contains("second"), "{}", service.log());
}

#[test]
fn only_a_trusted_certificate_with_the_right_name_connects() {
    for_a_day_with_a_minute_left();
    let (mut server, limits) = (Postgres::start(), limits(LIMIT));
    let (ours, theirs) = (Authority::new(), Authority::new());
    let own = ours.sign(&["postgres.test"]);
    let files = [own.certificate, own.key].map(|file| std::fs::read(file).unwrap());
    let certificate = format!("ssl_cert_file={}", server.private_file("tls.pem", &files[0]));
    let key = format!("ssl_key_file={}", server.private_file("tls.key", &files[1]));
    let address = ports::free();
    server.set_authentication("local all all trust\nhostssl all all 127.0.0.1/32 trust\n");
    server.restart_on(address.port(), &["ssl=on", &certificate, &key]);
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", address.port());
    let secure = format!("{url}?sslmode=verify-full");
    let trusting = |url: &str, ca: &str, more: &[&str]| {
        serve(limits.path(), url, &[&FLAGS[..], &["--store-tls-ca-file", ca], more].concat())
    };
    let named = ["--store-tls-server-name", "postgres.test"];
    assert_limit_enforced(&trusting(&secure, &ours.ca(), &named), "right", 0);
    wait_for_log(&trusting(&secure, &theirs.ca(), &named), "set store.tls.ca_file to the CA");
    wait_for_log(&trusting(&secure, &ours.ca(), &[]), "set store.tls.server_name to the name");
    let plain = serve(limits.path(), &url, &FLAGS);
    wait_for_log(&plain, "add ?sslmode=require to store.url");
}

#[test]
fn a_promoted_standby_continues_the_counters() {
    for_a_day_with_a_minute_left();
    let (mut primary, limits) = (Postgres::start(), limits(LIMIT));
    let standby = primary.start_standby();
    let url = format!("postgres://postgres@{},{}/postgres", standby.host(), primary.host());
    let fleet = [(); 2].map(|()| serve(limits.path(), &url, &FLAGS));
    fleet.iter().for_each(wait_until_ready);
    for number in 0..6 {
        assert_eq!(check(&fleet[number % 2], "error", "kept"), 200);
    }
    primary.kill();
    assert_eq!(check(&fleet[0], "allow", "outage"), 200);
    standby.promote();
    // Wait for both replicas, so that no check uses a fallback.
    fleet.iter().for_each(wait_until_ready);
    assert_limit_enforced(&fleet[1], "kept", 6);
    assert_limit_enforced(&fleet[0], "kept", LIMIT);
}
