//! How much of a limit a demand that exceeds it uses, and what it calls, in fleets of any size.
//!
//! Real engines on clocks set by hand: 6,000 a minute, of which a tenth may be out, asked for half as
//! much again. `cargo test --test all -- --nocapture leased::share` prints the table of docs/leases.md, and with
//! `SLUICEGATE_PICTURES=docs/pictures` draws its pictures.

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::plot::{Point, svg};
use super::{Far, engine, pass, question};
use crate::support::dice::{Dice, seed};

const FLEETS: [usize; 4] = [2, 8, 64, 512];
const LIMIT: u64 = 6_000;
/// Questions in a tenth of a second: 150 a second, where 100 pass.
const ASKED: u64 = 15;
const MINUTES: u64 = 1;

/// Who asks.
#[derive(Clone, Copy, Debug)]
enum Demand {
    /// Everybody alike.
    Uniform,
    /// One asks for half, the next for a quarter, and so on.
    Skewed,
    /// Whoever asks, asks for a second's worth at once.
    Bursty,
    /// A tenth of the fleet asks, and every ten seconds another.
    Drifting,
}

const DEMANDS: [Demand; 4] = [Demand::Uniform, Demand::Skewed, Demand::Bursty, Demand::Drifting];

impl Demand {
    const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "everybody alike",
            Self::Skewed => "skewed",
            Self::Bursty => "in bursts",
            Self::Drifting => "drifting",
        }
    }

    /// Who asks next, of `members`, in this tenth of a second.
    fn who(self, members: usize, tenth: u64, dice: &mut Dice) -> usize {
        let members = members as u64;
        let who = match self {
            Self::Uniform => dice.up_to(members - 1),
            Self::Skewed => u64::from(dice.roll().leading_zeros()).min(members - 1),
            Self::Bursty => Dice::new(tenth / 10).up_to(members - 1),
            Self::Drifting => {
                let some = members.div_ceil(10);
                (tenth / 100 * some + dice.up_to(some - 1)) % members
            }
        };
        usize::try_from(who).unwrap()
    }
}

/// Admitted hits and calls per question.
async fn run(strategy: &str, members: usize, demand: Demand, dice: &mut Dice) -> (u64, f64) {
    let store = Far::new();
    let burst = if strategy == "gcra" { ", burst: 100" } else { "" };
    let limits = format!(
        "- key: k\n  rate_limit: {{unit: minute, requests_per_unit: {LIMIT}, strategy: {strategy}{burst}, \
         mode: leased, max_overshoot: 10%}}\n"
    );
    let fleet: Vec<Engine> = (0..members).map(|_| engine(&store, &limits)).collect();
    let (mut admitted, mut asked) = (0, 0_u32);
    for tenth in 0..MINUTES * 600 {
        for _ in 0..ASKED {
            let engine = &fleet[demand.who(members, tenth, dice)];
            let question = question(&[("k", "v")], Cost::Charge(Hits(1)));
            let answer = engine.decide(&question).await.unwrap();
            admitted += u64::from(answer.verdict == Verdict::Admit);
            asked += 1;
            tokio::task::yield_now().await;
        }
        for engine in &fleet {
            pass(engine, Nanos(100 * Nanos::MILLI.0));
        }
        if tenth % 10 == 9 {
            for engine in &fleet {
                engine.leases().unwrap().tend().await;
            }
        }
    }
    let calls = u32::try_from(store.calls()).unwrap();
    (admitted, f64::from(calls) / f64::from(asked))
}

#[tokio::test]
async fn a_demand_that_exceeds_it_uses_nearly_all_of_windows_in_a_fleet_of_any_size() {
    uses_nearly_all("fixed_window").await;
}

#[tokio::test]
async fn a_demand_that_exceeds_it_uses_nearly_all_of_a_rate_in_a_fleet_of_any_size() {
    uses_nearly_all("gcra").await;
}

#[expect(clippy::print_stdout, reason = "the table is what this is run for")]
async fn uses_nearly_all(strategy: &str) {
    let seed = seed();
    let (mut dice, mut wrong, mut points) = (Dice::new(seed), Vec::new(), Vec::new());
    let law = LIMIT * MINUTES + if strategy == "gcra" { 100 } else { 0 };
    println!("SLUICEGATE_SEED={seed}");
    for demand in DEMANDS {
        for members in FLEETS {
            let (admitted, calls) = run(strategy, members, demand, &mut dice).await;
            let share = admitted * 1_000 / law;
            let used = f64::from(u32::try_from(share).unwrap()) / 1_000.0;
            points.push(Point { demand: demand.name(), members, share: used, calls });
            let shown = format!("{}.{:03}", share / 1_000, share % 1_000);
            println!("| `{strategy}` | {demand:?} | {members} | {shown} | {calls:.3} |");
            if share < 950 || law + LIMIT / 10 < admitted {
                wrong.push((demand, members, share));
            }
        }
    }
    if let Ok(pictures) = std::env::var("SLUICEGATE_PICTURES") {
        std::fs::write(format!("{pictures}/leases_{strategy}.svg"), svg(strategy, &points, 0.95))
            .unwrap();
    }
    assert!(wrong.is_empty(), "SLUICEGATE_SEED={seed}: {wrong:?}");
}
