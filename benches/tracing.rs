//! What tracing costs while nobody collects: the service as it is shipped against one that has no spans at all.
//!
//! `cargo bench --bench tracing` builds the second, with the feature `no_spans`, and asks both the same questions by the gRPC service's
//! own handler, from the bytes of the message to the reply, counters in memory, one thread: without the transport around it, what
//! surrounds the spans is the least that it can be. Instructions are
//! counted by valgrind (Debian's), which does not mind what else the machine does: those of many questions less those of few, so
//! that starting counts for nothing. CPU times are taken in turns and are as good as the machine is idle: their standard error is printed.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message as _;
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::edge::Reporting;
use sluicegate::edge::grpc::arrival::arrived;
use sluicegate::edge::grpc::rls::RateLimits;
use sluicegate::engine::{Engine, Policy};
use sluicegate::kernel::units::Revision;
use tonic::metadata::MetadataMap;

/// As in the binary.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                      rate_limit: {requests_per_unit: 4000000000, unit: day}\n";
const FEW: u64 = 1_000;
const MANY: u64 = 51_000;
/// Questions of one turn, and how many turns.
const ASKED: u64 = 400_000;
const TURNS: usize = 41;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|one| one == "ask") {
        let number = |by: usize| arguments[at + by].parse::<u64>().unwrap();
        return ask(number(1), number(2));
    }
    let (with, without) = (std::env::current_exe().unwrap(), without_spans());
    for descriptors in [1, 3] {
        println!("one question, {descriptors} descriptor(s), nobody collects");
        instructions(&with, &without, descriptors);
        times(&with, &without, descriptors);
    }
}

/// Asks so often, and prints the nanoseconds on a processor.
fn ask(questions: u64, descriptors: u64) {
    let backend = Arc::new(Memory::new(1_000, WhenFull::Deny, [7; 16]));
    let engine = Arc::new(Engine::new(Clock::system(), backend, Policy::default()));
    let (config, _) = load([("shop.yaml", LIMITS.as_bytes())], Revision(1), false).unwrap();
    engine.publish(Arc::new(config));
    let service = RateLimits::new(engine, Reporting::default());
    let message = question(descriptors).encode_to_vec();
    let before = on_processor();
    for _ in 0..questions {
        let request = arrived(&message).unwrap().unwrap();
        let mut headers = MetadataMap::new();
        headers.insert("te", "trailers".parse().unwrap());
        headers.insert("grpc-timeout", "20m".parse().unwrap());
        let mut call = pin!(service.answer(&headers, request));
        let Poll::Ready(reply) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("memory answers at once")
        };
        std::hint::black_box(reply.unwrap());
    }
    println!("{}", on_processor() - before);
}

fn question(descriptors: u64) -> RateLimitRequest {
    let descriptor = |n| {
        let entry = Entry { key: "api_key".into(), value: format!("client-{n:04}") };
        RateLimitDescriptor { entries: vec![entry], ..Default::default() }
    };
    let descriptors = (0..descriptors).map(descriptor).collect();
    RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 1 }
}

/// Nanoseconds that this process spent on a processor.
fn on_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// This bench without spans, built now if it was not.
fn without_spans() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["bench", "--locked", "--bench", "tracing", "--features", "no_spans", "--no-run"]);
    let out = cargo.arg("--message-format=json").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8(out.stdout).unwrap();
    let executable = |line: &str| {
        let said: serde_json::Value = serde_json::from_str(line).ok()?;
        // The service's own program is built with it.
        let its = said["executable"].as_str().filter(|_| said["target"]["name"] == "tracing");
        its.map(PathBuf::from)
    };
    lines.lines().find_map(executable).unwrap()
}

fn instructions(with: &Path, without: &Path, descriptors: u64) {
    let each = |exe: &Path| {
        let count = |questions| counted(exe, questions, descriptors);
        Some((count(MANY)? - count(FEW)?) as f64 / (MANY - FEW) as f64)
    };
    let (Some(with), Some(without)) = (each(with), each(without)) else {
        return println!("  no valgrind here: instructions were not counted");
    };
    let more = (with / without - 1.0) * 100.0;
    println!("  instructions        {with:>9.1}   without spans {without:>9.1}   {more:>+7.3} %");
}

/// The instructions of a process that asks so often, if valgrind is here.
fn counted(exe: &Path, questions: u64, descriptors: u64) -> Option<u64> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(exe);
    let out = valgrind.args(["ask", &questions.to_string(), &descriptors.to_string()]).output();
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
    let mut turns: Vec<(f64, f64)> = (0..TURNS).map(|_| (time(with), time(without))).collect();
    let ratios: Vec<f64> = turns.iter().map(|(with, without)| with / without - 1.0).collect();
    let mean = ratios.iter().sum::<f64>() / TURNS as f64;
    let spread = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>();
    let error = (spread / (TURNS - 1) as f64 / TURNS as f64).sqrt();
    turns.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!(
        "  CPU time            {:>6.0} ns   {:+.2} % ± {:.2} (mean of {TURNS} turns, one standard error)",
        turns[TURNS / 2].0,
        mean * 100.0,
        error * 100.0
    );
}
