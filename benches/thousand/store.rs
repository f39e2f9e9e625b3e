//! The simulated store: the kernel's coordinators, lease tables and counters, and the list of replicas.
//!
//! Guarantees:
//! - Each message is applied by the kernel's own function.
//! - A failover restores the lease tables and counters of [`LOSS`] ago, and starts a new coordinator incarnation.
//!
//! Not covered:
//! - Encoding, connections, and several messages in one call.

use std::collections::{BTreeMap, HashMap};

use sluicegate_kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate_kernel::coordinator::{
    Coordinator, CoordinatorConfig, CoordinatorIncarnation, Grant, Heartbeat, HeartbeatReply,
    ShareTiming,
};
use sluicegate_kernel::lease::counter::AnyCounter;
use sluicegate_kernel::lease::sizer::LeaseSizing;
use sluicegate_kernel::lease::table::LeaseTable;
use sluicegate_kernel::lease::{
    BorrowReply, BorrowRequest, LeaseTerms, Overshoot, ReplicaIncarnation,
};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::rate::gcra::{Gcra, Tat};
use sluicegate_kernel::units::{Hits, Incarnation, Nanos, ReplicaId, Share};

use super::flaw::Flaw;

/// The changes that a failover loses.
pub const LOSS: Nanos = Nanos(100 * Nanos::MILLI.0);
/// The duration of a lease.
pub const LEASE: Nanos = Nanos(10 * Nanos::SECOND.0);
/// The permits of each shared limit for each replica.
pub const PERMITS: u64 = 8;
/// The keys that all Envoys use; their limit denies half of the checks or more.
pub const HOT_KEYS: usize = 4;

/// One rate limit with its counter and leases.
pub struct Key {
    pub rate: u32,
    pub burst: u32,
    limit: Gcra,
    tat: Tat,
    pub table: LeaseTable,
    pub budget: u64,
    /// The hits charged in the changes that a failover lost.
    pub lost: u64,
    /// The hits granted or renewed in these changes: the store may not list them, or not for as long.
    pub unlisted: u64,
}

/// A heartbeat for one shared limit, and the coordinator incarnation of all shares of the replica.
pub struct ShareMessage {
    pub limit: usize,
    pub heartbeat: Heartbeat,
    pub under: Option<Incarnation>,
}

/// The state of one key before changes that a failover loses, and the hits of these changes.
struct Saved {
    tat: Tat,
    table: LeaseTable,
    charged: u64,
    unlisted: u64,
}

pub struct Store {
    pub keys: Vec<Key>,
    pub config: CoordinatorConfig,
    coordinators: [Coordinator; 2],
    pub incarnation: CoordinatorIncarnation,
    fleet: BTreeMap<(ReplicaId, Incarnation), (Nanos, Option<Incarnation>)>,
    fails_at: Nanos,
    /// The keys that changed in the [`LOSS`] before `fails_at`.
    saved: HashMap<usize, Saved>,
    flaw: Flaw,
}

impl Key {
    fn new(rate: u32, burst: u32) -> Self {
        let limit = Gcra::new(rate, Nanos::SECOND, burst).unwrap();
        let budget = u64::from(burst / 5).max(2);
        Self {
            rate,
            burst,
            limit,
            tat: Tat::default(),
            table: LeaseTable::default(),
            budget,
            lost: 0,
            unlisted: 0,
        }
    }

    fn save(&self) -> Saved {
        Saved { tat: self.tat, table: self.table.clone(), charged: 0, unlisted: 0 }
    }

    pub fn terms(&self) -> LeaseTerms {
        let overshoot = Overshoot::AtMost(Hits(self.budget));
        LeaseTerms { overshoot, duration: LEASE, sizing: LeaseSizing::Learned }
    }
}

impl Store {
    /// A store for `replicas`, with 100 keys for each, that fails over at `fails_at`.
    pub fn new(replicas: u32, fails_at: Nanos, flaw: Flaw) -> Self {
        let hot = (0..HOT_KEYS).map(|_| Key::new(2 * replicas, 10 * replicas));
        let keys = hot.chain((0..100 * replicas).map(|_| Key::new(10, 100)));
        let second = Nanos::SECOND;
        let timing = ShareTiming::new(second, Nanos(5 * second.0), second, 500).unwrap();
        let limit = Share(PERMITS * u64::from(replicas));
        let incarnation = CoordinatorIncarnation::start(Incarnation(1), Nanos(0));
        Self {
            keys: keys.collect(),
            config: CoordinatorConfig::new(timing, limit, limit, limit).unwrap(),
            coordinators: Default::default(),
            incarnation: CoordinatorIncarnation { is_settled: true, ..incarnation },
            fleet: BTreeMap::new(),
            fails_at,
            saved: HashMap::new(),
            flaw,
        }
    }

    pub fn apply_lease(
        &mut self,
        now: Nanos,
        at: usize,
        member: ReplicaIncarnation,
        message: &BorrowRequest,
    ) -> Option<BorrowReply> {
        let key = &mut self.keys[at];
        let is_at_risk = self.fails_at.since(LOSS) <= now && now < self.fails_at;
        let saved = is_at_risk.then(|| self.saved.entry(at).or_insert_with(|| key.save()));
        let terms = key.terms();
        let mut counter = AnyCounter::Gcra(&key.limit, &mut key.tat);
        let reply = key.table.apply(&mut counter, &terms, now, member, message)?;
        if let Some(saved) = saved {
            let own = if is_allowed(&reply) { message.hits } else { Hits(0) };
            saved.charged += own.0 + reply.granted.0;
            saved.unlisted += reply.kept.0 + reply.granted.0;
        }
        Some(reply)
    }

    pub fn apply_share(&mut self, now: Nanos, message: &ShareMessage) -> Option<Grant> {
        self.register(now, message);
        let coordinator = &mut self.coordinators[message.limit];
        let reply =
            coordinator.apply_heartbeat(now, &self.incarnation, &self.config, &message.heartbeat);
        match reply {
            HeartbeatReply::Grant(grant) => Some(grant),
            HeartbeatReply::StateLost => {
                self.begin_incarnation(now);
                None
            }
            _ => None,
        }
    }

    /// Records the sender, and ends the grace period once all replicas confirmed the incarnation.
    fn register(&mut self, now: Nanos, message: &ShareMessage) {
        let (heartbeat, longest) = (&message.heartbeat, self.config.timing.longest_use());
        if heartbeat.is_leaving {
            self.fleet.remove(&heartbeat.sort_key());
            return;
        }
        let is_new = self.fleet.insert(heartbeat.sort_key(), (now, message.under)).is_none();
        if is_new || !self.incarnation.is_settled {
            self.fleet.retain(|_, (at, _)| now < at.plus(longest));
        }
        if !self.incarnation.is_settled {
            let records = self.fleet.iter().map(|((replica, incarnation), (_, under))| {
                let coordinator_incarnation = *under;
                IncarnationRecord {
                    replica: *replica,
                    incarnation: *incarnation,
                    coordinator_incarnation,
                }
            });
            let records: Vec<_> = records.collect();
            self.incarnation.settle(now, longest, Nanos(0), &records);
        }
    }

    /// Answers a membership heartbeat: the number of replicas in the reply.
    pub fn apply_membership(&self) -> usize {
        self.fleet.len()
    }

    /// Replaces the store by its copy, which lacks the changes of the last [`LOSS`].
    pub fn fail_over(&mut self, now: Nanos) {
        for (at, saved) in self.saved.drain() {
            let key = &mut self.keys[at];
            (key.tat, key.table) = (saved.tat, saved.table);
            (key.lost, key.unlisted) = (saved.charged, saved.unlisted);
        }
        self.begin_incarnation(now);
    }

    fn begin_incarnation(&mut self, now: Nanos) {
        let next = Incarnation(self.incarnation.incarnation.0 + 1);
        self.incarnation = CoordinatorIncarnation {
            is_settled: self.flaw == Flaw::NoGrace,
            ..CoordinatorIncarnation::start(next, now)
        };
    }
}

pub fn is_allowed(reply: &BorrowReply) -> bool {
    matches!(reply.decision, CounterDecision::Allow(_))
}
