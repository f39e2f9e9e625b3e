//! Foreign values, full lists and invalid replies.

use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::lease::reservation::{MAX_RESERVATIONS, ReservationId};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::codec::ChargeResult;
use sluicegate::store::redis::codec::reservation::{
    ReservationAction, ReservationResult, pack, read, split_reply,
};

use super::{Reserver, START, StoreCall, TERM, hours, left};
use crate::differential::PREFIX;
use crate::differential::model::charge;
use crate::support::redis::Redis;
use crate::support::resp::Value;

/// The reservations of a counter have a maximum number, or they could fill the store's memory.
#[test]
fn full_reservation_list_accepts_another_after_one_ends() {
    let redis = Redis::start();
    let mut reserver = Reserver::new(&redis);
    let window = FixedWindow::new(1_000_000, Windows::Every(Nanos::from_secs(3_600))).unwrap();
    let charge = charge("many", Strategy::FixedWindow(window), Cost::Charge(Hits(1)));
    let hold = |number| StoreCall::Act(ReservationAction::Reserve(TERM), ReservationId(1, number));
    let most = MAX_RESERVATIONS as u64;
    (0..most).for_each(|number| reserver.queue(hold(number), &charge, Some(START)));
    reserver.client.flush();
    for number in 0..most {
        assert_eq!(left(reserver.held(hold(number), &charge)), 999_999 - number);
    }
    assert_eq!(reserver.ask(hold(most), &charge, Some(START)), ReservationResult::NotReserved);
    let keep = StoreCall::Act(ReservationAction::Commit, ReservationId(1, 7));
    assert_eq!(reserver.ask(keep, &charge, Some(START)), ReservationResult::Committed);
    assert_eq!(left(reserver.ask(hold(most), &charge, Some(START))), 999_999 - most);
}

#[test]
fn foreign_value_as_counter_or_reservations_is_reported_unchanged() {
    let redis = Redis::start();
    let mut reserver = Reserver::new(&redis);
    for (place, words) in [(0, ["SET", "x"]), (1, ["SET", "x"]), (1, ["SADD", "x"])] {
        for charge in hours() {
            reserver.client.call(&["FLUSHALL"]);
            let hold = StoreCall::Act(ReservationAction::Reserve(TERM), ReservationId(1, 1));
            let key = pack(&charge, ReservationId(1, 1), ReservationAction::Commit, PREFIX, None)
                .keys[place]
                .clone();
            reserver.client.call(&[words[0].into(), key.clone(), words[1].into()]);
            let before = reserver.client.call(&[b"DUMP".to_vec(), key.clone()]);
            assert_eq!(
                reserver.ask(hold, &charge, None),
                ReservationResult::Charged(ChargeResult::Unreadable)
            );
            assert_eq!(reserver.client.call(&[b"DUMP".to_vec(), key]), before);
            assert_eq!(reserver.client.call(&["DBSIZE"]), Value::Int(1), "nothing is charged");
        }
    }
}

#[test]
fn impossible_reply_of_the_reservation_script_is_rejected() {
    let [debt, ..] = hours();
    let hold = ReservationAction::Reserve(TERM);
    for (act, reply) in [
        (hold, [0, 90, 0, 7]),
        (hold, [4, 0, 7, 7]),
        (hold, [6, 0, 0, 0]),
        (ReservationAction::Commit, [0, 0, 0, 0]),
        (ReservationAction::Commit, [6, 0, 0, 0]),
        (ReservationAction::Cancel, [0, 100, 0, 0]),
    ] {
        assert!(read(&debt, act, &reply).is_ok(), "{act:?} {reply:?}");
    }
    for (act, reply) in [
        (hold, [0, 101, 0, 0]),
        (hold, [2, 9, 0, 0]),
        (hold, [6, 1, 0, 0]),
        (ReservationAction::Commit, [0, 90, 0, 7]),
        (ReservationAction::Commit, [4, 0, 7, 7]),
        (ReservationAction::Cancel, [6, 0, 0, 0]),
        (ReservationAction::Cancel, [0, -1, 0, 0]),
    ] {
        assert!(read(&debt, act, &reply).is_err(), "{act:?} {reply:?}");
    }
    for (reply, charges) in [(&[0, 90, 0][..], 1), (&[0, 90, 0, 7], 2), (&[0; 8], 1), (&[], 1)] {
        assert!(split_reply(reply, charges).is_err(), "{reply:?} of {charges}");
    }
}
