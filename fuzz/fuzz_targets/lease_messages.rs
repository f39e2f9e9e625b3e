//! Bytes as the messages between a proxy and Sluicegate, each after its length.
//!
//! Guarantees:
//! - A decoded message encodes to the same message.
//! - Strategies, rules, decisions and borrow requests survive the conversion to a message.
//! - Any replies leave a lease balance with at most the hits that they lent.
#![no_main]

use std::fmt::Debug;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use sluicegate_kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate_kernel::lease::sizer::max_lease;
use sluicegate_kernel::lease::{BorrowReply, MessageNumber};
use sluicegate_kernel::proxy_rule::{ProxyHandling, ProxyLimit};
use sluicegate_kernel::rate::Strategy;
use sluicegate_kernel::units::{Hits, Nanos};
use sluicegate_lease_protocol as wire;
use sluicegate_lease_protocol::api::borrow_result::Result as BorrowResult;
use sluicegate_lease_protocol::api::charge_result::Result as ChargeResult;
use sluicegate_lease_protocol::api::{
    self, LeaseMessage, LeasedCounter, ProxyMessage, lease_message, proxy_message,
};
use sluicegate_lease_protocol::proxy_rule::{proxy_rule, proxy_rule_message};

/// 2026-03-29T00:30:00.25Z.
const NOW: Nanos = Nanos(1_774_744_200_250_000_000);

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(message) = ProxyMessage::decode_length_delimited(&mut rest) {
        assert_encodes(&message);
        read_request(message);
    }
    let (mut rest, mut lease) = (bytes, None);
    while let Ok(message) = LeaseMessage::decode_length_delimited(&mut rest) {
        assert_encodes(&message);
        read_reply(&message, &mut lease);
    }
});

fn assert_encodes<M: Message + Default + PartialEq + Debug>(message: &M) {
    let decoded = M::decode(&*message.encode_to_vec()).expect("an encoded message");
    assert_eq!(&decoded, message);
}

/// Reads a message as Sluicegate does.
fn read_request(message: ProxyMessage) {
    let counter = match message.message {
        Some(proxy_message::Message::Borrow(borrow)) => {
            let request = wire::borrow_request(&borrow);
            let counter = borrow.counter.clone().unwrap_or_default();
            let with_counter = api::BorrowMessage { counter: Some(counter.clone()), ..borrow };
            assert_eq!(wire::borrow_message(counter.clone(), &request), with_counter);
            counter
        }
        Some(proxy_message::Message::Charge(charge)) => charge.counter.unwrap_or_default(),
        _ => return,
    };
    let _strategy = read_strategy(counter.strategy.as_ref());
}

/// Reads a message as the proxy does.
fn read_reply(message: &LeaseMessage, lease: &mut Option<Lease>) {
    match &message.message {
        Some(lease_message::Message::Rule(rule)) => {
            if let Some(limit) = read_rule(rule) {
                *lease = Some(Lease::new(&limit));
            }
        }
        Some(lease_message::Message::Borrow(result)) => {
            if let (Some(lease), Some(BorrowResult::Applied(reply))) = (lease, &result.result) {
                lease.borrow(reply);
            }
        }
        Some(lease_message::Message::Charge(result)) => {
            if let Some(ChargeResult::Decision(decision)) = &result.result {
                read_decision(decision);
            }
        }
        _ => {}
    }
}

/// Returns the last leased limit of a rule.
fn read_rule(message: &api::RuleReply) -> Option<ProxyLimit> {
    let rule = proxy_rule(message)?;
    let sent = proxy_rule(&proxy_rule_message(&rule)).expect("a rule of the protocol");
    assert!(sent.valid_for <= rule.valid_for);
    assert_eq!(proxy_rule(&proxy_rule_message(&sent)).as_ref(), Some(&sent));
    match sent.handling {
        ProxyHandling::Leased(limits) => limits.last().cloned(),
        _ => None,
    }
}

fn read_strategy(message: Option<&api::RateStrategy>) -> Option<Strategy> {
    let strategy = wire::strategy(message?)?;
    assert_eq!(wire::strategy(&wire::strategy_message(&strategy)), Some(strategy));
    Some(strategy)
}

fn read_decision(message: &api::CounterDecision) {
    if let Some(decision) = wire::decision(message) {
        assert_eq!(wire::decision(&wire::decision_message(decision)), Some(decision));
    }
}

/// The lease of one counter in a proxy.
struct Lease {
    balance: LeaseBalance,
    strategy: Strategy,
    now: Nanos,
    number: u64,
}

impl Lease {
    fn new(limit: &ProxyLimit) -> Self {
        let (strategy, terms) = (limit.strategy, limit.terms);
        let most = max_lease(strategy.max_at_once());
        let balance = LeaseBalance::new(terms.sizing, terms.duration, most);
        Self { balance: balance.with_strategy(strategy), strategy, now: NOW, number: 0 }
    }

    /// Borrows for a request of one hit, and applies the reply.
    fn borrow(&mut self, reply: &api::BorrowReply) {
        self.number += 1;
        self.balance.record_check(self.now, Hits(1));
        let number = MessageNumber(self.number);
        let Some(borrow) = self.balance.borrow(self.now, number, Hits(1)) else { return };
        let message = wire::borrow_message(LeasedCounter::default(), &borrow);
        assert_eq!(wire::borrow_request(&message), borrow);
        let Some(reply) = wire::borrow_reply(reply, number) else {
            return self.balance.undo_unsent(self.now, number);
        };
        assert_reply_survives(&reply);
        self.balance.settle(self.now, &reply);
        let lent = reply.granted.plus(reply.kept);
        assert!(self.balance.total(self.now) <= lent);
        self.spend(Nanos(reply.valid_for.0 / 4));
    }

    /// Spends from the balance, then refills or returns it after `pause`.
    fn spend(&mut self, pause: Nanos) {
        for hits in [1, 0, 2, 1 << 52] {
            let before = self.balance.balance(self.now);
            let result = self.balance.spend(self.now, Hits(hits));
            let spent = if matches!(result, SpendResult::Spent(_)) { Hits(hits) } else { Hits(0) };
            assert!(spent <= before);
            assert_eq!(self.balance.balance(self.now), before.less(spent));
            if let SpendResult::Denied { additional_hits, .. } = result {
                let _wait = self.strategy.extra_wait(additional_hits);
            }
        }
        let most = Hits(u64::from(self.strategy.max_at_once()));
        assert!(
            self.balance.headroom(self.now).remaining <= most.max(self.balance.balance(self.now))
        );
        self.now = self.now.plus(pause);
        self.number += 3;
        let numbers = [2, 1, 0].map(|back| MessageNumber(self.number - back));
        let _refill = self.balance.refill(self.now, numbers[0]);
        self.balance.give_up(numbers[0]);
        let _returned = self.balance.return_surplus(self.now, numbers[1]);
        let _returned = self.balance.return_if_idle(self.now, numbers[2], pause);
    }
}

fn assert_reply_survives(reply: &BorrowReply) {
    let again = wire::borrow_reply(&wire::borrow_reply_message(reply), reply.number);
    let again = again.expect("a reply of the protocol");
    assert!(again.valid_for <= reply.valid_for);
    assert_eq!(BorrowReply { valid_for: reply.valid_for, ..again }, *reply);
}
