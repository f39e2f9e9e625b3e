//! The coordinators of ceilings, their common life, and the fleet's table, in this process.
//!
//! What Redis keeps in `heartbeat.lua`, by the kernel's own step. A replica alone shares with nobody,
//! so this is what a fleet in one process shares, and what the script is compared with.
//!
//! Guarantees: a heartbeat is never passed on before its replica has a line in the table.
//! Leaves out: forgetting ceilings that rest; they end with the process.

use std::collections::{BTreeMap, HashMap};

use crate::backend::heartbeat::{Beat, Heard, Name, Round};
use crate::kernel::coordinator::life::{Record, lists_nobody};
use crate::kernel::coordinator::{Coordinator, Life, Reply};
use crate::kernel::units::{Incarnation, MemberId, Nanos};

/// All ceilings of one store.
#[derive(Debug, Default)]
pub struct Coordinators {
    life: Option<Life>,
    /// What the store was called when the life began.
    store: String,
    /// Since when the table lists all.
    since: Nanos,
    /// When a replica was heard last, and what that was when the life began.
    heard: Option<Nanos>,
    knew: Option<Nanos>,
    table: BTreeMap<(MemberId, Incarnation), Line>,
    states: HashMap<Name, Coordinator>,
}

/// One life of one replica.
#[derive(Clone, Copy, Debug)]
struct Line {
    heard: Nanos,
    /// For how long after that something of it may be in use.
    longest: Nanos,
    under: Option<Incarnation>,
}

impl Coordinators {
    /// A store that nobody can hold anything of: it began with the process that asks it.
    #[must_use]
    pub fn settled() -> Self {
        let life = Life { settled: true, ..Life::begin(Incarnation(1), Nanos(0)) };
        Self { life: Some(life), ..Self::default() }
    }

    /// Hears `round` at `now`, in the store that is called `store`: another name is another store, or
    /// the same after a restart; an empty one is said by who does not know.
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
        // Who leaves has nothing to lose, and is perhaps the first whom a store hears that has forgotten the others.
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
            // Its ceiling was lost, and the table was not.
            self.knew = Some(now);
        }
        reply
    }
}

/// Whether a life that began in the store `known` goes on in the one `said`. Who does not know what it is
/// called must not end what those who know began: between the two nobody would ever be admitted.
pub(super) fn is_same(known: &str, said: &str) -> bool {
    said.is_empty() || known == said
}

/// A life after `before`: its number is the instant in microseconds, and larger than any before.
fn begin(before: Option<Life>, now: Nanos) -> Life {
    let after = before.map_or(0, |life| life.incarnation.0.saturating_add(1));
    Life::begin(Incarnation(after.max(now.0 / Nanos::MICRO.0)), now)
}
