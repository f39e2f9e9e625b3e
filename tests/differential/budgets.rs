//! Compares the script of budgets with the kernel.

mod corrupt_state;
mod expiry;

use std::collections::HashMap;

use sluicegate::kernel::budget::{
    Amount, Budget, BudgetPeriod, BudgetTerms, HoldId, KEPT_PERIODS, MAX_HOLDS, OnExpiry, Reserved,
    TOP_UP_KNOWN_FOR,
};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::Placement;
use sluicegate::store::budgets::{
    BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply,
};
use sluicegate::store::redis::BUDGET_SCRIPT;
use sluicegate::store::redis::codec::budgets::{pack, read};

use super::{integers, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::Client;

const START: Nanos = Nanos(1_763_632_345_678_912_000);

const HOUR: Nanos = Nanos::from_secs(3_600);

const LARGEST: u64 = (1 << 53) - 1;

/// Number of random traces, with 20,000 steps in all.
const TRACES: u64 = 40;

const STEPS: usize = 500;

const BUDGETS: u64 = 4;

struct Scripted {
    client: Client,
    sha: String,
}

impl Scripted {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let sha = client.call(&["SCRIPT", "LOAD", BUDGET_SCRIPT]).text();
        Self { client, sha }
    }

    fn queue(&mut self, prefix: &str, call: &BudgetCall, at: Option<Nanos>) {
        let packed = pack(call, prefix.as_bytes(), at);
        let count = packed.keys.len().to_string();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count.into_bytes()];
        let parts: Vec<_> = head.into_iter().chain(packed.keys).chain(packed.args).collect();
        self.client.queue(&parts);
    }

    fn receive(&mut self, call: &BudgetCall) -> BudgetReply {
        read(call, &integers(&self.client.receive())).unwrap()
    }

    fn call(&mut self, call: &BudgetCall, at: Option<Nanos>) -> BudgetReply {
        self.queue("test:", call, at);
        self.client.flush();
        self.receive(call)
    }
}

/// The kernel's budgets, by key.
#[derive(Default)]
struct Model(HashMap<CounterKey, Budget>);

impl Model {
    fn apply(&mut self, call: &BudgetCall, now: Nanos) -> BudgetReply {
        let keys = || call.budgets.iter().map(|part| &part.key);
        let mut budgets: Vec<_> =
            keys().map(|key| self.0.remove(key).unwrap_or_default()).collect();
        let reply = call.apply(&mut budgets, now);
        self.0.extend(keys().cloned().zip(budgets));
        reply
    }
}

fn key(number: u64) -> CounterKey {
    let number = number.to_string();
    CounterKey::budget("llm", [("budget", &*number)].into_iter(), 0)
}

fn part(number: u64, amount: u64, terms: BudgetTerms) -> BudgetPart {
    let placement = Placement::by_value("llm", "all");
    BudgetPart { key: key(number), placement, terms, amount: Amount(amount) }
}

fn terms(period: BudgetPeriod) -> BudgetTerms {
    BudgetTerms {
        amount: Amount(100),
        period,
        time_limit: Nanos(Nanos::MILLI.0 * 30),
        on_expiry: OnExpiry::Charge,
        is_enforced: true,
    }
}

const fn every(length: Nanos) -> BudgetPeriod {
    BudgetPeriod::Each(Windows::Every(length))
}

fn call_of(action: BudgetAction, id: u64, parts: &[BudgetPart]) -> BudgetCall {
    BudgetCall { id: HoldId(1 << 63, id), action, budgets: parts.iter().cloned().collect() }
}

/// Generates random calls whose terms sometimes change.
struct BudgetTrace {
    dice: Dice,
    now: Nanos,
    /// The last reserve.
    reserve: Option<BudgetCall>,
}

impl BudgetTrace {
    fn new(dice: Dice) -> Self {
        Self { dice, now: START, reserve: None }
    }

    fn wait(&mut self) {
        let micros = match self.dice.up_to(40) {
            0..=19 => 0,
            20..=36 => self.dice.up_to(8_000),
            37..=39 => self.dice.up_to(80_000),
            _ => self.dice.pick(&[1_000_000, 3_600_000_000, 7_776_000_000_000]),
        };
        self.now = self.now.plus(Nanos(micros * Nanos::MICRO.0));
    }

    fn terms(&mut self, number: u64) -> BudgetTerms {
        let number = if self.dice.once_in(40) { self.dice.up_to(4) } else { number };
        let second = |after| START.plus(Nanos::from_secs(after));
        let period = match number {
            0 => every(Nanos(Nanos::MILLI.0 * 20)),
            1 => BudgetPeriod::Each(Windows::Calendar { starts: [0, 1, 2, 3_000].map(second) }),
            2 => BudgetPeriod::Prepaid,
            _ => every(HOUR),
        };
        let usual = Nanos(Nanos::MILLI.0 * 30);
        let is_enforced = if number == 3 { self.dice.once_in(20) } else { !self.dice.once_in(20) };
        BudgetTerms {
            amount: Amount(self.dice.pick(&[100, 100, 100, 0, LARGEST])),
            period,
            time_limit: if self.dice.once_in(20) { Nanos(0) } else { usual },
            on_expiry: self.dice.pick(&[OnExpiry::Charge, OnExpiry::Release]),
            is_enforced,
        }
    }

    fn call(&mut self) -> BudgetCall {
        let action = self.dice.pick(&[
            BudgetAction::Reserve,
            BudgetAction::Reserve,
            BudgetAction::Reserve,
            BudgetAction::Settle,
            BudgetAction::Cancel,
            BudgetAction::Renew,
            BudgetAction::Charge,
            BudgetAction::TopUp,
            BudgetAction::Read,
        ]);
        let (first, count) = (self.dice.up_to(BUDGETS - 1), 1 + self.dice.up_to(BUDGETS - 1));
        let parts: Vec<_> = (0..count)
            .map(|at| {
                let number = (first + at) % BUDGETS;
                let amount = if self.dice.once_in(200) { LARGEST } else { self.dice.up_to(40) };
                part(number, amount, self.terms(number))
            })
            .collect();
        call_of(action, self.dice.up_to(11), &parts)
    }

    /// Uses each budget: Redis does not keep the start of an unused one, and terms change.
    fn first_step(&mut self) -> (BudgetCall, Nanos) {
        let parts: Vec<_> = (0..BUDGETS).map(|at| part(at, 1, self.terms(at))).collect();
        (call_of(BudgetAction::Charge, 0, &parts), self.now)
    }

    fn step(&mut self) -> (BudgetCall, Nanos) {
        self.wait();
        let repeated = self.reserve.take().filter(|_| self.dice.once_in(2));
        let call = repeated.unwrap_or_else(|| self.call());
        self.reserve = Some(&call).filter(|call| call.action == BudgetAction::Reserve).cloned();
        (call, self.now)
    }
}

/// Counts of replies: held, repeated, denied, ended, and kept periods of one budget.
#[derive(Debug, Default)]
struct ReplyCounts([u64; 5]);

impl ReplyCounts {
    fn count(&mut self, reply: &BudgetReply) {
        match &reply.outcome {
            BudgetOutcome::Reserved(reserved) => {
                self.0[match reserved {
                    Reserved::Held => 0,
                    Reserved::Repeated => 1,
                    Reserved::Denied(_) => 2,
                    Reserved::Ended => 3,
                }] += 1;
            }
            BudgetOutcome::Read(budgets) => {
                let full = budgets.iter().filter(|periods| periods.len() == KEPT_PERIODS);
                self.0[4] += full.count() as u64;
            }
            BudgetOutcome::Ended(_) | BudgetOutcome::Changed(_) | BudgetOutcome::ToppedUp(_) => {}
        }
    }
}

#[test]
fn budget_script_matches_the_kernel() {
    let (redis, seed) = (Redis::start(), seed());
    println!("SLUICEGATE_SEED={seed}");
    let mut scripted = Scripted::new(&redis);
    let mut tally = ReplyCounts::default();
    for number in 0..traces(TRACES) {
        let mut trace = BudgetTrace::new(Dice::new(seed ^ number << 32));
        let (prefix, mut model) = (format!("{number}:"), Model::default());
        let steps: Vec<_> =
            [trace.first_step()].into_iter().chain((0..STEPS).map(|_| trace.step())).collect();
        for (call, now) in &steps {
            scripted.queue(&prefix, call, Some(*now));
        }
        scripted.client.flush();
        for (step, (call, now)) in steps.iter().enumerate() {
            let place = format!("SLUICEGATE_SEED={seed}, trace {number}, step {step}");
            let reply = scripted.receive(call);
            assert_eq!(reply, model.apply(call, *now), "{place}: {call:?}");
            tally.count(&reply);
        }
    }
    println!("{tally:?}");
    assert!(tally.0.iter().all(|count| traces(50) < *count), "{tally:?}");
}

/// A clock that was ahead set deadlines which a denial shortens.
#[test]
fn denial_shortens_deadlines_of_a_clock_that_was_ahead() {
    let redis = Redis::start();
    let (mut scripted, mut model) = (Scripted::new(&redis), Model::default());
    let terms = terms(every(HOUR));
    let mut compare = |action, id, amount, now: Nanos| {
        let call = call_of(action, id, &[part(0, amount, terms)]);
        let reply = scripted.call(&call, Some(now));
        assert_eq!(reply, model.apply(&call, now), "{call:?} at {now}");
        reply.views[0].open_holds
    };
    let ahead = START.plus(HOUR);
    compare(BudgetAction::Reserve, 1, 60, ahead);
    compare(BudgetAction::Reserve, 2, 30, ahead);
    compare(BudgetAction::Settle, 2, 30, ahead);
    assert_eq!(compare(BudgetAction::Reserve, 3, 20, START), 1);
    let later = START.plus(terms.time_limit).plus(terms.time_limit);
    assert_eq!(compare(BudgetAction::Read, 0, 0, Nanos(later.0 - Nanos::MICRO.0)), 1);
    assert_eq!(compare(BudgetAction::Read, 0, 0, later), 0);
    // The id that was settled is forgotten, too.
    compare(BudgetAction::Settle, 2, 5, later);
}

/// Sends calls with consecutive ids at one instant, and returns the last reply.
fn send_many(scripted: &mut Scripted, model: &mut Model, calls: &[BudgetCall], now: Nanos) {
    for calls in calls.chunks(2_000) {
        for call in calls {
            scripted.queue("test:", call, Some(now));
        }
        scripted.client.flush();
        for call in calls {
            assert_eq!(scripted.receive(call), model.apply(call, now), "{:?}", call.id);
        }
    }
}

#[test]
fn full_budgets_deny_forget_and_expire_as_in_the_kernel() {
    let redis = Redis::start();
    let (mut scripted, mut model) = (Scripted::new(&redis), Model::default());
    let parts = [part(0, 1, BudgetTerms { amount: Amount(LARGEST), ..terms(every(HOUR)) })];
    let holds = u64::from(MAX_HOLDS);
    let many = |action, ids: std::ops::RangeInclusive<u64>| -> Vec<BudgetCall> {
        ids.map(|id| call_of(action, id, &parts)).collect()
    };
    // In shadow mode, a full budget allows the request without a hold.
    let shadow = BudgetTerms { is_enforced: false, ..parts[0].terms };
    let shadow = call_of(BudgetAction::Reserve, 4 * holds, &[part(0, 1, shadow)]);
    let mut send = |calls: &[BudgetCall], micros: u64| {
        let now = START.plus(Nanos(micros * Nanos::MICRO.0));
        send_many(&mut scripted, &mut model, calls, now);
    };
    // The first id is purged at 30 ms, and the next purge would be 1.9 ms later.
    let early = 3 * holds;
    send(&many(BudgetAction::Cancel, early..=early), 0);
    send(&many(BudgetAction::Cancel, early + 1..=early + 1), 1_000);
    send(&many(BudgetAction::Read, 0..=0), 30_000);
    // The last reserve finds MAX_HOLDS open holds, the last two cancels MAX_ENTRIES entries.
    send(&many(BudgetAction::Reserve, 0..=holds), 30_500);
    send(&[shadow], 30_500);
    let unknown = holds..=2 * holds;
    send(&many(BudgetAction::Cancel, unknown), 30_500);
    // The first two ids are forgotten: these are new, and replace further ones.
    send(&many(BudgetAction::Settle, early..=early + 1), 30_500);
    send(&many(BudgetAction::Settle, 0..=3), 30_500);
    send(&many(BudgetAction::Reserve, holds..=holds + 9), 30_500);
    // All holds but four expire at once, and then all known ids.
    send(&many(BudgetAction::Read, 0..=0), 60_500);
    send(&many(BudgetAction::Cancel, 0..=9), 61_000);
    send(&many(BudgetAction::Reserve, early + 2..=early + 9), 91_000);
    let again = TOP_UP_KNOWN_FOR.0 / Nanos::MICRO.0;
    send(&many(BudgetAction::Reserve, 0..=9), again);
}
