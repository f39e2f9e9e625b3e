//! The coordinators of fleet-wide concurrency limits, their incarnation, and the fleet table.
//!
//! This is the kernel's step; `heartbeat.lua` is the same step in Redis. Only
//! replicas in one process share this store. Tests compare the script with it.
//!
//! Guarantees:
//! - A replica has a line in the table before its reports are applied.
//!
//! Not covered:
//! - Dropping unused limits: they stay until the process ends.

use std::collections::{BTreeMap, HashMap};

use crate::backend::heartbeat::{Beat, Heard, Name, Round};
use crate::kernel::coordinator::life::{Record, lists_nobody};
use crate::kernel::coordinator::{Coordinator, Life, Reply};
use crate::kernel::units::{Incarnation, MemberId, Nanos};

/// The fleet-wide concurrency limits of one store.
#[derive(Debug, Default)]
pub struct Coordinators {
    life: Option<Life>,
    /// The name of the store when the incarnation began.
    store: String,
    /// The instant since which the table is complete.
    since: Nanos,
    /// The instant of the last report of any replica, and its value when the incarnation began.
    heard: Option<Nanos>,
    knew: Option<Nanos>,
    table: BTreeMap<(MemberId, Incarnation), Line>,
    states: HashMap<Name, Coordinator>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    heard: Nanos,
    /// The time after `heard` in which a share of this replica may be in use.
    longest: Nanos,
    under: Option<Incarnation>,
}

impl Coordinators {
    /// Creates a store in which no earlier share can exist, because it began with the process.
    #[must_use]
    pub fn settled() -> Self {
        let life = Life { settled: true, ..Life::begin(Incarnation(1), Nanos(0)) };
        Self { life: Some(life), ..Self::default() }
    }

    /// Applies `round` at `now` in the store with the name `store`.
    ///
    /// A new name means another store, or the same store after a
    /// restart. An empty name means that the caller does not know it.
    pub fn hear(&mut self, now: Nanos, store: &str, round: &Round) -> Heard {
        let mut life = self.life(now, store, round.longest);
        self.register(now, &mut life, round);
        let replies =
            round.beats.iter().map(|beat| Some(self.answer(now, &mut life, beat))).collect();
        self.life = Some(life);
        let at = Nanos(now.0.saturating_sub(now.0 % Nanos::MICRO.0));
        Heard { life: life.incarnation, at, replies }
    }

    fn life(&mut self, now: Nanos, store: &str, longest: Nanos) -> Life {
        if let Some(known) = self.life.filter(|_| is_same(&self.store, store)) {
            return known;
        }
        store.clone_into(&mut self.store);
        self.knew = self.heard;
        if lists_nobody(self.heard, longest, now) {
            self.since = now;
        }
        begin(self.life, now)
    }

    fn register(&mut self, now: Nanos, life: &mut Life, round: &Round) {
        let Round { record: Record { member, life: own, under }, answered, longest, .. } = *round;
        let said = Line { heard: now, longest, under };
        let is_new = self.table.insert((member, own), said).is_none();
        if !life.settled && life.has_lost(self.knew, answered) {
            self.since = life.born;
        }
        self.heard = Some(now);
        if round.leaves {
            self.table.remove(&(member, own));
        }
        if is_new || !life.settled {
            self.table.retain(|_, line| now < line.heard.plus(line.longest));
        }
        // A leaving replica proves nothing: it may be the
        // first to reach a store that lost its state.
        if !life.settled && !round.leaves {
            let record = |((member, life), line): (&(MemberId, Incarnation), &Line)| Record {
                member: *member,
                life: *life,
                under: line.under,
            };
            let records: Vec<Record> = self.table.iter().map(record).collect();
            let longest = self.table.values().map(|line| line.longest).max().unwrap_or(longest);
            life.settle(now, longest, self.since, &records);
        }
    }

    fn answer(&mut self, now: Nanos, life: &mut Life, beat: &Beat) -> Reply {
        let state = self.states.entry(beat.bucket.clone()).or_default();
        let reply = state.on_heartbeat(now, life, &beat.law, &beat.said);
        if reply == Reply::Lost {
            *life = begin(Some(*life), now);
            // The store lost the limit's state, but not the table.
            self.knew = Some(now);
        }
        reply
    }
}

/// Returns true if an incarnation that began in the store `known` continues in the store `said`.
///
/// A caller without the name must not end the incarnation. Otherwise callers with and
/// without the name would restart it in turns, and no request would ever be allowed.
pub(super) fn is_same(known: &str, said: &str) -> bool {
    said.is_empty() || known == said
}

/// Begins the incarnation after `before`. Its number is the
/// instant in microseconds, but larger than any number before.
fn begin(before: Option<Life>, now: Nanos) -> Life {
    let after = before.map_or(0, |life| life.incarnation.0.saturating_add(1));
    Life::begin(Incarnation(after.max(now.0 / Nanos::MICRO.0)), now)
}
