//! Draws figures against the number of replicas.
//!
//! The vertical axis is logarithmic too, except that of times and errors. A gray line is the law of growth
//! through the figure of ten replicas, or the bound.

use std::fmt::Write as _;

use super::figures::{Event, Figures};

const GREEN: &str = "#1b7f3b";
const GRAY: &str = "#8a8a8a";
const WIDTH: f64 = 250.0;
const HEIGHT: f64 = 140.0;

type Value = fn(&Figures) -> f64;

/// The law of a panel.
#[derive(Clone, Copy)]
enum Bound {
    /// The exponent of growth with the replicas.
    Exponent(f64),
    /// The largest value, on a linear axis.
    Most(f64),
}

const PANELS: [(&str, Value, Bound); 6] = [
    ("CPU of the store, ms/s (law: n²)", Figures::cpu_per_second, Bound::Exponent(2.0)),
    (
        "messages/s (law: n)",
        |fleet| fleet.messages_per_second(&[0, 1, 2, 3, 4]),
        Bound::Exponent(1.0),
    ),
    (
        "replicas in membership replies/s (law: n²)",
        Figures::listed_per_second,
        Bound::Exponent(2.0),
    ),
    (
        "converged after new demand, s (law: 3)",
        |fleet| fleet.converged_after(Event::Flip),
        Bound::Most(3.0),
    ),
    (
        "converged after failover, s (law: 9)",
        |fleet| fleet.converged_after(Event::Failover),
        Bound::Most(9.0),
    ),
    ("permits in use / limit (law: 1)", |fleet| fleet.permits, Bound::Most(1.0)),
];

pub fn svg(fleets: &[Figures]) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 450\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"960\" height=\"450\" fill=\"white\"/>\n",
    );
    for (number, (title, value, bound)) in PANELS.into_iter().enumerate() {
        let corner = (50.0 + 315.0 * (number % 3) as f64, 35.0 + 215.0 * (number / 3) as f64);
        let points: Vec<_> =
            fleets.iter().map(|fleet| (f64::from(fleet.replicas), value(fleet))).collect();
        panel(&mut svg, corner, title, &points, bound);
    }
    svg + "</svg>\n"
}

fn panel(
    svg: &mut String,
    (left, top): (f64, f64),
    title: &str,
    points: &[(f64, f64)],
    bound: Bound,
) {
    text(svg, (left, top - 8.0), "#000", title);
    let frame = "fill=\"none\" stroke=\"#ccc\"";
    writeln!(svg, "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" {frame}/>")
        .unwrap();
    let law: Vec<_> =
        points.iter().map(|(size, _)| (*size, law_at(*size, points, bound))).collect();
    let all = || points.iter().chain(&law).map(|(_, value)| *value);
    let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    let decades = (points[points.len() - 1].0 / points[0].0).log10();
    let place = |(size, value): &(f64, f64)| {
        let part = match bound {
            Bound::Exponent(_) => (value / least).log10() / (most / least).log10(),
            Bound::Most(_) => value / most,
        };
        let x = left + WIDTH * (0.05 + 0.85 * (size / points[0].0).log10() / decades);
        (x, top + HEIGHT * (0.95 - 0.8 * part))
    };
    line(svg, GRAY, law.iter().map(place));
    line(svg, GREEN, points.iter().map(place));
    for point in points {
        let (x, y) = place(point);
        writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{GREEN}\"/>").unwrap();
        text(svg, (x - 8.0, y - 7.0), GREEN, &short(point.1));
        text(svg, (x - 8.0, top + HEIGHT + 14.0), GRAY, &format!("{:.0}", point.0));
    }
}

fn law_at(size: f64, points: &[(f64, f64)], bound: Bound) -> f64 {
    match bound {
        Bound::Most(most) => most,
        Bound::Exponent(exponent) => {
            let (from, value) = *points.iter().find(|(size, _)| 10.0 <= *size).unwrap();
            value * (size / from).powf(exponent)
        }
    }
}

fn line(svg: &mut String, color: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points: Vec<_> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\"/>", points.join(" "))
        .unwrap();
}

/// A value in few characters, such as `10k`.
fn short(value: f64) -> String {
    match value {
        1e6.. => format!("{:.1}M", value / 1e6),
        1e4.. => format!("{:.0}k", value / 1e3),
        10.0.. => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), color: &str, text: &str) {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\">{text}</text>").unwrap();
}
