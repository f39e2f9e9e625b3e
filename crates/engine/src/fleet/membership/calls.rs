//! Builds this replica's heartbeats, and applies the store's replies.

use super::{MAX_SHARES_IN_RECORD, ReplicaRecord, make_share_record, records_of};
use crate::Engine;
use crate::kernel::units::Revision;
use crate::store::fleet::{MembershipHeartbeat, MembershipReply};
use std::collections::HashSet;

impl Engine {
    /// Returns this replica's next heartbeat. `None` without a fleet.
    pub(crate) fn membership_heartbeat(&self) -> Option<MembershipHeartbeat> {
        let revision = self.config().map_or(Revision(0), |config| config.revision);
        let (watch, live) = (self.own_watch(), self.live_report());
        let (actions, bans) = (self.action_changes(), self.ban_changes());
        let shares = ReplicaRecord { actions, bans, watch, live, ..self.share_record() };
        Some(self.membership()?.make_heartbeat(revision, &shares))
    }

    /// Applies the store's reply to a heartbeat: the live replicas and their operator actions.
    pub(crate) fn apply_membership_reply(&self, reply: MembershipReply) {
        let mut actions = Vec::new();
        for record in records_of(&reply) {
            actions.extend(record.actions);
            self.apply_ban_changes(&record.bans);
        }
        self.apply_action_changes(&actions);
        if let Some(membership) = self.membership() {
            membership.apply_reply(reply, self.clock().now());
        }
    }

    /// Returns this replica's record with only the fields about concurrency limits.
    #[must_use]
    pub fn share_record(&self) -> ReplicaRecord {
        let Some(fleet) = self.concurrency_limits.fleet_reporter() else {
            return ReplicaRecord::default();
        };
        let (fences, handoffs) = (fleet.totals().fences(), fleet.totals().handoffs());
        let mut sum = ReplicaRecord { fences, handoffs, ..ReplicaRecord::default() };
        let shown = fleet.share_snapshots(self.clock(), usize::MAX);
        let counted: HashSet<_> = shown.iter().map(|(name, _)| name.clone()).collect();
        for (name, shown) in shown {
            sum.share = sum.share.saturating_add(shown.share.0);
            sum.in_flight = sum.in_flight.saturating_add(shown.in_flight.into());
            sum.largest_shares.push(make_share_record(&name, &shown));
        }
        sum.largest_shares
            .sort_unstable_by(|a, b| b.share.cmp(&a.share).then(a.limit.cmp(&b.limit)));
        sum.largest_shares.truncate(MAX_SHARES_IN_RECORD);
        // A limit whose mode has just changed has a share snapshot and a strict snapshot.
        let others = fleet
            .strict_snapshots(usize::MAX)
            .into_iter()
            .filter(|(name, _)| !counted.contains(name));
        for (_, seen) in others {
            sum.in_flight = sum.in_flight.saturating_add(seen.in_flight.into());
        }
        sum
    }
}
