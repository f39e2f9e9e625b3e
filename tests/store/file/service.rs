//! Runs `serve` with the file store: crashes under load, a full disk, a clock that is set back, two processes.

mod crashes;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sluicegate::clock::SHIFT_VARIABLE;

use crate::store::redis::bans::{TOKEN as BAN_TOKEN, lift, limits, run_ban, wait_for_bans};
use crate::support::http1;
use crate::support::service::{Service, refused, sluicegate};
use crate::support::waiting::until;

struct Deployment {
    directory: tempfile::TempDir,
    flags: Vec<String>,
}

/// The answer to one check of one hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    is_allowed: bool,
    remaining: u64,
}

impl Deployment {
    fn new(limit: u64, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let limits = format!(
            "domain: shop\ndescriptors:\n- key: client\n  rate_limit: {{requests_per_unit: {limit}, unit: year}}\n"
        );
        std::fs::write(directory.path().join("shop.yaml"), limits).unwrap();
        let data = format!("file://{}", directory.path().join("data").display());
        let mut all = vec!["--store-url".to_owned(), data];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Self { directory, flags: all }
    }

    fn limits(&self) -> std::path::PathBuf {
        self.directory.path().join("shop.yaml")
    }

    fn start(&self) -> Service {
        Service::start(&self.limits(), &self.flags).unwrap()
    }
}

fn serve(deployment: &Deployment) -> Command {
    let mut command = sluicegate();
    command.arg("serve").arg("--limits-paths").arg(deployment.limits()).args(&deployment.flags);
    for port in ["grpc", "http", "admin", "metrics"] {
        command.args([&format!("--listen-{port}-port"), "0"]);
    }
    command
}

fn check(http: SocketAddr) -> Option<Answer> {
    let body =
        br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "client", "value": "a"}]}]}"#;
    let reply = http1::call(http, "POST", "/json", &[], Some(body)).ok()?;
    let json: Value = serde_json::from_slice(&reply.body).ok()?;
    let status = &json["statuses"][0];
    let is_allowed = status["code"] == "OK";
    // The field is absent if nothing remains.
    (reply.status == 200 || reply.status == 429)
        .then(|| Answer { is_allowed, remaining: status["limitRemaining"].as_u64().unwrap_or(0) })
}

#[test]
fn a_drained_process_forgets_nothing_even_if_it_never_synced() {
    let deployment =
        Deployment::new(100, &["--store-file-sync", "1h", "--listen-drain-delay", "0"]);
    let mut service = deployment.start();
    for _ in 0..7 {
        assert!(check(service.http).unwrap().is_allowed);
    }
    service.terminate();
    assert!(service.ended().unwrap().success());
    let service = deployment.start();
    assert!(service.said.contains("counters in file://"), "{}", service.said);
    assert_eq!(check(service.http).unwrap().remaining, 92);
}

#[test]
fn a_clock_set_back_between_two_processes_grants_nothing() {
    let flags = ["--store-file-sync", "1ms", "--listen-drain-delay", "0s"];
    let deployment = Deployment::new(5, &flags);
    // Two years ahead: the next process is in an earlier window of the calendar year.
    let ahead = (2 * 366 * 86_400_000_u64).to_string();
    let start = |shift: &str| {
        Service::start_under(&deployment.limits(), &deployment.flags, &[(SHIFT_VARIABLE, shift)])
            .unwrap()
    };
    let mut service = start(&ahead);
    while check(service.http).unwrap().is_allowed {}
    service.terminate();
    service.ended().unwrap();
    let service = start("0");
    assert!(!check(service.http).unwrap().is_allowed);
    assert!(service.log().contains("the wall clock was set back"), "{}", service.log());
}

#[test]
fn a_second_process_and_a_corrupt_file_stop_serve() {
    let deployment = Deployment::new(5, &[]);
    let mut service = deployment.start();
    let (code, error) = refused(&mut serve(&deployment));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("another process uses this directory"), "{error}");
    service.kill();
    let file = deployment.directory.path().join("data/counters.redb");
    std::fs::write(file, "damaged").unwrap();
    let (code, error) = refused(&mut serve(&deployment));
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("to start with empty counters, move the directory away: mv"), "{error}");
}

/// Starts `serve` with a limit on the size of files, which acts like a full disk.
fn start_with_file_limit(deployment: &Deployment, kilobytes: u32) -> Service {
    let mut shell = Command::new("bash");
    // The signal would end the process.
    let script = format!("trap '' XFSZ; ulimit -S -f {kilobytes}; exec \"$@\"");
    let serve = serve(deployment);
    shell.args(["-c", &script, "serve"]).arg(serve.get_program()).args(serve.get_args());
    Service::run(shell, None).unwrap()
}

fn metric(service: &Service, name: &str) -> String {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    line.trim_start_matches(name).trim().to_owned()
}

#[test]
fn a_full_disk_stops_saving_until_space_is_free() {
    /// The number of new counters between two looks at the metric.
    const STEP: u32 = 100;
    const MAX_KEYS: u32 = 200_000;
    // Long keys fill the disk sooner.
    let padding = "x".repeat(200);
    let deployment = Deployment::new(1_000_000, &["--store-file-sync", "1ms"]);
    // Creates the file, which then cannot grow.
    let mut service = deployment.start();
    service.kill();
    let data = deployment.directory.path().join("data/counters.redb");
    let size = std::fs::metadata(&data).unwrap().len();
    let service = start_with_file_limit(&deployment, u32::try_from(size / 1_024).unwrap());
    // Each key is a new counter, so the journal grows.
    let fill = |from: u32| {
        for key in from..from + STEP {
            let body = format!(
                r#"{{"domain": "shop", "descriptors": [{{"entries": [{{"key": "client", "value": "{key}{padding}"}}]}}]}}"#
            );
            let reply =
                http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    };
    let mut key = 0;
    while metric(&service, "sluicegate_store_up") != "0" {
        assert!(key < MAX_KEYS, "{key} counters fit on the disk");
        fill(key);
        key += STEP;
    }
    assert!(service.log().contains("failed to save counters"), "{}", service.log());
    let before = check(service.http).unwrap().remaining;
    raise_file_limit(&service);
    until("counters are saved again", || {
        let up = metric(&service, "sluicegate_store_up");
        if up == "1" { Ok(()) } else { Err(up) }
    })
    .unwrap();
    assert!(service.log().contains("counters are saved again"), "{}", service.log());
    drop(service);
    let service = deployment.start();
    assert_eq!(check(service.http).unwrap().remaining, before - 1);
    assert!(service.log().contains(&format!("counters={}", key + 1)), "{}", service.log());
}

fn raise_file_limit(service: &Service) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let process = Pid::from_raw(i32::try_from(service.id()).unwrap()).unwrap();
    prlimit(Some(process), Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
}

#[test]
fn a_read_only_mount_stops_serve() {
    let directory = tempfile::tempdir().unwrap();
    let mount = |path: &Path| {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "ro", "tmpfs"]).arg(path).output()
    };
    if !mount(directory.path()).is_ok_and(|output| output.status.success()) {
        // Only root may mount.
        return;
    }
    let flags = ["--store-url".to_owned(), format!("file://{}/data", directory.path().display())];
    let limits = Deployment::new(5, &[]);
    let error = Service::start(&limits.limits(), &flags).err();
    Command::new("umount").arg(directory.path()).output().unwrap();
    let error = error.expect("it started");
    assert!(
        error.contains("Read-only file system; mount the volume for writing (setting store.url)"),
        "{error}"
    );
}

#[test]
fn a_boost_and_the_audit_log_survive_a_restart() {
    let flags = ["--admin-token", "open-sesame-please"];
    let deployment = Deployment::new(2, &flags);
    let ask = |service: &Service, more: &[&str]| {
        let (address, admin) = (service.grpc.to_string(), format!("http://{}", service.admin));
        let mut command = sluicegate();
        command.args(["ask", "--address", &address, "--domain", "shop"]);
        command.args(["--descriptor", "client=a"]).args(more);
        if more.contains(&"--reason") {
            command.args(["--server", &admin]);
        }
        let output = command.env("SLUICEGATE_ADMIN_TOKEN", "open-sesame-please").output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let service = deployment.start();
    let boost = ["--boost", "5", "--for", "1h", "--reason", "sale"];
    let wanted = (Some(0), "client=a has a limit of 5 for 1h\n".to_owned());
    assert_eq!(ask(&service, &boost), wanted);
    drop(service);
    let service = deployment.start();
    assert_eq!(ask(&service, &["--hits", "5"]).0, Some(0), "{}", service.log());
    assert_eq!(ask(&service, &[]).0, Some(1));
    let headers = [("authorization", "Bearer open-sesame-please")];
    let page = http1::get(service.admin, "/audit", &headers).unwrap().text();
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(
        (&page["survives_restart"], &page["entries"][0]["reason"]),
        (&true.into(), &"sale".into())
    );
}

#[test]
fn a_ban_continues_after_a_restart_with_the_next_denial() {
    for sync in ["1ms", "always"] {
        let (files, directory) = (limits(), tempfile::tempdir().unwrap());
        let data = format!("file://{}", directory.path().display());
        let flags = ["--store-url", &data, "--store-file-sync", sync, "--listen-drain-delay", "0"];
        let flags = flags.map(str::to_owned).into_iter();
        let flags: Vec<_> = flags.chain(["--admin-token", BAN_TOKEN].map(str::to_owned)).collect();
        let start = || Service::start(files.path(), &flags).unwrap();
        let deny = |service: &Service| crate::store::redis::check(service, "k", "wild");
        let mut service = start();
        assert_eq!([(); 4].map(|()| deny(&service)), [429; 4]);
        wait_for_bans(&service, &["k=wild"]);
        service.terminate();
        assert!(service.ended().unwrap().success());
        let service = start();
        assert_eq!(run_ban(&service, &["list"]), (Some(0), String::new()));
        assert_eq!(deny(&service), 429);
        wait_for_bans(&service, &["k=wild"]);
        assert_eq!(lift(&service, "k=wild").0, Some(0));
        assert_eq!([(); 3].map(|()| deny(&service)), [429; 3]);
        assert_eq!(run_ban(&service, &["list"]), (Some(0), String::new()));
    }
}
