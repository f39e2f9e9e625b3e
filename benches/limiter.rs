//! Acquire and release of a permit: nanoseconds, allocations, and 64 tasks on one bucket.
//!
//! `cargo bench --bench limiter`. The bounds: a pair within 300 ns and 0 allocations where nobody
//! else is; 64 tasks on one bucket exactly at the ceiling, at 2 million pairs a second on 2 cores.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use divan::{AllocProfiler, Bencher, black_box};
use parking_lot::Mutex;
use sluicegate::clock::Clock;
use sluicegate::engine::admit::{Admission, Ask};
use sluicegate::kernel::concurrency::limiter::{Effect, Event, Limiter, Rules};
use sluicegate::kernel::concurrency::policy::{Adaptive, Law};
use sluicegate::kernel::concurrency::{Outcome, Permit};
use sluicegate::kernel::units::{Nanos, Revision};

#[global_allocator]
static ALLOC: AllocProfiler = AllocProfiler::system();

const TASKS: u32 = 64;
const PAIRS: u32 = 50_000;
const CEILING: u32 = 16;
/// One pair of so many is held while others run.
const HELD: u32 = 16;

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

/// 64 tasks on 2 threads, one bucket, by the way that requests take: how fast, and is the ceiling reached and nobody
/// ever above it? Each holds its place while others run once in [`HELD`] pairs.
fn contend() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let admission = Arc::new(Admission::new(Arc::new(Clock::system()), 10, 0));
    let (within, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let began = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (admission, within, most) = (admission.clone(), within.clone(), most.clone());
            runtime.spawn(async move {
                let mut pairs = 0;
                while pairs < PAIRS {
                    let Ok(held) = admission.acquire(ask()).await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    most.fetch_max(within.fetch_add(1, SeqCst) + 1, SeqCst);
                    pairs += 1;
                    if pairs % HELD == 0 {
                        tokio::task::yield_now().await;
                    }
                    within.fetch_sub(1, SeqCst);
                    assert!(held.release(Outcome::Success, None));
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    let rate = f64::from(TASKS * PAIRS) / began.elapsed().as_secs_f64();
    assert_eq!(most.load(SeqCst), CEILING, "the ceiling is reached, and never exceeded");
    assert_eq!(admission.load(BUCKET).unwrap().in_flight, 0);
    println!(
        "64 tasks, one bucket: {:.2} million pairs/s, at most {CEILING} in flight",
        rate / 1e6
    );
}

const BUCKET: &[u8] = b"bucket";

fn ask() -> Ask<'static> {
    const RULES: Rules = Rules::fixed(CEILING);
    let (keep, patience) = (Some(Nanos::from_secs(60)), Nanos(0));
    Ask { bucket: BUCKET, revision: Revision(1), rules: &RULES, keep, patience, shared: None }
}

/// The way that requests take, where nobody else is.
#[divan::bench]
fn by_the_door(bencher: Bencher<'_, '_>) {
    let admission = Admission::new(Arc::new(Clock::system()), 10, 0);
    let pass = || {
        let mut asked = pin!(admission.acquire(black_box(ask())));
        let Poll::Ready(held) = asked.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nobody is in the way");
        };
        held.unwrap().release(Outcome::Success, None)
    };
    // The first makes the bucket.
    assert!(pass());
    bencher.bench_local(pass);
}
