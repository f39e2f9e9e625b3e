//! Draws the limit and the latency over time: a column for each algorithm, a line for each fleet.
//!
//! The dashed lines are the 20 requests that the backend serves at once, and the 0.2 s that each
//! takes.

use std::fmt::Write as _;

use super::fleet::Figures;

/// The figures of one run.
pub struct Line {
    pub algorithm: &'static str,
    pub replicas: &'static str,
    pub seconds: Vec<Figures>,
}

const WIDTH: f64 = 250.0;
const HEIGHT: f64 = 150.0;
const GAP: f64 = 50.0;
const COLORS: [(&str, &str); 4] = [
    ("1 local", "#8a8a8a"),
    ("1 shared", "#1b7f3b"),
    ("4 even", "#c2571a"),
    ("16 skewed", "#3b5bb5"),
];

/// Title, value, largest value and reference of a panel.
type Row = (&'static str, fn(&Figures) -> f64, f64, f64);

const ROWS: [Row; 2] =
    [("limit", |second| second.limit, 60.0, 20.0), ("latency, s", |second| second.rtt, 0.6, 0.2)];

pub fn svg(lines: &[Line], algorithms: &[&str]) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 470\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"960\" height=\"470\" fill=\"white\"/>\n",
    );
    for (number, (name, color)) in COLORS.iter().enumerate() {
        let x = GAP + 150.0 * number as f64;
        writeln!(svg, "<text x=\"{x}\" y=\"20\" fill=\"{color}\">{name}</text>").unwrap();
    }
    for (column, algorithm) in algorithms.iter().enumerate() {
        for (number, row) in ROWS.iter().enumerate() {
            let left = GAP + (WIDTH + GAP) * column as f64;
            let top = GAP + (HEIGHT + GAP) * number as f64;
            let of_panel: Vec<_> = lines.iter().filter(|it| it.algorithm == *algorithm).collect();
            panel(&mut svg, (left, top), row, (algorithm, &of_panel));
        }
    }
    svg + "</svg>\n"
}

fn panel(
    svg: &mut String,
    (left, top): (f64, f64),
    (name, value, most, reference): &Row,
    (algorithm, lines): (&str, &[&Line]),
) {
    let y = |number: f64| top + HEIGHT * (1.0 - (number / most).clamp(0.0, 1.0));
    writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#ccc\"/>\n\
         <text x=\"{left}\" y=\"{:.0}\">{algorithm}: {name}</text>\n\
         <line x1=\"{left}\" x2=\"{:.0}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>\n\
         <text x=\"{3:.0}\" y=\"{2:.1}\" text-anchor=\"end\">{reference}</text>",
        top - 6.0,
        left + WIDTH,
        y(*reference),
        left - 4.0,
    )
    .unwrap();
    for (replicas, color) in COLORS {
        let Some(line) = lines.iter().find(|line| line.replicas == replicas) else { continue };
        let step = WIDTH / line.seconds.len().max(1) as f64;
        let point = |(at, second): (usize, &Figures)| {
            format!("{:.1},{:.1}", left + step * (at as f64 + 0.5), y(value(second)))
        };
        let points: Vec<_> = line.seconds.iter().enumerate().map(point).collect();
        let points = points.join(" ");
        writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\"/>").unwrap();
    }
}
