//! The simulated store: the kernel's coordinators behind a filter that omits one rule of the
//! protocol.
//!
//! The coordinators cannot turn a rule off. Instead, the filter replaces each share report by the
//! report that a store with the flaw would have understood.

use std::collections::HashMap;

use sluicegate::kernel::coordinator::incarnation::IncarnationRecord;
use sluicegate::kernel::coordinator::message::GrantInUse;
use sluicegate::kernel::coordinator::{
    CoordinatorConfig, Grant, Heartbeat, HeartbeatReply, ShareTiming,
};
use sluicegate::kernel::units::{Generation, Incarnation, Nanos, ReplicaId, Share};
use sluicegate::store::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};
use sluicegate::store::memory::coordinators::Coordinators;

use super::run::{LONGEST, TERM, TICK};
use crate::simulation::flaws::Flaw;

/// The incarnation in all messages, for flaws that do not distinguish incarnations.
const ONLY: Incarnation = Incarnation(1);
/// The replica id in share reports that the filter itself makes.
const FILTER_ID: ReplicaId = ReplicaId(0);

/// The key of a share state: limit, replica and incarnation.
type ShareKey = (BucketKey, ReplicaId, Incarnation);

/// The share state of a store with a flaw: the last report as it was understood, and its grant.
struct ShareRecord {
    beat: ShareReport,
    granted: Grant,
    /// The share expiry.
    until: Nanos,
}

pub struct FlawedStore {
    flaw: Flaw,
    coordinators: Coordinators,
    /// The number of times that the store lost its state. Each loss changes the store's name.
    losses: u64,
    life: Incarnation,
    seats: HashMap<ShareKey, ShareRecord>,
}

impl FlawedStore {
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
        // For a flaw that needs the number of the new incarnation or the end of its recovery, an
        // empty round starts that incarnation.
        match self.flaw {
            Flaw::NoCoordinatorIncarnation => drop(self.forward(now, &filter_round(Vec::new()))),
            Flaw::NoGrace => {
                drop(self.forward(now.since(TERM.plus(LONGEST)), &filter_round(Vec::new())));
            }
            _ => {}
        }
    }

    pub fn apply_round(&mut self, now: Nanos, round: &ShareRound) -> ShareRoundReply {
        if self.flaw == Flaw::InFlightForExposure {
            self.drop_expired(now);
        }
        let understood = self.round_with_flaw(round);
        let mut heard = self.forward(now, &understood);
        if self.flaw == Flaw::NoAcknowledgement {
            self.confirm_grants(now, &understood, &mut heard);
        }
        for (beat, reply) in understood.reports.iter().zip(&heard.replies) {
            self.record_reply(now, beat, reply.as_ref());
        }
        self.address_reply(round, heard)
    }

    fn forward(&mut self, now: Nanos, round: &ShareRound) -> ShareRoundReply {
        let heard = self.coordinators.apply_round(now, &format!("store {}", self.losses), round);
        if self.life != heard.incarnation {
            self.seats.clear();
        }
        self.life = heard.incarnation;
        heard
    }

    fn record_reply(&mut self, now: Nanos, beat: &ShareReport, reply: Option<&HeartbeatReply>) {
        match reply {
            Some(HeartbeatReply::Grant(granted)) => {
                let until = now.plus(beat.law.timing.share_lifetime);
                let known = ShareRecord { beat: beat.clone(), granted: *granted, until };
                self.seats.insert(share_key(beat), known);
            }
            Some(HeartbeatReply::Left) => drop(self.seats.remove(&share_key(beat))),
            _ => {}
        }
    }

    /// Replaces expired share states by their reported requests in flight, as if the replicas had
    /// left.
    fn drop_expired(&mut self, now: Nanos) {
        let lost: Vec<_> = self.seats.extract_if(|_, known| known.until <= now).collect();
        for (_, ShareRecord { mut beat, .. }) in lost {
            let number = beat.heartbeat.number + 1;
            beat.heartbeat =
                Heartbeat { number, grant_in_use: None, is_leaving: true, ..beat.heartbeat };
            self.forward(now, &filter_round(vec![beat]));
        }
    }

    /// Confirms each grant at once, in place of the replica.
    fn confirm_grants(&mut self, now: Nanos, round: &ShareRound, reply: &mut ShareRoundReply) {
        for (beat, reply) in round.reports.iter().zip(&mut reply.replies) {
            let Some(HeartbeatReply::Grant(grant)) = *reply else { continue };
            let (number, holds) = (beat.heartbeat.number + 1, Some(GrantInUse::from(grant)));
            let said = Heartbeat { number, grant_in_use: holds, ..beat.heartbeat };
            let beats = vec![ShareReport { heartbeat: said, ..beat.clone() }];
            *reply = self.forward(now, &ShareRound { reports: beats, ..round.clone() }).replies[0];
        }
    }

    /// The share round as a store with the flaw would understand it.
    fn round_with_flaw(&self, round: &ShareRound) -> ShareRound {
        let IncarnationRecord {
            replica: member,
            incarnation: life,
            coordinator_incarnation: under,
        } = round.record;
        let record = match self.flaw {
            Flaw::NoMemberIncarnation => IncarnationRecord {
                replica: member,
                incarnation: ONLY,
                coordinator_incarnation: under,
            },
            Flaw::NoCoordinatorIncarnation => IncarnationRecord {
                replica: member,
                incarnation: life,
                coordinator_incarnation: under.map(|_| self.life),
            },
            _ => round.record,
        };
        let beats = round.reports.iter().map(|beat| ShareReport {
            bucket: beat.bucket.clone(),
            law: self.law_with_flaw(beat.law),
            heartbeat: self.heartbeat_with_flaw(beat),
        });
        ShareRound { record, reports: beats.collect(), ..round.clone() }
    }

    /// The flaw `ShortMargin`: a replica uses its share one tick too long if the store expires the
    /// share one tick earlier.
    fn law_with_flaw(&self, law: CoordinatorConfig) -> CoordinatorConfig {
        let less = if self.flaw == Flaw::ShortMargin { TICK } else { Nanos(0) };
        let term = law.timing.share_lifetime.since(less);
        CoordinatorConfig { timing: ShareTiming { share_lifetime: term, ..law.timing }, ..law }
    }

    fn heartbeat_with_flaw(&self, beat: &ShareReport) -> Heartbeat {
        let (said, known) = (beat.heartbeat, self.seats.get(&share_key(beat)));
        match self.flaw {
            Flaw::ByValue => confirm_by_value(said, known),
            // Doubles heartbeat numbers, so that odd numbers are free for the filter's own reports.
            Flaw::NoAcknowledgement | Flaw::InFlightForExposure => {
                Heartbeat { number: 2 * said.number, ..said }
            }
            // All incarnations become one; heartbeats of later incarnations keep larger numbers.
            Flaw::NoMemberIncarnation => Heartbeat {
                incarnation: ONLY,
                number: (said.incarnation.0 << 20) + said.number,
                ..said
            },
            Flaw::NoCoordinatorIncarnation => self.accept_any_incarnation(said, known),
            _ => said,
        }
    }

    /// Takes any generation as one of the coordinator's current incarnation, and a later one as its
    /// newest.
    fn accept_any_incarnation(
        &self,
        heartbeat: Heartbeat,
        known: Option<&ShareRecord>,
    ) -> Heartbeat {
        let newest = known.map_or(Generation(0), |known| known.granted.generation);
        let holds = heartbeat.grant_in_use.map(|holds| GrantInUse {
            coordinator_incarnation: self.life,
            generation: holds.generation.min(newest),
            ..holds
        });
        Heartbeat { grant_in_use: holds, ..heartbeat }
    }

    /// Changes the reply so that it matches the original report, not the filtered one.
    fn address_reply(&self, round: &ShareRound, reply: ShareRoundReply) -> ShareRoundReply {
        let mut heard = readdressed(reply, round);
        if self.flaw == Flaw::NoCoordinatorIncarnation {
            heard.incarnation = ONLY;
            grants(&mut heard).for_each(|grant| grant.coordinator_incarnation = ONLY);
        }
        heard
    }
}

/// The flaw `ByValue`: a reported share of the last granted size confirms that grant, and any other
/// size the grant before.
fn confirm_by_value(heartbeat: Heartbeat, known: Option<&ShareRecord>) -> Heartbeat {
    let named = |share: Share| match known {
        Some(known) if known.granted.share == share => known.granted.generation,
        Some(known) => {
            known.beat.heartbeat.grant_in_use.map_or(Generation(0), |holds| holds.generation)
        }
        None => Generation(0),
    };
    let holds =
        heartbeat.grant_in_use.map(|holds| GrantInUse { generation: named(holds.share), ..holds });
    let number = known
        .map_or(heartbeat.number, |known| heartbeat.number.max(known.beat.heartbeat.number + 1));
    Heartbeat { grant_in_use: holds, number, ..heartbeat }
}

/// Changes the reply to the round `of` so that it looks like the reply to the round `to`.
pub fn misplaced(reply: &ShareRoundReply, of: &ShareRound, to: &ShareRound) -> ShareRoundReply {
    let reply_for = |beat: &ShareReport| {
        let at = of.reports.iter().position(|other| other.bucket == beat.bucket)?;
        reply.replies[at]
    };
    readdressed(
        ShareRoundReply { replies: to.reports.iter().map(reply_for).collect(), ..*reply },
        to,
    )
}

fn readdressed(mut reply: ShareRoundReply, round: &ShareRound) -> ShareRoundReply {
    for (beat, reply) in round.reports.iter().zip(&mut reply.replies) {
        if let Some(HeartbeatReply::Grant(grant)) = reply {
            (grant.incarnation, grant.heartbeat_number) =
                (beat.heartbeat.incarnation, beat.heartbeat.number);
        }
    }
    reply
}

fn grants(reply: &mut ShareRoundReply) -> impl Iterator<Item = &mut Grant> {
    reply.replies.iter_mut().flatten().filter_map(|reply| match reply {
        HeartbeatReply::Grant(grant) => Some(grant),
        _ => None,
    })
}

fn share_key(beat: &ShareReport) -> ShareKey {
    (beat.bucket.clone(), beat.heartbeat.replica, beat.heartbeat.incarnation)
}

fn filter_round(beats: Vec<ShareReport>) -> ShareRound {
    let record =
        IncarnationRecord { replica: FILTER_ID, incarnation: ONLY, coordinator_incarnation: None };
    ShareRound {
        record,
        last_reply_at: None,
        longest_use: TERM.plus(LONGEST),
        is_leaving: true,
        reports: beats,
    }
}
