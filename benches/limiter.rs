//! Acquire and release of a permit: nanoseconds, allocations, and 64 tasks on one bucket.
//!
//! `cargo bench --bench limiter`. The bounds: a pair within 300 ns and 0 allocations where nobody
//! else is; 64 tasks on one bucket never above the ceiling, at 2 million pairs a second on 2 cores.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Instant;

use divan::{AllocProfiler, Bencher, black_box};
use parking_lot::Mutex;
use sluicegate::kernel::concurrency::limiter::{Effect, Event, Limiter, Rules};
use sluicegate::kernel::concurrency::policy::{Adaptive, Law};
use sluicegate::kernel::concurrency::{Outcome, Permit};
use sluicegate::kernel::units::Nanos;

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

const TASKS: u32 = 64;
const PAIRS: u32 = 50_000;
const CEILING: u32 = 16;

fn main() {
    divan::main();
    contend();
}

fn pair(limiter: &mut Limiter, now: Nanos, keep: Option<Nanos>) {
    if let Some(permit) = acquire(limiter, now, keep) {
        release(limiter, now, permit);
    }
}

fn acquire(limiter: &mut Limiter, now: Nanos, keep: Option<Nanos>) -> Option<Permit> {
    match limiter.step(now, Event::Arrive { keep, patience: Nanos(0) })[..] {
        [Effect::Admit(permit)] => Some(permit),
        _ => None,
    }
}

fn release(limiter: &mut Limiter, now: Nanos, permit: Permit) {
    let leave = Event::Leave { permit, outcome: Outcome::Success, rtt: None };
    black_box(limiter.step(now, leave));
}

fn pairs(bencher: Bencher<'_, '_>, adaptive: Option<Law>, keep: Option<Nanos>) {
    let adaptive = adaptive.map(|law| Adaptive { law, min: 8, max: 512 });
    let limiter = Mutex::new(Limiter::new(&Rules { adaptive, ..Rules::fixed(64) }, 0));
    let mut now = Nanos::SECOND;
    bencher.bench_local(|| {
        now = now.plus(Nanos::MICRO);
        pair(&mut limiter.lock(), black_box(now), keep);
    });
}

#[divan::bench]
fn stream_static(bencher: Bencher<'_, '_>) {
    pairs(bencher, None, None);
}

#[divan::bench(args = [Law::Gradient, Law::Gradient2, Law::Aimd])]
fn stream_adaptive(bencher: Bencher<'_, '_>, law: Law) {
    pairs(bencher, Some(law), None);
}

#[divan::bench]
fn with_a_deadline(bencher: Bencher<'_, '_>) {
    pairs(bencher, Some(Law::Gradient), Some(Nanos::from_secs(60)));
}

/// 64 tasks on 2 threads, one bucket: how fast, and is anybody ever above the ceiling?
fn contend() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let limiter = Arc::new(Mutex::new(Limiter::new(&Rules::fixed(CEILING), 0)));
    let (within, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let began = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limiter, within, most) = (limiter.clone(), within.clone(), most.clone());
            runtime.spawn(async move {
                for turn in 0..PAIRS {
                    let now = Nanos(u64::from(turn));
                    let Some(permit) = acquire(&mut limiter.lock(), now, None) else { continue };
                    most.fetch_max(within.fetch_add(1, SeqCst) + 1, SeqCst);
                    within.fetch_sub(1, SeqCst);
                    release(&mut limiter.lock(), now, permit);
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    let rate = f64::from(TASKS * PAIRS) / began.elapsed().as_secs_f64();
    assert!(most.load(SeqCst) <= CEILING);
    assert_eq!(limiter.lock().in_flight(), 0);
    println!("64 tasks, one bucket: {:.2} million pairs/s", rate / 1e6);
}
