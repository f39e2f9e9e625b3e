//! The real binary over a real Redis: exactness between processes, and what is promised when Redis
//! is slow, gone, or not what it was.

mod batch;
mod ceilings;
mod cluster;
mod degrade;
mod doctor;
mod exact;
mod faults;
mod fleet;
mod frozen;
mod given_back;
mod going;
mod holds;
mod inspect;
mod leased;
mod leases;
mod load;
mod network;
mod observed;
mod overshoot;
mod owed;
mod parts;
mod patience;
mod peers;
mod places;
mod reference;
mod remembered;
mod sentinel;
mod stale;
mod strict;
mod tls;
mod together;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::http1;
use crate::service::Service;
use crate::signals;
use crate::support::resp::{Client, Value};
use crate::waiting::{now, until};

/// A place for a Redis, which is there or not.
struct Store {
    dir: TempDir,
    process: Option<Child>,
}

impl Store {
    /// Nothing there yet.
    fn absent() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), process: None }
    }

    fn running() -> Self {
        let mut store = Self::absent();
        store.start(&["--port", "0"]);
        store
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Starts it and returns once it listens.
    fn start(&mut self, flags: &[&str]) {
        let child = Command::new("redis-server")
            .args(["--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .args(flags)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(child.expect("REDIS IS MISSING: no redis-server here"));
        until("redis listens", || Client::connect(&self.socket()).map_err(|e| e.to_string()))
            .unwrap();
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Sends a signal: `STOP`, `CONT`.
    fn signal(&self, name: &str) {
        signals::send(self.process.as_ref().unwrap().id(), name);
    }

    fn tell(&self, parts: &[&str]) -> Value {
        Client::connect(&self.socket()).unwrap().call(parts)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.kill();
    }
}

/// More a day than any test asks for.
const MANY: u64 = 1_000_000;

/// Ten a day for each value, one key for each rule of `on_backend_failure`.
const RULES: [&str; 4] = ["error", "allow", "deny", "local"];

fn limits(requests: u32) -> TempDir {
    limits_of(requests, &["d"])
}

/// The same limits for each of these domains.
fn limits_of(requests: u32, domains: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for domain in domains {
        let file = dir.path().join(format!("{domain}.yaml"));
        std::fs::write(file, text_of(requests, domain)).unwrap();
    }
    dir
}

fn text_of(requests: u32, domain: &str) -> String {
    // In a Cluster the domain then lives on one node, and each question has one limit.
    let mut text = format!("domain: {domain}\ncharge: all_or_nothing\ndescriptors:\n");
    for rule in RULES {
        let _ = writeln!(
            text,
            "- key: {rule}\n  rate_limit: {{unit: day, requests_per_unit: {requests}, \
             on_backend_failure: {rule}}}"
        );
    }
    let _ = writeln!(text, "- key: many\n  rate_limit: {{unit: day, requests_per_unit: {MANY}}}");
    text
}

/// Moves the limits a folder down: the folder above them is watched as well, and must not be the one
/// that a log at level trace grows in.
fn apart(limits: &TempDir) -> PathBuf {
    let apart = limits.path().join("apart");
    std::fs::create_dir(&apart).unwrap();
    std::fs::rename(limits.path().join("d.yaml"), apart.join("d.yaml")).unwrap();
    apart
}

/// A server over `url` with further flags.
fn serve(limits: &Path, url: &str, flags: &[&str]) -> Service {
    let mut all = vec!["--backend".to_owned(), url.to_owned()];
    all.extend(flags.iter().map(|&flag| flag.to_owned()));
    Service::start(limits, &all).unwrap()
}

/// 200 may pass, 429 may not, 400 is an error.
fn ask(service: &Service, key: &str, value: &str) -> u16 {
    ask_all(service, &[(key, value)]).status
}

fn ask_all(service: &Service, entries: &[(&str, &str)]) -> http1::Reply {
    ask_of(service, "d", entries)
}

fn ask_of(service: &Service, domain: &str, entries: &[(&str, &str)]) -> http1::Reply {
    let descriptors: Vec<_> = entries
        .iter()
        .map(|(key, value)| format!(r#"{{"entries":[{{"key":"{key}","value":"{value}"}}]}}"#))
        .collect();
    let descriptors = descriptors.join(",");
    let body = format!(r#"{{"domain":"{domain}","descriptors":[{descriptors}]}}"#);
    http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap()
}

/// The status, and how long it took as the caller sees it.
fn timed(service: &Service, key: &str, value: &str) -> (u16, Duration) {
    let began = now();
    (ask(service, key, value), began.elapsed())
}

fn ready(service: &Service) -> http1::Reply {
    http1::get(service.http, "/readyz", &[]).unwrap()
}

/// Waits until the service says that its store answers.
fn wait_until_whole(service: &Service) {
    let whole = || match http1::get(service.http, "/readyz", &[]).map(|said| said.text()) {
        Ok(text) if text == "ready\n" => Ok(()),
        said => Err(format!("{said:?}\n{}", service.log())),
    };
    until("the store answers", whole).unwrap();
}

/// The value of one series of `/metrics`.
fn metric(service: &Service, series: &str) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
}

fn failures(service: &Service, cause: &str) -> u64 {
    metric(service, &format!("sluicegate_backend_failures_total{{cause=\"{cause}\"}}"))
}

fn failures_of_any_kind(service: &Service) -> u64 {
    sluicegate::backend::Cause::ALL.iter().map(|cause| failures(service, cause.as_str())).sum()
}
