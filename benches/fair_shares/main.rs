//! Hogs that send a hundred times their part, beside fifty customers that stay below theirs: simulated.
//!
//! `cargo bench --bench fair_shares` prints a table of policies, and writes `docs/pictures/fair_shares.svg`.
//! A number after `--` is the seed. Bounds for fair parts with one hog, which the kernel's tests check:
//! - At most 0.1 % of the requests of the fifty are denied.
//! - Their p99 is at most 1.2 times that without the hog.
//! - At least 99 % of the slots are in use.
//!
//! The other policies are models of the main rule of each, with the same limit and timeout, and queues of
//! their own sizes. The shuffle sharding has the 64 queues and hands of 6 of a Kubernetes priority level.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss)]

mod policies;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;

use fastrand::Rng;
use policies::{EarlyRejection, Fate, LIMIT, Ours, Policy, Request, ShuffleSharding};
use sluicegate::kernel::units::Nanos;

/// The customers below their part.
const OTHERS: u64 = 50;

/// The numbers of hogs that share the load.
const HOGS: [u64; 2] = [1, 20];
/// The number of the first hog.
const HOG: u64 = 1_000;

/// The simulated time in milliseconds.
const TIME: u64 = 20_000;

/// The requests of all hogs in each millisecond. Their part is half of one.
const HOG_RATE: u64 = 50;

type NewPolicy = fn() -> Box<dyn Policy>;

const POLICIES: [(&str, NewPolicy); 4] = [
    ("fair parts", || Box::new(Ours::new(Some(10_000)))),
    ("first in, first out", || Box::new(Ours::new(None))),
    ("early rejection", || Box::new(EarlyRejection::new())),
    ("shuffle sharding", || Box::new(ShuffleSharding::new(64, 6))),
];

/// The results of one run.
struct Outcome {
    /// The denied part of the requests of the fifty.
    denied: f64,
    /// The 99th percentile of their wait and duration, in milliseconds.
    p99: f64,
    used: f64,
    /// The part of the slots that the hog had.
    hog: f64,
}

struct Scene {
    policy: Box<dyn Policy>,
    random: Rng,
    arrivals: Vec<u64>,
    ends: BinaryHeap<Reverse<(u64, u64, u64)>>,
    latencies: Vec<u64>,
    denied: u64,
    busy: [u64; 2],
}

impl Scene {
    fn arrive(&mut self, now: u64, customer: u64) {
        let request = Request { number: self.arrivals.len() as u64, customer };
        self.arrivals.push(now);
        let mut fates = Vec::new();
        self.policy.arrive(Nanos(now * Nanos::MILLI.0), request, &mut fates);
        self.apply(now, fates);
    }

    fn end_until(&mut self, now: u64) {
        while let Some(&Reverse((end, number, customer))) = self.ends.peek()
            && end <= now
        {
            self.ends.pop();
            let mut fates = Vec::new();
            self.policy.end(Nanos(end * Nanos::MILLI.0), Request { number, customer }, &mut fates);
            self.apply(end, fates);
        }
    }

    fn apply(&mut self, now: u64, fates: Vec<Fate>) {
        for fate in fates {
            match fate {
                Fate::Admitted(Request { number, customer }) => {
                    let duration = self.random.u64(80..=120);
                    self.ends.push(Reverse((now + duration, number, customer)));
                    self.busy[usize::from(HOG <= customer)] +=
                        duration.min(TIME.saturating_sub(now));
                    if customer < HOG {
                        let began = self.arrivals[usize::try_from(number).unwrap()];
                        self.latencies.push(now + duration - began);
                    }
                }
                Fate::Denied(request) => self.denied += u64::from(request.customer < HOG),
            }
        }
    }
}

fn run(policy: NewPolicy, hogs: u64, seed: u64) -> Outcome {
    let random = Rng::with_seed(seed);
    let mut scene = Scene {
        policy: policy(),
        random,
        arrivals: Vec::new(),
        ends: BinaryHeap::new(),
        latencies: Vec::new(),
        denied: 0,
        busy: [0; 2],
    };
    let mut random = Rng::with_seed(seed ^ 1);
    for now in 0..TIME {
        scene.end_until(now);
        // One request each two milliseconds fills half of the limit.
        if now % 2 == 0 {
            scene.arrive(now, 1 + random.u64(0..OTHERS));
        }
        for _ in 0..if hogs == 0 { 0 } else { HOG_RATE } {
            scene.arrive(now, HOG + random.u64(0..hogs));
        }
    }
    let asked = TIME / 2;
    scene.latencies.sort_unstable();
    let slots = (u64::from(LIMIT) * TIME) as f64;
    let latencies = &scene.latencies;
    Outcome {
        denied: scene.denied as f64 / asked as f64,
        p99: latencies.get(latencies.len() * 99 / 100).map_or(f64::NAN, |time| *time as f64),
        used: (scene.busy[0] + scene.busy[1]) as f64 / slots,
        hog: scene.busy[1] as f64 / slots,
    }
}

fn main() {
    let own_seed = std::env::args().find_map(|word| word.parse().ok());
    let seed = own_seed.unwrap_or(7);
    println!("seed {seed}; {LIMIT} slots; the hogs ask for {} slots", HOG_RATE * 100);
    println!(
        "{:20} {:>5} {:>9} {:>10} {:>7} {:>6}",
        "policy", "hogs", "denied", "p99 ratio", "in use", "hogs"
    );
    let mut rows = Vec::new();
    for (hogs, (name, policy)) in HOGS.into_iter().flat_map(|hogs| POLICIES.map(|one| (hogs, one)))
    {
        let (alone, beside) = (run(policy, 0, seed), run(policy, hogs, seed));
        let (ratio, denied) = (beside.p99 / alone.p99, format!("{:.2} %", 100.0 * beside.denied));
        let (used, part) = (beside.used, beside.hog);
        println!("{name:20} {hogs:>5} {denied:>9} {ratio:>10.2} {used:>7.3} {part:>6.2}");
        rows.push((format!("{name}, {hogs}"), beside.denied, ratio));
    }
    if own_seed.is_none() {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/fair_shares.svg");
        std::fs::write(picture, draw(&rows)).unwrap();
    }
}

/// Draws two bars for each policy: the denied part, and the p99 ratio.
fn draw(rows: &[(String, f64, f64)]) -> String {
    let height = 34 * rows.len() + 30;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"16\">policy, hogs</text>\n\
         <text x=\"190\" y=\"16\">denied requests of fifty others</text>\n\
         <text x=\"400\" y=\"16\">their p99 / p99 without the hog</text>\n"
    );
    let most = rows.iter().map(|row| row.2).fold(1.0, f64::max);
    for (number, (name, denied, ratio)) in rows.iter().enumerate() {
        let is_ours = name.starts_with(POLICIES[0].0);
        let (top, color) = (26 + 34 * number, if is_ours { "#1b7f3b" } else { "#8a8a8a" });
        let (left, right) = (140.0 * denied, 160.0 * ratio / most);
        writeln!(
            svg,
            "<text x=\"8\" y=\"{y}\">{name}</text>\n\
             <rect x=\"190\" y=\"{top}\" width=\"{left:.1}\" height=\"20\" fill=\"{color}\"/>\n\
             <text x=\"{dx:.1}\" y=\"{y}\">{share:.1} %</text>\n\
             <rect x=\"400\" y=\"{top}\" width=\"{right:.1}\" height=\"20\" fill=\"{color}\"/>\n\
             <text x=\"{rx:.1}\" y=\"{y}\">{ratio:.2}</text>",
            y = top + 15,
            dx = 196.0 + left,
            share = 100.0 * denied,
            rx = 406.0 + right,
        )
        .unwrap();
    }
    svg + "</svg>\n"
}
