//! How the cost of a check grows, beside the expected growth.
//!
//! `cargo bench --features jemalloc --bench growth` prints a table; `-- --plot` also draws `docs/pictures/growth.svg`.
//!
//! | grows | from, to | measured | expected |
//! |---|---|---|---|
//! | keys | 10³ to 10⁷ | time of a decision | constant, and the misses of the CPU's caches |
//! | descriptors | 1 to 20 | time of a decision, for each descriptor | constant or falling |
//! | rules | 10 to 10⁵ | time of a decision | constant |
//! | connections | 1 to 10,000, with 128 checks in flight | server CPU | up to one read and one write for each check |
//! | in flight | 1 to 1,000, on one connection | server CPU | falling: more checks for each read and write |
//!
//! All points of a curve take turns, so other load on the machine affects all of them. A point is the
//! median of its turns. Only ratios within one curve mean something.

#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
#![allow(clippy::cast_precision_loss)]

mod decisions;
mod plot;
mod servers;
#[path = "../support/service.rs"]
#[allow(dead_code, reason = "made for other benches, too")]
mod service;

/// The costs of one kind of growth, in nanoseconds for each check.
pub struct Curve {
    pub what: &'static str,
    pub expected: &'static str,
    /// Size and cost.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// Measures each size once in each turn, and takes medians. `cost` returns nanoseconds.
    fn measure<P>(
        (what, expected): (&'static str, &'static str),
        turns: usize,
        sizes: &[P],
        size_of: impl Fn(&P) -> f64,
        mut cost: impl FnMut(&P) -> f64,
    ) -> Self {
        let mut costs = vec![Vec::new(); sizes.len()];
        for _ in 0..turns {
            for (size, costs) in sizes.iter().zip(&mut costs) {
                costs.push(cost(size));
            }
        }
        let median = |mut costs: Vec<f64>| {
            costs.sort_by(f64::total_cmp);
            costs[costs.len() / 2]
        };
        let points = sizes.iter().map(size_of).zip(costs.into_iter().map(median)).collect();
        Self { what, expected, points }
    }

    fn print(&self) {
        let first = self.points[0].1;
        println!("{}: {}", self.what, self.expected);
        for (size, cost) in &self.points {
            println!("  {size:>10} {cost:>10.0} ns {:>6.2}", cost / first);
        }
    }
}

fn main() {
    let mut curves = vec![decisions::keys(), decisions::descriptors(), decisions::rules()];
    curves.extend(servers::curves());
    curves.iter().for_each(Curve::print);
    if std::env::args().any(|arg| arg == "--plot") {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/growth.svg");
        std::fs::write(picture, plot::svg(&curves)).unwrap();
    }
}
