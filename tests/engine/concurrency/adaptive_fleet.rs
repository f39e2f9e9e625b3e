//! Five adaptive replicas of one backend, compared with the best static limit of the fleet.
//!
//! The engines are real. They share an in-process store, and an event queue sets their clocks. The
//! backend has workers and a queue, its capacity changes, and demand is unlimited. The printed
//! table is in `benches/RESULTS.md`. It can include five replicas with independent local limits.
#![expect(clippy::print_stdout, reason = "the table is part of the proof")]
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a simulation's own numbers are small"
)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::fleet::reporter::{FleetReporter, SharePace};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine, Membership, RequestPermits};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tokio::runtime::Runtime;

use super::fleet::default_check;
use crate::support::dice::Dice;

const REPLICAS: usize = 5;
const SEED: u64 = 42;
/// The interval at which a replica sends its due reports.
const TICK: u64 = 50 * Nanos::MILLI.0;
/// The time to adapt to a new capacity: the fleet's limit changes every second heartbeat.
const RECOVERY: u64 = 20 * Nanos::SECOND.0;
const PHASE: u64 = 60 * Nanos::SECOND.0;
/// The backend's workers in each phase. A request takes 30 ms.
const PHASES: [(&str, usize); 3] = [("cold start", 16), ("x 4", 64), ("/ 4", 16)];
const SERVICE: u64 = 30 * Nanos::MILLI.0;
/// The candidates for the best static limit, as multiples of the workers.
const SEARCH: [f64; 8] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0];

/// The admission control under test.
enum Gate {
    /// One exact limit for all replicas together. No distributed limit can do better.
    Static(usize),
    Engines(Vec<Engine>, Runtime),
}

struct BackendRequest {
    replica: usize,
    admitted: u64,
    permits: RequestPermits,
}

struct BackendSimulation {
    gate: Gate,
    now: u64,
    dice: Dice,
    in_flight: usize,
    waiting: VecDeque<BackendRequest>,
    done: BinaryHeap<Reverse<(u64, usize)>>,
    at_work: Vec<Option<BackendRequest>>,
}

/// The results of a phase. All but `whole` exclude the recovery time.
#[derive(Clone, Copy, Debug)]
struct PhaseResult {
    goodput: f64,
    p99: f64,
    whole: f64,
    in_flight: f64,
}

fn engines(count: usize, mode: &str) -> Gate {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let text = format!(
        "domain: d\ndescriptors: [{{key: k, concurrency: {{limit: 10, adaptive: {{algorithm: gradient, min: 1, max: 1000}}, \
         mode: {mode}, max_duration: 10s}}}}]\n"
    );
    let of = |at: usize| {
        let clock = Clock::manual(Nanos::from_secs(1_000));
        let name = format!("replica-{at}");
        let membership = Arc::new(Membership::new(&name, 1, NonZeroU32::new(5).unwrap()));
        let patience = Duration::from_millis(1);
        let fleet =
            Arc::new(FleetReporter::new(membership, clock.now(), SharePace::default(), patience));
        let engine =
            Engine::new(clock, memory.clone(), DecisionPolicy::default()).with_fleet(fleet);
        let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
        engine.publish(Arc::new(config));
        engine
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    Gate::Engines((0..count).map(of).collect(), runtime)
}

impl Gate {
    fn replicas(&self) -> usize {
        if let Self::Engines(engines, _) = self { engines.len() } else { 1 }
    }

    fn advance(&self, by: u64) {
        let Self::Engines(engines, _) = self else { return };
        for engine in engines {
            let Clock::Manual(clock) = engine.clock() else { panic!() };
            clock.advance(Nanos(by));
        }
    }

    fn report(&self, replica: usize) {
        if let Self::Engines(engines, runtime) = self {
            runtime.block_on(engines[replica].report_once());
        }
    }

    fn admit(&self, replica: usize, in_flight: usize) -> Option<RequestPermits> {
        let (engines, runtime) = match self {
            Self::Static(ceiling) => return (in_flight < *ceiling).then(RequestPermits::default),
            Self::Engines(engines, runtime) => (engines, runtime),
        };
        let (engine, check) = (&engines[replica], default_check());
        let _within = runtime.enter();
        let admitted = engine.admit(&check, None).now_or_never().unwrap_or_else(|| {
            runtime.block_on(async {
                let mut asked = pin!(engine.admit(&check, None));
                tokio::select! {
                    biased;
                    admitted = &mut asked => admitted,
                    () = engine.report_once() => asked.await,
                }
            })
        });
        match admitted.unwrap() {
            AdmissionOutcome::Decided(answer, permits) if answer.verdict == Verdict::Allow => {
                Some(permits)
            }
            _ => None,
        }
    }
}

impl BackendSimulation {
    fn new(gate: Gate) -> Self {
        let (waiting, done, at_work) = (VecDeque::new(), BinaryHeap::new(), Vec::new());
        Self { gate, now: 0, dice: Dice::new(SEED), in_flight: 0, waiting, done, at_work }
    }

    fn phase(&mut self, workers: usize) -> PhaseResult {
        let began = self.now;
        let (mut served, mut load) = (Vec::new(), 0.0);
        let mut tick = self.now;
        for replica in 0..self.gate.replicas() {
            self.fill(replica);
        }
        while self.now < began + PHASE {
            self.work(workers);
            let next = self.done.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let at = next.min(tick + TICK);
            if began + RECOVERY <= self.now {
                load += self.in_flight as f64 * (at - self.now) as f64;
            }
            self.gate.advance(at - self.now);
            self.now = at;
            if next <= at {
                served.push(self.finish_next(began));
            } else {
                tick = at;
                for replica in 0..self.gate.replicas() {
                    self.gate.report(replica);
                    self.fill(replica);
                }
            }
        }
        summary(&served, load)
    }

    fn fill(&mut self, replica: usize) {
        while let Some(permits) = self.gate.admit(replica, self.in_flight) {
            self.in_flight += 1;
            self.waiting.push_back(BackendRequest { replica, admitted: self.now, permits });
        }
    }

    fn work(&mut self, workers: usize) {
        while self.done.len() < workers {
            let Some(request) = self.waiting.pop_front() else { return };
            let lasts = SERVICE * 4 / 5 + self.dice.up_to(SERVICE * 2 / 5);
            let place = self.at_work.iter().position(Option::is_none).unwrap_or_else(|| {
                self.at_work.push(None);
                self.at_work.len() - 1
            });
            self.at_work[place] = Some(request);
            self.done.push(Reverse((self.now + lasts, place)));
        }
    }

    /// Ends the next request. Returns its time in the phase and its latency.
    fn finish_next(&mut self, began: u64) -> (u64, u64) {
        let Reverse((_, place)) = self.done.pop().unwrap();
        let BackendRequest { replica, admitted, permits } = self.at_work[place].take().unwrap();
        permits.release(RequestOutcome::Success, None);
        self.in_flight -= 1;
        self.fill(replica);
        (self.now - began, self.now - admitted)
    }
}

fn summary(served: &[(u64, u64)], load: f64) -> PhaseResult {
    let (second, after) = (Nanos::SECOND.0 as f64, (PHASE - RECOVERY) as f64);
    let mut late: Vec<u64> =
        served.iter().filter(|(at, _)| RECOVERY <= *at).map(|it| it.1).collect();
    late.sort_unstable();
    PhaseResult {
        goodput: late.len() as f64 * second / after,
        p99: late.get(late.len() * 99 / 100).map_or(f64::INFINITY, |it| *it as f64),
        whole: served.len() as f64 * second / PHASE as f64,
        in_flight: load / after,
    }
}

fn run(gate: Gate) -> Vec<PhaseResult> {
    let mut simulation = BackendSimulation::new(gate);
    PHASES.iter().map(|(_, workers)| simulation.phase(*workers)).collect()
}

/// The results of each phase with its best static limit.
///
/// That is the smallest limit with 99 % of the highest goodput.
fn best() -> Vec<PhaseResult> {
    let of = |at: usize, part: f64| {
        let ceiling = (PHASES[at].1 as f64 * part) as usize;
        run(Gate::Static(ceiling))[at]
    };
    let best = |at: usize| {
        let tried: Vec<PhaseResult> = SEARCH.iter().map(|part| of(at, *part)).collect();
        let most = tried.iter().map(|got| got.goodput).fold(0.0, f64::max);
        *tried.iter().find(|got| 0.99 * most <= got.goodput).unwrap()
    };
    (0..PHASES.len()).map(best).collect()
}

#[test]
fn five_replicas_reach_95_percent_of_the_best_static_limit() {
    let best = best();
    println!("| phase | who | goodput of best | p99 of best | whole phase | in flight (best) |");
    println!("|---|---|---|---|---|---|");
    let together = run(engines(REPLICAS, "shared"));
    print_rows("five, together", &together, &best);
    // Each comparison takes half a minute in a debug build.
    if std::env::var_os("SLUICEGATE_FLEET_TABLE").is_some() {
        print_rows("five, each alone", &run(engines(REPLICAS, "local")), &best);
        print_rows("one replica", &run(engines(1, "local")), &best);
    }
    for ((phase, _), (got, best)) in PHASES.iter().zip(together.iter().zip(&best)) {
        assert!(0.95 * best.goodput <= got.goodput, "{phase}: {got:?}, best {best:?}");
        assert!(got.p99 <= 2.0 * best.p99, "{phase}: {got:?}, best {best:?}");
    }
}

fn print_rows(label: &str, got: &[PhaseResult], best: &[PhaseResult]) {
    for ((phase, _), (got, best)) in PHASES.iter().zip(got.iter().zip(best)) {
        let (goodput, p99) = (got.goodput / best.goodput, got.p99 / best.p99);
        let (whole, held, its) = (got.whole / best.whole, got.in_flight, best.in_flight);
        println!(
            "| {phase} | {label} | {goodput:.3} | {p99:.1} | {whole:.3} | {held:.0} ({its:.0}) |"
        );
    }
}
