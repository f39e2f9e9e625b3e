//! Redis behind TLS: who is believed, who is not, and what is said of it.

use super::{ask, limits, ready, serve, wait_until_whole};
use crate::service::Service;
use crate::support::certificates::{Authority, Files};
use crate::support::cluster::Cluster;
use crate::support::process::Process;
use crate::support::sentinel::Watched;
use crate::waiting::{for_a_day_with_a_minute_left, until};

const LIMIT: u32 = 10;
const DEADLINE: [&str; 2] = ["--backend-deadline", "20s"];

/// What Redis is told to speak TLS alone; `clients` is whether it asks them who they are.
fn flags<'a>(ca: &'a str, own: &'a Files, clients: &'a str) -> Vec<&'a str> {
    let files = ["--tls-ca-cert-file", ca, "--tls-cert-file", &own.certificate];
    [&files[..], &["--tls-key-file", &own.key, "--tls-auth-clients", clients]].concat()
}

fn serve_over(limits: &tempfile::TempDir, url: &str, flags: &[&str]) -> Service {
    serve(limits.path(), url, &[&DEADLINE, flags].concat())
}

fn holds_the_limit(service: &Service, value: &str) {
    wait_until_whole(service);
    let answers = (0..LIMIT + 2).map(|_| ask(service, "error", value));
    let passed = answers.filter(|&status| status == 200).count();
    assert_eq!(passed, LIMIT as usize, "{}", service.log());
}

/// Waits until the service says why it cannot have Redis, and holds that it asks nothing.
fn is_refused(service: &Service, why: &str) {
    let says = || match service.log() {
        log if log.contains("redis cannot be had") && log.contains(why) => Ok(()),
        log => Err(log),
    };
    until(why, says).unwrap();
    assert_eq!(ask(service, "allow", "refused"), 200);
    assert!(ready(service).text().contains("does not answer (unreachable)"));
}

#[test]
fn only_a_server_whose_certificate_is_signed_and_made_out_to_its_name_is_spoken_to() {
    for_a_day_with_a_minute_left();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (ca, own) = (ours.ca(), ours.sign(&["redis.test"]));
    let redis = Process::redis(&flags(&ca, &own, "no"));
    let (limits, url) = (limits(LIMIT), format!("rediss://{}", redis.address()));
    let named = ["--backend-tls-server-name", "redis.test"];
    let believed = |ca: &str, more: &[&str]| {
        serve_over(&limits, &url, &[&["--backend-tls-ca-file", ca], more].concat())
    };
    holds_the_limit(&believed(&ca, &named), "right");
    is_refused(
        &believed(&theirs.ca(), &named),
        "nobody signed the certificate of redis whom we trust",
    );
    is_refused(&believed(&ca, &[]), "not made out to the name that we call it by");
    // The roots of this system, or that it has none: neither signed this one.
    is_refused(&serve_over(&limits, &url, &named), "certificate");
    let gone = ca.replace("ca.pem", "gone.pem");
    is_refused(&believed(&gone, &named), "gone.pem cannot be read");
    is_refused(&believed(&own.key, &named), "holds no certificate");
    let plain = serve_over(&limits, &format!("redis://{}", redis.address()), &[]);
    is_refused(&plain, "error");
    let stats = redis.tell(&["INFO", "commandstats"]).text();
    assert!(!stats.contains("cmdstat_auth"), "{stats}");
}

#[test]
fn a_server_at_an_ipv6_address_must_be_certified_for_that_address() {
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
        (redis, serve_over(&limits, &url, &["--backend-tls-ca-file", &ca]))
    };
    let (_redis, service) = at("::1");
    holds_the_limit(&service, "right");
    let (_redis, service) = at("127.0.0.1");
    is_refused(&service, "not made out to the name that we call it by");
}

#[test]
fn a_server_that_asks_who_we_are_is_shown_our_certificate() {
    for_a_day_with_a_minute_left();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (ca, own) = (ours.ca(), ours.sign(&["127.0.0.1"]));
    let redis = Process::redis(&flags(&ca, &own, "yes"));
    let (limits, url) = (limits(LIMIT), format!("rediss://{}", redis.address()));
    let shown = |files: &Files| {
        let (certificate, key) = (&files.certificate, &files.key);
        let shown = ["--backend-tls-cert-file", certificate, "--backend-tls-key-file", key];
        serve_over(&limits, &url, &[&["--backend-tls-ca-file", &ca], &shown[..]].concat())
    };
    let ours = ours.sign(&["sluicegate"]);
    holds_the_limit(&shown(&ours), "known");
    is_refused(
        &shown(&theirs.sign(&["sluicegate"])),
        "redis does not trust whoever signed our certificate",
    );
    let nobody = serve_over(&limits, &url, &["--backend-tls-ca-file", &ca]);
    is_refused(&nobody, "redis wants to see a certificate of ours");
    let swapped = Files { certificate: ours.key.clone(), key: ours.certificate };
    is_refused(&shown(&swapped), "holds no");
}

#[test]
fn sentinels_and_the_nodes_of_a_cluster_are_spoken_to_with_tls() {
    for_a_day_with_a_minute_left();
    let ours = Authority::new();
    let (ca, own, us) = (ours.ca(), ours.sign(&["127.0.0.1"]), ours.sign(&["sluicegate"]));
    let tls = flags(&ca, &own, "yes");
    let shown = ["--backend-tls-cert-file", &us.certificate, "--backend-tls-key-file", &us.key];
    let shown = [&["--backend-tls-ca-file", &ca], &shown[..]].concat();
    let limits = limits(LIMIT);
    {
        let between = ["--tls-cluster", "yes", "--tls-replication", "yes"];
        let cluster = Cluster::of(&[&tls[..], &between].concat(), false);
        let url = cluster.url().replace("redis+", "rediss+");
        holds_the_limit(&serve_over(&limits, &url, &shown), "cluster");
    }
    let between = ["--tls-replication", "yes"];
    let watched = Watched::with(&[&tls[..], &between].concat());
    let service = serve_over(&limits, &watched.url("rediss+sentinel://"), &shown);
    holds_the_limit(&service, "sentinel");
}
