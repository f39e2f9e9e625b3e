//! Goodput under a hidden capacity: the published table, then 200 traces of generated noise, then
//! the same traces with a provider that refuses requests above its capacity.
//!
//! `cargo bench --bench latent_capacity` writes CSV, and `docs/pictures/provider.svg`. Bounds, also checked by
//! `crates/kernel/tests/concurrency/adaptive/latent_capacity.rs`:
//! - `gradient` has at least 0.90 of an oracle's goodput.
//! - `gradient` has at least 1.25 times the goodput of the source's AIMD.
//! - `gradient` has at most 8.5 % limited requests.
//! - With the refusing provider, at most 3 % of the requests of `gradient` are refused, at 0.75 of an
//!   oracle's goodput. The goal is 0.90.
//!
//! Each figure has its paired standard error.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

mod model;
mod plot;
mod refusals;

use model::{Mean, Played, Shock};
use sluicegate::kernel::concurrency::adaptive::AdaptiveAlgorithm;

type Player = fn(&[Shock]) -> Played;

const PLAYERS: [(&str, Player); 7] = [
    ("oracle", model::oracle),
    ("gradient", |trace| model::product(trace, AdaptiveAlgorithm::Gradient)),
    ("aimd", |trace| model::product(trace, AdaptiveAlgorithm::Aimd)),
    ("gradient2", |trace| model::product(trace, AdaptiveAlgorithm::Gradient2)),
    ("source's AIMD", model::source_aimd),
    ("gradient2, not smoothed", model::bare_gradient2),
    ("no limit (40)", |trace| model::play(trace, 40.0, &mut |_, _| 40.0)),
];

fn main() {
    println!("recorded noise,passed,failed");
    let recorded = model::recorded();
    for rate in [10.0, 20.0, 50.0] {
        show_recorded(&format!("constant {rate}"), model::play(&recorded, rate, &mut |_, _| rate));
    }
    show_recorded("source's AIMD", model::source_aimd(&recorded));
    show_recorded("aimd", model::product(&recorded, AdaptiveAlgorithm::Aimd));
    show_recorded("gradient", model::product(&recorded, AdaptiveAlgorithm::Gradient));
    let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/provider.svg");
    std::fs::write(picture, plot::svg(&recorded)).unwrap();

    println!("\n200 traces,goodput/s,error,limited %,error,of oracle,error,of source's AIMD,error");
    let traces: Vec<_> = (0..200).map(model::generated).collect();
    let play = |player: Player| traces.iter().map(|trace| player(trace)).collect::<Vec<_>>();
    let (oracle, aimd) = (play(model::oracle), play(model::source_aimd));
    for (name, player) in PLAYERS {
        show(name, &play(player), &oracle, &aimd);
    }
    show_refusals(&traces);
}

fn show_refusals(traces: &[Vec<Shock>]) {
    println!("\nrefusing provider,goodput/s,error,refused %,error,refused/s,of oracle,error");
    let play = |player: &dyn Fn(&[Shock]) -> Played| {
        traces.iter().map(|trace| player(trace)).collect::<Vec<_>>()
    };
    let oracle = play(&refusals::oracle);
    for (name, algorithm) in [
        ("gradient", AdaptiveAlgorithm::Gradient),
        ("aimd", AdaptiveAlgorithm::Aimd),
        ("gradient2", AdaptiveAlgorithm::Gradient2),
    ] {
        show_refused(name, &play(&|trace| refusals::product(trace, algorithm)), &oracle);
    }
    show_refused("told a second late", &play(&refusals::informed), &oracle);
    show_refused("oracle", &oracle, &oracle);
    show_steadier(traces);
}

/// The same provider with smaller changes of the capacity: a fifth each second, times `part`.
fn show_steadier(traces: &[Vec<Shock>]) {
    for part in [0.0, 0.25, 0.5] {
        let steadier = |shock: &Shock| Shock { capacity: part * shock.capacity, ..*shock };
        let traces: Vec<Vec<_>> =
            traces.iter().map(|trace| trace.iter().map(steadier).collect()).collect();
        let gradient = |trace: &Vec<Shock>| refusals::product(trace, AdaptiveAlgorithm::Gradient);
        let played: Vec<_> = traces.iter().map(gradient).collect();
        let oracle: Vec<_> = traces.iter().map(|trace| refusals::oracle(trace)).collect();
        show_refused(&format!("gradient; changes x {part}"), &played, &oracle);
    }
}

fn show_refused(name: &str, played: &[Played], oracle: &[Played]) {
    let of =
        |figure: fn(&Played) -> f64| model::mean(&played.iter().map(figure).collect::<Vec<_>>());
    let (goodput, limited) = (of(|p| p.goodput()), of(|p| 100.0 * p.limited()));
    let (refused, ratio) = (of(|p| p.refused()).mean, model::ratio(played, oracle));
    print!("{name},{:.2},{:.2},", goodput.mean, goodput.error);
    print!("{:.2},{:.2},{refused:.2},", limited.mean, limited.error);
    println!("{:.3},{:.3}", ratio.mean, ratio.error);
}

fn show_recorded(name: &str, played: Played) {
    println!("{name},{:.0},{:.0}", played.passed, played.failed);
}

fn show(name: &str, played: &[Played], oracle: &[Played], aimd: &[Played]) {
    let goodput = model::mean(&played.iter().map(|p| p.goodput()).collect::<Vec<_>>());
    let limited = model::mean(&played.iter().map(|p| 100.0 * p.limited()).collect::<Vec<_>>());
    let (oracle, aimd) = (model::ratio(played, oracle), model::ratio(played, aimd));
    let Mean { mean, error } = goodput;
    print!("{name},{mean:.2},{error:.2},{:.1},{:.1},", limited.mean, limited.error);
    println!("{:.3},{:.3},{:.3},{:.3}", oracle.mean, oracle.error, aimd.mean, aimd.error);
}
