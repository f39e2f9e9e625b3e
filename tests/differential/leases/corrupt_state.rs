//! Foreign values, impossible counters and invalid replies.

use sluicegate::kernel::decision::{Cost, StoreFailure};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::redis::codec::lease::{pack, read, split_reply};

use super::{Lender, START, borrows, hour};
use crate::differential::PREFIX;
use crate::differential::limits::Kind;
use crate::differential::model::charge;
use crate::support::redis::Redis;
use crate::support::resp::Value;

#[test]
fn reply_with_a_wrong_length_is_rejected() {
    assert_eq!(split_reply(&[0; 16], 3).unwrap(), [[0; 8]; 2], "it may not come to all");
    for (integers, messages) in [(0, 1), (7, 1), (9, 2), (16, 1)] {
        assert!(split_reply(&vec![0; integers], messages).is_err(), "{integers} for {messages}");
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
