//! Foreign values and invalid replies.

use sluicegate::kernel::budget::{Amount, BudgetPeriod, KEPT_PERIODS};
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{BudgetAction, BudgetCall};
use sluicegate::store::redis::codec::budgets::{pack, read};
use sluicegate::store::redis::codec::cluster_slot;

use super::{HOUR, Scripted, call_of, every, part, terms};
use crate::support::redis::Redis;
use crate::support::resp::Value;

fn two_budgets(action: BudgetAction) -> BudgetCall {
    let terms = terms(every(HOUR));
    call_of(action, 1, &[part(0, 10, terms), part(1, 10, terms)])
}

/// Sends a call that Redis answers with an error.
fn error_of(scripted: &mut Scripted, call: &BudgetCall) -> String {
    scripted.queue("test:", call, None);
    scripted.client.flush();
    match scripted.client.receive() {
        Value::Error(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn foreign_value_stays_and_fails_the_whole_budget_call() {
    let redis = Redis::start();
    let keys = pack(&two_budgets(BudgetAction::Read), b"test:", None).keys;
    let (hash, set) = (keys[2].clone(), keys[3].clone());
    let long = vec![b'x'; 99];
    for foreign in [
        vec![b"SET".to_vec(), hash.clone(), b"x".to_vec()],
        vec![b"HSET".to_vec(), hash.clone(), b"name".to_vec(), b"x".to_vec()],
        vec![b"HSET".to_vec(), hash.clone(), b"h".to_vec(), b"x".to_vec()],
        vec![b"HSET".to_vec(), hash, b"h".to_vec(), long],
        vec![b"SET".to_vec(), set, b"x".to_vec()],
    ] {
        let mut scripted = Scripted::new(&redis);
        scripted.client.call(&["FLUSHALL"]);
        scripted.client.call(&foreign);
        let before = scripted.client.call(&[b"DUMP".to_vec(), foreign[1].clone()]);
        for action in [BudgetAction::Reserve, BudgetAction::Settle, BudgetAction::Read] {
            let error = error_of(&mut scripted, &two_budgets(action));
            assert!(error.contains("WRONGTYPE"), "{error}");
        }
        let after = scripted.client.call(&[b"DUMP".to_vec(), foreign[1].clone()]);
        assert_eq!((before, scripted.client.call(&["DBSIZE"]).int()), (after, 1), "{foreign:?}");
    }
}

#[test]
fn foreign_deadlines_fail_the_call_before_the_first_write() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let (call, later) = (two_budgets(BudgetAction::Reserve), Nanos::from_secs(9_000_000_000));
    scripted.call(&call, None);
    let keys = pack(&call, b"test:", None).keys;
    scripted.client.call(&[b"SET".to_vec(), keys[3].clone(), b"x".to_vec()]);
    let before = scripted.client.call(&[b"HGETALL".to_vec(), keys[0].clone()]);
    scripted.queue("test:", &call, Some(later));
    scripted.client.flush();
    let Value::Error(error) = scripted.client.receive() else { panic!("no error") };
    assert!(error.contains("WRONGTYPE"), "{error}");
    assert_eq!(scripted.client.call(&[b"HGETALL".to_vec(), keys[0].clone()]), before);
    assert_eq!(scripted.client.call(&[b"GET".to_vec(), keys[3].clone()]).text(), "x");
}

#[test]
fn deadlines_without_their_budget_are_removed() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let call = two_budgets(BudgetAction::Reserve);
    scripted.call(&call, None);
    let keys = pack(&call, b"test:", None).keys;
    scripted.client.call(&[b"DEL".to_vec(), keys[0].clone()]);
    let other = BudgetCall { id: call_of(call.action, 2, &[]).id, ..call.clone() };
    assert_eq!(scripted.call(&other, None).views[0].open_holds, 1);
    assert_eq!(scripted.client.call(&[b"ZCARD".to_vec(), keys[1].clone()]), Value::Int(1));
}

#[test]
fn both_keys_of_a_budget_share_a_slot() {
    let keys = pack(&two_budgets(BudgetAction::Read), b"p:", None).keys;
    let mut slots: Vec<_> = keys.iter().map(|key| cluster_slot(key)).collect();
    slots.dedup();
    assert_eq!(slots.len(), 1);
    let mut different = keys.clone();
    different.sort();
    different.dedup();
    assert_eq!(different.len(), keys.len());
}

/// The instant, and a view: start, settled, requests, expired, excess, held, credit, open, end.
const NUMBERS: [i64; 10] = [50, 40, 3, 1, 0, 0, 7, 0, 1, 60];

/// Replies after the view.
type Outcomes<'o> = &'o [&'o [i64]];

fn reply_with(outcome: &[i64]) -> Vec<i64> {
    [&NUMBERS[..], outcome].concat()
}

fn is_valid(action: BudgetAction, period: BudgetPeriod, reply: &[i64]) -> bool {
    read(&call_of(action, 1, &[part(0, 10, terms(period))]), reply).is_ok()
}

#[test]
fn impossible_outcome_of_the_budget_script_is_rejected() {
    let full = [&[32][..], &(0..32).flat_map(|at| [at, 1, 1, 0, 0]).collect::<Vec<_>>()].concat();
    let many = [&[33][..], &(0..33).flat_map(|at| [at, 1, 1, 0, 0]).collect::<Vec<_>>()].concat();
    assert_eq!(full.len(), 1 + 5 * KEPT_PERIODS);
    let reserve: [&[i64]; 4] = [&[0, 0, 0], &[1, 0, 0], &[2, 0, 4], &[3, 0, 0]];
    let no_reserve: [&[i64]; 8] =
        [&[], &[0, 0], &[0, 0, 0, 0], &[0, 1, 0], &[0, 0, 1], &[2, 1, 0], &[2, 0, 5], &[4, 0, 0]];
    let ended: [&[i64]; 4] = [&[0, 5], &[1, 0], &[2, 5], &[3, 0]];
    let not_ended: [&[i64]; 5] = [&[], &[0], &[3, 1], &[4, 0], &[0, -1]];
    let changed: [&[i64]; 2] = [&[0], &[1]];
    let not_changed: [&[i64]; 4] = [&[], &[2], &[0, 0], &[-1]];
    let topped_up: [&[i64]; 3] = [&[1, 0], &[0, 0], &[0, 5]];
    let not_topped_up: [&[i64]; 5] = [&[], &[1], &[1, 5], &[2, 0], &[0, -1]];
    let periods: [&[i64]; 3] = [&[0], &[2, 1, 0, 0, 0, 0, 2, 0, 0, 0, 0], &full];
    let no_periods: [&[i64]; 5] =
        [&[], &[1], &[1, 1, 0, 0, 0], &[2, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0], &many];
    let cases: [(BudgetAction, Outcomes<'_>, Outcomes<'_>); 7] = [
        (BudgetAction::Reserve, &reserve, &no_reserve),
        (BudgetAction::Settle, &ended, &not_ended),
        (BudgetAction::Cancel, &ended, &not_ended),
        (BudgetAction::Renew, &changed, &not_changed),
        (BudgetAction::Charge, &changed, &not_changed),
        (BudgetAction::TopUp, &topped_up, &not_topped_up),
        (BudgetAction::Read, &periods, &no_periods),
    ];
    for (action, possible, impossible) in cases {
        for (outcomes, is_possible) in [(possible, true), (impossible, false)] {
            for outcome in outcomes {
                let is_read = is_valid(action, every(HOUR), &reply_with(outcome));
                assert_eq!(is_read, is_possible, "{action:?} {outcome:?}");
            }
        }
    }
}

#[test]
fn impossible_view_of_a_budget_is_rejected() {
    let held = [0, 0, 0];
    assert!(is_valid(BudgetAction::Reserve, every(HOUR), &reply_with(&held)));
    for at in 0..NUMBERS.len() {
        for wrong in [-1, 1 << 53, i64::MIN, i64::MAX] {
            let mut reply = reply_with(&held);
            reply[at] = wrong;
            assert!(!is_valid(BudgetAction::Reserve, every(HOUR), &reply), "{reply:?}");
            assert!(!is_valid(BudgetAction::Reserve, every(HOUR), &reply[..at]), "{at}");
        }
    }
    let with = |at: usize, number| {
        let mut reply = reply_with(&held);
        reply[at] = number;
        reply
    };
    // More open holds than possible, an end before the start, and no end.
    assert!(!is_valid(BudgetAction::Reserve, every(HOUR), &with(8, 65_537)));
    assert!(!is_valid(BudgetAction::Reserve, every(HOUR), &with(9, 40)));
    assert!(is_valid(BudgetAction::Reserve, every(HOUR), &with(9, 0)));
    assert!(!is_valid(BudgetAction::Reserve, BudgetPeriod::Prepaid, &reply_with(&held)));
    assert!(is_valid(BudgetAction::Reserve, BudgetPeriod::Prepaid, &with(9, 0)));
    let call = call_of(BudgetAction::Reserve, 1, &[part(0, 10, terms(every(HOUR)))]);
    let view = read(&call, &reply_with(&held)).unwrap().views[0];
    let amounts = (view.usage.settled, view.held, view.credit);
    assert_eq!(amounts, (Amount(3), Amount(7), Amount(0)));
    assert_eq!(view.end, Some(Nanos(60 * Nanos::MICRO.0)));
}
