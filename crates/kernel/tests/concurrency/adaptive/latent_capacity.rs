//! The latent-capacity experiment: the published table, and the bounds of the `gradient` algorithm.

#[path = "../../../../../benches/latent_capacity/model.rs"]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
mod model;

#[path = "../../../../../benches/latent_capacity/refusals.rs"]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
mod refusals;

#[path = "../../../../../benches/paced_egress/pace.rs"]
#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
mod pace;

use model::{Played, Shock};
use sluicegate_kernel::concurrency::adaptive::AdaptiveAlgorithm;

type Player = fn(&[Shock]) -> Played;

fn assert_result(played: Played, passed: u32, failed: u32) {
    let rounded = (played.passed.round(), played.failed.round());
    assert_eq!(rounded, (f64::from(passed), f64::from(failed)));
}

#[test]
fn the_published_table_is_reproduced_exactly() {
    let trace = model::recorded();
    for (rate, passed, failed) in [(10.0, 2780, 220), (20.0, 3540, 2460), (50.0, 1500, 13500)] {
        assert_result(model::play(&trace, rate, &mut |_, _| rate), passed, failed);
    }
    assert_result(model::source_aimd(&trace), 5104, 1080);
}

#[test]
fn the_generator_reproduces_the_recorded_noise() {
    let same = |a: &Shock, b: &Shock| {
        (a.capacity - b.capacity).abs() < 1e-12 && (a.latency - b.latency).abs() < 1e-12
    };
    let (ours, recorded) = (model::generated(200), model::recorded());
    assert_eq!(ours.len(), recorded.len());
    assert!(ours.iter().zip(&recorded).all(|(a, b)| same(a, b)));
}

#[test]
fn gradient_keeps_its_bounds_on_200_traces() {
    let traces: Vec<_> = (0..200).map(model::generated).collect();
    let play = |player: &dyn Fn(&[Shock]) -> Played| {
        traces.iter().map(|trace| player(trace)).collect::<Vec<_>>()
    };
    let ours = play(&|trace| model::product(trace, AdaptiveAlgorithm::Gradient));
    let of_oracle = model::ratio(&ours, &play(&model::oracle));
    assert!(0.90 <= of_oracle.mean - 2.0 * of_oracle.error, "{of_oracle:?}");
    let of_aimd = model::ratio(&ours, &play(&model::source_aimd));
    assert!(1.25 <= of_aimd.mean - 2.0 * of_aimd.error, "{of_aimd:?}");
    let limited = model::mean(&ours.iter().map(|played| played.limited()).collect::<Vec<_>>());
    assert!(limited.mean + 2.0 * limited.error <= 0.085, "{limited:?}");
}

#[test]
fn gradient_has_few_refusals_above_a_hidden_capacity() {
    let traces: Vec<_> = (0..20).map(model::generated).collect();
    let play = |player: &dyn Fn(&[Shock]) -> Played| {
        traces.iter().map(|trace| player(trace)).collect::<Vec<_>>()
    };
    let ours = play(&|trace| refusals::product(trace, AdaptiveAlgorithm::Gradient));
    let refused = model::mean(&ours.iter().map(|played| played.limited()).collect::<Vec<_>>());
    assert!(refused.mean <= 0.030, "{refused:?}");
    let per_second: Vec<_> = ours.iter().map(|played| played.refused()).collect();
    assert!(model::mean(&per_second).mean <= 0.7, "{per_second:?}");
    let oracle = play(&refusals::oracle);
    let of_oracle = model::ratio(&ours, &oracle);
    assert!(0.75 <= of_oracle.mean, "{of_oracle:?}");
    let of_informed = model::ratio(&ours, &play(&refusals::informed));
    assert!(0.85 <= of_informed.mean, "{of_informed:?}");
}

#[test]
fn baseline_algorithms_match_their_known_results() {
    let traces: Vec<_> = (0..200).map(model::generated).collect();
    let known: [(Player, f64, f64); 3] = [
        (model::oracle, 24.5, 0.0),
        (model::source_aimd, 17.1, 0.204),
        (model::bare_gradient2, 9.3, 0.70),
    ];
    for (player, goodput, limited) in known {
        let played: Vec<_> = traces.iter().map(|trace| player(trace)).collect();
        let of = |what: fn(Played) -> f64| {
            model::mean(&played.iter().map(|p| what(*p)).collect::<Vec<_>>()).mean
        };
        assert!((of(Played::goodput) - goodput).abs() < 0.1, "{}", of(Played::goodput));
        assert!((of(Played::limited) - limited).abs() < 0.01, "{}", of(Played::limited));
    }
}

/// The pace sees only the failed requests, the source's AIMD the latency of all.
#[test]
fn pace_answers_more_and_fails_less_than_the_sources_aimd() {
    let traces: Vec<_> = (0..200).map(model::generated).collect();
    let play = |player: &dyn Fn(&[Shock]) -> Played| {
        traces.iter().map(|trace| player(trace)).collect::<Vec<_>>()
    };
    let ours = play(&|trace| pace::in_the_model(trace, pace::CHOSEN));
    let theirs = play(&model::source_aimd);
    let answered = model::ratio(&ours, &theirs);
    assert!(1.05 <= answered.mean - 2.0 * answered.error, "{answered:?}");
    let failed =
        |played: &[Played]| model::mean(&played.iter().map(|it| it.refused()).collect::<Vec<_>>());
    assert!(failed(&ours).mean <= 0.75 * failed(&theirs).mean);
}
