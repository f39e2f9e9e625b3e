//! Draws the latency of each step by percentile, as SVG.
//!
//! Both axes are logarithmic, so that 90, 99 and 99.9 % have equal distances.

use std::fmt::Write as _;

use super::latency::LatencyHistogram;
use super::report::{BenchReport, time_text};
use crate::kernel::units::Nanos;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
/// The percentiles of the horizontal axis: of the latencies, 1, 1/10, 1/100 and so on are slower.
const PERCENTILES: [&str; 5] = ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"];
const DECADES: u32 = 4;
const POINTS: u32 = 160;
const COLORS: [&str; 6] = ["#1b7f3b", "#c2571a", "#2a5db0", "#8a2f8f", "#8a8a8a", "#b09a1b"];

/// The latencies of the vertical axis: powers of ten of nanoseconds.
struct Scale {
    lowest: u32,
    highest: u32,
}

/// Draws the steps.
#[must_use]
pub fn svg(report: &BenchReport) -> String {
    let (width, height) = (LEFT + WIDTH + 110.0, TOP + HEIGHT + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let title = format!("Latency by percentile, {}", report.target);
    text(&mut svg, (LEFT, TOP - 16.0), "#000", &title);
    let scale = Scale::of(report.steps.iter().map(|step| &step.tally.latency));
    axes(&mut svg, &scale);
    for (number, (step, color)) in report.steps.iter().zip(COLORS.iter().cycle()).enumerate() {
        curve(&mut svg, &scale, &step.tally.latency, color);
        let row = u32::try_from(number).unwrap_or(0);
        let place = (LEFT + WIDTH + 12.0, TOP + 12.0 + 16.0 * f64::from(row));
        text(&mut svg, place, color, &format!("{}/s", step.rate));
    }
    svg + "</svg>\n"
}

impl Scale {
    fn of<'l>(latencies: impl Iterator<Item = &'l LatencyHistogram>) -> Self {
        let (mut lowest, mut highest) = (u64::MAX, 0);
        for latency in latencies.filter(|latency| 0 < latency.count()) {
            lowest = lowest.min(latency.quantile(0).0.max(1));
            highest = highest.max(latency.max().0);
        }
        let highest = highest.max(10);
        let lowest = lowest.min(highest / 10).max(1).ilog10();
        Self { lowest, highest: highest.ilog10() + 1 }
    }

    #[expect(clippy::cast_precision_loss, reason = "the position of a point")]
    fn y(&self, latency: Nanos) -> f64 {
        let (lowest, highest) = (f64::from(self.lowest), f64::from(self.highest));
        let part = ((latency.0.max(1) as f64).log10() - lowest) / (highest - lowest);
        TOP + HEIGHT * (1.0 - part.clamp(0.0, 1.0))
    }
}

fn axes(svg: &mut String, scale: &Scale) {
    for (decade, label) in (0..=DECADES).zip(PERCENTILES) {
        let x = x_of(f64::from(decade));
        line(svg, (x, TOP), (x, TOP + HEIGHT));
        text(svg, (x - 10.0, TOP + HEIGHT + 16.0), "#444", label);
    }
    for power in scale.lowest..=scale.highest {
        let time = Nanos(10_u64.saturating_pow(power));
        let y = scale.y(time);
        line(svg, (LEFT, y), (LEFT + WIDTH, y));
        text(svg, (LEFT - 56.0, y + 4.0), "#444", &time_text(time));
    }
}

fn curve(svg: &mut String, scale: &Scale, latency: &LatencyHistogram, color: &str) {
    if latency.count() == 0 {
        return;
    }
    let point = |number: u32| {
        let decade = f64::from(number) * f64::from(DECADES) / f64::from(POINTS);
        let y = scale.y(latency.quantile(millionths(decade)));
        format!("{:.1},{y:.1}", x_of(decade))
    };
    let points = (0..=POINTS).map(point).collect::<Vec<_>>().join(" ");
    let _infallible = writeln!(
        svg,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>"
    );
}

/// The quantile that all but 1 of 10^`decade` latencies do not exceed, in millionths.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 999,900")]
fn millionths(decade: f64) -> u64 {
    (1e6 * (1.0 - 10_f64.powf(-decade))).round() as u64
}

fn x_of(decade: f64) -> f64 {
    LEFT + WIDTH * decade / f64::from(DECADES)
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _infallible = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), color: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _infallible =
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{color}\">{text}</text>");
}
