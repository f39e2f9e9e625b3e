//! Tests of `record`, `replay` and `suggest` with the real binary.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::Value;

use crate::store::redis::wait_until_ready;
use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::{Service, sluicegate};
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const TOKEN: &str = "open-sesame-please";

/// The limit of a day denies checks even on a machine that sends few of them in a second.
const LIMITS: &str = "
domain: shop
descriptors:
  - {key: gcra, rate_limit: {unit: second, requests_per_unit: 20, strategy: gcra, burst: 5}}
  - {key: fixed, rate_limit: {unit: second, requests_per_unit: 7}}
  - {key: window, rate_limit: {per: 3s, requests_per_unit: 20, strategy: sliding_window}}
  - {key: log, rate_limit: {per: 2s, requests_per_unit: 15, strategy: sliding_log}}
  - key: list
    rate_limits:
      - {name: short, unit: second, requests_per_unit: 5}
      - {name: long, unit: day, requests_per_unit: 20, strategy: gcra, burst: 20}
";

const ALL_OR_NOTHING: &str = "
domain: both
charge: all_or_nothing
descriptors:
  - {key: gcra, rate_limit: {unit: second, requests_per_unit: 20, strategy: gcra, burst: 5}}
  - {key: tokens, rate_limit: {unit: second, requests_per_unit: 30, on_excess: charge}}
";

/// The number of checks, from this number of clients at once.
const CHECKS: u64 = 1_600;
const CLIENTS: u64 = 8;

struct Scene {
    dir: tempfile::TempDir,
    service: Service,
}

impl Scene {
    fn start(flags: &[String]) -> Self {
        Self::start_with(flags, &[("shop.yaml", LIMITS), ("both.yaml", ALL_OR_NOTHING)])
    }

    fn start_with(flags: &[String], files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let limits = dir.path().join("limits");
        std::fs::create_dir(&limits).unwrap();
        for (name, text) in files {
            std::fs::write(limits.join(name), text).unwrap();
        }
        let token = [("SLUICEGATE_ADMIN_TOKEN", TOKEN)];
        let service = Service::start_under(&limits, flags, &token).unwrap();
        Self { dir, service }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn start_recording(&self, flags: &[&str]) -> Child {
        let server = format!("http://{}", self.service.admin);
        let process = sluicegate()
            .args(["record", "--server", &server, "--out", &self.path("recording")])
            .args(["--reason", "ticket 7"])
            .args(flags)
            .env("SLUICEGATE_ADMIN_TOKEN", TOKEN)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let log = || self.service.log();
        let started = || log().contains("recording started").then_some(()).ok_or_else(log);
        until("the recording", started).unwrap();
        process.unwrap()
    }

    fn replay(&self, flags: &[&str]) -> Output {
        let (recording, limits) = (self.path("recording"), self.path("limits"));
        run(&[&["replay", "--from", &recording, "--old", &limits], flags].concat())
    }
}

fn run(arguments: &[&str]) -> Output {
    sluicegate().args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Sends `count` random checks over `/json`. Returns the number of denied checks.
fn send_checks(to: SocketAddr, count: u64, mut dice: Dice) -> u64 {
    let is_denied = |_: &u64| {
        let (domain, keys) = if dice.once_in(4) {
            ("both", ["gcra", "tokens"])
        } else {
            let keys = ["gcra", "fixed", "window", "log", "list", "unlimited"];
            ("shop", [dice.pick(&keys), dice.pick(&keys)])
        };
        let hits = dice.up_to(2);
        let descriptors = keys.map(|key| {
            let value = format!("client {}", dice.up_to(3));
            serde_json::json!({"entries": [{"key": key, "value": value}]})
        });
        let body = serde_json::json!(
            {"domain": domain, "descriptors": descriptors, "hitsAddend": hits}
        );
        let reply = http1::call(to, "POST", "/json", &[], Some(body.to_string().as_bytes()));
        reply.unwrap().status == 429
    };
    (0..count).filter(is_denied).count() as u64
}

/// Sends [`CHECKS`] checks from [`CLIENTS`] threads. Returns the number of denied checks.
fn send_concurrent_checks(to: SocketAddr) -> u64 {
    let (mut dice, denied) = (Dice::new(seed()), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let (dice, denied) = (Dice::new(dice.roll()), &denied);
            scope.spawn(move || denied.fetch_add(send_checks(to, CHECKS / CLIENTS, dice), Relaxed));
        }
    });
    denied.into_inner()
}

/// Stops the service, which ends the recording, and returns the output of `record`.
fn end_recording(scene: &mut Scene, recording: Child) -> Output {
    scene.service.terminate();
    let output = recording.wait_with_output().unwrap();
    scene.service.ended().unwrap();
    output
}

fn quick_drain() -> Vec<String> {
    ["--listen-drain-delay", "0s"].map(str::to_owned).into()
}

#[test]
fn replay_of_a_concurrent_run_equals_the_live_decisions() {
    for keys in ["hashed", "clear"] {
        let mut scene = Scene::start(&quick_drain());
        let recording = scene.start_recording(&["--for", "1h", "--keys", keys]);
        let denied = send_concurrent_checks(scene.service.http);
        let recorded = end_recording(&mut scene, recording);
        assert_eq!(recorded.status.code(), Some(0), "{}", text(&recorded.stderr));
        let counts = format!("{CHECKS} calls recorded in ");
        assert!(text(&recorded.stdout).starts_with(&counts), "{}", text(&recorded.stdout));
        let replayed = scene.replay(&["--format", "json"]);
        assert_eq!(replayed.status.code(), Some(0), "{}", text(&replayed.stderr));
        let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
        assert_eq!(report["checks"], CHECKS);
        assert_eq!(report["recorded"]["known"], CHECKS);
        assert_eq!(report["recorded"]["equal"], CHECKS, "{keys}");
        assert_eq!(report["old_denied"], denied);
        assert!(CHECKS / 10 < denied && denied < CHECKS, "{denied} denied");
        let bytes = std::fs::read(scene.path("recording")).unwrap();
        assert!(bytes.len() < 20 * usize::try_from(CHECKS).unwrap(), "{} bytes", bytes.len());
    }
}

#[test]
fn replay_exits_with_1_above_the_bound_and_2_for_errors() {
    let mut scene = Scene::start(&quick_drain());
    let recording = scene.start_recording(&["--keys", "clear"]);
    send_checks(scene.service.http, 200, Dice::new(1));
    end_recording(&mut scene, recording);
    let new = scene.path("new.yaml");
    std::fs::write(&new, LIMITS.replace("requests_per_unit: 7", "requests_per_unit: 1")).unwrap();
    let status = |flags: &[&str]| scene.replay(flags).status.code();
    assert_eq!(status(&["--new", &new, "--fail-over", "0%"]), Some(1));
    assert_eq!(status(&["--new", &new, "--fail-over", "100%"]), Some(0));
    assert_eq!(status(&["--new", &scene.path("limits"), "--fail-over", "0%"]), Some(0));
    assert_eq!(status(&["--new", &scene.path("missing")]), Some(2));
    assert_eq!(status(&["--fail-over", "1%"]), Some(2), "without --new");
    std::fs::write(scene.path("recording"), "no recording").unwrap();
    let broken = scene.replay(&[]);
    let error = text(&broken.stderr);
    assert!(
        broken.status.code() == Some(2) && error.contains("byte 0: not a recording"),
        "{error}"
    );
}

#[test]
fn suggest_prints_a_file_that_validate_accepts() {
    let mut scene = Scene::start(&quick_drain());
    let recording = scene.start_recording(&[]);
    send_checks(scene.service.http, 200, Dice::new(1));
    end_recording(&mut scene, recording);
    let from = scene.path("recording");
    let several = run(&["suggest", "--from", &from]);
    assert!(text(&several.stderr).contains("set --domain to a recorded domain: both, shop"));
    let suggested = run(&["suggest", "--from", &from, "--domain", "shop", "--unit", "second"]);
    assert_eq!(suggested.status.code(), Some(0), "{}", text(&suggested.stderr));
    let file = scene.path("suggested.yaml");
    std::fs::write(&file, &suggested.stdout).unwrap();
    let validated = run(&["validate", "--warnings-as-errors", &file]);
    assert_eq!(validated.status.code(), Some(0), "{}", text(&validated.stdout));
    let replayed = scene.replay(&["--new", &file]);
    assert!(text(&replayed.stdout).contains("newly denied 0"), "{}", text(&replayed.stdout));
}

#[test]
fn record_explains_why_it_cannot_record() {
    let scene = Scene::start(&[]);
    let server = format!("http://{}", scene.service.admin);
    let out = scene.path("recording");
    std::fs::write(&out, "an earlier recording").unwrap();
    let record = |flags: &[&str], token: &str| {
        let mut command = sluicegate();
        command.args(["record", "--out", &out]).args(flags);
        let output = command.env("SLUICEGATE_ADMIN_TOKEN", token).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (status, error) = record(&["--server", &server, "--reason", "ticket 7"], "wrong");
    assert!(status == Some(2) && error.contains("wrong token"), "{error}");
    let (status, error) =
        record(&["--server", &server, "--reason", "ticket 7", "--for", "2h"], TOKEN);
    assert!(status == Some(2) && error.contains("a recording takes 1s to 1h"), "{error}");
    let (status, error) = record(&["--server", &server], TOKEN);
    assert!(status == Some(2) && error.contains("--reason"), "{error}");
    let (status, error) = record(&["--server", &server, "--sample", "2"], TOKEN);
    assert!(status == Some(2) && error.contains("percentage"), "{error}");
    assert_eq!(record(&[], TOKEN).0, Some(2));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "an earlier recording");
}

#[test]
fn a_recording_over_redis_has_the_decisions_of_redis() {
    for_a_day_with_a_minute_left();
    let redis = Redis::start();
    // A busy machine must not cause fallback decisions, which have no recorded outcome.
    let deadline = ["--store-timeout", "9s", "--store-start-timeout", "120s"];
    let flags = ["--store-url", &redis.url(), "--listen-drain-delay", "0ms"];
    let flags: Vec<_> = flags.iter().chain(&deadline).map(|flag| (*flag).to_owned()).collect();
    let limits = "domain: shop\ndescriptors:\n\
                  - {key: fixed, rate_limit: {unit: day, requests_per_unit: 7}}\n";
    let mut scene = Scene::start_with(&flags, &[("shop.yaml", limits)]);
    wait_until_ready(&scene.service);
    let recording = scene.start_recording(&["--for", "1h"]);
    send_checks(scene.service.http, 300, Dice::new(2));
    end_recording(&mut scene, recording);
    let report: Value =
        serde_json::from_slice(&scene.replay(&["--format", "json"]).stdout).unwrap();
    assert_eq!([&report["recorded"]["known"], &report["recorded"]["equal"]], [300, 300]);
    assert!(report["old_denied"].as_u64().unwrap() > 0, "{report}");
}

/// Makes 20 requests that reserve 100 tokens and settle 50. Returns the number of denied ones.
fn spend_tokens(to: SocketAddr) -> usize {
    let ask = |key: &str, id: &str, hits: u32| {
        let entries =
            serde_json::json!([{"key": "org", "value": "acme"}, {"key": key, "value": id}]);
        let body = serde_json::json!(
            {"domain": "llm", "descriptors": [{"entries": entries, "hitsAddend": hits.to_string()}]}
        );
        http1::call(to, "POST", "/json", &[], Some(body.to_string().as_bytes())).unwrap().status
    };
    let is_denied = |number: &u32| {
        let id = format!("0123456789abcd-{number}");
        let is_denied = ask("sluicegate.reserve", &id, 100) == 429;
        // Proxies also settle denied requests, without a usage.
        assert_eq!(ask("sluicegate.settle", &id, if is_denied { 1 } else { 50 }), 200);
        is_denied
    };
    (0..20).filter(is_denied).count()
}

#[test]
fn replay_denies_the_reserves_that_another_amount_would_deny() {
    for_a_day_with_a_minute_left();
    let redis = Redis::start();
    let limits = |amount| {
        format!(
            "domain: llm\nusage: {{estimate: max_tokens}}\ndescriptors:\n\
             - {{key: org, budget: {{amount: {amount} tokens, unit: day}}}}\n"
        )
    };
    for store in ["memory", &redis.url()] {
        let flags =
            ["--store-url", store, "--store-timeout", "9s", "--store-start-timeout", "120s"];
        let flags = [flags.map(str::to_owned).to_vec(), quick_drain()].concat();
        let mut scene = Scene::start_with(&flags, &[("llm.yaml", &limits(1_000))]);
        wait_until_ready(&scene.service);
        let recording = scene.start_recording(&["--for", "1h"]);
        // 50 k + 100 is at most 1,000 for the first 19 requests, and at most 500 for the first 9.
        assert_eq!(spend_tokens(scene.service.http), 1);
        let recorded = end_recording(&mut scene, recording);
        let counts = text(&recorded.stdout);
        assert!(counts.starts_with("40 calls recorded in "), "{counts} {recorded:?}");
        let new = scene.path("new.yaml");
        std::fs::write(&new, limits(500)).unwrap();
        let replayed = scene.replay(&["--new", &new, "--format", "json"]);
        let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
        assert_eq!([&report["recorded"]["known"], &report["recorded"]["equal"]], [20, 20]);
        let counts = ["checks", "old_denied", "new_denied", "newly_denied"].map(|it| &report[it]);
        assert_eq!(counts, [20, 1, 11, 10]);
        assert_eq!(report["rules"][0]["rule"], "llm.org");
        let key = report["keys"][0]["key"].as_str().unwrap();
        assert!(key.starts_with("llm: org=~"), "{key}");
    }
}

#[test]
fn a_killed_client_ends_the_recording() {
    let scene = Scene::start(&[]);
    let mut recording = scene.start_recording(&["--for", "1h"]);
    recording.kill().unwrap();
    recording.wait().unwrap();
    let log = || scene.service.log();
    let ended = || log().contains("its client disconnected").then_some(()).ok_or_else(log);
    until("the end of the recording", ended).unwrap();
}

fn import(dir: &Path, log: &str, flags: &[&str]) -> Output {
    let settings = "hooks:\n  - name: edge\n    domain: shop\n    descriptors:\n    \
                    - [{request_headers: {header_name: x-api-key, descriptor_key: fixed}}]\n";
    std::fs::write(dir.join("limits.yaml"), LIMITS).unwrap();
    let limits = format!("limits: {{paths: [\"{}\"]}}\n", dir.join("limits.yaml").display());
    std::fs::write(dir.join("server.yaml"), limits + settings).unwrap();
    std::fs::write(dir.join("access.log"), log).unwrap();
    Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .args(["record", "--access-log", "access.log", "--settings", "server.yaml"])
        .args(["--out", "recording"])
        .args(flags)
        .current_dir(dir)
        .output()
        .unwrap()
}

#[test]
fn an_access_log_is_replayed_through_the_hooks() {
    let dir = tempfile::tempdir().unwrap();
    let line = r#"{"start_time": "2025-11-20T09:52:25.100Z", "x_api_key": "ann"}"#;
    let log = [[line; 9].join("\n"), "GET / 200".to_owned()].join("\n");
    let imported = import(dir.path(), &log, &[]);
    assert_eq!(text(&imported.stdout), "9 calls recorded in recording, 0 dropped\n");
    let warning = text(&imported.stderr);
    assert!(warning.contains("1 of 10 lines, the first is line 10: no JSON object"), "{warning}");
    let (recording, limits) = (dir.path().join("recording"), dir.path().join("limits.yaml"));
    let [recording, limits] = [&recording, &limits].map(|path| path.to_str().unwrap());
    let replayed = run(&["replay", "--from", recording, "--old", limits]);
    // A window of a second allows seven.
    assert!(text(&replayed.stdout).contains("old limits deny 2 (22.22 %)"));
    let unknown = import(dir.path(), &log, &["--hook", "other"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("--hook other: the setting hooks has no such hook"));
    let empty = import(dir.path(), "GET / 200\n", &["--keys", "clear"]);
    assert!(empty.status.code() == Some(2) && text(&empty.stderr).contains("no usable line"));
}
