//! Expiry of budgets and of their keys in Redis.

use sluicegate::kernel::budget::{BudgetPeriod, KEPT_PERIODS};
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{BudgetAction, BudgetCall};
use sluicegate::store::redis::codec::budgets::pack;

use super::{HOUR, Scripted, call_of, every, part, terms};
use crate::support::redis::Redis;

/// The expiries of the keys of a call in milliseconds since 1970: -1 if there is none, -2 without
/// the key.
fn expiries(scripted: &mut Scripted, call: &BudgetCall) -> Vec<i64> {
    let keys = pack(call, b"test:", None).keys.into_iter();
    keys.map(|key| scripted.client.call(&[b"PEXPIRETIME".to_vec(), key]).int()).collect()
}

fn millis(time: Nanos) -> i64 {
    i64::try_from(time.0 / Nanos::MILLI.0).unwrap()
}

#[test]
fn keys_of_a_budget_expire_after_its_kept_periods() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let parts = [part(0, 5, terms(every(HOUR)))];
    let reserve = call_of(BudgetAction::Reserve, 1, &parts);
    let held = scripted.call(&reserve, None);
    // The expiry of an open hold may be charged, so the keys are kept like those of a charge.
    let first = expiries(&mut scripted, &reserve);
    let kept = Nanos(HOUR.0 * (KEPT_PERIODS as u64 - 1));
    let until = millis(held.views[0].end.unwrap().plus(kept));
    assert!((until..until + 120_000).contains(&first[0]), "{first:?} {until}");
    assert_eq!(first[0], first[1]);
    let settled = scripted.call(&call_of(BudgetAction::Settle, 1, &parts), None);
    let kept = millis(settled.views[0].end.unwrap().plus(kept));
    let second = expiries(&mut scripted, &reserve);
    assert!((kept..kept + 120_000).contains(&second[0]), "{second:?} {kept}");
    assert_eq!(second[0], second[1]);
    // The first hold of a charged budget creates the sorted set.
    let others = [part(1, 5, parts[0].terms)];
    scripted.call(&call_of(BudgetAction::Charge, 0, &others), None);
    let reserve = call_of(BudgetAction::Reserve, 2, &others);
    assert_eq!(expiries(&mut scripted, &reserve)[1], -2);
    scripted.call(&reserve, None);
    let third = expiries(&mut scripted, &reserve);
    assert!(kept <= third[0] && third[0] == third[1], "{third:?}");
}

#[test]
fn prepaid_budgets_with_credit_never_expire() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let parts = [part(0, 5, terms(BudgetPeriod::Prepaid))];
    let cancel = call_of(BudgetAction::Cancel, 1, &parts);
    scripted.call(&cancel, None);
    assert!(expiries(&mut scripted, &cancel).iter().all(|at| 0 < *at));
    scripted.call(&call_of(BudgetAction::TopUp, 2, &parts), None);
    assert_eq!(expiries(&mut scripted, &cancel), [-1, -1]);
    // With periods, the same budget expires.
    let parts = [part(0, 5, terms(every(HOUR)))];
    scripted.call(&call_of(BudgetAction::Charge, 0, &parts), None);
    assert!(expiries(&mut scripted, &cancel).iter().all(|at| 0 < *at));
}

#[test]
fn calls_without_effect_write_no_key() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let parts = [part(0, 0, terms(every(HOUR))), part(1, 101, terms(every(HOUR)))];
    // The second budget denies, so the first one gets no hold.
    for action in [BudgetAction::Reserve, BudgetAction::Renew, BudgetAction::Read] {
        scripted.call(&call_of(action, 1, &parts), None);
    }
    scripted.call(&call_of(BudgetAction::Charge, 1, &parts[..1]), None);
    assert_eq!(scripted.client.call(&["DBSIZE"]).int(), 0);
}

#[test]
fn ids_of_ended_holds_are_removed_soon_after_their_deadline() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let parts = [part(0, 1, terms(every(HOUR)))];
    let time_limit = parts[0].terms.time_limit;
    let reserve = call_of(BudgetAction::Reserve, 0, &parts);
    let keys = pack(&reserve, b"test:", None).keys;
    let mut stored = Vec::new();
    // One request in each hundredth of the time limit.
    for number in 0..1_000 {
        let now = super::START.plus(Nanos(time_limit.0 / 100 * number));
        scripted.call(&call_of(BudgetAction::Reserve, number, &parts), Some(now));
        scripted.call(&call_of(BudgetAction::Cancel, number, &parts), Some(now));
        stored.push(scripted.client.call(&[b"ZCARD".to_vec(), keys[1].clone()]).int());
    }
    let fields = scripted.client.call(&[b"HLEN".to_vec(), keys[0].clone()]).int();
    assert_eq!(fields, stored[999] + 1, "an id has no deadline");
    // 100 ids are known, and at most a sixteenth more is stored.
    assert!(stored.iter().max().unwrap() <= &108, "{stored:?}");
}
