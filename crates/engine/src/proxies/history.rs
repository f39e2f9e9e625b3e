//! The shares, permits and leases that this replica passed on to one proxy.
//!
//! Guarantees:
//! - Each share and each permit takes one record of its peer.
//! - Each lease takes one lease of its peer.
//! - A proxy with shares or leases takes one place of its peer, until the store has forgotten it.
//! - A permit is renewed at most until `max_duration` after its acquire.
//! - The store adds a reported permit only if this replica acquired it for the proxy.
//!
//! Not covered:
//! - The checks of one share (see `super::share_history`).

use std::collections::HashMap;

use siphasher::sip::SipHasher24;

use super::peer::Peer;
use super::share_history::ShareHistory;
use crate::kernel::coordinator::{CoordinatorConfig, Heartbeat};
use crate::kernel::lease::ReplicaIncarnation;
use crate::kernel::units::{Nanos, ReplicaId, Share};
use crate::store::permits::{LimitPermits, PermitId};

/// The ids of proxies have this bit, and those of replicas have not.
const PROXY_ID_BIT: u64 = 1 << 52;

/// Returns the hash of a bucket name under which records are kept: names may be long.
pub(super) fn bucket_hash(bucket: &[u8]) -> u64 {
    SipHasher24::new().hash(bucket)
}

/// The records of one proxy.
#[derive(Debug)]
pub(super) struct ProxyHistory {
    pub(super) peer: Peer,
    /// The proxy's id in the coordinator of shared limits.
    pub(super) replica: ReplicaId,
    /// The proxy's number in the ids of permits.
    pub(super) process: u64,
    shares: HashMap<u64, ShareHistory>,
    permits: HashMap<u64, PermitRecord>,
    /// The number of permits by bucket.
    held: HashMap<u64, u32>,
    /// The ends of the leases, by the hash of the counter.
    leases: HashMap<u64, Nanos>,
    /// The instant at which the store has forgotten the proxy; `None` without shares and leases.
    member_until: Option<Nanos>,
    /// The instant of the last reply that was passed on, by the store's clock.
    pub(super) last_store_time: Option<Nanos>,
}

/// A permit that a proxy acquired, or that it reported without an acquire.
#[derive(Clone, Copy, Debug)]
struct PermitRecord {
    bucket: u64,
    ends_at: Nanos,
    /// False if the proxy only reported it.
    is_acquired: bool,
}

/// The time for which permits of one limit last.
#[derive(Clone, Copy, Debug)]
pub(super) struct PermitTimes {
    /// The time for which the store keeps a permit without a report.
    pub(super) lifetime: Nanos,
    /// The longest time from the acquire to the end.
    pub(super) longest: Nanos,
}

impl ProxyHistory {
    pub(super) fn new(incarnation: ReplicaIncarnation, peer: Peer) -> Self {
        let process = SipHasher24::new().hash(format!("proxy-{}", incarnation.0).as_bytes());
        Self {
            peer,
            replica: ReplicaId(PROXY_ID_BIT | process >> 12),
            process,
            shares: HashMap::new(),
            permits: HashMap::new(),
            held: HashMap::new(),
            leases: HashMap::new(),
            member_until: None,
            last_store_time: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty() && self.permits.is_empty() && self.member_until.is_none()
    }

    /// Removes the records that have ended.
    pub(super) fn sweep(&mut self, now: Nanos) {
        let before = self.shares.len();
        self.shares.retain(|_, share| now < share.ends_at);
        self.peer.remove_records(before.saturating_sub(self.shares.len()));
        let ended =
            |(number, permit): (&u64, &PermitRecord)| (permit.ends_at <= now).then_some(*number);
        let ended: Vec<_> = self.permits.iter().filter_map(ended).collect();
        for number in ended {
            self.remove_permit(number);
        }
        let before = self.leases.len();
        self.leases.retain(|_, until| now < *until);
        self.peer.remove_leases(before.saturating_sub(self.leases.len()));
        if self.member_until.is_some_and(|until| until <= now) {
            self.member_until = None;
            self.peer.remove_member();
        }
    }

    /// Takes a place for the record of this proxy in the store, until `until`. Returns `false` if
    /// the peer has no more places.
    pub(super) fn join_fleet(&mut self, until: Nanos) -> bool {
        let is_member = self.member_until.is_some() || self.peer.add_member();
        if is_member {
            self.member_until = self.member_until.max(Some(until));
        }
        is_member
    }

    /// Takes a place for the lease of a counter, until `until`. Returns `false` at the bounds of the
    /// peer.
    pub(super) fn add_lease(&mut self, counter: u64, until: Nanos) -> bool {
        let is_listed = self.join_fleet(until);
        let has_place = is_listed && (self.leases.contains_key(&counter) || self.peer.add_lease());
        if has_place {
            self.leases.insert(counter, until);
        }
        has_place
    }

    /// Returns the parameters with which the proxy last reported this limit.
    pub(super) fn law(&self, bucket: u64) -> Option<CoordinatorConfig> {
        self.shares.get(&bucket).map(|share| share.law)
    }

    /// Checks a report about a shared limit. `fair` is an equal part of the limit. Returns `None`
    /// if it is beyond the bounds of the peer.
    pub(super) fn check_share(
        &mut self,
        (bucket, law): (u64, CoordinatorConfig),
        report: Heartbeat,
        (now, fair): (Nanos, Share),
    ) -> Option<Heartbeat> {
        if !self.shares.contains_key(&bucket) {
            self.peer.add_record().then_some(())?;
            self.shares.insert(bucket, ShareHistory::new(law, &report, now));
        }
        let share = self.shares.get_mut(&bucket)?;
        share.law = law;
        share.check(now, report, fair)
    }

    /// Returns the history of a shared limit.
    pub(super) fn share(&mut self, bucket: u64) -> Option<&mut ShareHistory> {
        self.shares.get_mut(&bucket)
    }

    /// Returns the number of permits of a limit that the proxy has.
    pub(super) fn held(&self, bucket: u64) -> u32 {
        self.held.get(&bucket).copied().unwrap_or(0)
    }

    /// Adds a permit that ends at `ends_at` and is not acquired yet, unless it is known. Returns
    /// `false` at the bounds of the peer, and if the number belongs to a permit of another limit.
    pub(super) fn add_permit(&mut self, number: u64, bucket: u64, ends_at: Nanos) -> bool {
        if let Some(known) = self.permits.get(&number) {
            return known.bucket == bucket;
        }
        if !self.peer.add_record() {
            return false;
        }
        let held = self.held.entry(bucket).or_default();
        *held = held.saturating_add(1);
        self.permits.insert(number, PermitRecord { bucket, ends_at, is_acquired: false });
        true
    }

    /// Marks a permit as acquired. A permit whose reply is pending is only claimed: its acquire may
    /// be denied.
    pub(super) fn confirm_permit(&mut self, number: u64) {
        if let Some(permit) = self.permits.get_mut(&number) {
            permit.is_acquired = true;
        }
    }

    /// Removes a permit.
    pub(super) fn remove_permit(&mut self, number: u64) {
        let Some(permit) = self.permits.remove(&number) else { return };
        self.peer.remove_records(1);
        let left = self.held.get_mut(&permit.bucket).map(|held| {
            *held = held.saturating_sub(1);
            *held
        });
        if left == Some(0) {
            self.held.remove(&permit.bucket);
        }
    }

    /// Checks the report about the permits of a limit: bounds their lifetimes, and marks the report
    /// as claimed if this replica did not acquire all of them.
    ///
    /// Without `times`, the configuration has no such limit: only releases stay.
    pub(super) fn check_permits(
        &mut self,
        now: Nanos,
        mut limit: LimitPermits,
        times: Option<PermitTimes>,
    ) -> LimitPermits {
        let bucket = bucket_hash(&limit.bucket);
        for PermitId(_, number) in &limit.released {
            // A release under another limit frees nothing in the store.
            if self.permits.get(number).is_some_and(|permit| permit.bucket == bucket) {
                self.remove_permit(*number);
            }
        }
        let in_use = std::mem::take(&mut limit.in_use);
        limit.is_claimed = false;
        let Some(times) = times else { return limit };
        for (id, lifetime) in in_use {
            if !self.add_permit(id.1, bucket, now.plus(times.longest)) {
                continue;
            }
            let Some(permit) = self.permits.get(&id.1) else { continue };
            limit.is_claimed |= !permit.is_acquired;
            let left = permit.ends_at.since(now);
            if Nanos(0) < left {
                limit.in_use.push((id, lifetime.min(left).min(times.longest)));
            }
        }
        limit
    }
}

impl Drop for ProxyHistory {
    fn drop(&mut self) {
        self.peer.remove_records(self.shares.len().saturating_add(self.permits.len()));
        self.peer.remove_leases(self.leases.len());
        if self.member_until.is_some() {
            self.peer.remove_member();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxies::peer::{MAX_PEER_LEASES, PeerKey, Peers};

    const TIMES: PermitTimes =
        PermitTimes { lifetime: Nanos::from_secs(3), longest: Nanos::from_secs(61) };

    fn history() -> ProxyHistory {
        let slot = Peers::default().open_stream(PeerKey::UnixSocket).unwrap();
        ProxyHistory::new(ReplicaIncarnation(7), slot.peer().clone())
    }

    fn report(history: &mut ProxyHistory, number: u64) -> LimitPermits {
        let id = PermitId(history.process, number);
        let limit = LimitPermits {
            bucket: [1][..].into(),
            in_use: vec![(id, TIMES.lifetime)],
            released: Vec::new(),
            is_claimed: true,
        };
        history.check_permits(Nanos(0), limit, Some(TIMES))
    }

    #[test]
    fn the_leases_of_a_peer_are_bounded_and_expire() {
        let (mut history, until) = (history(), Nanos::from_secs(10));
        assert!((0..MAX_PEER_LEASES as u64).all(|counter| history.add_lease(counter, until)));
        assert!(!history.add_lease(u64::MAX, until));
        assert!(history.add_lease(0, until.plus(until)), "renewed");
        history.sweep(until);
        assert_eq!(history.leases.len(), 1);
        assert!(history.add_lease(u64::MAX, until.plus(until)));
    }

    /// The stream may end before the reply, and the acquire may have been denied.
    #[test]
    fn a_permit_without_a_reply_is_only_claimed() {
        let (mut history, bucket) = (history(), bucket_hash(&[1]));
        assert!(history.add_permit(1, bucket, TIMES.longest));
        assert!(report(&mut history, 1).is_claimed);
        history.confirm_permit(1);
        assert!(!report(&mut history, 1).is_claimed);
    }
}
