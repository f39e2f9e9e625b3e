//! Draws the results: all phases of each spread and algorithm, from worst to best.
//!
//! The upper row is goodput; the lower row is p99 on a logarithmic scale. Both are relative to the
//! best static limit. Dashed lines are the bounds.

use std::fmt::Write as _;

use super::server::Spread;

/// The result of one algorithm in one phase.
pub struct Point {
    pub spread: Spread,
    pub policy: &'static str,
    pub goodput: f64,
    pub p99: f64,
}

const WIDTH: f64 = 250.0;
const HEIGHT: f64 = 150.0;
const GAP: f64 = 50.0;
const COLOURS: [(&str, &str); 4] = [
    ("gradient", "#1b7f3b"),
    ("aimd", "#c2571a"),
    ("gradient2", "#3b5bb5"),
    ("no limit", "#8a8a8a"),
];
const MOST_GOODPUT: f64 = 1.1;
/// Range of p99 relative to the best static limit.
const P99: (f64, f64) = (0.5, 100.0);

/// Maps a value to its height in a panel, from 0 at the bottom to 1.
type Scale = fn(f64) -> f64;
/// Title, value of a point, scale and bound of a panel.
type Row = (&'static str, fn(&Point) -> f64, Scale, f64);

const ROWS: [Row; 2] = [
    ("goodput", |point| point.goodput, |goodput| goodput / MOST_GOODPUT, 0.95),
    ("p99", |point| point.p99, |p99| (p99 / P99.0).ln() / (P99.1 / P99.0).ln(), 2.0),
];

pub fn svg(points: &[Point], spreads: &[Spread]) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 470\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"960\" height=\"470\" fill=\"white\"/>\n",
    );
    for (number, (name, colour)) in COLOURS.iter().enumerate() {
        let x = GAP + 150.0 * number as f64;
        writeln!(svg, "<text x=\"{x}\" y=\"20\" fill=\"{colour}\">{name}</text>").unwrap();
    }
    for (column, spread) in spreads.iter().enumerate() {
        for (number, row) in ROWS.iter().enumerate() {
            let left = GAP + (WIDTH + GAP) * column as f64;
            let top = GAP + (HEIGHT + GAP) * number as f64;
            panel(&mut svg, (left, top), *spread, row, points);
        }
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, (left, top): (f64, f64), spread: Spread, row: &Row, points: &[Point]) {
    let (name, value, scale, bound) = row;
    let y = |number: f64| top + HEIGHT * (1.0 - scale(number).clamp(0.0, 1.0));
    writeln!(
        svg,
        "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#ccc\"/>\n\
         <text x=\"{left}\" y=\"{:.0}\">{spread:?}: {name} of best</text>\n\
         <line x1=\"{left}\" x2=\"{:.0}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"#999\" stroke-dasharray=\"4 3\"/>\n\
         <text x=\"{3:.0}\" y=\"{2:.1}\" text-anchor=\"end\">{bound}</text>",
        top - 6.0,
        left + WIDTH,
        y(*bound),
        left - 4.0,
    )
    .unwrap();
    for (policy, colour) in COLOURS {
        let of = |point: &&Point| (point.spread, point.policy) == (spread, policy);
        let mut values: Vec<_> = points.iter().filter(of).map(value).collect();
        values.sort_by(f64::total_cmp);
        let step = WIDTH / values.len().max(2) as f64;
        let place = |(at, number): (usize, &f64)| {
            format!("{:.1},{:.1}", left + step * (at as f64 + 0.5), y(*number))
        };
        let line: Vec<_> = values.iter().enumerate().map(place).collect();
        let line = line.join(" ");
        writeln!(svg, "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\"/>").unwrap();
    }
}
