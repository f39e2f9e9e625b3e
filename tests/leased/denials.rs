//! Who is denied by leased limits, beside the law and beside the same limit that is strict.
//!
//! Real engines on clocks set by hand: 100 a second, of which 10 may be out, asked for 1 to 64 hits at a time. The
//! law is kept here, from what was admitted and when: nothing of it comes from the store.

use sluicegate::engine::Engine;
use sluicegate::kernel::decision::{Cost, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};

use super::{Far, engine, held, pass, publish, question};
use crate::support::dice::{Dice, seed};

const LIMIT: u64 = 100;
const MINUTE: u64 = 60_000;

/// A question: when, of whom, and for how many hits.
#[derive(Clone, Copy, Debug)]
struct Asked {
    millis: u64,
    who: usize,
    hits: u64,
}

/// A debt, in thousandths of a hit: a millisecond earns a tenth of a hit.
#[derive(Debug, Default)]
struct Law {
    owed: u64,
    at: u64,
}

/// What a fleet made of a minute.
#[derive(Debug, Default)]
struct Came {
    admitted: u64,
    asked: u64,
    calls: u64,
    questions: u64,
    /// Denials beside which the law had enough left.
    wrong: Vec<(Asked, u64, u64)>,
}

impl Law {
    fn left(&mut self, millis: u64) -> u64 {
        self.owed = self.owed.saturating_sub((millis - self.at) * LIMIT);
        self.at = millis;
        (LIMIT * 1_000).saturating_sub(self.owed) / 1_000
    }

    fn charge(&mut self, hits: u64) {
        self.owed += hits * 1_000;
    }
}

/// A minute of demand for `percent` of the limit, by members of which some are silent for seconds: 1 hit of half of
/// the questions, 2 of a quarter, and so on to 64.
fn minute(members: usize, percent: u64, dice: &mut Dice) -> Vec<Asked> {
    let (mut asked, mut millis) = (Vec::new(), 0);
    // Four hits a question, so that a hundred a second are one in 40 ms.
    while millis < MINUTE {
        millis += dice.up_to(2 * 40 * 100 / percent);
        let awake = members.min(1 + usize::try_from(millis / 5_000 % 3).unwrap() * members / 2);
        let who = usize::try_from(dice.up_to(awake as u64 - 1)).unwrap();
        asked.push(Asked { millis, who, hits: 1 << dice.roll().leading_zeros().min(6) });
    }
    asked
}

/// What becomes of `trace`.
async fn run(words: &str, mode: &str, members: usize, trace: &[Asked]) -> Came {
    let limits = format!(
        "- key: k\n  rate_limit: {{unit: second, requests_per_unit: {LIMIT}, strategy: gcra{mode}}}\n"
    );
    let store = Far::new();
    let fleet: Vec<Engine> = (0..members).map(|_| engine(&store, &limits)).collect();
    for engine in &fleet {
        publish(engine, words, &limits);
    }
    let (mut came, mut law, mut now) = (Came::default(), Law::default(), 0);
    for one in trace {
        while now < one.millis {
            now += 1;
            for engine in &fleet {
                pass(engine, Nanos::MILLI);
            }
            if now % 1_000 == 0 {
                for engine in &fleet {
                    tend(engine).await;
                }
            }
        }
        let others = fleet.iter().enumerate().filter(|(at, _)| *at != one.who);
        let out: u64 = others.map(|(_, engine)| out(engine)).sum();
        let left = law.left(now);
        let question = question(&[("k", "v")], Cost::Charge(Hits(one.hits)));
        let answer = fleet[one.who].decide(&question).await.unwrap();
        settle().await;
        (came.questions, came.asked) = (came.questions + 1, came.asked + one.hits);
        if answer.verdict == Verdict::Admit {
            law.charge(one.hits);
            came.admitted += one.hits;
        } else if one.hits + out <= left {
            came.wrong.push((*one, left, out));
        }
    }
    came.calls = store.calls();
    came
}

async fn tend(engine: &Engine) {
    if let Some(leases) = engine.leases() {
        leases.tend().await;
        settle().await;
    }
}

fn out(engine: &Engine) -> u64 {
    if engine.leases().is_some() { held(engine) } else { 0 }
}

/// What was sent in the background is answered.
async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

/// Each of these fleets' minute at each of these loads, and what to call it.
#[expect(clippy::print_stdout, reason = "the seed")]
fn minutes() -> Vec<(usize, u64, Vec<Asked>, String)> {
    let seed = seed();
    let mut dice = Dice::new(seed);
    println!("SLUICEGATE_SEED={seed}");
    let fleets = [1, 2, 8].into_iter();
    let each = fleets.flat_map(|members| [60, 100, 150].map(|percent| (members, percent)));
    each.map(|(members, percent)| {
        let whose = format!("SLUICEGATE_SEED={seed}: {members} replicas, {percent} %");
        (members, percent, minute(members, percent, &mut dice), whose)
    })
    .collect()
}

#[tokio::test]
async fn nobody_is_denied_while_the_law_has_enough_left_and_a_question_costs_a_call_at_most() {
    for (members, percent, trace, whose) in minutes() {
        let leased = run("", ", mode: leased, max_overshoot: 10%", members, &trace).await;
        let strict = run("", "", members, &trace).await;
        println!(
            "| {members} | {percent} % | {} asked | leased {} | strict {} | {} calls for {} questions |",
            leased.asked, leased.admitted, strict.admitted, leased.calls, leased.questions
        );
        assert!(strict.wrong.is_empty(), "{whose}, strict: {:?}", strict.wrong);
        let (wrong, first) = (leased.wrong.len(), leased.wrong.first());
        assert!(leased.wrong.is_empty(), "{whose}: {wrong} of {first:?}");
        assert!(leased.calls <= leased.questions, "{whose}: {} calls", leased.calls);
        assert!(95 * strict.admitted <= 100 * leased.admitted, "{whose}: {leased:?}");
    }
}
