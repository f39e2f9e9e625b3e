//! The store: the coordinators as they are, and a rule left out between them and who speaks.
//!
//! Nothing in them can be switched off, so what a worse store would have understood is said to them in the place of what was said.

use std::collections::HashMap;

use sluicegate::backend::heartbeat::{Beat, Heard, Name, Round};
use sluicegate::backend::memory::coordinators::Coordinators;
use sluicegate::kernel::coordinator::life::Record;
use sluicegate::kernel::coordinator::message::Holding;
use sluicegate::kernel::coordinator::{Grant, Heartbeat, Law, Reply, Terms};
use sluicegate::kernel::units::{Generation, Incarnation, MemberId, Nanos, Share};

use super::world::{LONGEST, TERM, TICK};
use crate::simulation::bad::Bad;

/// The one life that there is, where lives are not told apart.
const ONLY: Incarnation = Incarnation(1);
/// Who speaks for the store itself, and is nobody.
const NOBODY: MemberId = MemberId(0);

/// A seat: of which ceiling, whose, and in which life.
type Seat = (Name, MemberId, Incarnation);

/// What a worse store knows of a seat: what was said last, as it understood it, and what that was answered.
struct Known {
    beat: Beat,
    granted: Grant,
    /// When its term ends.
    until: Nanos,
}

pub struct Store {
    bad: Bad,
    coordinators: Coordinators,
    /// Each makes it another store.
    losses: u64,
    life: Incarnation,
    seats: HashMap<Seat, Known>,
}

impl Store {
    /// One that nobody holds anything of.
    pub fn new(bad: Bad) -> Self {
        let (coordinators, seats) = (Coordinators::settled(), HashMap::new());
        Self { bad, coordinators, losses: 0, life: ONLY, seats }
    }

    /// Loses all it knew of ceilings, and perhaps the fleet's table.
    pub fn forgets(&mut self, now: Nanos, table_too: bool) {
        self.losses += 1;
        self.seats.clear();
        if table_too {
            self.coordinators = Coordinators::default();
        }
        // The new life begins with a word of nobody's, where something must be known of it: its number, or that its doubt is over.
        match self.bad {
            Bad::NoCoordinatorIncarnation => drop(self.takes(now, &nobodys(Vec::new()))),
            Bad::NoGrace => {
                drop(self.takes(now.since(TERM.plus(LONGEST)), &nobodys(Vec::new())));
            }
            _ => {}
        }
    }

    pub fn hears(&mut self, now: Nanos, round: &Round) -> Heard {
        if self.bad == Bad::InFlightForExposure {
            self.writes_off(now);
        }
        let understood = self.understood(round);
        let mut heard = self.takes(now, &understood);
        if self.bad == Bad::NoAcknowledgement {
            self.acknowledges(now, &understood, &mut heard);
        }
        for (beat, reply) in understood.beats.iter().zip(&heard.replies) {
            self.remembers(now, beat, reply.as_ref());
        }
        self.answers(round, heard)
    }

    fn takes(&mut self, now: Nanos, round: &Round) -> Heard {
        let heard = self.coordinators.hear(now, &format!("store {}", self.losses), round);
        if self.life != heard.life {
            self.seats.clear();
        }
        self.life = heard.life;
        heard
    }

    fn remembers(&mut self, now: Nanos, beat: &Beat, reply: Option<&Reply>) {
        match reply {
            Some(Reply::Grant(granted)) => {
                let until = now.plus(beat.law.terms.term);
                let known = Known { beat: beat.clone(), granted: *granted, until };
                self.seats.insert(seat(beat), known);
            }
            Some(Reply::Left) => drop(self.seats.remove(&seat(beat))),
            _ => {}
        }
    }

    /// Of those whose terms are over nothing is kept but what they said was in flight, as if they had left then.
    fn writes_off(&mut self, now: Nanos) {
        let lost: Vec<_> = self.seats.extract_if(|_, known| known.until <= now).collect();
        for (_, Known { mut beat, .. }) in lost {
            let number = beat.said.number + 1;
            beat.said = Heartbeat { number, holds: None, leaves: true, ..beat.said };
            self.takes(now, &nobodys(vec![beat]));
        }
    }

    /// Says at once for everybody that what it was granted it holds.
    fn acknowledges(&mut self, now: Nanos, round: &Round, heard: &mut Heard) {
        for (beat, reply) in round.beats.iter().zip(&mut heard.replies) {
            let Some(Reply::Grant(grant)) = *reply else { continue };
            let (number, holds) = (beat.said.number + 1, Some(Holding::from(grant)));
            let said = Heartbeat { number, holds, ..beat.said };
            let beats = vec![Beat { said, ..beat.clone() }];
            *reply = self.takes(now, &Round { beats, ..round.clone() }).replies[0];
        }
    }

    /// What was said, as a store without that rule understands it.
    fn understood(&self, round: &Round) -> Round {
        let Record { member, life, under } = round.record;
        let record = match self.bad {
            Bad::NoMemberIncarnation => Record { member, life: ONLY, under },
            Bad::NoCoordinatorIncarnation => {
                Record { member, life, under: under.map(|_| self.life) }
            }
            _ => round.record,
        };
        let beats = round.beats.iter().map(|beat| Beat {
            bucket: beat.bucket.clone(),
            law: self.law(beat.law),
            said: self.said(beat),
        });
        Round { record, beats: beats.collect(), ..round.clone() }
    }

    /// A term that is a tick shorter at the store is a margin that is a tick shorter at the replica.
    fn law(&self, law: Law) -> Law {
        let less = if self.bad == Bad::ShortMargin { TICK } else { Nanos(0) };
        let term = law.terms.term.since(less);
        Law { terms: Terms { term, ..law.terms }, ..law }
    }

    fn said(&self, beat: &Beat) -> Heartbeat {
        let (said, known) = (beat.said, self.seats.get(&seat(beat)));
        match self.bad {
            Bad::ByValue => by_value(said, known),
            // Room for what is said in its place.
            Bad::NoAcknowledgement | Bad::InFlightForExposure => {
                Heartbeat { number: 2 * said.number, ..said }
            }
            // Later lives still speak after earlier ones.
            Bad::NoMemberIncarnation => {
                Heartbeat { life: ONLY, number: (said.life.0 << 20) + said.number, ..said }
            }
            Bad::NoCoordinatorIncarnation => self.of_this_life(said, known),
            _ => said,
        }
    }

    /// Any generation is one of this life, and one that it has not reached is its newest.
    fn of_this_life(&self, said: Heartbeat, known: Option<&Known>) -> Heartbeat {
        let newest = known.map_or(Generation(0), |known| known.granted.generation);
        let holds = said.holds.map(|holds| Holding {
            coordinator: self.life,
            generation: holds.generation.min(newest),
            ..holds
        });
        Heartbeat { holds, ..said }
    }

    /// What is answered, to who asked as it asked.
    fn answers(&self, round: &Round, heard: Heard) -> Heard {
        let mut heard = readdressed(heard, round);
        if self.bad == Bad::NoCoordinatorIncarnation {
            heard.life = ONLY;
            grants(&mut heard).for_each(|grant| grant.coordinator = ONLY);
        }
        heard
    }
}

/// A share of the size last granted is that grant; another is what was held before.
fn by_value(said: Heartbeat, known: Option<&Known>) -> Heartbeat {
    let named = |share: Share| match known {
        Some(known) if known.granted.share == share => known.granted.generation,
        Some(known) => known.beat.said.holds.map_or(Generation(0), |holds| holds.generation),
        None => Generation(0),
    };
    let holds = said.holds.map(|holds| Holding { generation: named(holds.share), ..holds });
    let number = known.map_or(said.number, |known| said.number.max(known.beat.said.number + 1));
    Heartbeat { holds, number, ..said }
}

/// The answer to one round in the place of that to another of the same replica.
pub fn misplaced(heard: &Heard, of: &Round, to: &Round) -> Heard {
    let reply = |beat: &Beat| {
        let at = of.beats.iter().position(|other| other.bucket == beat.bucket)?;
        heard.replies[at]
    };
    readdressed(Heard { replies: to.beats.iter().map(reply).collect(), ..*heard }, to)
}

/// The same as the answer to `round`.
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

fn seat(beat: &Beat) -> Seat {
    (beat.bucket.clone(), beat.said.member, beat.said.life)
}

/// A round that says nothing of who says it.
fn nobodys(beats: Vec<Beat>) -> Round {
    let record = Record { member: NOBODY, life: ONLY, under: None };
    Round { record, answered: None, longest: TERM.plus(LONGEST), leaves: true, beats }
}
