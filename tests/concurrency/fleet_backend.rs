//! Five adaptive replicas before one backend whose capacity moves: together against the best static ceiling of the whole
//! fleet, and beside them five that know nothing of each other.
//!
//! The engine of each is real, over one store in this process and clocks that an order of events sets; the backend has
//! workers and a queue, and its callers always want more. `docs/numbers.md` keeps the table that this prints.
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
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::admit::fleet::{Fleet, Pace};
use sluicegate::engine::{Admitted, Engine, Membership, Permits, Policy};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::{Nanos, Revision};
use tokio::runtime::Runtime;

use super::fleet::question;
use crate::support::dice::Dice;

const REPLICAS: usize = 5;
const SEED: u64 = 42;
/// From one look of a replica at what is due to the next.
const TICK: u64 = 50 * Nanos::MILLI.0;
/// Until a moved capacity is expected to be found: a fleet's ceiling moves every other heartbeat.
const RECOVERY: u64 = 20 * Nanos::SECOND.0;
const PHASE: u64 = 60 * Nanos::SECOND.0;
/// Workers of the backend in each phase, each of which takes 30 ms.
const PHASES: [(&str, usize); 3] = [("cold start", 16), ("x 4", 64), ("/ 4", 16)];
const SERVICE: u64 = 30 * Nanos::MILLI.0;
/// Of the workers: where the best static ceiling is looked for.
const SEARCH: [f64; 8] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0];

/// Who may have how many in flight.
enum Gate {
    /// All replicas together exactly so many: nothing real does better.
    Static(usize),
    Engines(Vec<Engine>, Runtime),
}

struct Request {
    replica: usize,
    admitted: u64,
    permits: Permits,
}

struct World {
    gate: Gate,
    now: u64,
    dice: Dice,
    in_flight: usize,
    waiting: VecDeque<Request>,
    done: BinaryHeap<Reverse<(u64, usize)>>,
    at_work: Vec<Option<Request>>,
}

/// What came of a phase, after its recovery and as a whole.
#[derive(Clone, Copy, Debug)]
struct Got {
    goodput: f64,
    p99: f64,
    whole: f64,
    in_flight: f64,
}

fn engines(count: usize, mode: &str) -> Gate {
    let memory = Arc::new(Memory::new(1_000, WhenFull::Deny, [0; 16]));
    let text = format!(
        "domain: d\ndescriptors: [{{key: k, concurrency: {{limit: 10, adaptive: {{policy: gradient, min: 1, max: 1000}}, \
         mode: {mode}, max_duration: 10s}}}}]\n"
    );
    let of = |at: usize| {
        let clock = Clock::manual(Nanos::from_secs(1_000));
        let name = format!("replica-{at}");
        let membership = Arc::new(Membership::new(&name, 1, NonZeroU32::new(5).unwrap()));
        let patience = Duration::from_millis(1);
        let fleet = Arc::new(Fleet::new(membership, clock.now(), Pace::default(), patience));
        let engine = Engine::new(clock, memory.clone(), Policy::default()).with_fleet(fleet);
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

    fn passes(&self, by: u64) {
        let Self::Engines(engines, _) = self else { return };
        for engine in engines {
            let Clock::Manual(clock) = engine.clock() else { panic!() };
            clock.advance(Nanos(by));
        }
    }

    fn beats(&self, replica: usize) {
        if let Self::Engines(engines, runtime) = self {
            runtime.block_on(engines[replica].speak_once());
        }
    }

    fn admits(&self, replica: usize, in_flight: usize) -> Option<Permits> {
        let (engines, runtime) = match self {
            Self::Static(ceiling) => return (in_flight < *ceiling).then(Permits::default),
            Self::Engines(engines, runtime) => (engines, runtime),
        };
        let (engine, question) = (&engines[replica], question());
        let _within = runtime.enter();
        let admitted = engine.admit(&question, None).now_or_never().unwrap_or_else(|| {
            runtime.block_on(async {
                let mut asked = pin!(engine.admit(&question, None));
                tokio::select! {
                    biased;
                    admitted = &mut asked => admitted,
                    () = engine.speak_once() => asked.await,
                }
            })
        });
        match admitted.unwrap() {
            Admitted::Decided(answer, permits) if answer.verdict == Verdict::Admit => Some(permits),
            _ => None,
        }
    }
}

impl World {
    fn new(gate: Gate) -> Self {
        let (waiting, done, at_work) = (VecDeque::new(), BinaryHeap::new(), Vec::new());
        Self { gate, now: 0, dice: Dice::new(SEED), in_flight: 0, waiting, done, at_work }
    }

    fn phase(&mut self, workers: usize) -> Got {
        let began = self.now;
        let (mut served, mut load) = (Vec::new(), 0.0);
        let mut tick = self.now;
        for replica in 0..self.gate.replicas() {
            self.fills(replica);
        }
        while self.now < began + PHASE {
            self.work(workers);
            let next = self.done.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let at = next.min(tick + TICK);
            if began + RECOVERY <= self.now {
                load += self.in_flight as f64 * (at - self.now) as f64;
            }
            self.gate.passes(at - self.now);
            self.now = at;
            if next <= at {
                served.push(self.ends(began));
            } else {
                tick = at;
                for replica in 0..self.gate.replicas() {
                    self.gate.beats(replica);
                    self.fills(replica);
                }
            }
        }
        summary(&served, load)
    }

    /// Its callers always want more.
    fn fills(&mut self, replica: usize) {
        while let Some(permits) = self.gate.admits(replica, self.in_flight) {
            self.in_flight += 1;
            self.waiting.push_back(Request { replica, admitted: self.now, permits });
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

    /// When in its phase the next one ended, and how long it took.
    fn ends(&mut self, began: u64) -> (u64, u64) {
        let Reverse((_, place)) = self.done.pop().unwrap();
        let Request { replica, admitted, permits } = self.at_work[place].take().unwrap();
        permits.finish(Outcome::Success, None);
        self.in_flight -= 1;
        self.fills(replica);
        (self.now - began, self.now - admitted)
    }
}

fn summary(served: &[(u64, u64)], load: f64) -> Got {
    let (second, after) = (Nanos::SECOND.0 as f64, (PHASE - RECOVERY) as f64);
    let mut late: Vec<u64> =
        served.iter().filter(|(at, _)| RECOVERY <= *at).map(|it| it.1).collect();
    late.sort_unstable();
    Got {
        goodput: late.len() as f64 * second / after,
        p99: late.get(late.len() * 99 / 100).map_or(f64::INFINITY, |it| *it as f64),
        whole: served.len() as f64 * second / PHASE as f64,
        in_flight: load / after,
    }
}

fn run(gate: Gate) -> Vec<Got> {
    let mut world = World::new(gate);
    PHASES.iter().map(|(_, workers)| world.phase(*workers)).collect()
}

/// For each phase what the best static ceiling makes of it: the smallest with 99 % of the most goodput.
fn best() -> Vec<Got> {
    let of = |at: usize, part: f64| {
        let ceiling = (PHASES[at].1 as f64 * part) as usize;
        run(Gate::Static(ceiling))[at]
    };
    let best = |at: usize| {
        let tried: Vec<Got> = SEARCH.iter().map(|part| of(at, *part)).collect();
        let most = tried.iter().map(|got| got.goodput).fold(0.0, f64::max);
        *tried.iter().find(|got| 0.99 * most <= got.goodput).unwrap()
    };
    (0..PHASES.len()).map(best).collect()
}

#[test]
fn five_adaptive_replicas_together_do_at_least_95_percent_of_the_best_static_ceiling_of_the_fleet()
{
    let best = best();
    println!("| phase | who | goodput of best | p99 of best | whole phase | in flight (best) |");
    println!("|---|---|---|---|---|---|");
    let together = run(engines(REPLICAS, "leased"));
    show("five, together", &together, &best);
    // What they are compared with takes half a minute each where nothing is optimised.
    if std::env::var_os("SLUICEGATE_FLEET_TABLE").is_some() {
        show("five, each alone", &run(engines(REPLICAS, "local")), &best);
        show("one replica", &run(engines(1, "local")), &best);
    }
    for ((phase, _), (got, best)) in PHASES.iter().zip(together.iter().zip(&best)) {
        assert!(0.95 * best.goodput <= got.goodput, "{phase}: {got:?}, best {best:?}");
        assert!(got.p99 <= 2.0 * best.p99, "{phase}: {got:?}, best {best:?}");
    }
}

fn show(who: &str, got: &[Got], best: &[Got]) {
    for ((phase, _), (got, best)) in PHASES.iter().zip(got.iter().zip(best)) {
        let (goodput, p99) = (got.goodput / best.goodput, got.p99 / best.p99);
        let (whole, held, its) = (got.whole / best.whole, got.in_flight, best.in_flight);
        println!(
            "| {phase} | {who} | {goodput:.3} | {p99:.1} | {whole:.3} | {held:.0} ({its:.0}) |"
        );
    }
}
