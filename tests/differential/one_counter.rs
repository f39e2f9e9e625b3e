//! Compares the charge script with the kernel on random traces of one counter.

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::codec::{ChargeResult, counter_key};
use sluicegate::store::{Charge, ChargeMode, Charges, Placement};
use smallvec::smallvec;

use super::limits::{Kind, is_calendar, span};
use super::model::{Model, charge, expected};
use super::{PREFIX, Scripted, answers, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;

/// The start of each trace. No window starts at this instant.
pub(super) const START: Nanos = Nanos(1_763_632_345_678_912_345);
/// Range of the trace clock: years 2001 to 2252, which include all real clocks.
pub(super) const CLOCK: std::ops::Range<u64> = 1_000_000_000_000_000_000..8_900_000_000_000_000_000;
/// Milliseconds by which a key lives longer if the test sets the time of the call; see
/// `lua/head.lua`.
const LINGER: i64 = 86_400_000;
/// Resolution of the expiry of a GCRA key: a tenth of a second, in nanoseconds.
const TENTH: u64 = 100_000_000;

const TRACES: u64 = 80;
const STEPS: usize = 120;

/// A client whose clock may step back. After a denial, it retries at retry-after, a tick sooner, or
/// at random.
pub(super) struct CounterTraffic {
    pub(super) dice: Dice,
    pub(super) now: Nanos,
    pub(super) back_at: Nanos,
}

impl CounterTraffic {
    pub(super) fn wait(&mut self, limit: &Strategy) {
        let (tick, span) = (limit.tick().size().0, span(limit).0);
        let hit = (span / u64::from(limit.max_at_once().max(1))).max(1);
        let dice = &mut self.dice;
        let forward = match dice.up_to(15) {
            0..=3 => 0,
            4 | 5 => tick * dice.up_to(3),
            6 | 7 => dice.up_to(hit.saturating_mul(3)),
            8 | 9 => dice.up_to(span.saturating_mul(3) / 2),
            10 | 11 => self.back_at.since(self.now).0,
            12 => self.back_at.since(self.now).0.saturating_sub(tick),
            13 => span,
            14 => return self.step_back(tick, span),
            _ => dice.up_to(1_000_000),
        };
        self.now = Nanos(self.now.plus(Nanos(forward)).0.min(CLOCK.end));
    }

    fn step_back(&mut self, tick: u64, span: u64) {
        let most = self.dice.pick(&[tick, tick * 3, span / 2, span, span.saturating_mul(3)]);
        let back = self.dice.up_to(most).min(300_000_000_000_000_000);
        self.now = Nanos(self.now.0.saturating_sub(back).max(CLOCK.start));
    }

    pub(super) fn cost(&mut self, limit: &Strategy, model: &Model) -> Cost {
        let most = u64::from(limit.max_at_once());
        let left = model.headroom(limit, self.now).map_or(0, |room| room.remaining.0);
        let dice = &mut self.dice;
        let hits = Hits(match dice.up_to(19) {
            0 | 1 => 0,
            2..=8 => 1 + dice.up_to(2),
            9 | 10 => dice.up_to(most),
            11..=13 => left,
            14 => left + 1,
            15 => most,
            16 => most + 1,
            17 => dice.up_to(most / 2),
            18 => dice.pick(&[u64::MAX, 1 << 53, (1 << 53) - 1, 1 << 32, (1 << 32) - 1]),
            _ => 1,
        });
        if dice.once_in(8) { Cost::Refund(hits) } else { Cost::Charge(hits) }
    }

    fn note_retry_after(&mut self, step: CounterDecision) {
        if let CounterDecision::Deny { retry_after, .. } = step {
            self.back_at = self.now.plus(retry_after);
        }
    }
}

struct ExpectedCheck {
    charges: Charges,
    now: Nanos,
    answer: ChargeResult,
    /// The shortest and longest valid TTL of the key, for any possible instant of its last write.
    lives: Option<[Nanos; 2]>,
}

/// Tracks when a counter will be empty. A charge that changes this instant writes the key's expiry.
/// With GCRA, only a change to another tenth of a second does.
#[derive(Default)]
pub(super) struct ExpiryTracker {
    at: Nanos,
    lives: [Nanos; 2],
}

impl ExpiryTracker {
    pub(super) fn lifetime(
        &mut self,
        charge: &Charge,
        now: Nanos,
        reset_after: Nanos,
    ) -> [Nanos; 2] {
        let tick = charge.strategy.tick();
        let at = tick.nanos(tick.floor(now)).plus(reset_after);
        let is_gcra = matches!(charge.strategy, Strategy::Gcra(_));
        let at = if is_gcra { Nanos(at.0.div_ceil(TENTH).saturating_mul(TENTH)) } else { at };
        // A peek under a newer calendar may have another reset time, but it does not write the key.
        let peeks = matches!(charge.cost, Cost::Charge(Hits(0)) | Cost::Refund(Hits(0)));
        let peeks = peeks && is_calendar(&charge.strategy);
        if at != self.at && !peeks {
            *self = Self { at, lives: [reset_after; 2] };
        }
        let [least, most] = self.lives;
        self.lives = [least.min(reset_after), most.max(reset_after)];
        self.lives
    }
}

fn trace(kind: Kind, name: &str, dice: Dice) -> Vec<ExpectedCheck> {
    let mut client = CounterTraffic { dice, now: START, back_at: START };
    let mut limit = kind.limit_or_charging(&mut client.dice, START, None);
    let (mut model, mut rest) = (Model::default(), ExpiryTracker::default());
    let step = |_| {
        client.wait(&limit);
        if kind == Kind::Calendar || client.dice.once_in(25) {
            limit = kind.limit_or_charging(&mut client.dice, client.now, Some(&limit));
        }
        let (now, cost) = (client.now, client.cost(&limit, &model));
        let step = model.apply(&limit, now, cost);
        client.note_retry_after(step);
        if model.is_rested() {
            rest = ExpiryTracker::default();
        }
        let room = model.headroom(&limit, now).filter(|_| !model.is_rested());
        let charge = charge(name, limit, cost);
        let lives = room.map(|room| rest.lifetime(&charge, now, room.reset_after));
        let charges = Charges { list: smallvec![charge], mode: ChargeMode::Each };
        ExpectedCheck { charges, now, answer: expected(step, cost, now), lives }
    };
    (0..STEPS).map(step).collect()
}

fn assert_matches_kernel(kind: Kind) {
    let (redis, seed) = (Redis::start(), seed());
    let mut scripted = Scripted::new(&redis);
    for number in 0..traces(TRACES) {
        let name = number.to_string();
        let dice = Dice::new(seed ^ number << 32);
        let trace = trace(kind, &name, dice);
        for asked in &trace {
            scripted.queue(&asked.charges, Some(asked.now));
            scripted.client.queue(&[
                b"PTTL".to_vec(),
                counter_key(&asked.charges.list[0].key, Placement::ByKey, PREFIX),
            ]);
        }
        scripted.client.flush();
        for (step, asked) in trace.iter().enumerate() {
            let context = || {
                let charge = &asked.charges.list[0];
                let (limit, cost) = (&charge.strategy, charge.cost);
                format!(
                    "SLUICEGATE_SEED={seed}, {kind:?}, trace {number}, step {step}:\n{limit:?}\n\
                     {cost:?} at {}",
                    asked.now
                )
            };
            let answer = answers(&asked.charges, &scripted.client.receive())[0];
            assert_eq!(answer, asked.answer, "{}", context());
            let ttl = scripted.client.receive().int();
            if !matches!(answer, ChargeResult::Stale(_)) {
                let strategy = &asked.charges.list[0].strategy;
                assert!(is_valid_ttl(ttl, asked.lives, strategy), "{ttl} ms, {}", context());
            }
        }
    }
}

/// Returns `true` if `ttl` is valid: no key for an empty counter, otherwise a TTL within `lives`.
pub(super) fn is_valid_ttl(ttl: i64, lives: Option<[Nanos; 2]>, strategy: &Strategy) -> bool {
    /// The longest delay of PTTL on a busy machine, in milliseconds.
    const LATE: i64 = 60_000;
    let Some(lives) = lives else { return ttl == -2 };
    let [least, most] =
        lives.map(|nanos| i64::try_from(nanos.0.div_ceil(1_000_000)).unwrap() + LINGER);
    // Milliseconds that a key may live longer than its counter: up to a tenth of a second for GCRA.
    // A lifetime of `u64::MAX` ns (584 years) stands for a longer one, so it has no maximum.
    let later = if matches!(strategy, Strategy::Gcra(_)) { 101 } else { 3 };
    least - LATE <= ttl && (ttl <= most + later || lives[1] == Nanos(u64::MAX))
}

#[test]
fn gcra_script_matches_the_kernel() {
    assert_matches_kernel(Kind::Gcra);
}

#[test]
fn fixed_window_script_matches_the_kernel() {
    assert_matches_kernel(Kind::Fixed);
}

#[test]
fn calendar_window_script_matches_the_kernel() {
    assert_matches_kernel(Kind::Calendar);
}

#[test]
fn sliding_window_script_matches_the_kernel() {
    assert_matches_kernel(Kind::Sliding);
}

#[test]
fn sliding_log_script_matches_the_kernel() {
    assert_matches_kernel(Kind::Log);
}
