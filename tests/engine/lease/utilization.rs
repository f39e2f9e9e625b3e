//! Measures the used part of an overloaded limit and the store calls per check, for several fleet
//! sizes.
//!
//! Real engines with manual clocks get checks at 150 % of 6,000 hits per minute. At most 10 % are
//! outstanding, and with `max_overshoot: 0` they occupy the limit.
//! `cargo test --test all -- --nocapture lease::utilization` prints the table of
//! docs/guides/lease-limits.md. With `SLUICEGATE_PICTURES=docs/pictures` it also draws the pictures.

use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::engine::{DecisionPolicy, Engine};
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::utilization_plot::{Point, svg};
use super::{NEW_YEAR, engine};
use crate::support::dice::{Dice, seed};
use crate::support::engine::{advance_clock, check};
use crate::support::faulty_store::FaultyStore;

const FLEETS: [usize; 4] = [2, 8, 64, 512];

const LIMIT: u64 = 6_000;

/// Checks per 100 ms: 150 per second, and the limit allows 100.
const CHECKS_PER_TENTH: u64 = 15;

/// Distribution of the checks over the replicas.
#[derive(Clone, Copy, Debug)]
enum Demand {
    /// All replicas equally.
    Uniform,
    /// One replica gets half of the checks, the next a quarter, and so on.
    Skewed,
    /// One random replica gets all checks of a second.
    Bursty,
    /// A tenth of the replicas; every ten seconds another tenth.
    Drifting,
}

const DEMANDS: [Demand; 4] = [Demand::Uniform, Demand::Skewed, Demand::Bursty, Demand::Drifting];

impl Demand {
    const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "everybody alike",
            Self::Skewed => "skewed",
            Self::Bursty => "in bursts",
            Self::Drifting => "drifting",
        }
    }

    /// Returns the replica of the next check in this tenth of a second.
    fn next_replica(self, replicas: usize, tenth: u64, dice: &mut Dice) -> usize {
        let replicas = replicas as u64;
        let next_replica = match self {
            Self::Uniform => dice.up_to(replicas - 1),
            Self::Skewed => u64::from(dice.roll().leading_zeros()).min(replicas - 1),
            Self::Bursty => Dice::new(tenth / 10).up_to(replicas - 1),
            Self::Drifting => {
                let some = replicas.div_ceil(10);
                (tenth / 100 * some + dice.up_to(some - 1)) % replicas
            }
        };
        usize::try_from(next_replica).unwrap()
    }
}

/// A leased limit, and what its fleet must use of it.
#[derive(Clone, Copy)]
struct Leased {
    strategy: &'static str,
    max_overshoot: &'static str,
    /// Hits.
    most_above: u64,
    fleets: &'static [usize],
    minutes: u64,
}

const TENTH: Leased = Leased {
    strategy: "",
    max_overshoot: "10%",
    most_above: LIMIT / 10,
    fleets: &FLEETS,
    minutes: 1,
};

const NO_OVERSHOOT: Leased =
    Leased { max_overshoot: "0", most_above: 0, fleets: &[2, 64], ..TENTH };

/// Returns the allowed hits and the calls per check.
async fn run(leased: &Leased, replicas: usize, demand: Demand, dice: &mut Dice) -> (u64, f64) {
    let Leased { strategy, max_overshoot, minutes, .. } = leased;
    let store = FaultyStore::new();
    let burst = if *strategy == "gcra" { ", burst: 100" } else { "" };
    let limits = format!(
        "- key: k\n  rate_limit: {{unit: minute, requests_per_unit: {LIMIT}, strategy: {strategy}{burst}, \
         mode: leased, max_overshoot: {max_overshoot}}}\n"
    );
    // Read once, because 512 replicas have the same configuration.
    let config = engine(&store, &limits).config().unwrap();
    let replica = |_| {
        let clock = Clock::manual(NEW_YEAR);
        let engine = Engine::new(clock, store.clone(), DecisionPolicy::default());
        engine.publish(Arc::clone(&config));
        engine
    };
    let fleet: Vec<Engine> = (0..replicas).map(replica).collect();
    let (mut allowed, mut checks) = (0, 0_u32);
    for tenth in 0..minutes * 600 {
        for _ in 0..CHECKS_PER_TENTH {
            let engine = &fleet[demand.next_replica(replicas, tenth, dice)];
            let check = check(&[("k", "v")], Cost::Charge(Hits(1)));
            let answer = engine.decide(&check).await.unwrap();
            allowed += u64::from(answer.verdict == Verdict::Allow);
            checks += 1;
            tokio::task::yield_now().await;
        }
        for engine in &fleet {
            advance_clock(engine, Nanos(100 * Nanos::MILLI.0));
        }
        if tenth % 10 == 9 {
            for engine in &fleet {
                engine.leases().unwrap().upkeep().await;
            }
        }
    }
    let calls = u32::try_from(store.calls()).unwrap();
    (allowed, f64::from(calls) / f64::from(checks))
}

#[tokio::test]
async fn excess_demand_uses_nearly_all_hits_of_a_fixed_window() {
    uses_nearly_all(&Leased { strategy: "fixed_window", ..TENTH }).await;
}

#[tokio::test]
async fn excess_demand_uses_nearly_all_hits_of_a_gcra_limit() {
    uses_nearly_all(&Leased { strategy: "gcra", ..TENTH }).await;
}

#[tokio::test]
async fn occupying_leases_use_nearly_all_hits_and_none_above_the_limit() {
    uses_nearly_all(&Leased { strategy: "gcra", ..NO_OVERSHOOT }).await;
    let sliding = Leased { minutes: 2, ..NO_OVERSHOOT };
    uses_nearly_all(&Leased { strategy: "sliding_window", ..sliding }).await;
    uses_nearly_all(&Leased { strategy: "sliding_log", ..sliding }).await;
}

#[expect(clippy::print_stdout, reason = "the table is what this is run for")]
async fn uses_nearly_all(leased: &Leased) {
    let Leased { strategy, max_overshoot, most_above, fleets, minutes } = *leased;
    let seed = seed();
    let (mut dice, mut failures, mut points) = (Dice::new(seed), Vec::new(), Vec::new());
    let allowed_hits = LIMIT * minutes + if strategy == "gcra" { 100 } else { 0 };
    println!("SLUICEGATE_SEED={seed}");
    for demand in DEMANDS {
        for &replicas in fleets {
            let (allowed, calls) = run(leased, replicas, demand, &mut dice).await;
            let share = allowed * 1_000 / allowed_hits;
            let used = f64::from(u32::try_from(share).unwrap()) / 1_000.0;
            points.push(Point { demand: demand.name(), replicas, share: used, calls });
            let shown = format!("{}.{:03}", share / 1_000, share % 1_000);
            println!("| `{strategy}` | {demand:?} | {replicas} | {shown} | {calls:.3} |");
            if share < 950 || allowed_hits + most_above < allowed {
                failures.push((demand, replicas, share));
            }
        }
    }
    let picture = (max_overshoot == "10%").then(|| std::env::var("SLUICEGATE_PICTURES").ok());
    if let Some(pictures) = picture.flatten() {
        std::fs::write(format!("{pictures}/leases_{strategy}.svg"), svg(strategy, &points, 0.95))
            .unwrap();
    }
    assert!(failures.is_empty(), "SLUICEGATE_SEED={seed}: {failures:?}");
}
