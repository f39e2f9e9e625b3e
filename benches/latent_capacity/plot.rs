//! Draws, from top to bottom:
//!
//! 1. the published table: answered and failed requests of each controller;
//! 2. the published figures: capacity and requests in flight over time;
//! 3. a provider that refuses requests above its capacity: capacity and limit over time.
//!
//! Source of the first two: J. Law, "Handling Concurrency", 2026, Table 1 and figures 3 to 5, with
//! the recorded noise.

use std::fmt::Write as _;

use super::model::{self, Capacity, Played, Shock};
use super::refusals;
use sluicegate::kernel::concurrency::adaptive::AdaptiveAlgorithm;

/// A controller and its first concurrency.
struct Contestant {
    name: &'static str,
    start: f64,
    controller: Box<model::Controller<'static>>,
}

/// The hidden capacity and the requests in flight of one second.
struct Second {
    capacity: f64,
    in_flight: f64,
}

/// The played trace of one contestant.
struct Run {
    name: &'static str,
    seconds: Vec<Second>,
    played: Played,
}

const ALGORITHMS: [(&str, AdaptiveAlgorithm); 3] = [
    ("gradient", AdaptiveAlgorithm::Gradient),
    ("aimd", AdaptiveAlgorithm::Aimd),
    ("gradient2", AdaptiveAlgorithm::Gradient2),
];

const GREEN: &str = "#1b7f3b";
const ORANGE: &str = "#c2571a";
const GRAY: &str = "#8a8a8a";
const WIDTH: f64 = 210.0;
const HEIGHT: f64 = 150.0;
const GAP: f64 = 20.0;
const LEFT: f64 = 30.0;
const MOST_IN_FLIGHT: f64 = 60.0;
const MOST_REQUESTS: f64 = 15_000.0;
/// The tops of the three parts.
const BARS: f64 = 30.0;
const FIGURES: f64 = 270.0;
const REFUSALS: f64 = 490.0;

fn contestants() -> Vec<Contestant> {
    let constant =
        |name, rate: f64| Contestant { name, start: rate, controller: Box::new(move |_, _| rate) };
    let gradient = model::product_controller(AdaptiveAlgorithm::Gradient);
    let aimd = model::source_aimd_controller();
    vec![
        constant("constant 10", 10.0),
        constant("constant 20", 20.0),
        constant("constant 50", 50.0),
        Contestant { name: "AIMD of the article", start: 1.0, controller: Box::new(aimd) },
        Contestant { name: "gradient", start: 1.0, controller: Box::new(gradient) },
    ]
}

fn run(trace: &[Shock], mut contestant: Contestant) -> Run {
    let (mut hidden, mut shocks, mut seconds) = (Capacity::default(), trace.iter(), Vec::new());
    let played = model::play(trace, contestant.start, &mut |latency, in_flight| {
        let capacity = hidden.step(in_flight, shocks.next().unwrap());
        seconds.push(Second { capacity, in_flight });
        (contestant.controller)(latency, in_flight)
    });
    Run { name: contestant.name, seconds, played }
}

pub fn svg(trace: &[Shock]) -> String {
    let runs: Vec<_> = contestants().into_iter().map(|it| run(trace, it)).collect();
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 670\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"960\" height=\"670\" fill=\"white\"/>\n",
    );
    heading(&mut svg, 18.0, "Requests of 300 seconds:", ["answered", "failed (429)"]);
    for (number, run) in runs.iter().enumerate() {
        bar(&mut svg, number, run);
    }
    let words = ["requests in flight", "capacity of the provider"];
    heading(&mut svg, FIGURES - 28.0, "The same, by second:", words);
    for (column, run) in runs.iter().skip(1).enumerate() {
        panel(&mut svg, (column, FIGURES), run);
    }
    let words = ["limit", "capacity of the provider"];
    heading(&mut svg, REFUSALS - 28.0, "A provider that refuses:", words);
    for (column, (name, algorithm)) in ALGORITHMS.into_iter().enumerate() {
        panel(&mut svg, (column, REFUSALS), &refused(trace, name, algorithm));
    }
    svg + "</svg>\n"
}

fn refused(trace: &[Shock], name: &'static str, algorithm: AdaptiveAlgorithm) -> Run {
    let mut seconds = Vec::new();
    let played = refusals::observed(trace, algorithm, &mut |capacity, limit| {
        seconds.push(Second { capacity: capacity.into(), in_flight: limit.into() });
    });
    Run { name, seconds, played }
}

/// A title, and the words for the green and the orange or gray parts.
fn heading(svg: &mut String, y: f64, title: &str, [green, other]: [&str; 2]) {
    let color = if other.starts_with("failed") { ORANGE } else { GRAY };
    text(svg, (LEFT, y), "#000", title);
    text(svg, (LEFT + 150.0, y), GREEN, green);
    text(svg, (LEFT + 260.0, y), color, other);
}

fn text(svg: &mut String, (x, y): (f64, f64), color: &str, text: &str) {
    writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{color}\">{text}</text>").unwrap();
}

fn bar(svg: &mut String, number: usize, run: &Run) {
    let Played { passed, failed } = run.played;
    let (left, top) = (LEFT + 130.0, BARS + 36.0 * number as f64);
    let scale = 680.0 / MOST_REQUESTS;
    text(svg, (LEFT, top + 15.0), "#000", run.name);
    for (from, length, color) in [(0.0, passed, GREEN), (passed, failed, ORANGE)] {
        writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{top}\" width=\"{:.1}\" height=\"22\" fill=\"{color}\"/>",
            left + from * scale,
            length * scale,
        )
        .unwrap();
    }
    let label = format!("{passed:.0} and {failed:.0}");
    text(svg, (left + (passed + failed) * scale + 6.0, top + 15.0), "#000", &label);
}

fn panel(svg: &mut String, (column, top): (usize, f64), run: &Run) {
    let left = LEFT + (WIDTH + GAP) * column as f64;
    writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#ccc\"/>",
    )
    .unwrap();
    let Played { passed, failed } = run.played;
    let title = format!("{}: {:.1} % failed", run.name, 100.0 * failed / (passed + failed));
    text(svg, (left, top - 6.0), "#000", &title);
    let step = WIDTH / run.seconds.len().max(1) as f64;
    let y = |value: f64| top + HEIGHT * (1.0 - (value / MOST_IN_FLIGHT).clamp(0.0, 1.0));
    for (value, color) in
        [(Second::capacity as fn(&Second) -> f64, GRAY), (Second::in_flight, GREEN)]
    {
        let point = |(at, second): (usize, &Second)| {
            format!("{:.1},{:.1}", left + step * (at as f64 + 0.5), y(value(second)))
        };
        let points: Vec<_> = run.seconds.iter().enumerate().map(point).collect();
        let points = points.join(" ");
        writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\"/>").unwrap();
    }
    for value in [20.0, MOST_IN_FLIGHT] {
        text(svg, (left - 18.0, y(value) + 4.0), GRAY, &format!("{value:.0}"));
    }
}

impl Second {
    fn capacity(&self) -> f64 {
        self.capacity
    }

    fn in_flight(&self) -> f64 {
        self.in_flight
    }
}
