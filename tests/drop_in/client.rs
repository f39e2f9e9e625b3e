//! `sluicegate ask` and `sluicegate check --merge`.

use std::fs;
use std::process::Output;

use super::process;
use crate::service::sluicegate;
use crate::support::certificates::Authority;
use crate::waiting::for_a_day_with_a_minute_left;

fn run(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = sluicegate();
    let Output { status, stdout, stderr } =
        command.args(words).env("SLUICEGATE_ADMIN_TOKEN", "open-sesame").output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn a_question_is_asked_looked_at_and_its_counters_are_emptied() {
    for_a_day_with_a_minute_left();
    let (_root, service) = process::start(&[("SLUICEGATE_BACKEND", "memory")]);
    let (address, admin) = (service.grpc.to_string(), format!("http://{}", service.admin));
    let ask = |more: &[&str]| {
        let words = ["ask", "--address", &address, "--domain", "d", "--descriptor", "k=v"];
        run(&[&words, more].concat())
    };
    let line = |left: u32| format!("k=v: within, {left} of 5 per day left, whole again in ");
    let (code, said, _) = ask(&[]);
    assert!(
        code == Some(0) && said.starts_with(&line(4)) && said.ends_with("may pass\n"),
        "{said}"
    );
    for _ in 0..2 {
        let (code, said, _) = ask(&["--peek"]);
        assert!(code == Some(0) && said.starts_with(&line(4)), "{said}");
    }
    let (code, said, _) = ask(&["--hits", "5"]);
    assert!(
        code == Some(1) && said.contains("k=v: over, 0 of 5") && said.ends_with("may not pass\n"),
        "{said}"
    );
    assert_eq!(
        ask(&["--reset", "--server", &admin]),
        (Some(0), "1 counter is empty\n".to_owned(), String::new())
    );
    let (_, said, _) = ask(&["--peek"]);
    assert!(said.starts_with(&line(5)), "{said}");
    let (code, said, _) =
        run(&["ask", "--address", &address, "--domain", "d", "--descriptor", "other=v"]);
    assert_eq!((code, &*said), (Some(0), "other=v: no limit\nmay pass\n"));
    for (words, why) in [
        (
            vec!["ask", "--address", "127.0.0.1:1", "--domain", "d", "--descriptor", "k=v"],
            "no connection",
        ),
        (
            vec!["ask", "--address", "nonsense", "--domain", "d", "--descriptor", "k=v"],
            "no address",
        ),
        (vec!["ask", "--address", &address, "--domain", "d", "--descriptor", "k"], "key=value"),
        (vec!["ask", "--address", &address, "--domain", "", "--descriptor", "k=v"], "domain"),
    ] {
        let (code, _, said) = run(&words);
        assert!(code == Some(2) && said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn a_question_is_asked_over_tls() {
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
        ("SLUICEGATE_BACKEND", "memory"),
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
fn check_joins_domains_where_it_is_told_to() {
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
