//! Draws each curve against its first point, on a logarithmic axis of sizes.

use std::fmt::Write as _;

use crate::Curve;

const GREEN: &str = "#1b7f3b";
const GRAY: &str = "#8a8a8a";
const WIDTH: f64 = 270.0;
const HEIGHT: f64 = 150.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 40.0;
const COLUMN: f64 = 310.0;
const ROW: f64 = 235.0;
/// The largest ratio of the vertical axis.
const MOST: f64 = 4.0;

pub fn svg(curves: &[Curve]) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 480\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"960\" height=\"480\" fill=\"white\"/>\n",
    );
    for (number, curve) in curves.iter().enumerate() {
        let (column, row) = (number % 3, number / 3);
        panel(&mut svg, (LEFT + COLUMN * column as f64, TOP + ROW * row as f64), curve);
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, (left, top): (f64, f64), curve: &Curve) {
    let frame = "fill=\"none\" stroke=\"#ccc\"";
    writeln!(svg, "<rect x=\"{left}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" {frame}/>")
        .unwrap();
    text(svg, (left, top - 18.0), "#000", curve.what);
    text(svg, (left, top - 5.0), GRAY, &format!("expected: {}", curve.expected));
    let (first, last) = (curve.points[0], curve.points[curve.points.len() - 1]);
    let decades = (last.0 / first.0).log10();
    let x = |size: f64| left + WIDTH * (0.03 + 0.94 * (size / first.0).log10() / decades);
    let y = |cost: f64| top + HEIGHT * (1.0 - (cost / first.1 / MOST).clamp(0.0, 1.0));
    for ratio in [1.0, 2.0, 3.0] {
        let at = y(ratio * first.1);
        let line =
            format!("x1=\"{left}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\"", left + WIDTH);
        writeln!(svg, "<line {line} stroke=\"#eee\"/>").unwrap();
        text(svg, (left - 24.0, at + 4.0), GRAY, &format!("{ratio:.0} ×"));
    }
    let points: Vec<_> = curve
        .points
        .iter()
        .map(|(size, cost)| format!("{:.1},{:.1}", x(*size), y(*cost)))
        .collect();
    writeln!(svg, "<polyline points=\"{}\" fill=\"none\" stroke=\"{GREEN}\"/>", points.join(" "))
        .unwrap();
    for (size, cost) in &curve.points {
        let (x, y) = (x(*size), y(*cost));
        writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{GREEN}\"/>").unwrap();
        text(svg, (x - 8.0, y - 7.0), GREEN, &format!("{:.2}", cost / first.1));
        text(svg, (x - 10.0, top + HEIGHT + 14.0), GRAY, &short(*size));
    }
}

/// A size in few characters, such as `10k`.
fn short(size: f64) -> String {
    match size {
        1e6.. => format!("{:.0}M", size / 1e6),
        1e3.. => format!("{:.0}k", size / 1e3),
        _ => format!("{size:.0}"),
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), color: &str, text: &str) {
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\">{text}</text>").unwrap();
}
