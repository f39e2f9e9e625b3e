//! Tests of the commands `sluicegate ask`, `sluicegate explain` and `sluicegate validate --merge`.

use std::fs;
use std::process::Output;

use super::process;
use crate::support::certificates::Authority;
use crate::support::service::{Service, sluicegate};
use crate::support::waiting::for_a_day_with_a_minute_left;

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    run_with(Some("open-sesame-please"), args)
}

fn run_with(token: Option<&str>, args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = sluicegate();
    command.args(args).envs(token.map(|token| ("SLUICEGATE_ADMIN_TOKEN", token)));
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn refund_that_still_denies_says_so() {
    for_a_day_with_a_minute_left();
    let (_root, service) = process::start(&[("SLUICEGATE_STORE_URL", "memory")]);
    let (address, admin) = (service.grpc.to_string(), format!("http://{}", service.admin));
    let ask = |more: &[&str]| {
        let args = ["ask", "--address", &address, "--domain", "d", "--descriptor", "k=v"];
        run(&[&args, more].concat()).1
    };
    // 15 hits are counted, and the limit is 5.
    (0..3).for_each(|_| drop(ask(&["--hits", "5"])));
    let refund =
        |hits: &str| ask(&["--refund", "--hits", hits, "--reason", "test", "--server", &admin]);
    let still_denied = refund("9");
    let six_used = "k=v: 6 of 5 used, 0 of 5 remaining, resets in ";
    assert!(still_denied.contains(six_used), "{still_denied}");
    assert!(still_denied.contains("; still denied: refund 2 more, or empty"), "{still_denied}");
    let allowed = refund("2");
    assert!(allowed.starts_with("k=v: 4 of 5 used, 1 of 5 remaining"), "{allowed}");
    assert!(!allowed.contains("still denied"), "{allowed}");
}

#[test]
fn ask_command_charges_peeks_and_resets_a_counter() {
    for_a_day_with_a_minute_left();
    let (_root, service) = process::start(&[("SLUICEGATE_STORE_URL", "memory")]);
    let (address, admin) = (service.grpc.to_string(), format!("http://{}", service.admin));
    let http = service.http.to_string();
    let ask = |more: &[&str]| {
        let args = ["ask", "--address", &address, "--domain", "d", "--descriptor", "k=v"];
        run(&[&args, more].concat())
    };
    let line = |left: u32| format!("k=v: within, {left} of 5 per day remaining, resets in ");
    let (code, output, _) = ask(&[]);
    assert!(
        code == Some(0) && output.starts_with(&line(4)) && output.ends_with("allow\n"),
        "{output}"
    );
    for _ in 0..2 {
        let (code, output, _) = ask(&["--peek"]);
        assert!(code == Some(0) && output.starts_with(&line(4)), "{output}");
    }
    let (code, output, _) = ask(&["--hits", "5"]);
    assert!(
        code == Some(1) && output.contains("k=v: over, 0 of 5") && output.ends_with("deny\n"),
        "{output}"
    );
    assert_eq!(
        ask(&["--reset", "--reason", "test", "--server", &admin]),
        (Some(0), "1 counter reset\n".to_owned(), String::new())
    );
    let (_, output, _) = ask(&["--peek"]);
    assert!(output.starts_with(&line(5)), "{output}");
    let (code, output, _) =
        run(&["ask", "--address", &address, "--domain", "d", "--descriptor", "other=v"]);
    assert_eq!((code, &*output), (Some(0), "other=v: no limit\nallow\n"));
    for (args, why) in [
        (
            vec!["ask", "--address", "127.0.0.1:1", "--domain", "d", "--descriptor", "k=v"],
            "connection failed: Connection refused",
        ),
        (
            vec!["ask", "--address", "nonsense", "--domain", "d", "--descriptor", "k=v"],
            "--address `nonsense` must be HOST:PORT",
        ),
        (
            vec!["ask", "--address", &admin, "--domain", "d", "--descriptor", "k=v"],
            "must be HOST:PORT, such as 127.0.0.1:8081",
        ),
        (
            vec!["ask", "--address", &http, "--domain", "d", "--descriptor", "k=v"],
            "did not answer as gRPC; the gRPC port is listen.grpc_port (8081 by default)",
        ),
        (vec!["ask", "--address", &address, "--domain", "d", "--descriptor", "k"], "key=value"),
        (vec!["ask", "--address", &address, "--domain", "", "--descriptor", "k=v"], "domain"),
    ] {
        let (code, _, output) = run(&args);
        assert!(code == Some(2) && output.contains(why), "{args:?}: {output}");
    }
}

#[test]
fn ask_with_flag_server_rejects_flags_hits_and_peek() {
    for_a_day_with_a_minute_left();
    let (_root, service) = process::start(&[("SLUICEGATE_STORE_URL", "memory")]);
    let (address, admin) = (service.grpc.to_string(), format!("http://{}", service.admin));
    let plain = ["ask", "--address", &address, "--domain", "d", "--descriptor", "k=v"];
    for more in [&["--hits", "1"][..], &["--peek"]] {
        let (code, output, why) = run(&[&plain[..], &["--server", &admin], more].concat());
        assert_eq!((code, &*output), (Some(2), ""), "{more:?}");
        assert!(
            why.contains("--server is only for --reset, --refund, --force, --unforce"),
            "{why}"
        );
        assert!(why.contains("for a check, set --address to the gRPC port"), "{why}");
    }
    let (_, output, _) = run(&[&plain[..], &["--peek"]].concat());
    assert!(
        output.starts_with("k=v: within, 5 of 5 per day remaining"),
        "nothing was charged: {output}"
    );
}

#[test]
fn bad_admin_tokens_and_addresses_are_reported() {
    let (_root, service) = process::start(&[("SLUICEGATE_STORE_URL", "memory")]);
    let (bare, admin) = (service.admin.to_string(), format!("http://{}", service.admin));
    let check_args = ["--domain", "d", "--descriptor", "k=v"];
    for (token, why) in [
        (Some("another-token-of-somebody"), "wrong token in SLUICEGATE_ADMIN_TOKEN"),
        (None, "a token is required; set SLUICEGATE_ADMIN_TOKEN"),
        (Some(""), "a token is required; set SLUICEGATE_ADMIN_TOKEN"),
    ] {
        for act in [&["explain"][..], &["ask", "--reset", "--reason", "test"]] {
            let (code, _, output) =
                run_with(token, &[act, &["--server", &admin], &check_args].concat());
            assert!(code == Some(2) && output.contains(why), "{token:?} {act:?}: {output}");
            assert!(!output.contains("another-token-of-somebody"), "{output}");
        }
    }
    for server in [&*bare, "localhost", "https://localhost:6070", "http://", ""] {
        for act in [&["explain"][..], &["ask", "--reset", "--reason", "test"]] {
            let (code, _, output) = run(&[act, &["--server", server], &check_args].concat());
            let why = format!("--server `{server}` must be http://HOST:PORT");
            assert!(code == Some(2) && output.contains(&why), "{act:?}: {output}");
        }
    }
}

#[test]
fn explain_command_reports_a_forced_decision() {
    let (_root, service) = process::start(&[("SLUICEGATE_STORE_URL", "memory")]);
    let admin = format!("http://{}", service.admin);
    let check_args = ["--server", &admin, "--domain", "d", "--descriptor", "k=v"];
    let explain = || run(&[&["explain"][..], &check_args].concat());
    let (code, output, _) = explain();
    assert!(
        code == Some(0) && output.contains(" 1 hit on an empty counter: allow, 4 "),
        "{output}"
    );
    let freeze = ["ask", "--force", "deny", "--for", "1h", "--reason", "test"];
    assert_eq!(run(&[&freeze[..], &check_args].concat()).0, Some(0));
    let (code, output, _) = explain();
    assert!(code == Some(0) && output.contains("; an operator forces deny until 2"), "{output}");
    assert!(output.ends_with("    decision  1 hit, forced by an operator: deny\n"), "{output}");
}

#[test]
fn ask_command_prints_no_unit_for_a_custom_period() {
    let directory = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors:\n\
                - key: k\n  rate_limit: {per: 36h, requests_per_unit: 600, strategy: gcra}\n";
    fs::write(directory.path().join("a.yaml"), text).unwrap();
    let service = Service::start(directory.path(), &[]).unwrap();
    let address = service.grpc.to_string();
    let (code, output, _) =
        run(&["ask", "--address", &address, "--domain", "d", "--descriptor", "k=v"]);
    assert!(
        code == Some(0) && output.starts_with("k=v: within, 599 of 600 remaining, "),
        "{output}"
    );
}

#[test]
fn ask_command_connects_over_mutual_tls() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let own = authority.sign(&["own.test"]);
    for (file, from) in [("tls.crt", &own.certificate), ("tls.key", &own.key)] {
        fs::copy(from, directory.path().join(file)).unwrap();
    }
    let [certificate, key] =
        ["tls.crt", "tls.key"].map(|file| directory.path().join(file).display().to_string());
    let (ca, client) = (authority.ca(), authority.sign(&["client.test"]));
    let (_root, service) = process::start(&[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("GRPC_CLIENT_TLS_CACERT", &ca),
        ("SLUICEGATE_STORE_URL", "memory"),
    ]);
    let address = service.grpc.to_string();
    let plain = ["ask", "--address", &address, "--domain", "d", "--descriptor", "k=v"];
    let tls = ["--tls", "--tls-ca-file", &ca, "--tls-server-name", "own.test"];
    let own = ["--tls-cert-file", &client.certificate, "--tls-key-file", &client.key];
    assert_eq!(run(&[&plain[..], &tls, &own].concat()).0, Some(0));
    assert_eq!(run(&[&plain[..], &tls].concat()).0, Some(2), "without our certificate");
    assert_eq!(run(&plain).0, Some(2), "in plain text");
}

#[test]
fn check_merge_accepts_a_domain_in_two_files() {
    let directory = tempfile::tempdir().unwrap();
    for (file, key) in [("a.yaml", "a"), ("b.yaml", "b")] {
        let text = format!(
            "domain: d\ndescriptors:\n- key: {key}\n  rate_limit: {{unit: day, requests_per_unit: 5}}\n"
        );
        fs::write(directory.path().join(file), text).unwrap();
    }
    let path = directory.path().to_str().unwrap();
    assert_eq!(run(&["check", path]).0, Some(1));
    assert_eq!(run(&["check", "--merge", path]).0, Some(0));
}
