//! The pace of `rate_limit: {adaptive, wait}` beside the controllers of its source, under a hidden capacity.
//!
//! `cargo bench --bench paced_egress` prints CSV, and writes `docs/pictures/paced_egress.svg`:
//! 1. the published table: recorded noise, 300 steps;
//! 2. the same model with 1,000 traces of generated noise;
//! 3. a provider that serves calls at the hidden rate, and refuses each call above it.
//!
//! The pace sees only which calls were refused: in the model, those that take longer than 1.5 s. The
//! source's AIMD sees the latency of all calls. An oracle calls at exactly the hidden rate.
//!
//! Each figure has its standard error.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]

#[path = "../latent_capacity/model.rs"]
#[allow(dead_code, reason = "the other benchmark uses all of it")]
mod model;
mod pace;
mod plot;
mod provider;

use model::{Played, Shock};
use pace::{CHOSEN, Settings};

type Player = Box<dyn Fn(&[Shock]) -> Played>;

/// The numbers of `increase` and `decrease` beside the chosen ones, in requests and percent.
const OTHERS: [Settings; 4] = [
    Settings { increase: 1, decrease: 90 },
    Settings { increase: 1, decrease: 50 },
    Settings { increase: 2, decrease: 80 },
    Settings { increase: 4, decrease: 50 },
];

fn constant(rate: f64) -> Player {
    Box::new(move |trace| model::play(trace, rate, &mut |_, _| rate))
}

fn in_the_model() -> Vec<(String, Player)> {
    let mut players: Vec<(String, Player)> =
        [10.0, 20.0, 50.0].map(|rate| (format!("constant {rate}"), constant(rate))).into();
    players.push(("source's AIMD".to_owned(), Box::new(model::source_aimd)));
    for settings in [CHOSEN].into_iter().chain(OTHERS) {
        players.push((
            settings.to_string(),
            Box::new(move |trace| pace::in_the_model(trace, settings)),
        ));
    }
    players.push(("oracle".to_owned(), Box::new(model::oracle)));
    players
}

fn at_the_provider() -> Vec<(String, Player)> {
    let constant = |rate: f64| -> Player {
        Box::new(move |trace| {
            provider::play(trace, provider::Caller::Constant(rate), &mut |_, _| {})
        })
    };
    let mut players: Vec<(String, Player)> =
        [10.0, 20.0, 50.0].map(|rate| (format!("constant {rate}"), constant(rate))).into();
    for settings in [CHOSEN].into_iter().chain(OTHERS) {
        let play = move |trace: &[Shock]| provider::paced(trace, settings, &mut |_, _| {});
        players.push((settings.to_string(), Box::new(play)));
    }
    let told = |trace: &[Shock]| provider::play(trace, provider::Caller::ToldLate, &mut |_, _| {});
    players.push(("told a second late".to_owned(), Box::new(told)));
    players.push(("oracle".to_owned(), Box::new(model::oracle)));
    players
}

fn main() {
    println!("recorded noise,answered,failed,answered/s,limited %");
    let recorded = model::recorded();
    for (name, player) in in_the_model() {
        let played = player(&recorded);
        let Played { passed, failed } = played;
        let (goodput, limited) = (played.goodput(), 100.0 * played.limited());
        println!("{name},{passed:.0},{failed:.0},{goodput:.2},{limited:.1}");
    }
    let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/paced_egress.svg");
    std::fs::write(picture, plot::svg(&recorded)).unwrap();

    let traces: Vec<_> = (0..1_000).map(model::generated).collect();
    println!("\n1000 traces,answered/s,error,failed/s,error,limited %,error,of oracle,error");
    show_all(in_the_model(), &traces);
    println!("\nrefusing provider,answered/s,error,failed/s,error,limited %,error,of oracle,error");
    show_all(at_the_provider(), &traces[..200]);
}

fn show_all(players: Vec<(String, Player)>, traces: &[Vec<Shock>]) {
    let play = |player: &dyn Fn(&[Shock]) -> Played| {
        traces.iter().map(|trace| player(trace)).collect::<Vec<_>>()
    };
    let oracle = play(&model::oracle);
    for (name, player) in players {
        let played = play(&player);
        let of = |figure: &dyn Fn(&Played) -> f64| {
            let mean = model::mean(&played.iter().map(figure).collect::<Vec<_>>());
            format!("{:.2},{:.2}", mean.mean, mean.error)
        };
        let ratio = model::ratio(&played, &oracle);
        print!("{name},{},{},", of(&|it| it.goodput()), of(&|it| it.refused()));
        println!("{},{:.3},{:.3}", of(&|it| 100.0 * it.limited()), ratio.mean, ratio.error);
    }
}
