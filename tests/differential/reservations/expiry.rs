//! Expiry of reservations, their lists and counters in Redis.

use std::time::Duration;

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::lease::reservation::ReservationId;
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::Placement;
use sluicegate::store::redis::codec::counter_key;
use sluicegate::store::redis::codec::reservation::{ReservationAction, ReservationResult, pack};

use super::{Reserver, START, StoreCall, TERM, hours, left};
use crate::differential::PREFIX;
use crate::differential::keys::{micros, outlives_its_debt};
use crate::differential::model::charge;
use crate::support::redis::Redis;

#[test]
fn expired_reservation_is_refunded_by_the_next_one() {
    let redis = Redis::start();
    let mut reserver = Reserver::new(&redis);
    for charge in hours() {
        reserver.client.call(&["FLUSHALL"]);
        let hold =
            |number| StoreCall::Act(ReservationAction::Reserve(TERM), ReservationId(1, number));
        assert_eq!(left(reserver.ask(hold(1), &charge, Some(START))), 90);
        let just_before = START.plus(Nanos(999_999_000));
        assert_eq!(left(reserver.ask(hold(2), &charge, Some(just_before))), 80);
        assert_eq!(left(reserver.ask(hold(3), &charge, Some(START.plus(Nanos::SECOND)))), 80);
        assert_eq!(
            reserver.ask(
                StoreCall::Act(ReservationAction::Commit, ReservationId(1, 1)),
                &charge,
                None
            ),
            ReservationResult::NotReserved
        );
    }
}

#[test]
fn reservation_list_expires_when_its_counter_is_empty() {
    let redis = Redis::start();
    let mut reserver = Reserver::new(&redis);
    let [debt, ..] = hours();
    let before = micros(&reserver.client.call(&["TIME"]));
    reserver.ask(
        StoreCall::Act(ReservationAction::Reserve(TERM), ReservationId(1, 1)),
        &debt,
        None,
    );
    let after = micros(&reserver.client.call(&["TIME"]));
    let list =
        pack(&debt, ReservationId(1, 1), ReservationAction::Commit, PREFIX, None).keys[1].clone();
    let expires = reserver.client.call(&[b"PEXPIRETIME".to_vec(), list]).int();
    let expires = u64::try_from(expires).unwrap() * 1_000;
    // Ten hits of a limit of 100 per hour drain in six minutes. The list may live a second longer.
    let drained = [before, after].map(|time| time + 360_000_000);
    assert!(
        drained[0] <= expires && expires <= drained[1] + 1_003_000,
        "{expires} after {drained:?}"
    );
}

#[test]
fn partly_refunded_gcra_debt_expires_when_drained() {
    let redis = Redis::start();
    let mut reserver = Reserver::new(&redis);
    // No reservation expires during the test.
    let term = Duration::from_secs(3_600);
    // One hit drains in 7 ms, so only some calls move the expiry to another tenth of a second.
    let limit = Gcra::new(50_000, Nanos::from_secs(350), 50_000).map(Strategy::Gcra).unwrap();
    for number in 0..100 {
        // The hits of the first charge do not drain during the test.
        let hits = if number == 0 { 20_000 } else { 1 + number % 9 };
        let some = charge("a", limit, Cost::Charge(Hits(hits)));
        let name = counter_key(&some.key, Placement::ByKey, PREFIX);
        let id = ReservationId(1, number);
        let mut acts =
            vec![StoreCall::Act(ReservationAction::Reserve(term), id), StoreCall::Charge];
        acts.push(StoreCall::Act(
            if number % 4 == 0 { ReservationAction::Commit } else { ReservationAction::Cancel },
            id,
        ));
        for act in acts {
            assert_ne!(reserver.ask(act, &some, None), ReservationResult::NotReserved, "{act:?}");
            let longer = outlives_its_debt(&mut reserver.client, &name);
            assert!(longer.is_some_and(|micros| (0..=100_000).contains(&micros)), "{longer:?}");
        }
    }
}
