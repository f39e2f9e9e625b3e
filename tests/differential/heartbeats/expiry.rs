//! Expiry of the coordinator's state in Redis.

use sluicegate::kernel::coordinator::CoordinatorConfig;
use sluicegate::kernel::units::{ReplicaId, Share};
use sluicegate::store::heartbeat::{ShareReport, ShareRound};
use sluicegate::store::redis::codec::heartbeat::{incarnation_key, state_key};

use super::{Reporter, bucket, join_round, terms};
use crate::differential::keys::micros;
use crate::support::redis::Redis;
use crate::support::resp::Value;

/// Sends `round`. Returns the shortest and longest remaining TTL of each key afterwards, in
/// milliseconds, because the store's clock is read before and after.
fn expires<const N: usize>(
    reporter: &mut Reporter,
    round: &ShareRound,
    keys: [Vec<u8>; N],
) -> [(u64, u64); N] {
    let millis = |reporter: &mut Reporter| micros(&reporter.client.call(&["TIME"])) / 1_000;
    let before = millis(reporter);
    reporter.send(round);
    // The script rounds an expiry up.
    let after = millis(reporter) + 3;
    keys.map(|key| {
        let at = reporter.client.call(&[b"PEXPIRETIME".to_vec(), key]);
        let at = u64::try_from(at.int()).unwrap();
        (at - after, at - before)
    })
}

fn adaptive(mut round: ShareRound) -> ShareRound {
    for beat in &mut round.reports {
        beat.law = CoordinatorConfig::new(beat.law.timing, Share(1), Share(8), Share(8)).unwrap();
    }
    round
}

#[test]
fn state_outlives_share_use_by_one_minute_adaptive_ten() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let in_use = 5_000 + 10_000;
    for (round, kept) in [(join_round(1), 60_000), (adaptive(join_round(1)), 600_000)] {
        let mut round = round;
        round.reports[0].bucket = bucket(kept);
        let key = state_key(&bucket(kept), b"test:");
        let [(least, most)] = expires(&mut reporter, &round, [key]);
        let kept = in_use + kept;
        assert!(kept <= most && least <= kept + 60_000, "{kept}: {least} to {most}");
    }
    let month = 30 * 86_400 * 1_000;
    let [(least, most)] = expires(&mut reporter, &join_round(1), [incarnation_key(b"test:")]);
    assert!(least <= month && month <= most, "{least} to {most}");
}

/// The number of descriptor values is unbounded, so the states of unused limits must expire.
#[test]
fn state_of_unused_limit_lives_one_minute_adaptive_ten() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut after = |round: fn(u64) -> ShareRound, number: u64, in_flight: u64| {
        let key = state_key(&bucket(0), b"test:");
        let mut leaves = round(number);
        leaves.reports[0].heartbeat.number = number;
        leaves.reports[0].heartbeat.is_leaving = 1 < number;
        leaves.reports[0].heartbeat.in_flight = Share(in_flight);
        (leaves.record.replica, leaves.reports[0].heartbeat.replica) = (ReplicaId(1), ReplicaId(1));
        expires(&mut reporter, &leaves, [key])[0]
    };
    after(join_round, 1, 0);
    let (_, most) = after(join_round, 2, 1);
    assert!(75_000 <= most, "what it leaves in flight is in use: {most}");
    let (least, most) = after(join_round, 3, 0);
    assert!(least <= 60_000 && 60_000 <= most, "{least} to {most}");
    // The delayed report is superseded, which is not a sign of lost state.
    let (_, most) = after(join_round, 1, 0);
    assert!(60_000 <= most, "{most}");
    let (_, most) = after(|number| adaptive(join_round(number)), 4, 0);
    assert!(615_000 <= most, "{most}");
}

/// The share state is kept until requests of the earlier `max_duration` have ended; see
/// `docs/guides/share-a-concurrency-limit.md`.
#[test]
fn share_state_outlives_requests_of_an_earlier_longer_max_duration() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut round = join_round(1);
    round.reports[0].law.timing = terms(600);
    reporter.send(&round);
    // Sets the stored end of use to 0, as if it had passed.
    let key = state_key(&bucket(0), b"test:");
    let get = [b"HGET".to_vec(), key.clone(), b"head".to_vec()];
    let Value::Text(mut head) = reporter.client.call(&get) else { panic!("no head") };
    head[50..58].copy_from_slice(&0_f64.to_le_bytes());
    reporter.client.call(&[b"HSET".to_vec(), key.clone(), b"head".to_vec(), head]);
    round.reports[0].law.timing = terms(10);
    round.reports[0].heartbeat.number = 2;
    let [(least, most)] = expires(&mut reporter, &round, [key]);
    // Share lifetime, the earlier `max_duration`, and one minute, in milliseconds.
    let kept = 5_000 + 600_000 + 60_000;
    assert!(kept <= most && least <= kept + 60_000, "{least} to {most}");
}

/// One share round reports for many limits, and the state of each limit has its own expiry.
#[test]
fn expiry_of_coordinator_state_is_extended_only_when_too_early() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut round = join_round(1);
    round.reports.push(ShareReport { bucket: bucket(1), ..round.reports[0].clone() });
    // Returns the time of the call, and the expiries after it, in milliseconds.
    let mut expiries = |round: &ShareRound| {
        let time = micros(&reporter.client.call(&["TIME"])).cast_signed() / 1_000;
        reporter.send(round);
        let expiries = [0, 1].map(|number| {
            let key = state_key(&bucket(number), b"test:");
            reporter.client.call(&[b"PEXPIRETIME".to_vec(), key]).int()
        });
        (time, expiries)
    };
    let (first_time, first) = expiries(&round);
    // The second limit's heartbeat repeats its number, so it is superseded and changes no state.
    round.reports[0].law.timing = terms(40);
    round.reports[0].heartbeat.number = 2;
    assert_eq!(expiries(&round).1, first, "30 s later is within the minute");
    round.reports[0].law.timing = terms(120);
    round.reports[0].heartbeat.number = 3;
    let (last_time, last) = expiries(&round);
    let later = last[0] - first[0];
    assert!(110_000 <= later, "{first:?} {last:?}");
    // The test itself may have been late.
    let passed = last_time - first_time;
    assert!(later < 125_000 + passed, "{first:?} {last:?} after {passed} ms");
    assert_eq!(last[1], first[1]);
}

#[test]
fn leaving_idle_replica_deletes_its_share_state() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut seats = |round: &ShareRound| {
        reporter.send(round);
        // Counts share states: all fields of the hash except `head`.
        reporter.client.call(&[b"HLEN".to_vec(), state_key(&bucket(0), b"test:")]).int() - 1
    };
    assert_eq!([seats(&join_round(1)), seats(&join_round(2))], [1, 2]);
    let mut leaves = join_round(2);
    leaves.reports[0].heartbeat.number = 2;
    leaves.reports[0].heartbeat.is_leaving = true;
    assert_eq!(seats(&leaves), 1);
}
