//! The simulated store: the real coordinators behind a filter that omits one rule.
//!
//! The coordinators have no switch for a rule. The filter replaces each report by the report that a
//! flawed store would have understood.

use std::collections::HashMap;

use sluicegate::backend::heartbeat::{Beat, Heard, Name, Round};
use sluicegate::backend::memory::coordinators::Coordinators;
use sluicegate::kernel::coordinator::life::Record;
use sluicegate::kernel::coordinator::message::Holding;
use sluicegate::kernel::coordinator::{Grant, Heartbeat, Law, Reply, Terms};
use sluicegate::kernel::units::{Generation, Incarnation, MemberId, Nanos, Share};

use super::world::{LONGEST, TERM, TICK};
use crate::simulation::bad::Flaw;

/// The only incarnation, if incarnations are not distinguished.
const ONLY: Incarnation = Incarnation(1);
/// The replica id in reports by the filter itself.
const FILTER_ID: MemberId = MemberId(0);

/// The key of a share state: limit, replica and incarnation.
type ShareKey = (Name, MemberId, Incarnation);

/// A flawed store's share state: the last report as it was understood, and its grant.
struct ShareRecord {
    beat: Beat,
    granted: Grant,
    /// The share expiry.
    until: Nanos,
}

pub struct Store {
    flaw: Flaw,
    coordinators: Coordinators,
    /// The number of losses of state. Each loss changes the name of the store.
    losses: u64,
    life: Incarnation,
    seats: HashMap<ShareKey, ShareRecord>,
}

impl Store {
    pub fn new(flaw: Flaw) -> Self {
        let (coordinators, seats) = (Coordinators::settled(), HashMap::new());
        Self { flaw, coordinators, losses: 0, life: ONLY, seats }
    }

    pub fn lose_state(&mut self, now: Nanos, table_too: bool) {
        self.losses += 1;
        self.seats.clear();
        if table_too {
            self.coordinators = Coordinators::default();
        }
        // An empty report starts the new incarnation if the flaw needs its number or the end of its
        // recovery.
        match self.flaw {
            Flaw::NoCoordinatorIncarnation => drop(self.forward(now, &filter_round(Vec::new()))),
            Flaw::NoGrace => {
                drop(self.forward(now.since(TERM.plus(LONGEST)), &filter_round(Vec::new())));
            }
            _ => {}
        }
    }

    pub fn apply_round(&mut self, now: Nanos, round: &Round) -> Heard {
        if self.flaw == Flaw::InFlightForExposure {
            self.drop_expired(now);
        }
        let understood = self.round_with_flaw(round);
        let mut heard = self.forward(now, &understood);
        if self.flaw == Flaw::NoAcknowledgement {
            self.confirm_grants(now, &understood, &mut heard);
        }
        for (beat, reply) in understood.beats.iter().zip(&heard.replies) {
            self.record_reply(now, beat, reply.as_ref());
        }
        self.address_reply(round, heard)
    }

    fn forward(&mut self, now: Nanos, round: &Round) -> Heard {
        let heard = self.coordinators.hear(now, &format!("store {}", self.losses), round);
        if self.life != heard.life {
            self.seats.clear();
        }
        self.life = heard.life;
        heard
    }

    fn record_reply(&mut self, now: Nanos, beat: &Beat, reply: Option<&Reply>) {
        match reply {
            Some(Reply::Grant(granted)) => {
                let until = now.plus(beat.law.terms.term);
                let known = ShareRecord { beat: beat.clone(), granted: *granted, until };
                self.seats.insert(share_key(beat), known);
            }
            Some(Reply::Left) => drop(self.seats.remove(&share_key(beat))),
            _ => {}
        }
    }

    /// Replaces expired share states by their reported requests in flight, as if the replicas had
    /// left.
    fn drop_expired(&mut self, now: Nanos) {
        let lost: Vec<_> = self.seats.extract_if(|_, known| known.until <= now).collect();
        for (_, ShareRecord { mut beat, .. }) in lost {
            let number = beat.said.number + 1;
            beat.said = Heartbeat { number, holds: None, leaves: true, ..beat.said };
            self.forward(now, &filter_round(vec![beat]));
        }
    }

    /// Confirms each grant at once, in place of the replica.
    fn confirm_grants(&mut self, now: Nanos, round: &Round, heard: &mut Heard) {
        for (beat, reply) in round.beats.iter().zip(&mut heard.replies) {
            let Some(Reply::Grant(grant)) = *reply else { continue };
            let (number, holds) = (beat.said.number + 1, Some(Holding::from(grant)));
            let said = Heartbeat { number, holds, ..beat.said };
            let beats = vec![Beat { said, ..beat.clone() }];
            *reply = self.forward(now, &Round { beats, ..round.clone() }).replies[0];
        }
    }

    /// The round as a store without the rule would understand it.
    fn round_with_flaw(&self, round: &Round) -> Round {
        let Record { member, life, under } = round.record;
        let record = match self.flaw {
            Flaw::NoMemberIncarnation => Record { member, life: ONLY, under },
            Flaw::NoCoordinatorIncarnation => {
                Record { member, life, under: under.map(|_| self.life) }
            }
            _ => round.record,
        };
        let beats = round.beats.iter().map(|beat| Beat {
            bucket: beat.bucket.clone(),
            law: self.law_with_flaw(beat.law),
            said: self.heartbeat_with_flaw(beat),
        });
        Round { record, beats: beats.collect(), ..round.clone() }
    }

    /// A share that expires a tick earlier at the store equals a margin that is a tick shorter at
    /// the replica.
    fn law_with_flaw(&self, law: Law) -> Law {
        let less = if self.flaw == Flaw::ShortMargin { TICK } else { Nanos(0) };
        let term = law.terms.term.since(less);
        Law { terms: Terms { term, ..law.terms }, ..law }
    }

    fn heartbeat_with_flaw(&self, beat: &Beat) -> Heartbeat {
        let (said, known) = (beat.said, self.seats.get(&share_key(beat)));
        match self.flaw {
            Flaw::ByValue => by_value(said, known),
            // Even numbers leave room for the reports of the filter.
            Flaw::NoAcknowledgement | Flaw::InFlightForExposure => {
                Heartbeat { number: 2 * said.number, ..said }
            }
            // Later incarnations still have larger numbers.
            Flaw::NoMemberIncarnation => {
                Heartbeat { life: ONLY, number: (said.life.0 << 20) + said.number, ..said }
            }
            Flaw::NoCoordinatorIncarnation => self.of_this_incarnation(said, known),
            _ => said,
        }
    }

    /// Takes any generation as one of this incarnation, and an unknown one as its newest.
    fn of_this_incarnation(&self, said: Heartbeat, known: Option<&ShareRecord>) -> Heartbeat {
        let newest = known.map_or(Generation(0), |known| known.granted.generation);
        let holds = said.holds.map(|holds| Holding {
            coordinator: self.life,
            generation: holds.generation.min(newest),
            ..holds
        });
        Heartbeat { holds, ..said }
    }

    /// Addresses the reply to the original report.
    fn address_reply(&self, round: &Round, heard: Heard) -> Heard {
        let mut heard = readdressed(heard, round);
        if self.flaw == Flaw::NoCoordinatorIncarnation {
            heard.life = ONLY;
            grants(&mut heard).for_each(|grant| grant.coordinator = ONLY);
        }
        heard
    }
}

/// Takes a share of the last granted size as that grant, and another as the previous one.
fn by_value(said: Heartbeat, known: Option<&ShareRecord>) -> Heartbeat {
    let named = |share: Share| match known {
        Some(known) if known.granted.share == share => known.granted.generation,
        Some(known) => known.beat.said.holds.map_or(Generation(0), |holds| holds.generation),
        None => Generation(0),
    };
    let holds = said.holds.map(|holds| Holding { generation: named(holds.share), ..holds });
    let number = known.map_or(said.number, |known| said.number.max(known.beat.said.number + 1));
    Heartbeat { holds, number, ..said }
}

/// The reply to one round in place of the reply to another round of the replica.
pub fn misplaced(heard: &Heard, of: &Round, to: &Round) -> Heard {
    let reply = |beat: &Beat| {
        let at = of.beats.iter().position(|other| other.bucket == beat.bucket)?;
        heard.replies[at]
    };
    readdressed(Heard { replies: to.beats.iter().map(reply).collect(), ..*heard }, to)
}

fn readdressed(mut heard: Heard, round: &Round) -> Heard {
    for (beat, reply) in round.beats.iter().zip(&mut heard.replies) {
        if let Some(Reply::Grant(grant)) = reply {
            (grant.life, grant.number) = (beat.said.life, beat.said.number);
        }
    }
    heard
}

fn grants(heard: &mut Heard) -> impl Iterator<Item = &mut Grant> {
    heard.replies.iter_mut().flatten().filter_map(|reply| match reply {
        Reply::Grant(grant) => Some(grant),
        _ => None,
    })
}

fn share_key(beat: &Beat) -> ShareKey {
    (beat.bucket.clone(), beat.said.member, beat.said.life)
}

fn filter_round(beats: Vec<Beat>) -> Round {
    let record = Record { member: FILTER_ID, life: ONLY, under: None };
    Round { record, answered: None, longest: TERM.plus(LONGEST), leaves: true, beats }
}
