//! Tests that leased limits deny a check only if the limit has too few hits left.
//!
//! Real engines with manual clocks decide checks of 1 to 64 hits. The limit is 100 hits per second,
//! with at most 10 outstanding. An independent model of the limit gives the expected verdicts.

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{engine, total_balance};
use crate::support::dice::{Dice, seed};
use crate::support::engine::{advance_clock, check, publish};
use crate::support::faulty_store::FaultyStore;

const LIMIT: u64 = 100;

const MINUTE: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
struct TimedCheck {
    millis: u64,
    replica: usize,
    hits: u64,
}

/// A GCRA debt in thousandths of a hit. One millisecond frees a tenth of a hit.
#[derive(Debug, Default)]
struct GcraModel {
    debt: u64,
    at: u64,
}

/// Totals of a fleet over one minute.
#[derive(Debug, Default)]
struct Totals {
    admitted: u64,
    asked: u64,
    calls: u64,
    checks: u64,
    /// Denials although the model had enough hits left: check, remaining hits, and hits outstanding
    /// at other replicas.
    wrong_denials: Vec<(TimedCheck, u64, u64)>,
}

impl GcraModel {
    fn remaining(&mut self, millis: u64) -> u64 {
        self.debt = self.debt.saturating_sub((millis - self.at) * LIMIT);
        self.at = millis;
        (LIMIT * 1_000).saturating_sub(self.debt) / 1_000
    }

    fn charge(&mut self, hits: u64) {
        self.debt += hits * 1_000;
    }
}

/// One minute of checks at `percent` of the limit; some replicas are idle for seconds.
/// Half of the checks cost 1 hit, a quarter 2, and so on up to 64.
fn one_minute(replicas: usize, percent: u64, dice: &mut Dice) -> Vec<TimedCheck> {
    let (mut checks, mut millis) = (Vec::new(), 0);
    // An average check costs 4 hits, so 100 hits per second are one check per 40 ms.
    while millis < MINUTE {
        millis += dice.up_to(2 * 40 * 100 / percent);
        let awake = replicas.min(1 + usize::try_from(millis / 5_000 % 3).unwrap() * replicas / 2);
        let replica = usize::try_from(dice.up_to(awake as u64 - 1)).unwrap();
        checks.push(TimedCheck { millis, replica, hits: 1 << dice.roll().leading_zeros().min(6) });
    }
    checks
}

/// Replays `trace` on a fleet, and on a model of the limit.
async fn run(domain_fields: &str, mode: &str, replicas: usize, trace: &[TimedCheck]) -> Totals {
    let limits = format!(
        "- key: k\n  rate_limit: {{unit: second, requests_per_unit: {LIMIT}, strategy: gcra{mode}}}\n"
    );
    let store = FaultyStore::new();
    let fleet: Vec<Engine> = (0..replicas).map(|_| engine(&store, &limits)).collect();
    for engine in &fleet {
        publish(engine, domain_fields, &limits);
    }
    let (mut totals, mut model, mut now) = (Totals::default(), GcraModel::default(), 0);
    for timed in trace {
        while now < timed.millis {
            now += 1;
            for engine in &fleet {
                advance_clock(engine, Nanos::MILLI);
            }
            if now % 1_000 == 0 {
                for engine in &fleet {
                    tend(engine).await;
                }
            }
        }
        let others = fleet.iter().enumerate().filter(|(at, _)| *at != timed.replica);
        let outstanding: u64 = others.map(|(_, engine)| outstanding(engine)).sum();
        let left = model.remaining(now);
        let check = check(&[("k", "v")], Cost::Charge(Hits(timed.hits)));
        let answer = fleet[timed.replica].decide(&check).await.unwrap();
        run_background_tasks().await;
        (totals.checks, totals.asked) = (totals.checks + 1, totals.asked + timed.hits);
        if answer.verdict == Verdict::Allow {
            model.charge(timed.hits);
            totals.admitted += timed.hits;
        } else if timed.hits + outstanding <= left {
            totals.wrong_denials.push((*timed, left, outstanding));
        }
    }
    totals.calls = store.calls();
    totals
}

async fn tend(engine: &Engine) {
    if let Some(leases) = engine.leases() {
        leases.upkeep().await;
        run_background_tasks().await;
    }
}

fn outstanding(engine: &Engine) -> u64 {
    if engine.leases().is_some() { total_balance(engine) } else { 0 }
}

/// Lets background messages complete.
async fn run_background_tasks() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Scenarios for every fleet size and load, each with a label.
#[expect(clippy::print_stdout, reason = "the seed")]
fn scenarios() -> Vec<(usize, u64, Vec<TimedCheck>, String)> {
    let seed = seed();
    let mut dice = Dice::new(seed);
    println!("SLUICEGATE_SEED={seed}");
    let fleets = [1, 2, 8].into_iter();
    let each = fleets.flat_map(|replicas| [60, 100, 150].map(|percent| (replicas, percent)));
    each.map(|(replicas, percent)| {
        let label = format!("SLUICEGATE_SEED={seed}: {replicas} replicas, {percent} %");
        (replicas, percent, one_minute(replicas, percent, &mut dice), label)
    })
    .collect()
}

#[tokio::test]
async fn leased_limits_never_deny_while_hits_remain() {
    for (replicas, percent, trace, label) in scenarios() {
        let leased = run("", ", mode: leased, max_overshoot: 10%", replicas, &trace).await;
        let strict = run("", "", replicas, &trace).await;
        println!(
            "| {replicas} | {percent} % | {} asked | leased {} | strict {} | {} calls for {} questions |",
            leased.asked, leased.admitted, strict.admitted, leased.calls, leased.checks
        );
        assert!(strict.wrong_denials.is_empty(), "{label}, strict: {:?}", strict.wrong_denials);
        let (wrong_denials, first) = (leased.wrong_denials.len(), leased.wrong_denials.first());
        assert!(leased.wrong_denials.is_empty(), "{label}: {wrong_denials} of {first:?}");
        assert!(leased.calls <= leased.checks, "{label}: {} calls", leased.calls);
        assert!(95 * strict.admitted <= 100 * leased.admitted, "{label}: {leased:?}");
    }
}
