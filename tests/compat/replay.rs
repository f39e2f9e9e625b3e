//! Replays one scenario in a new process and reports the first difference from the recording.

use std::path::{Path, PathBuf};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use prost::Message as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::expected::{difference, unit_seconds};
use super::store::{CommandMonitor, RecordedStore, commands_differ};
use super::vectors::{Http, Reload, Scenario, Step};
use super::wire::{Connection, SHOULD_RATE_LIMIT};
use super::{flags, message, metrics};
use crate::support::http1;
use crate::support::service::{Loads, Service};
use crate::support::waiting::{unix_seconds, until};

pub enum Outcome {
    Passed,
    /// The scenario failed. Contains the first difference from the recording.
    Failed(String),
    /// The scenario was skipped. Contains the reason, which may be the time of day.
    NotYet(&'static str),
}

pub struct Report {
    pub outcome: Outcome,
    /// Diagnostics that name the recorded file but another line or text; they fail no scenario.
    pub advice: Vec<String>,
}

impl Report {
    pub fn of(outcome: Outcome) -> Self {
        Self { outcome, advice: Vec::new() }
    }
}

pub fn replay(scenario: &Scenario, runtime: &Runtime, store: Option<&RecordedStore>) -> Report {
    let mut advice = Vec::new();
    let outcome = match not_yet(scenario, store) {
        Some(reason) => Outcome::NotYet(reason),
        None => match run(scenario, runtime, store, &mut advice) {
            Ok(()) => Outcome::Passed,
            Err(difference) => Outcome::Failed(difference),
        },
    };
    Report { outcome, advice }
}

fn not_yet(scenario: &Scenario, store: Option<&RecordedStore>) -> Option<&'static str> {
    if scenario.store_before.is_some() && store.is_none() {
        return Some("starts with counters in a store");
    }
    if scenario.steps.iter().any(|step| step.debug.is_some()) && store.is_none() {
        return Some("calls the debug port");
    }
    if store.is_none() && scenario.env.keys().any(|name| !flags::is_mapped(name)) {
        return Some("sets an environment variable without a flag");
    }
    let now = unix_seconds();
    let began = |unit: &String| now - now % unit_seconds(unit);
    let windows: Vec<u64> = scenario.distinct_windows.iter().map(began).collect();
    let is_distinct = windows.iter().all(|one| windows.iter().filter(|it| *it == one).count() == 1);
    (!is_distinct).then_some("its windows began together")
}

fn run(
    scenario: &Scenario,
    runtime: &Runtime,
    store: Option<&RecordedStore>,
    advice: &mut Vec<String>,
) -> Result<(), String> {
    let files = Files::new(scenario).map_err(|error| format!("placing the files: {error}"))?;
    let began = unix_seconds();
    let service = match store {
        None => Service::start(&files.limits, &flags::from_env(&scenario.env))?,
        Some(store) => {
            store.reset(scenario, began);
            start_ratelimit(scenario, &files, store)?
        }
    };
    if store.is_some() {
        RecordedStore::wait_until_ready(&service)?;
    }
    compare_load(&service.loads()?, 0, &scenario.load, advice)
        .map_err(|why| format!("load: {why}"))?;
    // A tonic channel spawns its tasks on the current runtime.
    let entered = runtime.enter();
    let connection = Connection::to(service.grpc);
    drop(entered);
    let stage = Stage { service, files, connection, runtime };
    let mut monitor = store.filter(|_| is_pinned_to_commands(scenario)).map(CommandMonitor::new);
    for (number, step) in scenario.steps.iter().enumerate() {
        let done = stage
            .perform(step, advice)
            .and_then(|()| compare_commands(step, monitor.as_mut(), began));
        done.map_err(|why| format!("step {}: {why}", number + 1))?;
    }
    if let Some(store) = store {
        store.compare_counters(scenario, began)?;
        metrics::compare(scenario, &stage.service)?;
    }
    let mut service = stage.service;
    if service.is_alive() { Ok(()) } else { Err(format!("the process died:\n{}", service.log())) }
}

/// Starts the binary as `ratelimit` with the scenario's environment variables.
fn start_ratelimit(
    scenario: &Scenario,
    files: &Files,
    store: &RecordedStore,
) -> Result<Service, String> {
    let (root, url) = (files.root.path().display().to_string(), store.url());
    let places = [
        ("RUNTIME_ROOT", &*root),
        ("RUNTIME_SUBDIRECTORY", "limits"),
        ("RUNTIME_APPDIRECTORY", ""),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("SLUICEGATE_STORE_URL", &*url),
        ("USE_STATSD", "false"),
        ("USE_PROMETHEUS", "true"),
    ];
    let own = scenario.env.iter().map(|(name, text)| (&**name, &**text));
    Service::start_as_ratelimit(&places.into_iter().chain(own).collect::<Vec<_>>())
}

fn is_pinned_to_commands(scenario: &Scenario) -> bool {
    scenario.steps.iter().any(|step| step.commands.is_some())
}

fn compare_commands(
    step: &Step,
    monitor: Option<&mut CommandMonitor>,
    began: u64,
) -> Result<(), String> {
    let (Some(recorded), Some(monitor)) = (&step.commands, monitor) else { return Ok(()) };
    let differs = commands_differ(recorded, &monitor.take_commands(), [began, unix_seconds()]);
    differs.map_or(Ok(()), Err)
}

/// The limits directory inside `root`. New files are written in `root` and moved by an atomic
/// rename.
struct Files {
    root: TempDir,
    limits: PathBuf,
}

impl Files {
    fn new(scenario: &Scenario) -> std::io::Result<Self> {
        let root = tempfile::tempdir()?;
        let limits = root.path().join("limits");
        std::fs::create_dir(&limits)?;
        let files = Self { root, limits };
        for (name, text) in &scenario.files {
            files.write(name, text.as_bytes())?;
        }
        for (name, encoded) in &scenario.files_base64 {
            files.write(name, &base64(encoded))?;
        }
        Ok(files)
    }

    fn write(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        let target = self.limits.join(name);
        std::fs::create_dir_all(target.parent().unwrap_or(Path::new("")))?;
        let prepared = self.root.path().join("prepared");
        std::fs::write(&prepared, content)?;
        std::fs::rename(prepared, target)
    }

    fn change(&self, reload: &Reload) -> std::io::Result<()> {
        for (name, text) in &reload.write {
            self.write(name, text.as_bytes())?;
        }
        reload.delete.iter().try_for_each(|name| std::fs::remove_file(self.limits.join(name)))
    }
}

struct Stage<'a> {
    service: Service,
    files: Files,
    connection: Connection,
    runtime: &'a Runtime,
}

impl Stage<'_> {
    fn perform(&self, step: &Step, advice: &mut Vec<String>) -> Result<(), String> {
        if let Some(http) = &step.http {
            return self.http(http, step);
        }
        if let Some(service) = &step.health {
            return self.health(service, step);
        }
        if let Some(reload) = &step.reload {
            return self.reload(reload, step, advice);
        }
        if let Some(path) = &step.debug {
            return self.debug(path, step);
        }
        let bytes = match (&step.request, &step.request_base64) {
            (Some(json), _) => message::request(json)?.encode_to_vec(),
            (None, Some(encoded)) => base64(encoded),
            (None, None) => return Err("a kind of step that is not known here".into()),
        };
        self.grpc(bytes, step)
    }

    fn grpc(&self, bytes: Vec<u8>, step: &Step) -> Result<(), String> {
        let method = step.grpc_method.as_deref().unwrap_or(SHOULD_RATE_LIMIT);
        let before = unix_seconds();
        let answer = self.runtime.block_on(self.connection.call(method, bytes));
        let when = before..=unix_seconds();
        let (response, headers) = match answer {
            Err(status) if step.response.as_ref().is_none_or(|it| it["grpc_code"].is_null()) => {
                return Err(format!("the call failed: {:?}: {}", status.code(), status.message()));
            }
            Err(status) => (failed(&status), None),
            Ok(bytes) => {
                let answer = RateLimitResponse::decode(&*bytes).map_err(|e| e.to_string())?;
                let (response, headers) = message::response(&answer);
                (response, Some(headers))
            }
        };
        compare("response", step.response.as_ref(), Some(&response), when.clone())?;
        compare("headers", step.headers.as_ref(), headers.as_ref(), when)
    }

    fn http(&self, http: &Http, step: &Step) -> Result<(), String> {
        let before = unix_seconds();
        let body = http.body.as_deref().map(str::as_bytes);
        let reply = http1::call(self.service.http, &http.method, &http.path, &[], body);
        let when = before..=unix_seconds();
        let Ok(reply) = reply else {
            return compare("status", step.status.as_ref(), Some(&json!("connection_lost")), when);
        };
        compare("status", step.status.as_ref(), Some(&json!(reply.status)), when.clone())?;
        if let Some(recorded) = &step.content_type {
            let came = json!(reply.header("content-type"));
            compare("content type", Some(&json!(recorded)), Some(&came), when.clone())?;
        }
        if step.response.is_none() {
            let recorded = step.body.as_ref().map(|body| json!(body));
            return compare("body", recorded.as_ref(), Some(&json!(reply.text())), when);
        }
        let answer = serde_json::from_slice(&reply.body)
            .map_err(|error| format!("body: {error}: {}", reply.text()))?;
        let (response, headers) = message::response_of_json(answer);
        compare("response", step.response.as_ref(), Some(&response), when.clone())?;
        compare("headers", step.headers.as_ref(), Some(&headers), when)
    }

    fn health(&self, service: &str, step: &Step) -> Result<(), String> {
        let answer = self.runtime.block_on(self.connection.health(service));
        let came = answer.map_or_else(|status| failed(&status), |name| json!(name));
        compare("answer", step.answer.as_ref(), Some(&came), 0..=0)
    }

    fn debug(&self, path: &str, step: &Step) -> Result<(), String> {
        let reply = http1::get(self.service.admin, path, &[]).map_err(|error| error.to_string())?;
        compare("status", step.status.as_ref(), Some(&json!(reply.status)), 0..=0)?;
        let mut lines: Vec<_> = reply.text().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        compare("lines", step.lines.as_ref(), Some(&json!(lines)), 0..=0)
    }

    fn reload(&self, reload: &Reload, step: &Step, advice: &mut Vec<String>) -> Result<(), String> {
        let before = self.service.loads()?;
        self.files.change(reload).map_err(|error| format!("changing files: {error}"))?;
        let after = until("a reload", || {
            let loads = self.service.loads()?;
            let is_new = before.loaded + before.refused < loads.loaded + loads.refused;
            if is_new { Ok(loads) } else { Err("neither loaded nor refused".into()) }
        })?;
        let load = step.load.as_ref().ok_or("a reload without its outcome")?;
        compare_load(&after, before.refused, load, advice)
    }
}

fn failed(status: &tonic::Status) -> Value {
    json!({"grpc_code": i32::from(status.code())})
}

/// Compares a value with the recorded one, if one was recorded.
fn compare(
    what: &str,
    recorded: Option<&Value>,
    came: Option<&Value>,
    when: std::ops::RangeInclusive<u64>,
) -> Result<(), String> {
    let Some(recorded) = recorded else { return Ok(()) };
    let came = came.unwrap_or(&Value::Null);
    difference(recorded, came, when).map_or(Ok(()), |it| Err(format!("{what}{it}")))
}

/// Compares the result of a load. `refused_before` is the count of earlier refusals.
fn compare_load(
    loads: &Loads,
    refused_before: u64,
    recorded: &Value,
    advice: &mut Vec<String>,
) -> Result<(), String> {
    let is_refused = refused_before < loads.refused;
    match (recorded.as_str(), is_refused) {
        (Some("ok"), false) if loads.last_error.is_null() => Ok(()),
        (Some("ok"), _) => Err(format!("refused with {}", loads.last_error)),
        (_, false) => {
            let why = &recorded["error_contains_substance"];
            Err(format!("accepted, though it must be rejected: {why}"))
        }
        (_, true) => compare_refusal(&loads.last_error, recorded, advice),
    }
}

/// Compares the diagnostic of a refused load: it must name the recorded file. Another line or text
/// only adds to `advice`.
fn compare_refusal(
    error: &Value,
    recorded: &Value,
    advice: &mut Vec<String>,
) -> Result<(), String> {
    let diagnostics = error["diagnostics"].as_array().cloned().unwrap_or_default();
    let mut suspects: Vec<&str> = recorded["file"].as_str().into_iter().collect();
    suspects
        .extend(recorded["file_any_of"].as_array().into_iter().flatten().filter_map(Value::as_str));
    let blamed = |diagnostic: &&Value| {
        let file = diagnostic["file"].as_str().unwrap_or_default();
        suspects.iter().any(|suspect| file == *suspect || file.ends_with(&format!("/{suspect}")))
    };
    let Some(diagnostic) = diagnostics.iter().find(blamed) else {
        return Err(format!("refused, but none of {suspects:?} is blamed: {error}"));
    };
    let all = error.to_string();
    let unquoted = |piece: &&Value| !piece.as_str().is_some_and(|piece| all.contains(piece));
    if let Some(piece) = recorded["mentions"].as_array().into_iter().flatten().find(unquoted) {
        advice.push(format!("{piece} is not mentioned: {all}"));
    }
    let line = &recorded["line"];
    let is_elsewhere = !diagnostics.iter().any(|diagnostic| diagnostic["line"] == *line);
    if recorded["kind"] == "type_mismatch" && !line.is_null() && is_elsewhere {
        advice.push(format!("line {} instead of {line}: {all}", diagnostic["line"]));
    }
    Ok(())
}

/// Decodes standard base64 without validation.
fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let digits: Vec<u8> = text.trim_end_matches('=').bytes().map(digit).collect();
    let decode = |four: &[u8]| {
        let bits = four.iter().fold(0_u32, |bits, digit| bits << 6 | u32::from(*digit));
        let bits = bits << (6 * (4 - four.len()) + 8);
        bits.to_be_bytes()[..four.len() - 1].to_vec()
    };
    digits.chunks(4).flat_map(decode).collect()
}

#[test]
fn base64_of_every_padding_is_decoded() {
    assert_eq!(base64("CgF4Cg=="), [10, 1, 0x78, 10]);
    assert_eq!(base64("Zm9vYmE="), b"fooba");
    assert_eq!(base64("//+A"), [255, 255, 128]);
}

#[test]
fn a_refused_load_must_name_the_recorded_file() {
    let recorded = json!({"file": "a.yaml", "mentions": ["bogus"]});
    let error = |file: &str| json!({"diagnostics": [{"file": file, "line": 1, "message": "?"}]});
    let mut advice = Vec::new();
    assert!(compare_refusal(&error("/x/b.yaml"), &recorded, &mut advice).is_err());
    assert!(compare_refusal(&error("/x/a.yaml"), &recorded, &mut advice).is_ok());
    assert_eq!(advice.len(), 1);
}
