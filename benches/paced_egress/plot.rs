//! Draws the published table with the pace, and the hidden rate beside the rate of three callers.
//!
//! Source of the table: J. Law, "Handling Concurrency", 2026, with the recorded noise.

use std::fmt::Write as _;

use super::model::{self, Capacity, Played, Shock};
use super::pace::{self, CHOSEN};
use super::provider;

const GREEN: &str = "#1b7f3b";
const ORANGE: &str = "#c2571a";
const GRAY: &str = "#8a8a8a";
const LEFT: f64 = 30.0;
const WIDTH: f64 = 290.0;
const HEIGHT: f64 = 140.0;
const TOP: f64 = 270.0;
const MOST_REQUESTS: f64 = 15_000.0;
const MOST_RATE: f64 = 60.0;

/// A caller, its played trace, and the hidden and the used rate of each second.
struct Run {
    name: &'static str,
    played: Played,
    seconds: Vec<(f64, f64)>,
}

pub fn svg(trace: &[Shock]) -> String {
    let mut aimd = model::source_aimd_controller();
    let mut paced = pace::controller(CHOSEN);
    let runs = [
        in_the_model("constant 10", trace, 10.0, &mut |_, _| 10.0),
        in_the_model("constant 20", trace, 20.0, &mut |_, _| 20.0),
        in_the_model("constant 50", trace, 50.0, &mut |_, _| 50.0),
        in_the_model("AIMD of the article", trace, 1.0, &mut aimd),
        in_the_model("pace", trace, 1.0, &mut paced),
    ];
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 440\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"960\" height=\"440\" fill=\"white\"/>\n",
    );
    heading(&mut svg, 18.0, "Calls of 300 seconds:", ("answered", GREEN), ("failed (429)", ORANGE));
    for (number, run) in runs.iter().enumerate() {
        bar(&mut svg, number, run);
    }
    let words = (("calls per second", GREEN), ("hidden rate", GRAY));
    heading(&mut svg, TOP - 28.0, "The same, by second:", words.0, words.1);
    let [.., aimd, paced] = runs;
    for (column, run) in [aimd, paced, at_the_provider(trace)].iter().enumerate() {
        panel(&mut svg, LEFT + (WIDTH + 20.0) * column as f64, run);
    }
    svg + "</svg>\n"
}

fn in_the_model(
    name: &'static str,
    trace: &[Shock],
    start: f64,
    controller: &mut model::Controller<'_>,
) -> Run {
    let (mut hidden, mut shocks, mut seconds) = (Capacity::default(), trace.iter(), Vec::new());
    let played = model::play(trace, start, &mut |latency, rate| {
        seconds.push((hidden.step(rate, shocks.next().unwrap()), rate));
        controller(latency, rate)
    });
    Run { name, played, seconds }
}

fn at_the_provider(trace: &[Shock]) -> Run {
    let mut seconds = Vec::new();
    let played = provider::paced(trace, CHOSEN, &mut |hidden, rate| seconds.push((hidden, rate)));
    Run { name: "pace, refusing provider", played, seconds }
}

fn heading(svg: &mut String, y: f64, title: &str, left: (&str, &str), right: (&str, &str)) {
    text(svg, (LEFT, y), "#000", title);
    text(svg, (LEFT + 150.0, y), left.1, left.0);
    text(svg, (LEFT + 260.0, y), right.1, right.0);
}

fn text(svg: &mut String, (x, y): (f64, f64), color: &str, text: &str) {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\">{text}</text>").unwrap();
}

fn bar(svg: &mut String, number: usize, run: &Run) {
    let Played { passed, failed } = run.played;
    let (left, top) = (LEFT + 130.0, 30.0 + 36.0 * number as f64);
    let scale = 680.0 / MOST_REQUESTS;
    text(svg, (LEFT, top + 15.0), "#000", run.name);
    for (from, length, color) in [(0.0, passed, GREEN), (passed, failed, ORANGE)] {
        let (x, width) = (left + from * scale, length * scale);
        writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"22\" fill=\"{color}\"/>"
        )
        .unwrap();
    }
    let label = format!("{passed:.0} and {failed:.0}");
    text(svg, (left + (passed + failed) * scale + 6.0, top + 15.0), "#000", &label);
}

fn panel(svg: &mut String, left: f64, run: &Run) {
    let frame = "fill=\"none\" stroke=\"#ccc\"";
    writeln!(svg, "<rect x=\"{left}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" {frame}/>")
        .unwrap();
    let title = format!("{}: {:.1} % failed", run.name, 100.0 * run.played.limited());
    text(svg, (left, TOP - 6.0), "#000", &title);
    let step = WIDTH / run.seconds.len().max(1) as f64;
    let y = |value: f64| TOP + HEIGHT * (1.0 - (value / MOST_RATE).clamp(0.0, 1.0));
    for (value, color) in
        [((|second| second.0) as fn(&(f64, f64)) -> f64, GRAY), (|second| second.1, GREEN)]
    {
        let point = |(at, second): (usize, &(f64, f64))| {
            format!("{:.1},{:.1}", left + step * (at as f64 + 0.5), y(value(second)))
        };
        let points: Vec<_> = run.seconds.iter().enumerate().map(point).collect();
        let points = points.join(" ");
        writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\"/>").unwrap();
    }
    for value in [20.0, MOST_RATE] {
        text(svg, (left - 18.0, y(value) + 4.0), GRAY, &format!("{value:.0}"));
    }
}
