//! Demand traces for one key of one replica, and the store calls of its leases.
//!
//! The store grants every lease. A reply takes one millisecond.

use sluicegate_kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::lease::{BorrowReply, BorrowRequest, MessageNumber, safe_duration};
use sluicegate_kernel::rate::{CounterDecision, Headroom};
use sluicegate_kernel::units::{Hits, Nanos};

/// The duration of a lease.
pub const LEASE: Nanos = Nanos::from_secs(30);
const ROUND_TRIP: Nanos = Nanos::MILLI;
/// The interval at which a replica returns surplus hits.
const UPKEEP: Nanos = Nanos::SECOND;
/// The time without a check after which an empty lease is dropped.
const IDLE: Nanos = Nanos::from_secs(20);

/// The store calls of one trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseUse {
    pub calls: u64,
    pub unspent: u64,
}

/// Random numbers from a seed.
pub struct Random(pub u64);

impl Random {
    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number in [`from`, `to`).
    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        from + self.unit() * (to - from)
    }

    /// A number of hits in [`from`, `to`).
    pub fn hits(&mut self, from: u64, to: u64) -> u64 {
        from + (self.unit() * (to - from) as f64) as u64
    }
}

/// The instants of the hits, in order.
pub type Trace = Vec<Nanos>;

/// Random arrivals for `seconds` at a rate of `rate(second)` hits per second, at most 1,000.
pub fn arrivals(random: &mut Random, seconds: u64, rate: impl Fn(f64) -> f64) -> Trace {
    const STEP: f64 = 0.1;
    let mut trace = Vec::new();
    for step in 0..seconds * 10 {
        let start = step as f64 * STEP;
        let rate = rate(start);
        let mut at = -(1.0 - random.unit()).ln() / rate;
        while at < STEP {
            trace.push(seconds_after_start(start + at));
            at -= (1.0 - random.unit()).ln() / rate;
        }
    }
    trace
}

pub fn seconds_after_start(seconds: f64) -> Nanos {
    Nanos::from_secs(1_000_000).plus(Nanos((seconds * 1e9) as u64))
}

/// Bursts of `hits` hits within five seconds, at each start, in seconds.
pub fn bursts(random: &mut Random, starts: &[f64], hits: impl Fn(&mut Random) -> u64) -> Trace {
    let mut trace = Vec::new();
    for start in starts {
        for _ in 0..hits(random) {
            trace.push(seconds_after_start(start + random.between(0.0, 5.0)));
        }
    }
    trace.sort_unstable();
    trace
}

/// Two traces in one.
pub fn merged(mut one: Trace, other: Trace) -> Trace {
    one.extend(other);
    one.sort_unstable();
    one
}

/// Demand that changes at random: pauses, steady rates and trains of bursts, for `seconds`.
pub fn erratic(random: &mut Random, seconds: f64) -> Trace {
    let (mut trace, mut at) = (Vec::new(), 0.0);
    while at < seconds {
        let length = random.between(20.0, 300.0);
        let part = match random.unit() {
            kind if kind < 0.2 => Vec::new(),
            kind if kind < 0.6 => {
                let rate = random.between(-3.0, 4.0).exp();
                arrivals(random, length as u64, |_| rate)
            }
            _ => {
                let (every, hits) = (random.between(6.0, 90.0), random.between(1.0, 6.5).exp());
                let starts: Vec<f64> =
                    (0..(length / every) as u32).map(|burst| f64::from(burst) * every).collect();
                bursts(random, &starts, |random| (hits * random.between(0.3, 1.7)) as u64)
            }
        };
        let shift = Nanos((at * 1e9) as u64);
        trace.extend(part.into_iter().map(|hit| hit.plus(shift)));
        at += length + 5.0;
    }
    trace
}

/// The fewest calls, with the future known and no unspent hits.
pub fn oracle(trace: &[Nanos], max_lease: u64) -> LeaseUse {
    let (mut calls, mut at) = (0, 0);
    while at < trace.len() {
        let end = trace[at].plus(safe_duration(LEASE));
        let leased = trace[at + 1..].iter().take(max_lease as usize).take_while(|hit| **hit < end);
        at += 1 + leased.count();
        calls += 1;
    }
    LeaseUse { calls, unspent: 0 }
}

/// The calls of a replica that sizes its leases by `sizing`.
pub fn simulate(sizing: LeaseSizing, trace: &[Nanos], max_lease: u64) -> LeaseUse {
    let new = || LeaseBalance::new(sizing, LEASE, Hits(max_lease));
    let mut replica = Replica {
        balance: new(),
        now: Nanos(0),
        next_number: 1,
        reply: None,
        total: LeaseUse::default(),
        max_lease,
    };
    let mut upkeep_at = trace.first().copied().unwrap_or_default();
    let mut last_check = upkeep_at;
    for hit in trace {
        while upkeep_at < *hit {
            replica.advance(upkeep_at);
            replica.return_hits(upkeep_at.since(last_check));
            upkeep_at = upkeep_at.plus(UPKEEP);
            let is_idle = IDLE < replica.now.since(last_check)
                && replica.reply.is_none()
                && replica.balance.total(replica.now) == Hits(0);
            if is_idle && !replica.balance.may_repeat(replica.now) {
                replica.balance = new();
            }
        }
        replica.advance(*hit);
        replica.check();
        last_check = *hit;
    }
    replica.advance(replica.now.plus(LEASE));
    replica.total
}

struct Replica {
    balance: LeaseBalance,
    now: Nanos,
    next_number: u64,
    reply: Option<(Nanos, BorrowReply)>,
    total: LeaseUse,
    max_lease: u64,
}

impl Replica {
    /// Moves the clock to `time`, and settles the reply that arrived before.
    fn advance(&mut self, time: Nanos) {
        if let Some((at, reply)) = self.reply.filter(|(at, _)| *at <= time) {
            self.expire(at);
            self.balance.settle(at, &reply);
            self.reply = None;
        }
        self.now = self.now.max(time);
        self.expire(self.now);
    }

    fn expire(&mut self, at: Nanos) {
        self.total.unspent += self.balance.expire(at).0;
    }

    fn number(&mut self) -> MessageNumber {
        self.next_number += 1;
        MessageNumber(self.next_number)
    }

    fn check(&mut self) {
        let (now, number) = (self.now, self.number());
        self.balance.record_check(now, Hits(1));
        while self.balance.decide(self.now, Hits(1)) == SpendResult::NeedsStore {
            if let Some((at, _)) = self.reply {
                self.advance(at);
                continue;
            }
            let borrow = self.balance.borrow(self.now, number, Hits(1));
            self.send(borrow);
            // The store charges the check itself.
            self.advance(self.now.plus(ROUND_TRIP));
            break;
        }
        let number = self.number();
        let refill = self.balance.refill(self.now, number);
        self.send(refill);
    }

    fn return_hits(&mut self, idle_time: Nanos) {
        let (first, second) = (self.number(), self.number());
        let message = self.balance.return_if_idle(self.now, first, idle_time);
        let message = message.or_else(|| self.balance.return_surplus(self.now, second));
        if let Some(message) = message {
            self.total.calls += 1;
            self.total.unspent += message.returned.0;
        }
    }

    fn send(&mut self, message: Option<BorrowRequest>) {
        let Some(message) = message else { return };
        assert!(message.wanted.0 <= self.max_lease, "a lease is at most max_lease");
        self.total.calls += 1;
        self.total.unspent += message.returned.0;
        let room = Headroom { remaining: Hits(u64::from(u32::MAX)), reset_after: Nanos(0) };
        let reply = BorrowReply {
            number: message.number,
            decision: CounterDecision::Allow(room),
            granted: message.wanted,
            kept: message.balance,
            outstanding_elsewhere: Hits(0),
            valid_for: LEASE,
        };
        self.reply = Some((self.now.plus(ROUND_TRIP), reply));
    }
}
