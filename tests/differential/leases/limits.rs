//! Limits on leases: refunds, a full Redis and the maximum number of leases.

use sluicegate::kernel::lease::table::MAX_REPLICAS;
use sluicegate::kernel::lease::{MessageNumber, ReplicaIncarnation};
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::redis::codec::lease::pack;

use super::{Lender, START, borrows, hour};
use crate::differential::PREFIX;
use crate::differential::limits::Kind;
use crate::support::redis::Redis;
use crate::support::resp::Value;

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
