//! Foreign values, corrupt sums and invalid replies.

use sluicegate::kernel::coordinator::HeartbeatReply;
use sluicegate::store::heartbeat::ShareReport;
use sluicegate::store::redis::codec::heartbeat::{read, state_key};

use super::{Reporter, bucket, join_round};
use crate::support::redis::Redis;
use crate::support::resp::Value;

#[test]
fn foreign_value_stays_and_other_limits_succeed() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let key = state_key(&bucket(0), b"test:");
    let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    // Foreign values: a string, as in earlier versions, and hashes that are no coordinator state.
    let one_string = [0; 56 + 80];
    let short = [0; 121];
    let (mut long, mut seats) = ([0; 122 + 4], [0; 122]);
    long[0] = 2;
    seats[0] = 1;
    // A head and a share state in an earlier layout, whose share states had no end of use.
    let mut earlier = [0; 121 + 4];
    earlier[0] = 1;
    let foreign: [&[&[u8]]; 8] = [
        &[b"SET", &key, b"x"],
        &[b"SET", &key, &one_string],
        &[b"RPUSH", &key, b"x"],
        &[b"HSET", &key, b"x", b"y"],
        &[b"HSET", &key, b"head", &short],
        &[b"HSET", &key, b"head", &long],
        &[b"HSET", &key, b"head", &seats],
        &[b"HSET", &key, b"head", &earlier, &[1; 16], &[0; 80]],
    ];
    for (number, put) in foreign.into_iter().enumerate() {
        reporter.client.call(&words(&[b"DEL", &key]));
        reporter.client.call(&words(put));
        let dumped = reporter.client.call(&words(&[b"DUMP", &key]));
        let mut round = join_round(1);
        round.reports.push(ShareReport { bucket: bucket(1), ..round.reports[0].clone() });
        round.reports[1].heartbeat.number = number as u64 + 1;
        let heard = reporter.send(&round);
        assert!(
            matches!(heard.replies[..], [None, Some(HeartbeatReply::Grant(_))]),
            "{number}: {heard:?}"
        );
        assert_eq!(reporter.client.call(&words(&[b"DUMP", &key])), dumped, "{number}");
    }
}

#[test]
fn corrupt_sums_never_exceed_the_limit() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    reporter.send(&join_round(1));
    reporter.send(&join_round(2));
    let key = state_key(&bucket(0), b"test:");
    let get = [b"HGET".to_vec(), key.clone(), b"head".to_vec()];
    let Value::Text(mut sums) = reporter.client.call(&get) else { panic!("no head") };
    // Corrupts the stored need of all other replicas to 1e15, above the limit of eight permits.
    sums[86..94].copy_from_slice(&1e15_f64.to_le_bytes());
    reporter.client.call(&[b"HSET".to_vec(), key, b"head".to_vec(), sums]);
    let mut again = join_round(1);
    again.reports[0].heartbeat.number = 2;
    let heard = reporter.send(&again);
    let [Some(HeartbeatReply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    assert!(grant.share <= grant.limit, "{grant:?}");
}

#[test]
fn impossible_reply_of_the_heartbeat_script_is_rejected() {
    let round = join_round(1);
    for reply in [[7, 9, 0, 7, 1, 0, 8, 8, 1, 1], [7, 9, 1, 0, 0, 0, 0, 0, 0, 0]] {
        assert!(read(&round, &reply).unwrap().replies[0].is_some(), "{reply:?}");
    }
    let unreadable = read(&round, &[7, 9, 6, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(unreadable.replies, [None]);
    for reply in [
        &[][..],
        &[7],
        &[7, 9],
        &[7, 0, 7, 1, 0, 8, 8, 1, 1],
        &[7, 9, 0, 7, 1, 0, 8, 8, 1],
        &[7, 9, 0, 7, 1, 0, 8, 8, 1, 1, 0],
        &[7, 9, 0, 7, 1, -1, 8, 8, 1, 1],
        &[7, 9, 0, 7, 1, 0, 8, 8, 1, 2],
        &[7, 9, 1, 0, 1, 0, 0, 0, 0, 0],
        &[7, 9, 6, 0, 1, 0, 0, 0, 0, 0],
        &[7, 9, 7, 0, 0, 0, 0, 0, 0, 0],
        &[7, 9, 0, 7, 1, (1 << 53) + 1, 8, 8, 1, 1],
    ] {
        assert!(read(&round, reply).is_err(), "{reply:?}");
    }
}
