//! Replays recorded envoyproxy/ratelimit calls against the real binary (`docs/verify-compatibility.md`).
//!
//! Guarantees:
//! - Every scenario starts a new process, once with memory and once with Redis.
//! - With Redis, the process runs as `ratelimit` with the recorded environment variables.
//! - Results of loads, responses, headers and statuses match the recording.
//! - After the last call, metrics and the counters in Redis match the recording.
//! - Passed scenarios per group never fall below `pinned.txt` and `pinned_redis.txt`.

mod expected;
mod flags;
mod message;
mod metrics;
mod mirror;
mod replay;
mod runner;
mod store;
mod tally;
mod vectors;
pub mod wire;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use replay::{Outcome, Report, replay};
use store::RecordedStore;
use tally::Tally;
use vectors::{Group, Scenario};

use crate::support::redis::Redis;
use crate::support::waiting::for_a_day_with_a_minute_left;

/// Scenario groups that only test behavior with Redis.
const STORE_ONLY: [&str; 9] = [
    "generated_cache",
    "generated_metrics",
    "generated_stop",
    "local_cache",
    "prometheus",
    "rlconfig",
    "stats",
    "stop_mode",
    "store_commands",
];

/// The scenario group that needs no store, so it is replayed only with memory.
const MEMORY_ONLY: &str = "bad_configs";

/// Number of concurrent processes: more than cores, because a starting process mostly waits.
const WORKERS: usize = 4;

#[test]
fn recorded_responses_are_reproduced_with_the_memory_store() {
    replay_over(None, include_str!("pinned.txt"), "pinned.txt");
}

#[test]
fn recorded_responses_and_counters_are_reproduced_with_redis() {
    let redis = Redis::start();
    replay_over(Some(&redis), include_str!("pinned_redis.txt"), "pinned_redis.txt");
}

fn replay_over(redis: Option<&Redis>, pinned: &str, pins: &str) {
    let groups = vectors::read(&vectors::directory());
    let reports = replay_all(&groups, redis);
    let differs = deliberate_differences(redis.is_some());
    let mut summary = Summary { is_stored: redis.is_some(), ..Summary::default() };
    for (group, scenario, report) in &reports {
        summary.add(group, scenario, report, differs.get(&scenario.id));
    }
    let text = summary.text();
    // Writes to stdout directly, because the test harness hides `print!` output of passed tests.
    std::io::stdout().lock().write_all(text.as_bytes()).unwrap();
    assert!(!reports.is_empty(), "COMPAT_ONLY names no group and no scenario");
    summary.assert_pins(pinned, pins);
}

type Replayed<'a> = (&'a str, &'a Scenario, Report);

fn replay_all<'g>(groups: &'g [Group], redis: Option<&Redis>) -> Vec<Replayed<'g>> {
    let only = std::env::var("COMPAT_ONLY").ok();
    let is_wanted = |group: &Group, scenario: &Scenario| {
        only.as_ref().is_none_or(|only| *only == group.name || *only == scenario.id)
    };
    let wanted: Vec<(&Group, &Scenario)> = groups
        .iter()
        .flat_map(|group| group.scenarios.iter().map(move |scenario| (group, scenario)))
        .filter(|(group, scenario)| is_wanted(group, scenario))
        .collect();
    let next = AtomicUsize::new(0);
    let reports = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let store = redis.map(|redis| RecordedStore::of(redis, worker));
            let (wanted, next, reports) = (&wanted, &next, &reports);
            scope.spawn(move || work(wanted, next, reports, store.as_ref()));
        }
    });
    let reports = reports.into_inner().unwrap();
    reports.into_iter().map(|(at, report)| (&*wanted[at].0.name, wanted[at].1, report)).collect()
}

fn work(
    wanted: &[(&Group, &Scenario)],
    next: &AtomicUsize,
    reports: &Mutex<BTreeMap<usize, Report>>,
    store: Option<&RecordedStore>,
) {
    // A worker thread answers HTTP/2 pings between calls, because the server closes a connection
    // after two seconds without a ping reply.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let Some((group, scenario)) = wanted.get(at) else { return };
        let report = if is_not_yet(&group.name, store) {
            Report::of(Outcome::NotYet("the group"))
        } else {
            for_a_day_with_a_minute_left();
            replay(scenario, &runtime, store)
        };
        reports.lock().unwrap().insert(at, report);
    }
}

fn is_not_yet(group: &str, store: Option<&RecordedStore>) -> bool {
    match store {
        None => STORE_ONLY.contains(&group),
        Some(_) => group == MEMORY_ONLY,
    }
}

/// Reads the deliberate differences from `differs.txt`, each with its reason. Lines with `memory`
/// apply only to the replay with the memory store.
fn deliberate_differences(is_stored: bool) -> BTreeMap<String, String> {
    let lines = include_str!("differs.txt").lines().filter(|line| !line.starts_with('#'));
    let of_memory = lines.clone().filter_map(|line| line.strip_prefix("memory "));
    let of_both = lines.filter(|line| !line.starts_with("memory "));
    of_both
        .chain(of_memory.filter(|_| !is_stored))
        .filter_map(|line| line.split_once(' '))
        .map(|(id, reason)| (id.to_owned(), reason.trim().to_owned()))
        .collect()
}

/// Results of a replay, for the printed summary and the assertion.
#[derive(Default)]
struct Summary {
    is_stored: bool,
    tallies: BTreeMap<String, Tally>,
    failures: Vec<String>,
    notes: Vec<String>,
    agrees_after_all: Vec<String>,
    advice: usize,
    not_compared: BTreeMap<&'static str, usize>,
    not_yet: BTreeMap<&'static str, usize>,
}

impl Summary {
    fn add(&mut self, group: &str, scenario: &Scenario, report: &Report, differs: Option<&String>) {
        let tally = self.tallies.entry(group.to_owned()).or_default();
        let id = &scenario.id;
        let is_defect = group == "defects" || scenario.defect.is_some();
        match (&report.outcome, differs) {
            (Outcome::NotYet(reason), _) => {
                tally.not_yet += 1;
                *self.not_yet.entry(reason).or_default() += 1;
            }
            (outcome, _) if is_defect => {
                tally.information += 1;
                self.notes.push(information(scenario, outcome));
            }
            (Outcome::Passed, None) => tally.passed += 1,
            (Outcome::Passed, Some(_)) => {
                tally.passed += 1;
                self.agrees_after_all.push(id.clone());
            }
            (Outcome::Failed(why), Some(reason)) => {
                tally.differs += 1;
                self.notes.push(format!("{id} differs: {reason} ({why})"));
            }
            (Outcome::Failed(why), None) => {
                tally.failed += 1;
                self.failures.push(format!("{id} ({}): {why}", scenario.name));
            }
        }
        self.advise(scenario, report);
    }

    fn advise(&mut self, scenario: &Scenario, report: &Report) {
        self.advice += report.advice.len();
        if std::env::var_os("COMPAT_ADVICE").is_some() {
            self.notes.extend(report.advice.iter().map(|it| format!("{} {it}", scenario.id)));
        }
        if matches!(report.outcome, Outcome::NotYet(_)) {
            return;
        }
        let has = |field: fn(&vectors::Step) -> bool| scenario.steps.iter().any(field);
        for (what, is_recorded) in [
            ("metrics", !self.is_stored && scenario.metrics.is_some()),
            ("store", !self.is_stored && scenario.store.is_some()),
            ("commands", !self.is_stored && has(|step| step.commands.is_some())),
            ("prometheus", !self.is_stored && scenario.prometheus.is_some()),
            ("debug lines", !self.is_stored && has(|step| step.lines.is_some())),
        ] {
            *self.not_compared.entry(what).or_default() += usize::from(is_recorded);
        }
    }

    fn text(&self) -> String {
        let mut text = String::from("\n");
        for note in &self.notes {
            let _ = writeln!(text, "note    {note}");
        }
        let _ = writeln!(text, "\n{}", tally::table(&self.tallies));
        let _ = writeln!(text, "not yet: {}", counted(&self.not_yet));
        let _ = writeln!(text, "replayed, but not compared yet: {}", counted(&self.not_compared));
        let _ = writeln!(
            text,
            "refusals of the right file that quote another piece or line: {} \
             (COMPAT_ADVICE=1 lists them)\n",
            self.advice
        );
        // Failures are printed last, because readers of a long log start at its end.
        for failure in &self.failures {
            let _ = writeln!(text, "FAILED  {failure}");
        }
        text
    }

    /// Asserts the pinned numbers of passes; for other vector directories, asserts no failure.
    fn assert_pins(&self, pinned: &str, file: &str) {
        let is_ours = std::env::var_os("COMPAT_VECTORS").is_none();
        let is_all = std::env::var_os("COMPAT_ONLY").is_none();
        if !is_ours || !is_all {
            assert!(self.failures.is_empty(), "{} scenarios failed", self.failures.len());
            return;
        }
        let [regressions, improvements] = tally::compare(&tally::pins(pinned), &self.tallies);
        if !improvements.is_empty() {
            let raise =
                format!("tests/compat/{file} may be raised:\n{}\n", improvements.join("\n"));
            std::io::stdout().lock().write_all(raise.as_bytes()).unwrap();
        }
        assert!(regressions.is_empty(), "fewer passes than pinned: {regressions:?}");
        let agrees = &self.agrees_after_all;
        assert!(agrees.is_empty(), "listed in differs.txt, but they pass: {agrees:?}");
    }
}

fn counted(counts: &BTreeMap<&str, usize>) -> String {
    let counts = counts.iter().filter(|(_, count)| 0 < **count);
    counts.map(|(what, count)| format!("{what} ({count})")).collect::<Vec<_>>().join(", ")
}

fn information(scenario: &Scenario, outcome: &Outcome) -> String {
    let defect = scenario.defect.as_deref().unwrap_or("odd");
    let note = scenario.note.as_deref().unwrap_or(&scenario.name);
    let came = match outcome {
        Outcome::Failed(why) => why,
        Outcome::Passed if scenario.process_dies => "answered and alive",
        _ => "answered as recorded",
    };
    format!("{} {defect} ({note}): {came}", scenario.id)
}
