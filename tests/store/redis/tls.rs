//! Redis behind TLS: trusted and rejected servers, client certificates and log messages.

use super::{check, limits, ready, serve, wait_until_ready};
use crate::support::certificates::{Authority, Files};
use crate::support::cluster::Cluster;
use crate::support::process::Process;
use crate::support::sentinel::Watched;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const LIMIT: u32 = 10;

const DEADLINE: [&str; 2] = ["--store-timeout", "20s"];

/// Redis flags for TLS only. `clients` decides if client certificates are required.
fn flags<'a>(ca: &'a str, own: &'a Files, clients: &'a str) -> Vec<&'a str> {
    let files = ["--tls-ca-cert-file", ca, "--tls-cert-file", &own.certificate];
    [&files[..], &["--tls-key-file", &own.key, "--tls-auth-clients", clients]].concat()
}

fn serve_over(limits: &tempfile::TempDir, url: &str, flags: &[&str]) -> Service {
    serve(limits.path(), url, &[&DEADLINE, flags].concat())
}

fn assert_limit_enforced(service: &Service, value: &str) {
    wait_until_ready(service);
    let answers = (0..LIMIT + 2).map(|_| check(service, "error", value));
    let passed = answers.filter(|&status| status == 200).count();
    assert_eq!(passed, LIMIT as usize, "{}", service.log());
}

fn wait_for_log(service: &Service, why: &str) {
    let says = || match service.log() {
        log if log.contains("redis unavailable") && log.contains(why) => Ok(()),
        log => Err(log),
    };
    until(why, says).unwrap();
}

/// Waits until the log contains `why`, then asserts that a fallback decides.
fn assert_refused(service: &Service, why: &str) {
    wait_for_log(service, why);
    assert_eq!(check(service, "allow", "refused"), 200);
    assert!(ready(service).text().contains("is unavailable (unreachable)"));
}

#[test]
fn only_a_trusted_certificate_with_the_right_name_connects() {
    for_a_day_with_a_minute_left();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (ca, own) = (ours.ca(), ours.sign(&["redis.test"]));
    let redis = Process::redis(&flags(&ca, &own, "no"));
    let (limits, url) = (limits(LIMIT), format!("rediss://{}", redis.address()));
    let named = ["--store-tls-server-name", "redis.test"];
    let trusting = |ca: &str, more: &[&str]| {
        serve_over(&limits, &url, &[&["--store-tls-ca-file", ca], more].concat())
    };
    assert_limit_enforced(&trusting(&ca, &named), "right");
    let untrusting = trusting(&theirs.ca(), &named);
    assert_refused(
        &untrusting,
        "no trusted CA signed the certificate of redis; set store.tls.ca_file",
    );
    let log = untrusting.log();
    let line = log.lines().find(|line| line.contains("redis unavailable")).unwrap();
    assert!(!line.contains("UnknownIssuer") && !line.contains("Custom"), "{line}");
    assert_refused(
        &trusting(&ca, &[]),
        "the certificate of redis has another name; set store.tls.server_name",
    );
    // The service trusts the system CAs, which did not sign this certificate; this machine may have
    // none.
    assert_refused(&serve_over(&limits, &url, &named), "certificate");
    let gone = ca.replace("ca.pem", "gone.pem");
    assert_refused(&trusting(&gone, &named), "gone.pem: cannot be read");
    assert_refused(&trusting(&own.key, &named), "contains no certificate");
    let plain = serve_over(&limits, &format!("redis://{}", redis.address()), &[]);
    assert_refused(&plain, "then write rediss:// in store.url (REDIS_TLS=true)");
    let stats = redis.call(&["INFO", "commandstats"]).text();
    assert!(!stats.contains("cmdstat_auth"), "{stats}");
}

#[test]
fn redis_without_tls_is_suggested_for_a_silent_handshake() {
    let redis = Process::redis(&[]);
    let url = format!("rediss://{}", redis.address());
    let service = serve_over(&limits(LIMIT), &url, &[]);
    assert_refused(&service, "then write redis:// in store.url (REDIS_TLS=false)");
}

#[test]
fn refused_password_names_the_setting_that_holds_it() {
    let redis = Process::redis(&["--requirepass", "a:b"]);
    let address = redis.address();
    for (url, help) in [
        (format!("redis://{address}"), "set the password in store.url (REDIS_AUTH)"),
        (format!("redis://:c@{address}"), "correct the password in store.url (REDIS_AUTH)"),
        (
            format!("redis://a:b@{address}"),
            "`a` is the user in store.url (REDIS_AUTH); if the password itself contains `:`, \
             write `default:` before it",
        ),
    ] {
        wait_for_log(&serve_over(&limits(LIMIT), &url, &[]), help);
    }
}

#[test]
fn ipv6_server_needs_a_certificate_for_its_address() {
    for_a_day_with_a_minute_left();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        println!("SKIPPED: THIS MACHINE HAS NO IPV6");
        return;
    }
    let ours = Authority::new();
    let (ca, limits) = (ours.ca(), limits(LIMIT));
    let at = |name: &str| {
        let own = ours.sign(&[name]);
        let redis = Process::redis(&[&flags(&ca, &own, "no")[..], &["--bind", "::1"]].concat());
        let url = format!("rediss://[::1]:{}", redis.port);
        (redis, serve_over(&limits, &url, &["--store-tls-ca-file", &ca]))
    };
    let (_redis, service) = at("::1");
    assert_limit_enforced(&service, "right");
    let (_redis, service) = at("127.0.0.1");
    assert_refused(
        &service,
        "the certificate of redis has another name; set store.tls.server_name",
    );
}

#[test]
fn mutual_tls_presents_the_client_certificate() {
    for_a_day_with_a_minute_left();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (ca, own) = (ours.ca(), ours.sign(&["127.0.0.1"]));
    let redis = Process::redis(&flags(&ca, &own, "yes"));
    let (limits, url) = (limits(LIMIT), format!("rediss://{}", redis.address()));
    let shown = |files: &Files| {
        let (certificate, key) = (&files.certificate, &files.key);
        let shown = ["--store-tls-cert-file", certificate, "--store-tls-key-file", key];
        serve_over(&limits, &url, &[&["--store-tls-ca-file", &ca], &shown[..]].concat())
    };
    let ours = ours.sign(&["sluicegate"]);
    assert_limit_enforced(&shown(&ours), "known");
    assert_refused(
        &shown(&theirs.sign(&["sluicegate"])),
        "redis does not trust the CA of the client certificate (store.tls.cert_file)",
    );
    let nobody = serve_over(&limits, &url, &["--store-tls-ca-file", &ca]);
    assert_refused(&nobody, "redis requires a client certificate; set store.tls.cert_file");
    let swapped = Files { certificate: ours.key.clone(), key: ours.certificate };
    assert_refused(&shown(&swapped), "contains no");
}

#[test]
fn sentinels_and_cluster_nodes_use_tls() {
    for_a_day_with_a_minute_left();
    let ours = Authority::new();
    let (ca, own, us) = (ours.ca(), ours.sign(&["127.0.0.1"]), ours.sign(&["sluicegate"]));
    let tls = flags(&ca, &own, "yes");
    let shown = ["--store-tls-cert-file", &us.certificate, "--store-tls-key-file", &us.key];
    let shown = [&["--store-tls-ca-file", &ca], &shown[..]].concat();
    let limits = limits(LIMIT);
    {
        let between = ["--tls-cluster", "yes", "--tls-replication", "yes"];
        let cluster = Cluster::of(&[&tls[..], &between].concat(), false);
        let url = cluster.url().replace("redis+", "rediss+");
        assert_limit_enforced(&serve_over(&limits, &url, &shown), "cluster");
    }
    let between = ["--tls-replication", "yes"];
    let watched = Watched::with(&[&tls[..], &between].concat());
    let service = serve_over(&limits, &watched.url("rediss+sentinel://"), &shown);
    assert_limit_enforced(&service, "sentinel");
}
