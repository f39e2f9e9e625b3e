//! Which replicas share the store: one record each in the store, one call a second.
//!
//! Guarantees: the store's clock decides who lives: a replica that is silent for
//! [`SILENT_AT_MOST`] is not counted any more, one that leaves in order is not counted at once. While
//! the store does not answer, what was last seen stays. A store that forgot the replicas, or that
//! was away for so long that all look dead, is not believed until each had the time to speak again.
//! Leaves out: agreement: two replicas may see the fleet differently for about a second.

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

/// How often a replica speaks.
const BEAT: Duration = Duration::from_secs(1);

/// How long a beat is waited for: less than until the next.
const PATIENCE: Duration = Duration::from_millis(500);

/// What a replica says of itself. Others read the fields that they know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The number of this life of the replica.
    pub incarnation: u64,
    /// The version that it runs.
    pub build: String,
    /// Where others call it, an address and a port; empty where they cannot.
    pub peer: String,
    /// The number of the configuration in force there.
    pub revision: u64,
    /// Its shares of the fleet's ceilings that are in use, all of them together; in an outage what it may have in flight alone.
    pub share: u64,
    /// Requests in flight under them.
    pub in_flight: u64,
    /// How often a share ended with its term, of ceilings that rest by now as well.
    pub fences: u64,
    /// How often one grew by what others let go.
    pub handoffs: u64,
    /// Its largest shares, [`MOST_SEATS`] at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<Seat>,
    /// Limits that are held at one answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<Told>,
}

/// A replica's seat at a ceiling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seat {
    /// The ceiling, in words.
    pub ceiling: Box<str>,
    /// How much of it this replica may have in flight.
    pub share: u64,
    /// How much it has.
    pub in_flight: u64,
    /// The number of the grant.
    pub generation: u64,
    /// How often the share ended with its term.
    pub fences: u64,
    /// How often it grew by what others let go.
    pub handoffs: u64,
}

/// Most seats in a record, and the longest name of a ceiling there, in bytes: all records are read once a second.
pub const MOST_SEATS: usize = 20;
const LONGEST_NAME: usize = 200;

/// The fleet as this replica knows it.
#[derive(Debug)]
pub struct Membership {
    node: Box<str>,
    incarnation: u64,
    /// Of this life, as answers show it.
    name: Box<str>,
    /// Where others call this replica.
    address: OnceLock<SocketAddr>,
    replicas_min: NonZeroU32,
    seen: ArcSwapOption<Seen>,
    told_twin: AtomicBool,
    left: AtomicBool,
}

/// The fleet as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Those that lived, by name, this replica among them.
    pub members: Vec<Member>,
    /// Those of them that can be called, without this replica.
    pub peers: Vec<Peer>,
    /// When, by this replica's clock.
    pub at: Nanos,
    /// Until when those that the store forgot are held to live.
    held_until: Nanos,
}

/// Another replica that can be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name of this life of it, as answers show it.
    pub name: Box<str>,
    /// Its own name.
    pub node: Box<str>,
    /// Where it is called.
    pub address: SocketAddr,
}

impl Membership {
    /// A replica that has seen nobody yet. `node` is its name, another one for each replica;
    /// `incarnation` is the number of this life of it.
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

    /// This replica's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The name of this life of it, as answers show it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tells the fleet from the next beat on where this replica is called. Only the first address counts.
    pub fn call_at(&self, address: SocketAddr) {
        self.address.get_or_init(|| address);
    }

    /// Where this replica is called, if it is.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address.get().copied()
    }

    /// The fleet as it was last seen; nothing where it never was.
    #[must_use]
    pub fn seen(&self) -> Option<Arc<Seen>> {
        self.seen.load_full()
    }

    /// By how many replicas a limit is divided: those that lived when they were last seen, and
    /// never fewer than `replicas_min`.
    #[must_use]
    pub fn replicas(&self) -> NonZeroU32 {
        let seen = self.seen.load();
        let live = seen.as_ref().map_or(0, |seen| seen.members.len());
        let live = NonZeroU32::new(u32::try_from(live).unwrap_or(u32::MAX));
        live.map_or(self.replicas_min, |live| live.max(self.replicas_min))
    }

    /// How what all have together is divided among those that lived when they were last seen, for who adds up what each of
    /// them shows: `replicas_min` would leave out the part of those that are not there. Cost: nothing is hashed.
    #[must_use]
    pub fn division(&self) -> Division {
        let seen = self.seen.load();
        let members = seen.as_ref().map_or(&[][..], |seen| &seen.members);
        let number = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let rank = members.iter().position(|member| member.node == self.node).map(number);
        let live = NonZeroU32::new(number(members.len()));
        Division { replicas: live.unwrap_or(self.replicas_min), rank }
    }

    /// Takes what the store answered at `now`.
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

/// What a record says; one that cannot be read says nothing.
#[must_use]
pub fn read(record: &str) -> Record {
    serde_json::from_str(record).unwrap_or_default()
}

/// What all replicas tell of limits that are held, this one's life before among them.
fn holds(fleet: &Fleet) -> Vec<Told> {
    let records = fleet.members.iter().map(|member| &member.record).chain(&fleet.before);
    records.flat_map(|record| read(record).holds).collect()
}

fn peer(member: &Member) -> Option<Peer> {
    let record = read(&member.record);
    let (node, name) = (member.node.clone(), name(&member.node, record.incarnation));
    Some(Peer { name, node, address: record.peer.parse().ok()? })
}

/// The fleet after `fleet` was said at `now`.
fn next(seen: Option<&Seen>, fleet: Fleet, now: Nanos) -> Seen {
    let Fleet { mut members, before } = fleet;
    let mut held_until = seen.map_or(Nanos(0), |seen| seen.held_until);
    if before.is_none() {
        // It forgot us, and so it may have forgotten the others.
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
    /// Tells the fleet of this replica, and this replica of the fleet, once a second; never ends.
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

    /// What a record says of the ceilings that are shared.
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
        // A ceiling whose mode has just changed is on both lists.
        let others = fleet.seen(usize::MAX).into_iter().filter(|(name, _)| !counted.contains(name));
        for (_, seen) in others {
            sum.in_flight = sum.in_flight.saturating_add(seen.here.into());
        }
        sum
    }

    /// Takes this replica's record out of the store, if the store answers, and speaks no more.
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
