//! Expiry of counters, leases and lease tables in Redis.

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::lease::{LeaseTerms, MessageNumber};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::redis::codec::lease::pack;

use super::{Lender, MEMBERS, START, borrows, hour};
use crate::differential::keys::{micros, outlives_its_debt};
use crate::differential::limits::Kind;
use crate::differential::model::charge;
use crate::differential::{PREFIX, integers};
use crate::support::redis::Redis;
use crate::support::resp::Value;

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
