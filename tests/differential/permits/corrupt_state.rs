//! Foreign values and invalid replies.

use sluicegate::store::StoreFailure;
use sluicegate::store::permits::{LimitPermits, PermitId, PermitReport};
use sluicegate::store::redis::codec::permits::{
    PARTITIONS, PermitPartition, read_acquire, read_report,
};

use super::{Act, GRACE, ScriptReply, Scripted, TIMES, acquire, bucket, params, report};
use crate::support::redis::Redis;
use crate::support::resp::Value;

#[test]
fn foreign_value_stays_and_other_limits_succeed() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let key = PermitPartition::Only.limit_key(b"test:", &bucket(0));
    scripted.client.call(&[b"SET".to_vec(), key.clone(), b"x".to_vec()]);
    assert_eq!(scripted.ask(&acquire(0, GRACE)), ScriptReply::Answer(None));
    let held = vec![(PermitId(1, 0), GRACE)];
    let told = [0, 1].map(|number| LimitPermits {
        bucket: bucket(number),
        in_use: held.clone(),
        released: vec![],
        is_claimed: false,
    });
    let round = PermitReport { times: TIMES, to_all_nodes: false, limits: told.to_vec() };
    let ScriptReply::Heard(heard) = scripted.ask(&Act::Tell(round)) else { panic!() };
    assert!(matches!(heard[..], [Err(StoreFailure::WrongType), Ok(_)]), "{heard:?}");
    assert_eq!(scripted.client.call(&[b"GET".to_vec(), key]).text(), "x");
}

#[test]
fn foreign_incarnation_key_is_an_error_and_changes_nothing() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let key = PermitPartition::Only.incarnation_key(b"test:");
    scripted.client.call(&[b"SET".to_vec(), key.clone(), b"a stranger of some length".to_vec()]);
    for act in [acquire(0, GRACE), report(&[(PermitId(1, 0), GRACE)], &[])] {
        scripted.put(&act, params("test:", "a", None));
        scripted.client.flush();
        let Value::Error(error) = scripted.client.receive() else { panic!("answered") };
        assert!(error.contains("WRONGTYPE"), "{error}");
    }
    assert_eq!(scripted.client.call(&[b"GET".to_vec(), key]).text(), "a stranger of some length");
    assert_eq!(scripted.client.call(&["DBSIZE"]), Value::Int(1));
}

#[test]
fn each_partition_of_a_strict_limit_has_its_own_slot() {
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]);
    let mut client = redis.connect();
    let mut slot =
        |key: Vec<u8>| client.call(&[b"CLUSTER".to_vec(), b"KEYSLOT".to_vec(), key]).int();
    let mut slots = std::collections::HashSet::new();
    for number in 0..200 {
        let place = PermitPartition::for_bucket(&bucket(number));
        let its = slot(place.incarnation_key(b"p:"));
        assert_eq!(slot(place.limit_key(b"p:", &bucket(number))), its);
        slots.insert(its);
    }
    assert_eq!(slots.len() as u64, PARTITIONS);
    let long = [7; 4_000];
    assert!(PermitPartition::Only.limit_key(b"p:", &long).len() < 100);
}

#[test]
fn impossible_reply_of_the_permit_script_is_rejected() {
    for reply in [[0, 1, 0], [1, 2, 0], [2, 0, 5], [3, 0, 0]] {
        assert!(read_acquire(&reply).is_ok(), "{reply:?}");
    }
    for reply in [
        &[][..],
        &[0, 1],
        &[0, 0, 0],
        &[0, 1, 1],
        &[0, -1, 0],
        &[1, 0, 0],
        &[1, 1, 1],
        &[2, 0, 0],
        &[2, 0, 1 << 60],
        &[3, 1, 0],
        &[4, 0, 0],
        &[0, 1, 0, 0],
    ] {
        assert!(read_acquire(reply).is_err(), "{reply:?}");
    }
    let (held, over) = (vec![(PermitId(1, 0), GRACE)], vec![PermitId(1, 1)]);
    let told =
        [LimitPermits { bucket: bucket(0), in_use: held, released: over, is_claimed: false }];
    for reply in [[0, 0, 1, 1, 9], [5, 1, 0, 0, 0]] {
        assert!(read_report(told.iter(), &reply).is_ok(), "{reply:?}");
    }
    for reply in [
        &[][..],
        &[0],
        &[0, 0, 1, 1],
        &[0, 0, 2, 0, 9],
        &[0, 0, 0, 2, 9],
        &[0, 0, 0, 0, -1],
        &[0, 1, 0, 0, 1],
        &[0, 2, 0, 0, 0],
        &[0, 0, 0, 0, 1, 0, 0, 0, 1],
    ] {
        assert!(read_report(told.iter(), reply).is_err(), "{reply:?}");
    }
}
