//! Adaptive concurrency limits in front of a changing server: quality and speed of recovery.
//!
//! `cargo bench --bench real_backend` writes CSV, one row per phase, and
//! `docs/pictures/real_backend.svg`. A number after `--` is the seed of the service times.
//!
//! A phase starts with max(2 s, 12 round trips) for recovery. Bounds after that:
//! - Goodput is at least 0.95 of the goodput of the best static limit.
//! - p99 is at most twice the p99 of the best static limit.
//!
//! The best static limit is the smallest one with 99 % of the highest goodput, found by search. The
//! column `kept` is `true` if a row keeps the bounds. The last lines count these rows.
//!
//! Known limit: in about an eighth of the phases, the adaptive limit is too low if service times
//! vary by half their mean or more (`Half`, `Wide`). No tested algorithm kept all bounds.
#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::unwrap_used)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod plot;
mod scene;
mod server;

use plot::Point;
use scene::Scene;
use server::Spread;
use sluicegate::kernel::concurrency::adaptive::{AdaptiveAlgorithm, AdaptiveConfig, AdaptiveLimit};

const SERVICES: [f64; 4] = [0.0003, 0.003, 0.03, 0.3];
const WORKERS: [f64; 3] = [4.0, 16.0, 64.0];
const SPREADS: [Spread; 3] = [Spread::Narrow, Spread::Half, Spread::Wide];
/// Concurrent clients without a limit.
const CLIENTS: u32 = 1_000;
/// Default seed of the service times. Parameters were tuned with it.
const SEED: u64 = 42;
/// Initial value of every adaptive limit.
const START: u32 = 10;

fn policies() -> [(&'static str, AdaptiveLimit); 4] {
    let of = |law| AdaptiveLimit::new(START, Some(AdaptiveConfig::new(law, 1, CLIENTS)), 7);
    [
        ("gradient", of(AdaptiveAlgorithm::Gradient)),
        ("aimd", of(AdaptiveAlgorithm::Aimd)),
        ("gradient2", of(AdaptiveAlgorithm::Gradient2)),
        ("no limit", AdaptiveLimit::new(CLIENTS, None, 0)),
    ]
}

fn main() {
    println!(
        "spread,workers,service ms,phase,policy,goodput of best,p99 of best,\
         whole goodput of best,whole p99 of best,kept"
    );
    let seed = std::env::args().find_map(|argument| argument.parse().ok());
    let (mut tally, mut points) = (Tally::default(), Vec::new());
    for spread in SPREADS {
        for workers in WORKERS {
            for service in SERVICES {
                let scene = Scene { workers, service, spread, seed: seed.unwrap_or(SEED) };
                points.extend(compare(&scene, &mut tally));
            }
        }
    }
    tally.show();
    if seed.is_none() {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/real_backend.svg");
        std::fs::write(picture, plot::svg(&points, &SPREADS)).unwrap();
    }
}

fn compare(scene: &Scene, tally: &mut Tally) -> Vec<Point> {
    let Scene { workers, service, spread, .. } = *scene;
    let (best, mut points) = (scene.best(), Vec::new());
    for (name, policy) in policies() {
        for ((phase, best), got) in scene.phases().iter().zip(&best).zip(scene.run(policy)) {
            let (goodput, p99) = (got.goodput / best.goodput, got.p99 / best.p99);
            let kept = scene::keeps(&got, best);
            tally.count(spread, name, kept);
            points.push(Point { spread, policy: name, goodput, p99 });
            print!("{spread:?},{workers},{},{},{name},", service * 1e3, phase.name);
            print!("{goodput:.3},{p99:.2},{:.3},", got.whole_goodput / best.whole_goodput);
            println!("{:.2},{kept}", got.whole_p99 / best.whole_p99);
        }
    }
    points
}

#[derive(Default)]
struct Tally(Vec<(Spread, &'static str, u32, u32)>);

impl Tally {
    fn count(&mut self, spread: Spread, policy: &'static str, kept: bool) {
        let place = self.0.iter().position(|row| (row.0, row.1) == (spread, policy));
        let place = place.unwrap_or_else(|| {
            self.0.push((spread, policy, 0, 0));
            self.0.len() - 1
        });
        self.0[place].2 += u32::from(kept);
        self.0[place].3 += 1;
    }

    fn show(&self) {
        for (spread, policy, kept, of) in &self.0 {
            println!("# {spread:?}: {policy} keeps both bounds in {kept} of {of} phases");
        }
    }
}
