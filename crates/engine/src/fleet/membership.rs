//! The list of live replicas: each has a record in the store, and sends a heartbeat every second.
//!
//! Guarantees:
//! - A replica without a heartbeat for [`REPLICA_TIMEOUT`], by the store's clock, is not live.
//! - A replica that shuts down without a failure is removed at once.
//! - While the store is unavailable, the last received list stays in use.
//! - After the store lost its list, the replicas of the last received list stay live for
//!   [`REPLICA_TIMEOUT`].
//!
//! Not covered:
//! - Sending the heartbeats: see [`super::reporter`].
//! - Agreement: for about a second after a change, replicas may have different lists.

mod calls;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

use crate::actions::ActionChange;
use crate::bans::BanChange;
use crate::concurrency::{BucketName, ShareSnapshot};
use crate::decide::local_share::{FleetDivision, divide};
use crate::fleet::incarnation::incarnation_name;
use crate::fleet::live::{LiveReport, Watch};
use crate::kernel::key::CounterKey;
use crate::kernel::units::{Nanos, Revision};
pub use crate::store::fleet::LiveReplica;
use crate::store::fleet::{MembershipHeartbeat, MembershipReply, REPLICA_TIMEOUT};

/// The record that a replica stores about itself in the membership. Readers ignore unknown fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaRecord {
    /// The number of this start of the replica.
    pub incarnation: u64,
    /// The version of the program.
    pub build: String,
    /// The address and port for calls from other replicas. Empty if there is none.
    pub peer: String,
    /// The revision of the current configuration.
    pub revision: u64,
    /// The sum of the replica's shares of shared concurrency limits. During a store outage, the sum
    /// of the limits that apply at this replica instead.
    pub share: u64,
    /// The requests in flight under shared and strict concurrency limits.
    pub in_flight: u64,
    /// The number of expired shares over all shared limits, including those that are idle by now.
    pub fences: u64,
    /// The number of times that a share grew by permits from other replicas.
    pub handoffs: u64,
    /// The largest shares of the replica, at most [`MAX_SHARES_IN_RECORD`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub largest_shares: Vec<ShareRecord>,
    /// The changes to operator actions that the replica knows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<ActionChange>,
    /// Bans that the replica knows: the newest, and a part of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bans: Vec<BanChange>,
    /// The live pages of the replica that are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<Watch>,
    /// The live counts of the replica, while a page of another replica is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<LiveReport>,
}

/// A replica's share of one concurrency limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShareRecord {
    /// The readable name of the limit.
    pub limit: Box<str>,
    /// The share: the number of requests that this replica may have in flight.
    pub share: u64,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The generation of the grant.
    pub generation: u64,
    /// The number of times that the share expired.
    pub fences: u64,
    /// The number of times that the share grew by permits from other replicas.
    pub handoffs: u64,
}

/// The largest number of shares in a record, and the largest size of a limit's name in it, in
/// bytes. Bounded, because every replica reads all records once a second.
pub const MAX_SHARES_IN_RECORD: usize = 20;
const MAX_NAME_BYTES: usize = 200;

/// This replica's view of the fleet.
#[derive(Debug)]
pub struct Membership {
    replica_name: Box<str>,
    incarnation: u64,
    incarnation_name: Box<str>,
    address: OnceLock<SocketAddr>,
    replicas_min: NonZeroU32,
    snapshot: ArcSwapOption<FleetSnapshot>,
    has_warned_of_duplicate: AtomicBool,
}

/// The live replicas at one instant, as this replica knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetSnapshot {
    /// The live replicas by name, including this one.
    pub replicas: Vec<LiveReplica>,
    /// The other live replicas that have published an address.
    pub peers: Vec<Peer>,
    /// The instant of the snapshot, by this replica's clock.
    pub taken_at: Nanos,
    /// Until this instant, a replica that is missing in the store's list still counts as live.
    kept_until: Nanos,
}

/// Another live replica that has published an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The public name of its incarnation, as replies to proxies show it.
    pub incarnation_name: Box<str>,
    /// The name of the replica.
    pub replica_name: Box<str>,
    /// The address for calls between replicas.
    pub address: SocketAddr,
}

impl Membership {
    /// Creates the membership before the first heartbeat. `node` is the name of this replica,
    /// unique in the fleet. `incarnation` is the number of this start.
    #[must_use]
    pub fn new(node: &str, incarnation: u64, replicas_min: NonZeroU32) -> Self {
        Self {
            replica_name: node.into(),
            incarnation,
            incarnation_name: incarnation_name(node, incarnation),
            address: OnceLock::new(),
            replicas_min,
            snapshot: ArcSwapOption::empty(),
            has_warned_of_duplicate: AtomicBool::new(false),
        }
    }

    /// Returns this replica's name.
    #[must_use]
    pub fn replica_name(&self) -> &str {
        &self.replica_name
    }

    /// Returns the public name of this incarnation, as replies to proxies show it.
    #[must_use]
    pub fn incarnation_name(&self) -> &str {
        &self.incarnation_name
    }

    /// Publishes this replica's address for calls with the next heartbeat. Only the first call has
    /// an effect.
    pub fn publish_address(&self, address: SocketAddr) {
        self.address.get_or_init(|| address);
    }

    /// Returns the address for calls from other replicas.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }

    /// Returns the last snapshot of the fleet. `None` before the store's first reply.
    #[must_use]
    pub fn snapshot(&self) -> Option<Arc<FleetSnapshot>> {
        self.snapshot.load_full()
    }

    /// Returns the divisor for limits that are split among replicas: the number of live replicas,
    /// or the setting `fleet.min_replicas` if that is larger.
    #[must_use]
    pub fn replicas(&self) -> NonZeroU32 {
        let seen = self.snapshot.load();
        let live = seen.as_ref().map_or(0, |seen| seen.replicas.len());
        let live = NonZeroU32::new(u32::try_from(live).unwrap_or(u32::MAX));
        live.map_or(self.replicas_min, |live| live.max(self.replicas_min))
    }

    /// Returns the number of live replicas and this replica's rank, to split a limit in metrics.
    /// Without the minimum of `fleet.min_replicas`: with more parts than live replicas, the sum
    /// over all replicas would be too small.
    #[must_use]
    pub fn division(&self) -> FleetDivision {
        let seen = self.snapshot.load();
        let members = seen.as_ref().map_or(&[][..], |seen| &seen.replicas);
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let rank = members.iter().position(|member| member.node == self.replica_name).map(number);
        let live = NonZeroU32::new(number(members.len()));
        FleetDivision { replicas: live.unwrap_or(self.replicas_min), rank }
    }

    /// Returns this replica's part of a fleet-wide limit, for metrics that are summed over all
    /// replicas. The part is not enforced. The bucket name determines which replicas get the
    /// remainder of the division.
    pub(crate) fn metric_part(&self, name: &[u8], limit: u32) -> u32 {
        let FleetDivision { replicas, rank } = self.division();
        let rank_offset = SipHasher24::new().hash(name) % u64::from(replicas.get());
        let rotated_rank = |rank: u32| (u64::from(rank) + rank_offset) % u64::from(replicas.get());
        let rank = rank.and_then(|rank| u32::try_from(rotated_rank(rank)).ok());
        divide(limit, FleetDivision { replicas, rank })
    }

    /// Applies the store's reply to a heartbeat, received at `now`.
    pub fn apply_reply(&self, fleet: MembershipReply, now: Nanos) {
        let seen = self.snapshot.load_full();
        if seen.is_some() {
            self.warn_of_duplicate_name(fleet.previous_record.as_deref());
        }
        let mut seen = next_snapshot(seen.as_deref(), fleet, now);
        seen.peers = seen
            .replicas
            .iter()
            .filter_map(peer)
            .filter(|p| p.incarnation_name != self.incarnation_name)
            .collect();
        self.snapshot.store(Some(Arc::new(seen)));
    }

    fn warn_of_duplicate_name(&self, before: Option<&str>) {
        let other =
            before.map(parse_record).filter(|record| record.incarnation != self.incarnation);
        if other.is_some() && !self.has_warned_of_duplicate.swap(true, Relaxed) {
            let node = &*self.replica_name;
            tracing::warn!(
                node_id = node,
                "another replica has this name, set a unique fleet.replica_name: limits are split among too \
                 few replicas"
            );
        }
    }

    /// Returns the heartbeat that removes this replica's record.
    pub(super) fn departure(&self) -> MembershipHeartbeat {
        MembershipHeartbeat { node: self.replica_name.clone(), record: None }
    }

    fn make_heartbeat(&self, revision: Revision, shares: &ReplicaRecord) -> MembershipHeartbeat {
        let (incarnation, build) = (self.incarnation, env!("CARGO_PKG_VERSION").to_owned());
        let peer = self.address().map(|address| address.to_string()).unwrap_or_default();
        let record =
            ReplicaRecord { incarnation, build, peer, revision: revision.0, ..shares.clone() };
        MembershipHeartbeat {
            node: self.replica_name.clone(),
            record: serde_json::to_string(&record).ok().map(Box::from),
        }
    }
}

/// Parses the record of a replica. Returns an empty record if `record` is invalid.
#[must_use]
pub fn parse_record(record: &str) -> ReplicaRecord {
    serde_json::from_str(record).unwrap_or_default()
}

/// Returns the records of all replicas, including this replica's record before this heartbeat.
fn records_of(fleet: &MembershipReply) -> impl Iterator<Item = ReplicaRecord> {
    let records = fleet.replicas.iter().map(|member| &member.record).chain(&fleet.previous_record);
    records.map(|record| parse_record(record))
}

fn peer(member: &LiveReplica) -> Option<Peer> {
    let record = parse_record(&member.record);
    let (node, name) = (member.node.clone(), incarnation_name(&member.node, record.incarnation));
    Some(Peer { incarnation_name: name, replica_name: node, address: record.peer.parse().ok()? })
}

/// Returns the snapshot of the fleet after the store's reply `fleet`, received at `now`.
fn next_snapshot(
    seen: Option<&FleetSnapshot>,
    fleet: MembershipReply,
    now: Nanos,
) -> FleetSnapshot {
    let MembershipReply { replicas: mut members, previous_record: before } = fleet;
    let mut keep_until = seen.map_or(Nanos(0), |seen| seen.kept_until);
    if before.is_none() {
        // The store lost this replica's record, so it may have lost the others too.
        keep_until = now.plus(REPLICA_TIMEOUT);
    }
    if now < keep_until {
        for old in seen.iter().flat_map(|seen| &seen.replicas) {
            if members.iter().all(|member| member.node != old.node) {
                members.push(old.clone());
            }
        }
    }
    members.sort_unstable_by(|a, b| a.node.cmp(&b.node));
    FleetSnapshot { replicas: members, peers: Vec::new(), taken_at: now, kept_until: keep_until }
}

fn make_share_record(name: &BucketName, shown: &ShareSnapshot) -> ShareRecord {
    let mut limit = CounterKey::describe(name);
    let end = (0..=MAX_NAME_BYTES).rev().find(|at| limit.is_char_boundary(*at)).unwrap_or(0);
    limit.truncate(end);
    ShareRecord {
        limit: limit.into(),
        share: shown.share.0,
        in_flight: shown.in_flight.into(),
        generation: shown.grant.map_or(0, |grant| grant.generation.0),
        fences: shown.fences,
        handoffs: shown.handoffs,
    }
}
