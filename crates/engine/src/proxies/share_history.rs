//! The grants of one shared limit that this replica passed on to one proxy, to check the proxy's
//! reports.
//!
//! Guarantees:
//! - A checked report names only grants that this replica passed on, with their real shares.
//! - It counts at most the requests in flight that earlier shares allowed.
//! - Any other report is marked as claimed: the store believes it as far as its own state confirms.
//! - A proxy that reconnects with requests in flight is claimed for `max_duration`.
//! - The claim of a proxy about its customers counts up to half of the limit, and up to four times an equal
//!   part of it.
//!
//! Not covered:
//! - Several proxies that lie together about their customers: they can leave each other one a permit.
//! - The demand in a report: the coordinator divides a limit evenly among those who need more.

use crate::kernel::coordinator::message::GrantInUse;
use crate::kernel::coordinator::{CoordinatorConfig, Grant, Heartbeat};
use crate::kernel::units::{Incarnation, Nanos, Share};

/// The number of grants that are kept: the proxy may use an older one while replies are lost.
const KEPT_GRANTS: usize = 4;

/// The largest number of incarnations of a share, in the time for which a share and its requests
/// last. Each one is a share state in the store for that time.
const MAX_INCARNATIONS: u32 = 4;

/// The equal parts of a limit that a proxy's claims about its customers get at most.
const MOST_CLAIMED: u64 = 4;

/// The history of one shared limit at one proxy.
#[derive(Debug)]
pub(super) struct ShareHistory {
    /// The parameters of the limit from the configuration.
    pub(super) law: CoordinatorConfig,
    /// The grants, newest first.
    grants: [Option<GrantInUse>; KEPT_GRANTS],
    /// The largest share in the current and in the previous period of `max_duration`.
    peaks: [Share; 2],
    period_began: Nanos,
    /// The instant from which all requests in flight were admitted under known grants.
    checked_from: Nanos,
    incarnation: Incarnation,
    incarnations: u32,
    incarnations_since: Nanos,
    /// The instant at which the store no longer has the share.
    pub(super) ends_at: Nanos,
}

impl ShareHistory {
    /// Starts the history at the first report about the limit.
    pub(super) fn new(law: CoordinatorConfig, first: &Heartbeat, now: Nanos) -> Self {
        let has_past = first.grant_in_use.is_some() || Share(0) < first.in_flight;
        let checked_from = if has_past { now.plus(law.timing.max_duration) } else { now };
        Self {
            law,
            grants: [None; KEPT_GRANTS],
            peaks: [Share(0); 2],
            period_began: now,
            checked_from,
            incarnation: first.incarnation,
            incarnations: 1,
            incarnations_since: now,
            ends_at: now.plus(law.timing.longest_use()),
        }
    }

    /// Checks a report. `fair` is an equal part of the limit: so many requests in flight always
    /// count. Returns `None` for too many incarnations of the share.
    pub(super) fn check(
        &mut self,
        now: Nanos,
        report: Heartbeat,
        fair: Share,
    ) -> Option<Heartbeat> {
        self.ends_at = now.plus(self.law.timing.longest_use());
        self.start_incarnation(now, report.incarnation).then_some(())?;
        self.update_peaks(now);
        // Only the proxy knows its customers. Its claims must not take the whole limit.
        let limit = self.grants[0].map_or(self.law.start, |grant| grant.limit);
        let parts = Share(fair.0.saturating_mul(MOST_CLAIMED));
        let curve = report.curve.at_most(parts.min(Share(limit.0 / 2)));
        let report = Heartbeat { curve, ..report };
        let known = report.grant_in_use.map(|claimed| self.find(&claimed));
        let is_claimed = now < self.checked_from || known == Some(None);
        if is_claimed {
            return Some(Heartbeat { vote: None, is_claimed, ..report });
        }
        let allowed = self.peaks[0].max(self.peaks[1]).max(fair);
        let (in_flight, grant_in_use) = (report.in_flight.min(allowed), known.flatten());
        Some(Heartbeat { in_flight, grant_in_use, is_claimed, ..report })
    }

    /// Records a grant that is passed on to the proxy.
    pub(super) fn record_grant(&mut self, grant: &Grant) {
        let grant = GrantInUse::from(*grant);
        if self.grants[0] != Some(grant) {
            self.grants.rotate_right(1);
            self.grants[0] = Some(grant);
        }
        self.peaks[1] = self.peaks[1].max(grant.share);
    }

    fn find(&self, claimed: &GrantInUse) -> Option<GrantInUse> {
        let is_same = |known: &&GrantInUse| {
            (known.coordinator_incarnation, known.generation)
                == (claimed.coordinator_incarnation, claimed.generation)
        };
        self.grants.iter().flatten().find(is_same).copied()
    }

    /// Returns `false` if the proxy began too many incarnations of the share.
    fn start_incarnation(&mut self, now: Nanos, incarnation: Incarnation) -> bool {
        if incarnation <= self.incarnation {
            return true;
        }
        if self.law.timing.longest_use() <= now.since(self.incarnations_since) {
            (self.incarnations, self.incarnations_since) = (0, now);
        }
        if MAX_INCARNATIONS <= self.incarnations {
            return false;
        }
        self.incarnations = self.incarnations.saturating_add(1);
        self.incarnation = incarnation;
        true
    }

    fn update_peaks(&mut self, now: Nanos) {
        let period = self.law.timing.max_duration;
        let current = self.grants[0].map_or(Share(0), |grant| grant.share);
        if period <= now.since(self.period_began) {
            (self.peaks, self.period_began) = ([self.peaks[1], current], now);
        }
        self.peaks[1] = self.peaks[1].max(current);
    }
}
