//! A store without state, or that lost some of it.

use sluicegate::kernel::coordinator::HeartbeatReply;
use sluicegate::kernel::units::{Nanos, Share};
use sluicegate::store::heartbeat::ShareRound;
use sluicegate::store::memory::coordinators::Coordinators;

use super::{Reporter, START, is_recovering, join_round};
use crate::support::redis::Redis;

#[test]
fn new_store_grants_only_shares_that_replicas_report() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let heard = reporter.send(&join_round(1));
    let [Some(HeartbeatReply::Grant(grant))] = heard.replies[..] else { panic!("{heard:?}") };
    assert_eq!((grant.share, grant.is_recovering, grant.fair_share), (Share(0), true, Share(8)));
    assert_eq!(grant.coordinator_incarnation, heard.incarnation);
}

/// A leaving replica may be the first to call a store without state, before replicas with shares
/// report.
#[test]
fn leaving_replica_does_not_end_the_recovery() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut coordinators = Coordinators::default();
    let leaves = ShareRound {
        longest_use: Nanos(0),
        is_leaving: true,
        reports: Vec::new(),
        ..join_round(1)
    };
    for (seconds, round) in [(0, &leaves), (1, &leaves), (2, &join_round(2))] {
        let at = START.plus(Nanos::from_secs(seconds));
        let heard = reporter.send_at(round, Some(at));
        assert_eq!(heard, coordinators.apply_round(at, "a", round));
        for reply in heard.replies.iter().flatten() {
            let HeartbeatReply::Grant(grant) = reply else { panic!("{heard:?}") };
            assert!(grant.is_recovering, "{grant:?}");
        }
    }
}

/// A restored state may lack replicas that joined after it was saved and that have shares.
#[test]
fn store_that_lost_recent_replies_starts_recovery() {
    let is_recovering = |answered| is_recovering(false, (25_000, 1, answered));
    assert!(!is_recovering(Some(16_000)), "nothing is missing");
    assert!(!is_recovering(Some(19_000)), "the last moment may be missing after a failover");
    assert!(is_recovering(Some(19_001)));
    assert!(is_recovering(Some(24_999)));
    assert!(!is_recovering(None), "one that was never answered shows nothing");
}

/// A replica that left is not in the restored membership. If it got a later reply, that reply is
/// lost.
#[test]
fn reply_to_a_former_replica_reveals_lost_state() {
    assert!(!is_recovering(true, (25_000, 1, Some(16_000))), "it left, and nobody else came");
    assert!(is_recovering(true, (25_000, 1, Some(24_000))));
}

/// All replicas of the restored membership have expired or left. Replicas that joined later may be
/// missing in it, whatever the incarnation of the first caller.
#[test]
fn store_without_live_replicas_starts_recovery() {
    for (life, leaves) in [(1, false), (2, false), (2, true)] {
        for from in [28_000, 31_000, 600_000] {
            assert!(is_recovering(leaves, (from, life, None)), "life {life} at {from} ms");
        }
    }
    assert!(
        !is_recovering(false, (27_999, 1, Some(16_000))),
        "away for as long as a replica may be"
    );
    assert!(!is_recovering(true, (27_999, 2, None)), "nobody was left, and one came");
    assert!(is_recovering(false, (27_999, 2, None)), "one was there, and has not spoken");
}

#[test]
fn call_without_a_store_name_keeps_the_incarnation() {
    let redis = Redis::start();
    let mut reporter = Reporter::new(&redis);
    let mut coordinators = Coordinators::default();
    let mut life = |replica: u64, store: &str| {
        let (round, at) = (join_round(replica), START.plus(Nanos::from_secs(replica)));
        reporter.queue(&round, "test:", store, Some(at));
        reporter.client.flush();
        let heard = reporter.receive(&round);
        assert_eq!(heard, coordinators.apply_round(at, store, &round), "{store}");
        heard.incarnation
    };
    let first = life(1, "a");
    assert_eq!([life(2, ""), life(3, "a"), life(4, "")], [first; 3], "it is one store");
    let second = life(5, "b");
    assert_ne!(second, first, "it was started anew");
    assert_eq!([life(6, ""), life(7, "b")], [second; 2]);
}
