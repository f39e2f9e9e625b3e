//! What a profile costs while it is taken.
//!
//! `cargo bench --bench profile` asks one service the same questions with a profiler that looks at it and without, in turns, both of its threads
//! busy. The profiler is the one that the admin port starts. What is compared is what a question takes of the service's own processors and how long
//! all of them take; what the profiler takes is beside it.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

#[path = "support/service.rs"]
mod service;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use service::{ARGUMENTS, LIMITS, Server, on_processor, tokio};

/// Questions of one turn, and how many turns.
const CALLS: u64 = 40_000;
const TURNS: usize = 21;

/// Of one turn: nanoseconds of processors for a question, and of time for all.
struct Turn {
    cpu: f64,
    time: f64,
}

fn main() {
    let (dir, client) = (tempfile::tempdir().unwrap(), tokio(1));
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let server = Server::start(command.args(ARGUMENTS).arg("--limits").arg(dir.path()));
    let turn = || {
        let began = Instant::now();
        let cpu = client.block_on(server.cpu_per_call(CALLS));
        Turn { cpu, time: began.elapsed().as_nanos() as f64 }
    };
    turn();
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let without = turn();
        let mut profiler = looking_at(server.id());
        let before = taken(&profiler);
        let with = turn();
        let own = (taken(&profiler) - before) as f64 / with.time;
        profiler.kill().unwrap();
        profiler.wait().unwrap();
        turns.push((with.cpu / without.cpu, with.time / without.time, own, without.cpu));
    }
    println!("{TURNS} turns of {CALLS} questions, with a profiler and without: medians");
    println!("  a question without                  {:>8.1} us", median(&turns, |it| it.3) / 1e3);
    println!("  its own processors, with / without  {:>8.3}", median(&turns, |it| it.0));
    println!("  time, with / without                {:>8.3}", median(&turns, |it| it.1));
    println!("  the profiler, of one processor      {:>8.3}", median(&turns, |it| it.2));
}

/// A profiler that has begun to look.
fn looking_at(pid: u32) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(["profile", "--seconds", "300", "--pid", &pid.to_string()]);
    let mut profiler = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let memory = format!("/proc/{pid}/mem");
    let files = format!("/proc/{}/fd", profiler.id());
    let is_open = || {
        let files = std::fs::read_dir(&files).unwrap().flatten();
        files.filter_map(|file| file.path().read_link().ok()).any(|at| at == Path::new(&memory))
    };
    while !is_open() {
        assert!(profiler.try_wait().unwrap().is_none(), "it may not look");
        std::thread::yield_now();
    }
    profiler
}

fn taken(profiler: &Child) -> u64 {
    on_processor(Path::new(&format!("/proc/{}/schedstat", profiler.id())))
}

fn median(turns: &[(f64, f64, f64, f64)], of: fn(&(f64, f64, f64, f64)) -> f64) -> f64 {
    let mut values: Vec<f64> = turns.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
