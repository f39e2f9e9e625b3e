//! Compares the lease script for one counter with the kernel's lease table: grants, returns,
//! expiry.

mod batches;
mod corrupt_state;
mod expiry;
mod limits;

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::lease::counter::AnyCounter;
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::table::LeaseTable;
use sluicegate::kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::limit::Tick;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::redis::LEASE_SCRIPT;
use sluicegate::store::redis::codec::lease::{encode_call, pack, read, split_reply};

use super::limits::{Kind, span};
use super::model::{Model, charge};
use super::{PREFIX, integers, traces};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const START: Nanos = Nanos(1_763_632_345_678_912_345);

const END: u64 = 8_900_000_000_000_000_000;

/// Number of traces for each of the five kinds of limit, with 20,000 steps in all.
const TRACES: u64 = 40;

const STEPS: usize = 100;

const MEMBERS: [ReplicaIncarnation; 4] = [
    ReplicaIncarnation(0),
    ReplicaIncarnation(1),
    ReplicaIncarnation(1 << 53),
    ReplicaIncarnation(u64::MAX),
];

struct Lender {
    client: Client,
    sha: String,
}

impl Lender {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let sha = client.call(&["SCRIPT", "LOAD", LEASE_SCRIPT]).text();
        Self { client, sha }
    }

    fn queue(&mut self, message: &LeaseMessage, at: Option<Nanos>) {
        let (keys, args) = encode_call(&[pack(message, PREFIX, at)]);
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), b"2".to_vec()];
        let parts: Vec<_> = head.into_iter().chain(keys).chain(args).collect();
        self.client.queue(&parts);
    }

    fn send_all(&mut self, messages: &[LeaseMessage], at: Option<Nanos>) -> Vec<LeaseOutcome> {
        let packed: Vec<_> = messages.iter().map(|its| pack(its, PREFIX, at)).collect();
        let (keys, args) = encode_call(&packed);
        let count = keys.len().to_string().into_bytes();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count];
        let parts: Vec<_> = head.into_iter().chain(keys).chain(args).collect();
        self.client.queue(&parts);
        self.client.flush();
        let said = split_reply(&integers(&self.client.receive()), messages.len()).unwrap();
        assert_eq!(said.len(), messages.len());
        messages.iter().zip(said).map(|(message, said)| read(message, &said).unwrap()).collect()
    }

    fn assert_batch_matches(
        &mut self,
        all: impl Iterator<Item = (LeaseMessage, Nanos, LeaseOutcome)>,
        now: Nanos,
        context: &str,
    ) -> Vec<LeaseOutcome> {
        let (messages, lent): (Vec<_>, Vec<_>) =
            all.map(|(message, _, lent)| (message, lent)).unzip();
        let said = self.send_all(&messages, Some(now));
        assert_eq!(said, lent, "{context}");
        said
    }

    fn lent(&mut self, message: &LeaseMessage) -> LeaseOutcome {
        match self.client.receive() {
            reply @ Value::Text(_) => read(message, &integers(&reply)).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, message: &LeaseMessage, at: Option<Nanos>) -> LeaseOutcome {
        self.queue(message, at);
        self.client.flush();
        self.lent(message)
    }
}

/// What a simulated replica knows about its lease, approximately.
#[derive(Clone, Debug, Default)]
struct ReplicaView {
    last: Option<LeaseMessage>,
    number: u64,
    lease: u64,
    held: u64,
}

/// Generates random lease messages of replicas that lose, repeat and delay messages.
struct LeaseTrace {
    dice: Dice,
    now: Nanos,
    limit: Strategy,
    terms: LeaseTerms,
    model: Model,
    book: LeaseTable,
    views: [ReplicaView; MEMBERS.len()],
}

impl LeaseTrace {
    fn new(kind: Kind, mut dice: Dice) -> Self {
        let limit = kind.limit(&mut dice, START, None);
        let terms = terms(&mut dice, &limit);
        let (model, book, views) = Default::default();
        Self { dice, now: START, limit, terms, model, book, views }
    }

    fn wait(&mut self) {
        let (tick, span, term) =
            (self.limit.tick().size().0, span(&self.limit).0, self.terms.duration.0);
        let dice = &mut self.dice;
        let forward = match dice.up_to(14) {
            0..=3 => 0,
            4 => tick,
            5..=9 => dice.up_to(term / 8),
            10 => dice.up_to(term),
            11 => term,
            12 => term.saturating_sub(1_000 * dice.up_to(1)),
            13 => dice.up_to(span / 4),
            _ => dice.up_to(span),
        };
        self.now = Nanos(self.now.plus(Nanos(forward)).0.min(END));
    }

    fn message(&mut self, name: &str, replica: usize) -> LeaseMessage {
        let left = self.model.headroom(&self.limit, self.now).map_or(0, |room| room.remaining.0);
        let (most, dice) = (u64::from(self.limit.max_at_once()), &mut self.dice);
        let view = &mut self.views[replica];
        if let Some(last) = view.last.clone().filter(|_| dice.once_in(6)) {
            // Repeats the last message number, or sends an older one.
            let number = last.borrow.number.0 - u64::from(dice.once_in(3));
            let borrow = BorrowRequest { number: MessageNumber(number.max(1)), ..last.borrow };
            let (strategy, terms) = (self.limit, self.terms);
            return LeaseMessage { borrow, strategy, terms, ..last };
        }
        let is_without_lease = dice.once_in(20);
        if !is_without_lease {
            view.number += 1 + dice.up_to(2);
        }
        let held = dice.pick(&[view.held, view.held, view.held / 2, 0, u64::MAX]);
        let amount = |dice: &mut Dice| {
            let any = dice.up_to(most);
            dice.pick(&[0, 0, 1, 2, 5, left, left / 3, left + 1, most + 1, any, u64::MAX])
        };
        let borrow = BorrowRequest {
            number: MessageNumber(if is_without_lease { 0 } else { view.number }),
            hits: Hits(amount(dice)),
            wanted: Hits(amount(dice)),
            demand: Hits(dice.pick(&[0, 1, 1, 3, 100, 1 << 20, u64::MAX])),
            balance: Hits(held),
            returned: Hits(dice.pick(&[0, view.held.saturating_sub(held), 1, u64::MAX])),
            last_lease: MessageNumber(view.lease - view.lease.min(u64::from(dice.once_in(8)))),
        };
        let charge = charge(name, self.limit, Cost::Charge(Hits(0)));
        let (key, home, member) = (charge.key, charge.placement, MEMBERS[replica]);
        let (strategy, terms) = (self.limit, self.terms);
        LeaseMessage {
            key,
            placement: home,
            per_second: false,
            strategy,
            terms,
            sender: member,
            borrow,
        }
    }

    /// The result of the lease message in the kernel.
    fn lent(&mut self, message: &LeaseMessage) -> LeaseOutcome {
        let (book, LeaseMessage { terms, sender: member, borrow, .. }, now) =
            (&mut self.book, message, self.now);
        let step = |counter: &mut AnyCounter| book.apply(counter, terms, now, *member, borrow);
        match self.model.with_counter(&message.strategy, now, step) {
            None => LeaseOutcome::Superseded,
            Some(BorrowReply { decision: CounterDecision::OutsideWindows, .. }) => {
                LeaseOutcome::Stale(Tick::Micro.nanos(Tick::Micro.floor(now)))
            }
            Some(answer) => LeaseOutcome::Applied(answer),
        }
    }

    fn apply_reply(&mut self, replica: usize, message: LeaseMessage, lent: LeaseOutcome) {
        if message.borrow.number == MessageNumber(0) {
            return;
        }
        let view = &mut self.views[replica];
        if let LeaseOutcome::Applied(answer) = lent {
            view.held = answer.kept.0 + answer.granted.0;
            view.lease = if answer.granted.0 == 0 { view.lease } else { answer.number.0 };
        }
        // Stale messages are not remembered, because the lease table does not record their numbers,
        // and a replica never repeats a number with other content.
        if !matches!(lent, LeaseOutcome::Stale(_)) {
            view.last = Some(message);
        }
    }

    fn step(&mut self, kind: Kind, name: &str) -> (LeaseMessage, Nanos, LeaseOutcome) {
        self.wait();
        self.step_now(kind, name)
    }

    fn step_now(&mut self, kind: Kind, name: &str) -> (LeaseMessage, Nanos, LeaseOutcome) {
        if kind == Kind::Calendar || self.dice.once_in(25) {
            self.limit = kind.limit(&mut self.dice, self.now, Some(&self.limit));
        }
        if self.dice.once_in(25) {
            self.terms = terms(&mut self.dice, &self.limit);
        }
        let who = self.dice.pick(&[0, 0, 0, 1, 2, 3]);
        let message = self.message(name, who);
        let lent = self.lent(&message);
        self.apply_reply(who, message.clone(), lent);
        (message, self.now, lent)
    }
}

fn terms(dice: &mut Dice, limit: &Strategy) -> LeaseTerms {
    let most = u64::from(limit.max_at_once());
    let budget = dice.pick(&[0, 1, most / 10, most / 2, most, u64::from(u32::MAX)]);
    let term = (span(limit).0 / dice.pick(&[1, 2, 10, 100])).min(1 << 56) / 1_000 * 1_000;
    let overshoot = match dice.up_to(5) {
        0 | 1 => Overshoot::InWindow,
        2 | 3 => Overshoot::Occupying(Hits(budget)),
        _ => Overshoot::AtMost(Hits(budget)),
    };
    LeaseTerms { overshoot, duration: Nanos(term.max(1_000)), sizing: LeaseSizing::Learned }
}

fn assert_matches_kernel(kind: Kind) {
    let (redis, seed) = (Redis::start(), seed());
    let mut lender = Lender::new(&redis);
    let mut lent_to = 0;
    for number in 0..traces(TRACES) {
        let mut generator = LeaseTrace::new(kind, Dice::new(seed ^ number << 32));
        let name = number.to_string();
        let trace: Vec<_> = (0..STEPS).map(|_| generator.step(kind, &name)).collect();
        for (message, now, _) in &trace {
            lender.queue(message, Some(*now));
        }
        lender.client.flush();
        for (step, (message, now, lent)) in trace.iter().enumerate() {
            let said = lender.lent(message);
            assert_eq!(
                said, *lent,
                "SLUICEGATE_SEED={seed}, {kind:?}, trace {number}, step {step}:\n{:?}\n{:?}\n{:?}\n\
                 {:?} at {now}",
                message.strategy, message.terms, message.sender, message.borrow,
            );
            lent_to += u32::from(matches!(said, LeaseOutcome::Applied(a) if a.granted != Hits(0)));
        }
    }
    assert!(100 < lent_to, "{lent_to} messages were lent to");
}

/// A limit of 100 hits per hour, with the parameters of its leases.
fn hour(kind: Kind) -> (Strategy, LeaseTerms) {
    let period = Nanos::from_secs(3_600);
    let limit = match kind {
        Kind::Gcra => Strategy::Gcra(Gcra::new(100, period, 100).unwrap()),
        _ => Strategy::SlidingLog(SlidingLog::new(100, period).unwrap()),
    };
    (
        limit,
        LeaseTerms {
            overshoot: Overshoot::AtMost(Hits(50)),
            duration: Nanos::from_secs(60),
            sizing: LeaseSizing::Learned,
        },
    )
}

fn borrows(
    limit: Strategy,
    terms: LeaseTerms,
    number: u64,
    hits: u64,
    demand: u64,
) -> LeaseMessage {
    let charge = charge("a", limit, Cost::Charge(Hits(0)));
    let borrow = BorrowRequest {
        number: MessageNumber(number),
        hits: Hits(hits),
        wanted: Hits(demand),
        demand: Hits(1),
        balance: Hits(0),
        returned: Hits(0),
        last_lease: MessageNumber(0),
    };
    let (key, home, member) = (charge.key, charge.placement, MEMBERS[3]);
    LeaseMessage {
        key,
        placement: home,
        per_second: false,
        strategy: limit,
        terms,
        sender: member,
        borrow,
    }
}

#[test]
fn gcra_leases_match_the_kernel() {
    assert_matches_kernel(Kind::Gcra);
}

#[test]
fn fixed_window_leases_match_the_kernel() {
    assert_matches_kernel(Kind::Fixed);
}

#[test]
fn calendar_window_leases_match_the_kernel() {
    assert_matches_kernel(Kind::Calendar);
}

#[test]
fn sliding_window_leases_match_the_kernel() {
    assert_matches_kernel(Kind::Sliding);
}

#[test]
fn sliding_log_leases_match_the_kernel() {
    assert_matches_kernel(Kind::Log);
}
