//! Expiry of permits and of their keys in Redis.

use sluicegate::kernel::units::Nanos;
use sluicegate::store::permits::PermitId;
use sluicegate::store::redis::codec::permits::PermitPartition;

use super::{GRACE, Scripted, acquire, bucket, report};
use crate::differential::keys::micros;
use crate::support::redis::Redis;
use crate::support::resp::Value;

fn expires_at(scripted: &mut Scripted, key: Vec<u8>) -> u64 {
    let reply = scripted.client.call(&[b"PEXPIRETIME".to_vec(), key]);
    u64::try_from(reply.int()).unwrap()
}

#[test]
fn permit_keys_expire_at_deadlines_incarnation_after_thirty_days() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    let long = Nanos::from_secs(30);
    let before = micros(&scripted.client.call(&["TIME"])) / 1_000;
    scripted.ask(&report(&[(PermitId(1, 0), long), (PermitId(1, 1), GRACE)], &[]));
    let after = micros(&scripted.client.call(&["TIME"])) / 1_000;
    let ceiling = expires_at(&mut scripted, PermitPartition::Only.limit_key(b"test:", &bucket(0)));
    assert!(before + 30_000 <= ceiling && ceiling <= after + 30_000 + 3, "{ceiling}");
    // A repeated acquire extends the deadline of one permit.
    scripted.ask(&acquire(0, Nanos::from_secs(50)));
    let longer = expires_at(&mut scripted, PermitPartition::Only.limit_key(b"test:", &bucket(0)));
    assert!(before + 50_000 <= longer, "{longer}");
    let month = 30 * 86_400 * 1_000;
    let life = expires_at(&mut scripted, PermitPartition::Only.incarnation_key(b"test:"));
    assert!(before + month <= life && life <= after + month + 3, "{life}");
    scripted.ask(&report(&[], &[PermitId(1, 0), PermitId(1, 1)]));
    assert_eq!(scripted.client.call(&["DBSIZE"]), Value::Int(1), "the life alone");
}

#[test]
fn permit_key_never_expires_before_the_last_deadline() {
    let redis = Redis::start();
    let mut scripted = Scripted::new(&redis);
    // An expiry rounded down to milliseconds would fail in most rounds of this loop.
    let keep = Nanos::from_secs(30).plus(Nanos(999_000));
    for _ in 0..20 {
        let before = micros(&scripted.client.call(&["TIME"]));
        scripted.ask(&report(&[(PermitId(1, 0), keep)], &[]));
        let goes = expires_at(&mut scripted, PermitPartition::Only.limit_key(b"test:", &bucket(0)))
            * 1_000;
        assert!(before + 30_000_999 <= goes, "told after {before}, gone at {goes}");
    }
}
