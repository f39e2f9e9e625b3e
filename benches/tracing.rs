//! The cost of tracing without a collector: the shipped service against a build without spans. And
//! the cost of the log line of a check, by the level of the log.
//!
//! `cargo bench --bench tracing` builds the second one with the feature `no_spans`. `-- handler`,
//! `-- service` and `-- lines` run one part each.
//!
//! The part `lines` counts the instructions of the handler without a log, at `info` and at `debug`.
//! It fails if the level `info` adds more than some comparisons of levels.
//!
//! The first half measures the gRPC handler alone, from the bytes of a message to the reply. It
//! uses one thread and counters in memory. Without a transport, spans are the largest possible
//! part of the work.
//! - Instructions: counted by valgrind (Debian's), which other load on the machine does not affect.
//!   A short run is subtracted from a long run, so startup does not count.
//! - CPU times: measured in turns, with their standard error. They need an idle machine.
//!
//! The second half measures the whole service in its own process over gRPC, as in `wire`. Both
//! builds run at the same time and get a few checks in turn, so other load on the machine affects
//! both. The processes are restarted a number of times, because their memory layout affects the
//! CPU time a little. Last, the build without spans is compared with itself: the difference is
//! measurement error.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]

#[path = "support/service.rs"]
mod service;

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use prost::Message as _;
use sluicegate::cli::{self, Terminal};
use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::grpc::rls::RateLimitService;
use sluicegate::edge::grpc::rls_codec::decode_request;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tonic::metadata::MetadataMap;

use service::{ARGUMENTS, LIMITS, Server, on_processor, question, tokio};

/// The binary's allocator.
#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const PARTS: [&str; 3] = ["handler", "service", "lines"];

/// The most instructions that the level `info` may add to a check: some comparisons of levels.
const MAX_ADDED: f64 = 16.0;

const FEW: u64 = 1_000;
const MANY: u64 = 51_000;
/// Checks per turn, and the number of turns.
const ASKED: u64 = 400_000;
const TURNS: usize = 41;
/// Checks per turn of a service, turns per start, and the number of starts.
const CALLS: u64 = 10_000;
const SERVED: usize = 21;
const STARTS: usize = 30;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|one| one == "ask") {
        let number = |by: usize| arguments[at + by].parse::<u64>().unwrap();
        start_log(arguments.get(at + 3).map(String::as_str));
        return ask(number(1), number(2));
    }
    if arguments.get(1).is_some_and(|first| first == "serve") {
        return serve();
    }
    let is_all = !PARTS.iter().any(|part| arguments.iter().any(|one| one == part));
    let runs = |part: &str| is_all || arguments.iter().any(|one| one == part);
    let with = std::env::current_exe().unwrap();
    if runs("lines") {
        println!("the log line of a check");
        for descriptors in [1, 3] {
            lines(&with, descriptors);
        }
    }
    if runs("handler") || runs("service") {
        spans(&with, &without_spans(), runs);
    }
}

fn spans(with: &Path, without: &Path, runs: impl Fn(&str) -> bool) {
    for descriptors in [1, 3].into_iter().filter(|_| runs("handler")) {
        println!("one question, {descriptors} descriptor(s), nobody collects");
        instructions(with, without, descriptors);
        times(with, without, descriptors);
    }
    if runs("service") {
        println!("the whole service, asked over gRPC, nobody collects");
        services("with spans", with, without);
        services("without, against itself", without, without);
    }
}

/// Starts a log of this level whose lines are discarded.
fn start_log(level: Option<&str>) {
    if let Some(level) = level.and_then(|level| level.parse::<tracing::Level>().ok()) {
        tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::sink).init();
    }
}

/// Runs the service with this process's arguments.
fn serve() {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let mut terminal = Terminal { out: &mut out, err: &mut err };
    let _ = cli::run(std::env::args_os().collect(), std::env::vars_os(), &mut terminal);
}

/// Decides this many checks and prints the CPU time in nanoseconds.
fn ask(questions: u64, descriptors: u64) {
    let backend = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]));
    // The system clock reads the vDSO, which valgrind hides.
    let clock = Clock::manual(Nanos::from_secs(1_767_225_600));
    let engine = Arc::new(Engine::new(clock, backend, DecisionPolicy::default()));
    let (config, _) = load([("shop.yaml", LIMITS.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    let service = RateLimitService::new(engine, ReplyOptions::default());
    let message = question(descriptors).encode_to_vec();
    let this = Path::new("/proc/self/schedstat");
    let before = on_processor(this);
    for _ in 0..questions {
        let request = decode_request(&message).unwrap().unwrap();
        let mut headers = MetadataMap::new();
        headers.insert("te", "trailers".parse().unwrap());
        headers.insert("grpc-timeout", "20m".parse().unwrap());
        let mut call = pin!(service.decide_call(&headers, request));
        let Poll::Ready(reply) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("memory answers at once")
        };
        std::hint::black_box(reply.unwrap());
    }
    println!("{}", on_processor(this) - before);
}

/// The path of this bench without spans, built if necessary.
fn without_spans() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    let allocator = if cfg!(feature = "jemalloc") { ",jemalloc" } else { "" };
    let features = format!("no_spans{allocator}");
    cargo.args(["bench", "--locked", "--bench", "tracing", "--features", &features, "--no-run"]);
    let out = cargo.arg("--message-format=json").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8(out.stdout).unwrap();
    let executable = |line: &str| {
        let said: serde_json::Value = serde_json::from_str(line).ok()?;
        // Cargo also builds the service's binary.
        let its = said["executable"].as_str().filter(|_| said["target"]["name"] == "tracing");
        its.map(PathBuf::from)
    };
    lines.lines().find_map(executable).unwrap()
}

fn instructions(with: &Path, without: &Path, descriptors: u64) {
    let each = |exe: &Path| instructions_per_check(exe, descriptors, "off");
    let (Some(with), Some(without)) = (each(with), each(without)) else {
        return println!("  no valgrind here: instructions were not counted");
    };
    let more = (with / without - 1.0) * 100.0;
    println!("  instructions        {with:>9.1}   without spans {without:>9.1}   {more:>+7.3} %");
}

/// Prints how many instructions a check takes without a log, and how many each level adds.
fn lines(exe: &Path, descriptors: u64) {
    let [off, info, debug] =
        ["off", "info", "debug"].map(|level| instructions_per_check(exe, descriptors, level));
    let (Some(off), Some(info), Some(debug)) = (off, info, debug) else {
        return println!("  no valgrind here: instructions were not counted");
    };
    let (info, debug) = (info - off, debug - off);
    println!(
        "  {descriptors} descriptor(s): {off:>9.1} instructions; info {info:+.2}, debug {debug:+.1}"
    );
    assert!(info.abs() < MAX_ADDED, "the level info adds {info} instructions");
}

fn instructions_per_check(exe: &Path, descriptors: u64, level: &str) -> Option<f64> {
    let count = |questions| counted(exe, (questions, descriptors), level);
    Some((count(MANY)? - count(FEW)?) as f64 / (MANY - FEW) as f64)
}

/// Counts the instructions of a process with valgrind; `None` if it is not installed.
fn counted(exe: &Path, (questions, descriptors): (u64, u64), level: &str) -> Option<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(exe);
    let out =
        valgrind.args(["ask", &questions.to_string(), &descriptors.to_string(), level]).output();
    let said = String::from_utf8(out.ok()?.stderr).unwrap();
    let line = said.lines().find_map(|line| line.split_once("Collected : "));
    Some(line.unwrap_or_else(|| panic!("{said}")).1.trim().parse().unwrap())
}

fn times(with: &Path, without: &Path, descriptors: u64) {
    let time = |exe: &Path| {
        let (asked, descriptors) = (ASKED.to_string(), descriptors.to_string());
        let out = Command::new(exe).args(["ask", &asked, &descriptors]).output().unwrap();
        String::from_utf8(out.stdout).unwrap().trim().parse::<u64>().unwrap() as f64 / ASKED as f64
    };
    let turns: Vec<(f64, f64)> =
        (0..TURNS).map(|n| turn(n, || time(with), || time(without))).collect();
    let (mean, error) = mean_and_error(turns.iter().map(|(with, without)| with / without - 1.0));
    println!(
        "  CPU time            {:>6.0} ns   {mean:+.2} % ± {error:.2} (mean of {TURNS} turns, one standard error)",
        median(turns.iter().map(|turn| turn.0)),
    );
}

fn services(what: &str, first: &Path, second: &Path) {
    let (dir, client) = (tempfile::tempdir().unwrap(), tokio(1));
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let start = |exe: &Path| {
        let mut command = Command::new(exe);
        Server::start(command.args(ARGUMENTS).arg("--limits-paths").arg(dir.path()))
    };
    let takes = |server: &Server| client.block_on(server.cpu_per_call(CALLS));
    let compared = |_| {
        let (first, second) = (start(first), start(second));
        takes(&first);
        takes(&second);
        let turns = (0..SERVED).map(|n| turn(n, || takes(&first), || takes(&second)));
        let turns: Vec<(f64, f64)> = turns.collect();
        let of = |what: fn(&(f64, f64)) -> f64| median(turns.iter().map(what));
        (of(|turn| turn.0), of(|turn| turn.0 / turn.1 - 1.0))
    };
    let starts: Vec<(f64, f64)> = (0..STARTS).map(compared).collect();
    let (mean, error) = mean_and_error(starts.iter().map(|start| start.1));
    println!(
        "  {what:<24}{:>6.0} ns   {mean:+.2} % ± {error:.2} (mean of {STARTS} starts' medians of {SERVED} turns, one standard error)",
        median(starts.iter().map(|start| start.0)),
    );
}

/// Measures both. Every second turn starts with `second`.
fn turn(n: usize, first: impl Fn() -> f64, second: impl Fn() -> f64) -> (f64, f64) {
    if n.is_multiple_of(2) {
        return (first(), second());
    }
    let second = second();
    (first(), second)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Mean and standard error in percent.
fn mean_and_error(ratios: impl Iterator<Item = f64>) -> (f64, f64) {
    let ratios: Vec<f64> = ratios.map(|ratio| ratio * 100.0).collect();
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let spread = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>();
    (mean, (spread / (count - 1.0) / count).sqrt())
}
