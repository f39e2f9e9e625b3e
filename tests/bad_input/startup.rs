//! Tests of starting `serve`: exit code 1 for invalid limits, exit code 2 for other errors.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};

use super::{LIMITS, put};
use crate::support::http1;
use crate::support::service::{Service, read_lines, refused, sluicegate};
use crate::support::waiting::PATIENCE;

fn serve(flags: &[&str]) -> (Option<i32>, String) {
    refused(sluicegate().arg("serve").args(flags))
}

const FREE_PORTS: [&str; 8] = [
    "--listen-grpc-port",
    "0",
    "--listen-http-port",
    "0",
    "--listen-admin-port",
    "0",
    "--listen-metrics-port",
    "0",
];

fn limits(text: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    put(directory.path(), "shop.yaml", text.as_bytes());
    directory
}

#[test]
fn occupied_port_error_names_the_flag() {
    let directory = limits(LIMITS);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for name in ["grpc", "http", "admin", "metrics"] {
        let flag = format!("--listen-{name}-port");
        let mut flags = vec![
            "--limits-paths",
            directory.path().to_str().unwrap(),
            "--listen-host",
            "127.0.0.1",
        ];
        flags.extend(FREE_PORTS);
        let at = flags.iter().position(|known| **known == flag).unwrap();
        flags[at + 1] = &port;
        let (code, err) = serve(&flags);
        assert_eq!(code, Some(2), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(err.starts_with(&format!("{name} cannot listen on 127.0.0.1:{port}: ")), "{err}");
        assert!(err.contains(&flag), "{err}");
    }
}

#[test]
fn all_occupied_ports_are_reported_together() {
    let directory = limits(LIMITS);
    let taken: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<_> =
        taken.iter().map(|it| it.local_addr().unwrap().port().to_string()).collect();
    let mut flags =
        vec!["--limits-paths", directory.path().to_str().unwrap(), "--listen-host", "127.0.0.1"];
    for (name, port) in
        ["--listen-grpc-port", "--listen-http-port", "--listen-admin-port", "--listen-metrics-port"]
            .iter()
            .zip(&ports)
    {
        flags.extend([name, &**port]);
    }
    let (code, err) = serve(&flags);
    assert_eq!(code, Some(2), "{err}");
    assert_eq!(err.lines().count(), 4, "{err}");
    assert!(ports.iter().all(|port| err.contains(port)), "{err}");
}

#[test]
fn invalid_limits_exit_with_1_and_all_findings() {
    let directory = limits("domain: shop\ndescriptors:\n- key: a\n  rate_limt: {}\n- valu: b\n");
    let mut flags = vec!["--limits-paths", directory.path().to_str().unwrap()];
    flags.extend(FREE_PORTS);
    let (code, err) = serve(&flags);
    assert_eq!(code, Some(1), "{err}");
    for place in ["shop.yaml:4:3", "shop.yaml:5:3"] {
        assert!(err.contains(place), "{place} is not in: {err}");
    }
    assert!(err.contains("rate_limit"), "the nearest word is not in: {err}");
}

/// Each test case has a label, flags, and words that the error message must contain.
#[test]
fn startup_errors_exit_with_2_and_a_hint() {
    let directory = limits(LIMITS);
    let here = directory.path().to_str().unwrap();
    let missing = directory.path().join("gone");
    let missing = missing.to_str().unwrap();
    let cases: [(&str, &[&str], &[&str]); 6] = [
        (
            "an unknown flag",
            &["--limits-paths", here, "--grpc-prot", "0"],
            &["--grpc-prot", "--listen-grpc-port"],
        ),
        ("limits that are not there", &["--limits-paths", missing], &[missing, "No such file"]),
        ("no limits", &[], &["--limits-paths"]),
        (
            "admin for everybody",
            &["--limits-paths", here, "--listen-admin-host", "0.0.0.0"],
            &["--listen-admin-host", "0.0.0.0", "admin.token_file", "127.0.0.1"],
        ),
        (
            "a port that is none",
            &["--limits-paths", here, "--listen-http-port", "70000"],
            &["--listen-http-port", "65535"],
        ),
        (
            "another backend",
            &["--limits-paths", here, "--store-url", "postgres://x"],
            &["--store-url", "memory"],
        ),
    ];
    for (label, given, words) in cases {
        // Repeating a flag is an error, so only port flags that the test case lacks are added.
        let others = FREE_PORTS.chunks(2).filter(|pair| !given.contains(&pair[0])).flatten();
        let flags: Vec<&str> = given.iter().chain(others).copied().collect();
        let (code, err) = serve(&flags);
        assert_eq!(code, Some(2), "{label}: {err}");
        for word in words {
            assert!(err.contains(word), "{label}: {word} is not in: {err}");
        }
    }
}

#[test]
fn admin_port_on_all_addresses_requires_the_token() {
    let directory = limits(LIMITS);
    let flags = ["--listen-admin-host", "0.0.0.0", "--admin-token", "open-sesame-please"]
        .map(str::to_owned);
    let service = Service::start(directory.path(), &flags).unwrap();
    let status =
        |headers: &[(&str, &str)]| http1::get(service.admin, "/config", headers).unwrap().status;
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("authorization", "Bearer open-sesam")]), 401);
    assert_eq!(status(&[("authorization", "Bearer open-sesame-please")]), 200);
}

#[test]
fn admin_tokens_below_16_characters_prevent_the_start() {
    let directory = limits(LIMITS);
    let tokens = tempfile::tempdir().unwrap();
    std::fs::write(tokens.path().join("view.grafana"), "fifteen-letters").unwrap();
    let tokens = tokens.path().to_str().unwrap();
    for (flag, value, place) in [
        ("--admin-token", "fifteen-letters", "--admin-token"),
        ("--admin-token-dir", tokens, "view.grafana"),
    ] {
        let limits = ["--limits-paths", directory.path().to_str().unwrap(), flag, value];
        let (code, err) = serve(&[&limits[..], &FREE_PORTS].concat());
        assert_eq!(code, Some(2), "{flag}: {err}");
        for word in [place, "16 characters", "openssl rand -hex 16"] {
            assert!(err.contains(word), "{flag}: {word} is not in: {err}");
        }
        assert!(!err.contains("fifteen-letters"), "{flag}: {err}");
    }
}

/// The check is sent when the port is logged, before the process logs that it is ready.
#[test]
fn limits_are_loaded_before_the_port_opens() {
    let directory = limits(LIMITS);
    let body = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}"#;
    for start in 0..20 {
        let mut process = KillOnDrop(spawn(directory.path()));
        let lines = read_lines(process.0.stdout.take().unwrap());
        let port = std::iter::from_fn(|| lines.recv_timeout(PATIENCE).ok()).find_map(|line| {
            line.strip_prefix("http listening on ")?.rsplit_once(':')?.1.parse::<u16>().ok()
        });
        let address = ([127, 0, 0, 1], port.unwrap()).into();
        let reply = http1::call(address, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
        assert_eq!(reply.status, 200, "start {start}: {}", reply.text());
    }
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(limits: &Path) -> Child {
    sluicegate()
        .args(["serve", "--limits-paths"])
        .arg(limits)
        .args(FREE_PORTS)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
