//! Maintains the list of live replicas: one record for each in the store, one call per second.
//!
//! Guarantees:
//! - The store's clock decides: a replica without a
//!   heartbeat for [`SILENT_AT_MOST`] is not counted.
//! - A replica that leaves in order is removed at once.
//! - While the store is unavailable, the last list stays in use.
//! - After the store lost its list, known replicas count for [`SILENT_AT_MOST`].
//!
//! Not covered:
//! - Agreement: two replicas may have different lists for about a second.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::Engine;
use super::admit::{Name, Shown};
use super::freezer::Told;
use super::parts::Division;
use super::peers::name;
pub use crate::backend::fleet::Member;
use crate::backend::fleet::{Beat, Fleet, SILENT_AT_MOST};
use crate::backend::{Backend, Cause, Reply};
use crate::kernel::key::CounterKey;
use crate::kernel::units::{Nanos, Revision};

const BEAT: Duration = Duration::from_secs(1);

/// The timeout of a heartbeat. Shorter than `BEAT`.
const PATIENCE: Duration = Duration::from_millis(500);

/// The record that a replica stores about itself. Readers ignore unknown fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The number of this start of the replica.
    pub incarnation: u64,
    /// The version of the program.
    pub build: String,
    /// The address and port for calls from other replicas. Empty if there is none.
    pub peer: String,
    /// The revision of the current configuration.
    pub revision: u64,
    /// The sum of its shares of fleet-wide limits. During
    /// an outage, the sum of the limits that apply instead.
    pub share: u64,
    /// The requests in flight under these limits.
    pub in_flight: u64,
    /// The number of expired shares, including limits that are idle by now.
    pub fences: u64,
    /// The number of times that a share grew by permits from other replicas.
    pub handoffs: u64,
    /// Its largest shares, at most [`MOST_SEATS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<Seat>,
    /// Its forced decisions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Told>,
}

/// A replica's share of one concurrency limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seat {
    /// The readable name of the limit.
    pub ceiling: Box<str>,
    /// The number of requests that this replica may have in flight.
    pub share: u64,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The generation of the grant.
    pub generation: u64,
    /// The number of expired shares.
    pub fences: u64,
    /// The number of times that the share grew by permits from other replicas.
    pub handoffs: u64,
}

/// The most shares in a record, and the longest name of a limit there, in
/// bytes. Bounded, because every replica reads all records once a second.
pub const MOST_SEATS: usize = 20;
const LONGEST_NAME: usize = 200;

/// This replica's view of the fleet.
#[derive(Debug)]
pub struct Membership {
    node: Box<str>,
    incarnation: u64,
    name: Box<str>,
    address: OnceLock<SocketAddr>,
    replicas_min: NonZeroU32,
    seen: ArcSwapOption<Seen>,
    told_twin: AtomicBool,
    left: AtomicBool,
}

/// A snapshot of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The live replicas by name, including this one.
    pub members: Vec<Member>,
    /// The other live replicas that have an address.
    pub peers: Vec<Peer>,
    /// The instant of the snapshot, by this replica's clock.
    pub at: Nanos,
    /// Until this instant, replicas that the store forgot still count as live.
    held_until: Nanos,
}

/// Another replica that can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name of its incarnation, as replies show it.
    pub name: Box<str>,
    /// The name of the replica.
    pub node: Box<str>,
    /// The address for calls.
    pub address: SocketAddr,
}

impl Membership {
    /// Creates a view that has seen no replica yet. `node` is the name of this
    /// replica, unique in the fleet. `incarnation` is the number of this start.
    #[must_use]
    pub fn new(node: &str, incarnation: u64, replicas_min: NonZeroU32) -> Self {
        Self {
            node: node.into(),
            incarnation,
            name: name(node, incarnation),
            address: OnceLock::new(),
            replicas_min,
            seen: ArcSwapOption::empty(),
            told_twin: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Returns this replica's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the name of this incarnation, as replies show it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Publishes the address for calls with the next heartbeat. Later calls have no effect.
    pub fn call_at(&self, address: SocketAddr) {
        self.address.get_or_init(|| address);
    }

    /// Returns the address for calls from other replicas.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }

    /// Returns the last snapshot. `None` before the first reply.
    #[must_use]
    pub fn seen(&self) -> Option<Arc<Seen>> {
        self.seen.load_full()
    }

    /// Returns the divisor for limits that are split among replicas:
    /// the number of live replicas, at least `replicas_min`.
    #[must_use]
    pub fn replicas(&self) -> NonZeroU32 {
        let seen = self.seen.load();
        let live = seen.as_ref().map_or(0, |seen| seen.members.len());
        let live = NonZeroU32::new(u32::try_from(live).unwrap_or(u32::MAX));
        live.map_or(self.replicas_min, |live| live.max(self.replicas_min))
    }

    /// Returns the division of a fleet-wide total, for metrics that add up all replicas.
    /// Only live replicas count: with `replicas_min` the sum would be too small.
    #[must_use]
    pub fn division(&self) -> Division {
        let seen = self.seen.load();
        let members = seen.as_ref().map_or(&[][..], |seen| &seen.members);
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let rank = members.iter().position(|member| member.node == self.node).map(number);
        let live = NonZeroU32::new(number(members.len()));
        Division { replicas: live.unwrap_or(self.replicas_min), rank }
    }

    /// Applies the store's reply of instant `now`.
    pub fn learn(&self, fleet: Fleet, now: Nanos) {
        let seen = self.seen.load_full();
        if seen.is_some() {
            self.look_for_a_twin(fleet.before.as_deref());
        }
        let mut seen = next(seen.as_deref(), fleet, now);
        seen.peers = seen.members.iter().filter_map(peer).filter(|p| p.name != self.name).collect();
        self.seen.store(Some(Arc::new(seen)));
    }

    fn look_for_a_twin(&self, before: Option<&str>) {
        let other = before.map(read).filter(|record| record.incarnation != self.incarnation);
        if other.is_some() && !self.told_twin.swap(true, Relaxed) {
            let node = &*self.node;
            tracing::warn!(
                node,
                "another replica has this node_id: they are counted as one, and limits are divided \
                 by too few; give each its own"
            );
        }
    }

    fn beat(&self, revision: Revision, shares: &Record) -> Beat {
        let (incarnation, build) = (self.incarnation, env!("CARGO_PKG_VERSION").to_owned());
        let peer = self.address().map(|address| address.to_string()).unwrap_or_default();
        let record = Record { incarnation, build, peer, revision: revision.0, ..shares.clone() };
        Beat { node: self.node.clone(), record: serde_json::to_string(&record).ok().map(Box::from) }
    }
}

/// Parses a record. Returns an empty record on errors.
#[must_use]
pub fn read(record: &str) -> Record {
    serde_json::from_str(record).unwrap_or_default()
}

/// Returns the forced decisions in all records, including
/// the one of this replica's previous incarnation.
fn holds(fleet: &Fleet) -> Vec<Told> {
    let records = fleet.members.iter().map(|member| &member.record).chain(&fleet.before);
    records.flat_map(|record| read(record).holds).collect()
}

fn peer(member: &Member) -> Option<Peer> {
    let record = read(&member.record);
    let (node, name) = (member.node.clone(), name(&member.node, record.incarnation));
    Some(Peer { name, node, address: record.peer.parse().ok()? })
}

/// Returns the snapshot after the reply `fleet` of instant `now`.
fn next(seen: Option<&Seen>, fleet: Fleet, now: Nanos) -> Seen {
    let Fleet { mut members, before } = fleet;
    let mut held_until = seen.map_or(Nanos(0), |seen| seen.held_until);
    if before.is_none() {
        // The store lost this replica's record, so it may have lost the others too.
        held_until = now.plus(SILENT_AT_MOST);
    }
    if now < held_until {
        for old in seen.iter().flat_map(|seen| &seen.members) {
            if members.iter().all(|member| member.node != old.node) {
                members.push(old.clone());
            }
        }
    }
    members.sort_unstable_by(|a, b| a.node.cmp(&b.node));
    Seen { members, peers: Vec::new(), at: now, held_until }
}

impl Engine {
    /// Sends a heartbeat every second, and applies the reply. Never returns.
    pub async fn beat_on(&self) {
        let mut ticks = interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(membership) = self.membership().filter(|m| !m.left.load(Relaxed)) else {
                continue;
            };
            let revision = self.config().map_or(Revision(0), |config| config.revision);
            let shares = Record { holds: self.told_of_holds(), ..self.shares() };
            match say(self.backend(), &membership.beat(revision, &shares)).await {
                Ok(fleet) => {
                    self.hear_of_holds(&holds(&fleet));
                    membership.learn(fleet, self.clock().now());
                }
                Err(cause) => tracing::debug!(cause = cause.as_str(), "no answer to a beat"),
            }
        }
    }

    /// Returns the fields of the record that describe concurrency limits.
    #[must_use]
    pub fn shares(&self) -> Record {
        let Some(fleet) = self.ceilings.fleet() else { return Record::default() };
        let (fences, handoffs) = (fleet.totals().fences(), fleet.totals().handoffs());
        let mut sum = Record { fences, handoffs, ..Record::default() };
        let shown = fleet.shown(self.clock(), usize::MAX);
        let counted: HashSet<_> = shown.iter().map(|(name, _)| name.clone()).collect();
        for (name, shown) in shown {
            sum.share = sum.share.saturating_add(shown.share.0);
            sum.in_flight = sum.in_flight.saturating_add(shown.in_flight.into());
            sum.seats.push(seat(&name, &shown));
        }
        sum.seats.sort_unstable_by(|a, b| b.share.cmp(&a.share).then(a.ceiling.cmp(&b.ceiling)));
        sum.seats.truncate(MOST_SEATS);
        // A limit whose mode has just changed is in both lists.
        let others = fleet.seen(usize::MAX).into_iter().filter(|(name, _)| !counted.contains(name));
        for (_, seen) in others {
            sum.in_flight = sum.in_flight.saturating_add(seen.here.into());
        }
        sum
    }

    /// Removes this replica's record from the store, and stops
    /// the heartbeats. Ignores a store that is unavailable.
    pub async fn leave(&self) {
        let Some(membership) = self.membership() else { return };
        membership.left.store(true, Relaxed);
        self.ceilings.leave_fleet(self.backend()).await;
        let beat = Beat { node: membership.node.clone(), record: None };
        if let Err(cause) = say(self.backend(), &beat).await {
            tracing::debug!(cause = cause.as_str(), "left without a word");
        }
    }
}

fn seat(name: &Name, shown: &Shown) -> Seat {
    let mut ceiling = CounterKey::words(name);
    let end = (0..=LONGEST_NAME).rev().find(|at| ceiling.is_char_boundary(*at)).unwrap_or(0);
    ceiling.truncate(end);
    Seat {
        ceiling: ceiling.into(),
        share: shown.share.0,
        in_flight: shown.in_flight.into(),
        generation: shown.grant.map_or(0, |grant| grant.generation.0),
        fences: shown.fences,
        handoffs: shown.handoffs,
    }
}

async fn say(backend: &dyn Backend, beat: &Beat) -> Result<Fleet, Cause> {
    match backend.beat(beat) {
        Reply::Now(fleet) => fleet,
        Reply::Later(fleet) => timeout(PATIENCE, fleet).await.unwrap_or(Err(Cause::Late)),
    }
}
