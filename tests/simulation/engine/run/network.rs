//! Packets between replicas and the store, and the faults that delay or repeat them.

use sluicegate::store::heartbeat::{ShareRound, ShareRoundReply};

use super::{CALL_TIMEOUT, EngineSimulation, FAULTY_TICKS, NEVER, Packet};
use crate::simulation::engine::store::misplaced;
use crate::simulation::flaws::Flaw;

impl EngineSimulation {
    /// Sends a replica's share rounds. Some are lost, late or repeated.
    pub(super) fn send_rounds(&mut self, index: usize) {
        let place = &self.places[index];
        let Some(replica) = &place.replica else { return };
        let faulty = self.tick < FAULTY_TICKS;
        for said in replica.wire.take() {
            let who = (place.id, place.life);
            let until = self.tick + CALL_TIMEOUT;
            if faulty && self.dice.once_in(12) {
                let (at, again) = (self.tick + self.dice.up_to(60), Some(said.round.clone()));
                self.packets.push(Packet { at, who, said: None, again, until });
            }
            let slow = if faulty { self.dice.pick(&[0, 0, 0, 1, 2, 40]) } else { 0 };
            let lost = faulty && self.dice.once_in(12);
            let at = if lost { NEVER } else { self.tick + self.dice.up_to(slow) };
            self.packets.push(Packet { at, who, said: Some(said), again: None, until });
        }
    }

    /// Delivers heartbeats until none is due, because a reply may cause the next heartbeat at once.
    pub(super) fn deliver_packets(&mut self) {
        self.packets.retain_mut(|packet| packet.may_arrive(self.tick));
        while let Some(due) = self.packets.iter().position(|packet| packet.at <= self.tick) {
            let packet = self.packets.swap_remove(due);
            self.deliver_packet(packet);
        }
        let _time = self.runtime.enter();
        self.places.iter_mut().flat_map(|place| &mut place.replica).for_each(|replica| {
            if replica.paused_until <= self.tick {
                replica.poll_tasks(self.tick);
            }
        });
    }

    fn deliver_packet(&mut self, packet: Packet) {
        let (tick, now) = (self.tick, self.now());
        let late = packet.until <= tick;
        let at = self.places.iter().position(|it| (it.id, it.life) == packet.who);
        let replica = at.and_then(|at| self.places[at].replica.as_ref());
        if replica.is_some_and(|replica| tick < replica.clogged_until) {
            return self.packets.push(Packet { at: tick + 1, ..packet });
        }
        if replica.is_some_and(|replica| tick < replica.cut_until) {
            return self.packets.push(Packet { at: NEVER, ..packet });
        }
        let (round, answer) = match (packet.said, packet.again) {
            (Some(said), _) => (said.round, Some(said.answer)),
            (None, Some(round)) => (round, None),
            (None, None) => return,
        };
        let heard = self.store.apply_round(now, &round);
        if let Some(answer) = answer.filter(|_| !late) {
            drop(answer.send(heard));
        } else {
            self.tally.late_answers += 1;
            self.misdeliver(packet.who, &round, &heard);
        }
        let _time = self.runtime.enter();
        if let Some(at) = at
            && let Some(replica) = &mut self.places[at].replica
            && replica.paused_until <= tick
        {
            replica.poll_tasks(tick);
            self.send_rounds(at);
        }
    }

    /// The flaw `ByValue`: without generations, a caller takes a late reply as the reply to its
    /// newer heartbeat.
    fn misdeliver(&mut self, replica: (u64, u64), round: &ShareRound, reply: &ShareRoundReply) {
        if self.flaw != Flaw::ByValue {
            return;
        }
        let mut theirs = self.packets.iter_mut().filter(|packet| packet.who == replica);
        let waits = theirs.find(|packet| packet.said.is_some() && self.tick < packet.until);
        if let Some((packet, said)) = waits.and_then(|it| it.said.take().map(|said| (it, said))) {
            drop(said.answer.send(misplaced(reply, round, &said.round)));
            packet.again = Some(said.round);
        }
    }
}
