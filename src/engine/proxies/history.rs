//! The shares and permits that this replica passed on to one proxy.
//!
//! Guarantees:
//! - Each share and each permit takes one record of its peer.
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
            last_store_time: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty() && self.permits.is_empty()
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

    /// Adds a permit that ends at `ends_at`. Returns `false` at the bounds of the peer.
    pub(super) fn add_permit(&mut self, number: u64, bucket: u64, ends_at: Nanos) -> bool {
        self.insert_permit(number, PermitRecord { bucket, ends_at, is_acquired: true })
    }

    fn insert_permit(&mut self, number: u64, permit: PermitRecord) -> bool {
        if self.permits.contains_key(&number) {
            return true;
        }
        if !self.peer.add_record() {
            return false;
        }
        let held = self.held.entry(permit.bucket).or_default();
        *held = held.saturating_add(1);
        self.permits.insert(number, permit);
        true
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
            self.remove_permit(*number);
        }
        let in_use = std::mem::take(&mut limit.in_use);
        limit.is_claimed = false;
        let Some(times) = times else { return limit };
        for (id, lifetime) in in_use {
            let claimed =
                PermitRecord { bucket, ends_at: now.plus(times.longest), is_acquired: false };
            if !self.insert_permit(id.1, claimed) {
                continue;
            }
            let Some(permit) = self.permits.get(&id.1).filter(|known| known.bucket == bucket)
            else {
                continue;
            };
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
    }
}
