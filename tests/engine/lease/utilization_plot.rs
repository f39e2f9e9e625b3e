//! Draws the table of module `utilization`: the used part of a limit and the store calls per decision, by
//! number of replicas.

use std::fmt::Write as _;

/// Result for one fleet size and one demand.
pub(super) struct Point {
    pub(super) demand: &'static str,
    pub(super) replicas: usize,
    /// The used part of the limit, 0 to 1.
    pub(super) share: f64,
    /// Store calls per decision.
    pub(super) calls: f64,
}

const WIDTH: f64 = 300.0;

const HEIGHT: f64 = 180.0;

const LEFT: f64 = 50.0;

const TOP: f64 = 50.0;

const GAP: f64 = 60.0;

const COLORS: [&str; 4] = ["#1b7f3b", "#c2571a", "#3b5bb5", "#8a3fa0"];

type Value = fn(&Point) -> f64;

/// Draws two panels side by side; `bound` is the smallest part of the limit that must be used.
pub(super) fn svg(strategy: &str, points: &[Point], bound: f64) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 740 270\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"740\" height=\"270\" fill=\"white\"/>\n",
    );
    let mut demands: Vec<&str> = points.iter().map(|point| point.demand).collect();
    demands.dedup();
    for (number, (demand, color)) in demands.iter().zip(COLORS).enumerate() {
        let x = LEFT + 130.0 * f64::from(u32::try_from(number).unwrap());
        writeln!(svg, "<text x=\"{x}\" y=\"18\" fill=\"{color}\">{demand}</text>").unwrap();
    }
    let panels: [(&str, Value, Option<f64>); 2] = [
        ("share of the limit used", |point| point.share, Some(bound)),
        ("calls per decision", |point| point.calls, None),
    ];
    for (number, (name, value, bound)) in panels.into_iter().enumerate() {
        let left = LEFT + (WIDTH + GAP) * f64::from(u32::try_from(number).unwrap());
        let y = |share: f64| TOP + HEIGHT * (1.0 - share);
        writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"none\" stroke=\"#ccc\"/>\n\
             <text x=\"{left}\" y=\"{}\">{strategy}: {name}, by replicas</text>",
            TOP - 6.0
        )
        .unwrap();
        for share in [0.0, 0.5, 1.0] {
            let (x, y) = (left - 4.0, y(share));
            writeln!(svg, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{share}</text>")
                .unwrap();
        }
        if let Some(bound) = bound {
            let (to, y) = (left + WIDTH, y(bound));
            let dashes = "stroke=\"#999\" stroke-dasharray=\"4 3\"";
            writeln!(svg, "<line x1=\"{left}\" x2=\"{to}\" y1=\"{y:.1}\" y2=\"{y:.1}\" {dashes}/>")
                .unwrap();
        }
        lines(&mut svg, left, points, &demands, value);
    }
    svg + "</svg>\n"
}

fn lines(svg: &mut String, left: f64, points: &[Point], demands: &[&str], value: Value) {
    // A logarithmic axis from 2 to 512 replicas.
    let x = |replicas: usize| left + WIDTH * f64::from(replicas.ilog2() - 1) / 8.0;
    for (demand, color) in demands.iter().zip(COLORS) {
        let mut line = String::new();
        for point in points.iter().filter(|point| point.demand == *demand) {
            let y = TOP + HEIGHT * (1.0 - value(point));
            write!(line, "{:.1},{y:.1} ", x(point.replicas)).unwrap();
        }
        writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\"/>",
            line.trim_end()
        )
        .unwrap();
    }
    for replicas in [2, 8, 64, 512] {
        let (x, y) = (x(replicas), TOP + HEIGHT + 14.0);
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{replicas}</text>")
            .unwrap();
    }
}
