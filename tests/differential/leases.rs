//! Compares the lease script for one counter with the kernel's lease table: grants, returns,
//! expiry.

use sluicegate::kernel::decision::{Cost, StoreFailure};
use sluicegate::kernel::lease::counter::AnyCounter;
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::table::{LeaseTable, MAX_REPLICAS};
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

use super::keys::{micros, outlives_its_debt};
use super::limits::{Kind, span};
use super::model::{Model, charge};
use super::{PREFIX, integers};
use crate::support::dice::{Dice, seed};
use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const START: Nanos = Nanos(1_763_632_345_678_912_345);
const END: u64 = 8_900_000_000_000_000_000;
/// Number of traces for each of the five kinds of limit, with 20,000 steps in all.
const TRACES: usize = 40;
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
struct TraceGenerator {
    dice: Dice,
    now: Nanos,
    limit: Strategy,
    terms: LeaseTerms,
    model: Model,
    book: LeaseTable,
    views: [ReplicaView; MEMBERS.len()],
}

impl TraceGenerator {
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
        view.number += 1 + dice.up_to(2);
        let held = dice.pick(&[view.held, view.held, view.held / 2, 0, u64::MAX]);
        let amount = |dice: &mut Dice| {
            let any = dice.up_to(most);
            dice.pick(&[0, 0, 1, 2, 5, left, left / 3, left + 1, most + 1, any, u64::MAX])
        };
        let borrow = BorrowRequest {
            number: MessageNumber(view.number),
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
    let overshoot =
        if dice.once_in(3) { Overshoot::InWindow } else { Overshoot::AtMost(Hits(budget)) };
    LeaseTerms { overshoot, duration: Nanos(term.max(1_000)), sizing: LeaseSizing::Learned }
}

fn assert_matches_kernel(kind: Kind) {
    let (redis, seed) = (Redis::start(), seed());
    let mut lender = Lender::new(&redis);
    let mut lent_to = 0;
    for number in 0..TRACES {
        let mut generator = TraceGenerator::new(kind, Dice::new(seed ^ (number as u64) << 32));
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
    assert!(100 < lent_to, "{lent_to} of {} messages were lent to", TRACES * STEPS);
}

#[test]
fn batched_messages_of_mixed_limits_match_the_kernel() {
    let (redis, seed) = (Redis::start(), seed());
    let mut lender = Lender::new(&redis);
    for number in 0..TRACES as u64 {
        let mut dice = Dice::new(seed ^ number << 32);
        // Two of the limits have the same kind, and several messages of a batch are for one key.
        let kinds = [Kind::Gcra, Kind::Gcra, Kind::Fixed, Kind::Calendar, Kind::Sliding, Kind::Log];
        let mut generators = kinds.map(|kind| TraceGenerator::new(kind, Dice::new(dice.roll())));
        for step in 0..STEPS {
            let who = usize::try_from(dice.up_to(generators.len() as u64 - 1)).unwrap();
            generators[who].wait();
            let now = generators[who].now;
            let most = dice.pick(&[11, 11, 40]);
            for generator in &mut generators {
                generator.now = now;
            }
            let some = (0..=dice.up_to(most)).map(|_| {
                let at = usize::try_from(dice.up_to(generators.len() as u64 - 1)).unwrap();
                generators[at].step_now(kinds[at], &format!("{number} {at}"))
            });
            lender.assert_batch_matches(
                some,
                now,
                &format!("SLUICEGATE_SEED={seed}, {number}, {step}"),
            );
        }
    }
}

#[test]
fn batched_messages_of_one_limit_match_the_kernel() {
    let (redis, seed) = (Redis::start(), seed());
    let mut lender = Lender::new(&redis);
    let mut lent_to = 0;
    for number in 0..TRACES as u64 {
        let mut dice = Dice::new(seed ^ number << 32);
        let mut generators: Vec<_> =
            (0..8).map(|_| TraceGenerator::new(Kind::Gcra, Dice::new(dice.roll()))).collect();
        for step in 0..STEPS {
            generators[0].wait();
            let (now, limit) = (generators[0].now, generators[0].limit);
            for generator in &mut generators {
                generator.now = now;
            }
            let some = (0..=dice.up_to(11)).map(|_| {
                let at = usize::try_from(dice.up_to(generators.len() as u64 - 1)).unwrap();
                generators[at].limit = limit;
                generators[at].step_now(Kind::Gcra, &format!("{number} {at}"))
            });
            let context = format!("SLUICEGATE_SEED={seed}, {number}, {step}");
            let said = lender.assert_batch_matches(some, now, &context);
            let granted = |lent: &&LeaseOutcome| matches!(lent, LeaseOutcome::Applied(a) if a.granted != Hits(0));
            lent_to += said.iter().filter(granted).count();
        }
    }
    assert!(100 < lent_to, "{lent_to}");
}

#[test]
fn reply_with_a_wrong_length_is_rejected() {
    assert_eq!(split_reply(&[0; 16], 3).unwrap(), [[0; 8]; 2], "it may not come to all");
    for (integers, messages) in [(0, 1), (7, 1), (9, 2), (16, 1)] {
        assert!(split_reply(&vec![0; integers], messages).is_err(), "{integers} for {messages}");
    }
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
fn lease_table_key_lives_at_most_twice_its_longest_lease() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, terms) = hour(Kind::Gcra);
    // First one replica has a lease, then others, too. Some leases outlast the current expiry of
    // the lease table's key.
    let each = [
        (0, 60),
        (0, 61),
        (0, 200),
        (0, 60),
        (1, 70),
        (2, 500),
        (2, 80),
        (1, 1_000),
        (3, 70),
        (0, 3_000),
        (3, 60),
    ];
    let (mut longest, mut forgotten) = (0, [0; MEMBERS.len()]);
    for (number, (member, seconds)) in each.into_iter().enumerate() {
        let term = Nanos::from_secs(seconds);
        let message =
            borrows(limit, LeaseTerms { duration: term, ..terms }, number as u64 + 1, 1, 10);
        let message = LeaseMessage { sender: MEMBERS[member], ..message };
        let list = pack(&message, PREFIX, None).keys[1].clone();
        lender.client.queue(&["TIME"]);
        lender.queue(&message, None);
        lender.client.queue(&[b"PEXPIRETIME".to_vec(), list.clone()]);
        lender.client.queue(&["TIME"]);
        lender.client.queue(&[b"GET".to_vec(), list]);
        lender.client.flush();
        let before = micros(&lender.client.receive());
        assert!(matches!(lender.lent(&message), LeaseOutcome::Applied(_)));
        let expires = u64::try_from(lender.client.receive().int()).unwrap() * 1_000;
        let after = micros(&lender.client.receive());
        let term = seconds * 1_000_000;
        (forgotten[member], longest) = (before + term, longest.max(term));
        let until = forgotten.into_iter().max().unwrap();
        assert!(until <= expires && expires <= after + 2 * longest + 3_000, "{number}");
        let Value::Text(list) = lender.client.receive() else { panic!("no list") };
        let said = integers(&Value::Text(list[1..9].to_vec()))[0];
        let said = u64::try_from(said).unwrap();
        assert!(before <= said && said <= expires, "it says of itself how long it lives");
        let records = forgotten.into_iter().filter(|its| *its != 0).count();
        assert_eq!(list.len(), 9 + 65 * records, "{number}");
    }
}

#[test]
fn gcra_debt_with_leased_hits_expires_when_drained() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (_, terms) = hour(Kind::Gcra);
    for number in 1..300 {
        // One hit drains in 7 ms. Every 50th message has a limit with 8 ms, which converts the
        // stored debt.
        let period = Nanos::from_secs(if number % 50 == 0 { 400 } else { 350 });
        let limit = Gcra::new(50_000, period, 50_000).map(Strategy::Gcra).unwrap();
        // The hits of the first message do not drain during the test.
        let own = if number == 1 { 20_000 } else { number % 4 };
        let mut message = borrows(limit, terms, number, own, number % 3);
        message.borrow.returned = Hits(number % 2);
        message.borrow.last_lease = MessageNumber(number - 1);
        // Sends the message alone, or second in a batch of two.
        let before =
            LeaseMessage { key: charge("b", limit, Cost::Charge(Hits(0))).key, ..message.clone() };
        let said = match number % 5 {
            0 => lender.send(&message, None),
            _ => lender.send_all(&[before, message.clone()], None)[1],
        };
        assert!(matches!(said, LeaseOutcome::Applied(_)));
        let name = pack(&message, PREFIX, None).keys[0].clone();
        let longer = outlives_its_debt(&mut lender.client, &name);
        let is_right = longer.is_some_and(|micros| (0..=100_000).contains(&micros));
        assert!(is_right, "{number}: {longer:?}");
    }
}

/// Each row: replica, lease duration and time of the message in seconds, number of stored leases
/// afterwards.
#[test]
fn next_message_of_any_replica_deletes_an_expired_lease() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let rows = [(0, 10, 0, 1), (1, 60, 0, 2), (1, 60, 20, 1), (2, 90, 21, 2), (3, 90, 85, 2)];
    for kind in [Kind::Gcra, Kind::Log] {
        lender.client.call(&["FLUSHALL"]);
        let (limit, terms) = hour(kind);
        for (number, (member, term, at, listed)) in rows.into_iter().enumerate() {
            let terms = LeaseTerms { duration: Nanos::from_secs(term), ..terms };
            let message = borrows(limit, terms, number as u64 + 1, 1, 1);
            let message = LeaseMessage { sender: MEMBERS[member], ..message };
            lender.send(&message, Some(START.plus(Nanos::from_secs(at))));
            let list = pack(&message, PREFIX, None).keys[1].clone();
            let length = lender.client.call(&[b"STRLEN".to_vec(), list]).int();
            assert_eq!(length, 9 + 65 * listed, "{kind:?}, {number}");
        }
    }
}

/// Each foreign value has the length and the limit of a stored GCRA debt. Messages are sent alone,
/// and second in a batch of two.
#[test]
fn impossible_gcra_debt_is_reported_and_left_unchanged() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (_, terms) = hour(Kind::Gcra);
    // GCRA stores debt in hits × ticks. Seven units drain in each tick, so a debt of 2^53 stored
    // 2^53 / 7 ticks ago is almost zero now.
    let limit = Gcra::new(7, Nanos::SECOND, 700).map(Strategy::Gcra).unwrap();
    let asked = borrows(limit, terms, 1, 1, 10);
    let other =
        LeaseMessage { key: charge("b", limit, Cost::Charge(Hits(0))).key, ..asked.clone() };
    let [counter, _] = pack(&asked, PREFIX, None).keys;
    lender.send(&asked, Some(START));
    let get = [b"GET".to_vec(), counter.clone()];
    let Value::Text(right) = lender.client.call(&get) else { panic!("no debt") };
    let since = f64::from_le_bytes(right[1..9].try_into().unwrap());
    let exact = 2.0_f64.powi(53);
    let strange = [
        (b'h', since, 1.0),
        (b'g', -1.0, 1.0),
        (b'g', f64::NAN, 1.0),
        (b'g', exact, 1.0),
        (b'g', since, 0.0),
        (b'g', since, -1.0),
        (b'g', since, f64::NAN),
        (b'g', since - (exact / 7.0).floor(), exact),
    ];
    for (mark, since, owed) in strange {
        let numbers = [since, owed].map(f64::to_le_bytes).concat();
        let strange = [vec![mark], numbers, right[17..].to_vec()].concat();
        for others in [0, 1] {
            lender.client.call(&["FLUSHALL"]);
            lender.client.call(&[b"SET".to_vec(), counter.clone(), strange.clone()]);
            let all = [other.clone(), asked.clone()];
            let said = lender.send_all(&all[1 - others..], Some(START)).pop().unwrap();
            assert_eq!(
                said,
                LeaseOutcome::Failed(StoreFailure::WrongType),
                "{mark}, {since}, {owed}, {others}"
            );
            assert_eq!(lender.client.call(&get), Value::Text(strange.clone()));
        }
    }
}

#[test]
fn lease_message_without_hits_deletes_a_drained_debt() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, terms) = hour(Kind::Gcra);
    let [counter, _] = pack(&borrows(limit, terms, 1, 1, 0), PREFIX, None).keys;
    lender.send(&borrows(limit, terms, 1, 1, 0), Some(START));
    // One hit drains in 36 s, so the debt is still stored after 35 s but not after 37 s.
    for (number, seconds, is_there) in [(2, 35, 1), (3, 37, 0)] {
        let at = START.plus(Nanos::from_secs(seconds));
        lender.send(&borrows(limit, terms, number, 0, 0), Some(at));
        let there = lender.client.call(&[b"EXISTS".to_vec(), counter.clone()]).int();
        assert_eq!(there, is_there, "after {seconds} s");
    }
}

#[test]
fn lease_tables_of_a_batch_have_separate_expiries() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, longer) = hour(Kind::Gcra);
    let shorter = LeaseTerms { duration: Nanos::from_secs(30), ..longer };
    let first = borrows(limit, shorter, 1, 1, 10);
    let key = charge("b", limit, Cost::Charge(Hits(0))).key;
    let second = LeaseMessage { key, ..borrows(limit, longer, 2, 1, 10) };
    let both = [first, second];
    lender.send_all(&both, Some(START));
    let mut expires = |message: &LeaseMessage| {
        let list = pack(message, PREFIX, None).keys[1].clone();
        lender.client.call(&[b"PEXPIRETIME".to_vec(), list]).int()
    };
    assert_eq!(expires(&both[1]) - expires(&both[0]), 2 * 30_000);
}

#[test]
fn foreign_value_as_counter_or_lease_table_is_reported_unchanged() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (long, empty) = ("x".repeat(130), "");
    let texts = [(0, "x"), (1, "x"), (1, long.as_str()), (1, &long[..74]), (1, empty)];
    let texts = texts.map(|(place, text)| (place, ["SET", text]));
    for (place, words) in texts.into_iter().chain([(1, ["SADD", "x"])]) {
        for kind in [Kind::Gcra, Kind::Log] {
            lender.client.call(&["FLUSHALL"]);
            let (limit, terms) = hour(kind);
            let message = borrows(limit, terms, 1, 1, 10);
            let key = pack(&message, PREFIX, None).keys[place].clone();
            lender.client.call(&[words[0].into(), key.clone(), words[1].into()]);
            let before = lender.client.call(&[b"DUMP".to_vec(), key.clone()]);
            assert_eq!(
                lender.send(&message, None),
                LeaseOutcome::Failed(StoreFailure::WrongType),
                "{words:?}"
            );
            assert_eq!(lender.client.call(&[b"DUMP".to_vec(), key]), before);
            assert_eq!(lender.client.call(&["DBSIZE"]), Value::Int(1), "nothing is charged");
        }
    }
}

/// After a failover, the store's clock may be behind the stored debt. The debt is then at most one
/// burst.
#[test]
fn gcra_debt_from_the_future_is_capped_at_the_burst() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, terms) = hour(Kind::Gcra);
    let both = |number, hits, want| {
        ["a", "b"].map(|name| {
            let key = charge(name, limit, Cost::Charge(Hits(0))).key;
            LeaseMessage { key, ..borrows(limit, terms, number, hits, want) }
        })
    };
    let granted = |lent: LeaseOutcome| {
        let LeaseOutcome::Applied(answer) = lent else { panic!("{lent:?}") };
        let CounterDecision::Allow(room) = answer.decision else { panic!("{answer:?}") };
        (room.remaining, answer.granted)
    };
    lender.send_all(&both(1, 100, 0), Some(START.plus(Nanos::from_secs(3_600))));
    let back = lender.send_all(&both(2, 0, 10), Some(START));
    assert_eq!(back.into_iter().map(granted).collect::<Vec<_>>(), [(Hits(0), Hits(0)); 2]);
    let later = lender.send_all(&both(3, 0, 10), Some(START.plus(Nanos::from_secs(36))));
    assert_eq!(later.into_iter().map(granted).collect::<Vec<_>>(), [(Hits(0), Hits(1)); 2]);
}

/// The foreign value is tested alone, and after other counters of the same limit in one batch.
#[test]
fn foreign_counter_in_a_batch_is_reported_unchanged() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, terms) = hour(Kind::Gcra);
    let of = |name: &str, number, hits, want| {
        let key = charge(name, limit, Cost::Charge(Hits(0))).key;
        LeaseMessage { key, ..borrows(limit, terms, number, hits, want) }
    };
    for (number, hits, want, returned) in [
        (2, 0, 10, 0),
        (2, 0, 0, 0),
        (2, 1, 0, 0),
        (2, 1, 10, 0),
        (2, 101, 0, 0),
        (2, 0, 10, 5),
        (1, 0, 10, 0),
        (1, 1, 10, 0),
    ] {
        lender.client.call(&["FLUSHALL"]);
        let first = [of("a", 1, 1, 10), of("b", 1, 1, 10), of("c", 1, 1, 10)];
        lender.send_all(&first, Some(START));
        let [counter, list] = pack(&first[2], PREFIX, None).keys;
        lender.client.call(&[b"DEL".to_vec(), counter.clone()]);
        lender.client.call(&[b"SADD".to_vec(), counter.clone(), b"x".to_vec()]);
        let dumps = |lender: &mut Lender| {
            [&counter, &list].map(|key| lender.client.call(&[b"DUMP".to_vec(), key.clone()]))
        };
        let before = dumps(&mut lender);
        let mut asked = of("c", number, hits, want);
        (asked.borrow.returned, asked.borrow.last_lease) = (Hits(returned), MessageNumber(1));
        let next = [of("a", 2, 0, 10), of("b", 2, 0, 10), asked];
        for others in [2, 0] {
            let mut said = lender.send_all(&next[2 - others..], Some(START));
            let its = said.pop().unwrap();
            assert_eq!(
                its,
                LeaseOutcome::Failed(StoreFailure::WrongType),
                "{number}, {hits}, {want}, {others}"
            );
            assert!(said.iter().all(|other| matches!(other, LeaseOutcome::Applied(_))));
            assert_eq!(dumps(&mut lender), before, "{number}, {hits}, {want}, {others}");
        }
    }
}

#[test]
fn return_refunds_at_most_the_newest_charge() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, terms) = hour(Kind::Log);
    lender.send(&borrows(limit, terms, 1, 5, 10), Some(START));
    let mut more = borrows(limit, terms, 2, 5, 10);
    (more.borrow.balance, more.borrow.last_lease) = (Hits(10), MessageNumber(1));
    lender.send(&more, Some(START.plus(Nanos::SECOND)));
    let mut back = borrows(limit, terms, 3, 0, 0);
    (back.borrow.returned, back.borrow.last_lease) = (Hits(20), MessageNumber(2));
    let LeaseOutcome::Applied(answer) = lender.send(&back, Some(START.plus(Nanos::SECOND))) else {
        panic!("not answered")
    };
    let CounterDecision::Allow(room) = answer.decision else { panic!("{answer:?}") };
    assert_eq!(room.remaining, Hits(100 - 5 - 10 - 5));
}

#[test]
fn full_redis_rejects_lease_messages_without_changes() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    for kind in [Kind::Gcra, Kind::Log] {
        lender.client.call(&["CONFIG", "SET", "maxmemory", "0"]);
        let (limit, terms) = hour(kind);
        lender.send(&borrows(limit, terms, 1, 1, 40), None);
        let mut back = borrows(limit, terms, 2, 0, 10);
        (back.borrow.returned, back.borrow.last_lease) = (Hits(40), MessageNumber(1));
        let keys = pack(&back, PREFIX, None).keys;
        let dumps = |lender: &mut Lender| {
            keys.clone().map(|key| lender.client.call(&[b"DUMP".to_vec(), key]))
        };
        let before = dumps(&mut lender);
        lender.client.call(&["CONFIG", "SET", "maxmemory", "1"]);
        lender.queue(&back, None);
        lender.client.flush();
        let Value::Error(error) = lender.client.receive() else { panic!("answered") };
        assert!(error.contains("OOM"), "{error}");
        assert_eq!(dumps(&mut lender), before, "{kind:?}");
    }
}

/// A stored lease without balance and demand, which expires in the year 2255.
fn idle(member: u64) -> Vec<u8> {
    const YEAR_2255: f64 = 9_007_199_254_740_991.0;
    let ends = [YEAR_2255, YEAR_2255].map(f64::to_le_bytes).concat();
    let last = [1.0, 0.0, 0.0].map(f64::to_le_bytes).concat();
    [member.to_le_bytes().to_vec(), ends, vec![0; 2 * 4], last, vec![0; 2 * 4], vec![1]].concat()
}

#[test]
fn replica_beyond_the_maximum_of_leases_borrows_nothing() {
    let redis = Redis::start();
    let mut lender = Lender::new(&redis);
    let (limit, terms) = hour(Kind::Gcra);
    let of = |member| LeaseMessage {
        sender: ReplicaIncarnation(member),
        ..borrows(limit, terms, 1, 1, 10)
    };
    let [_, list] = pack(&of(0), PREFIX, None).keys;
    let others = (1..MAX_REPLICAS as u64).flat_map(idle);
    let all = [b'l'].into_iter().chain([0; 8]).chain(others).collect();
    lender.client.call(&[b"SET".to_vec(), list.clone(), all]);
    for (member, left, granted) in [(1 << 50, 100 - 1 - 10, 10), (1 << 51, 89 - 1, 0)] {
        let LeaseOutcome::Applied(answer) = lender.send(&of(member), None) else {
            panic!("no answer")
        };
        let CounterDecision::Allow(room) = answer.decision else { panic!("{answer:?}") };
        assert_eq!((room.remaining, answer.granted), (Hits(left), Hits(granted)));
        let listed = lender.client.call(&[b"STRLEN".to_vec(), list.clone()]).int();
        assert_eq!(listed, 9 + 2_048 * i64::try_from(idle(0).len()).unwrap());
    }
}

#[test]
fn impossible_reply_of_the_lease_script_is_rejected() {
    let (limit, terms) = hour(Kind::Gcra);
    let message = borrows(limit, terms, 1, 1, 10);
    for reply in [[0, 89, 0, 1, 10, 0, 0, 9], [4, 0, 7, 1, 0, 3, 9, 9], [6, 0, 0, 0, 0, 0, 0, 0]] {
        assert!(read(&message, &reply).is_ok(), "{reply:?}");
    }
    for reply in [
        &[][..],
        &[0, 89, 0, 1, 10, 0, 0],
        &[0, 89, 0, 1, 10, 0, 0, 9, 0],
        &[0, 89, 0, 1, 11, 0, 0, 9],
        &[0, 101, 0, 1, 10, 0, 0, 9],
        &[0, 89, 1, 1, 10, 0, 0, 9],
        &[0, 89, 0, 1, -1, 0, 0, 9],
        &[0, 89, 0, 1, 10, 0, 0, (1 << 53) + 1],
        &[4, 0, 7, 1, 1, 0, 0, 9],
        &[2, 89, 0, 1, 10, 0, 0, 9],
        &[5, 0, 7, 0, 0, 0, 0, 0],
        &[3, 0, 0, 0, 0, 0, 0, 1],
        &[6, 0, 0, 0, 1, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert!(read(&message, reply).is_err(), "{reply:?}");
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
