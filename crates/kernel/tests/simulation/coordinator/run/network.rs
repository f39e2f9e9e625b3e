//! Messages between replicas and the store.

use sluicegate_kernel::coordinator::Grant;
use sluicegate_kernel::coordinator::share_client::GrantOutcome;

use super::{CoordinatorSimulation, FAULTY_TICKS, Message, Packet};

impl CoordinatorSimulation {
    pub(super) fn send(&mut self, replica: (u64, u64), message: Message) {
        let faulty = self.tick < FAULTY_TICKS;
        if faulty && self.dice.once_in(12) {
            return;
        }
        let slow = if faulty { self.dice.pick(&[0, 0, 0, 1, 3, 40]) } else { 1 };
        let at = self.tick + self.dice.up_to(slow);
        if faulty && self.dice.once_in(12) {
            let again = self.tick + self.dice.up_to(60);
            let what = match &message {
                Message::Beat(beat) => Message::Beat(*beat),
                Message::Grant(given, grant) => Message::Grant(*given, *grant),
            };
            self.packets.push(Packet { at: again, who: replica, what });
        }
        self.packets.push(Packet { at, who: replica, what: message });
    }

    pub(super) fn deliver(&mut self) {
        let tick = self.tick;
        let mut due: Vec<Packet> = Vec::new();
        // Repeats until no message is due, because a reply may arrive in the tick of its heartbeat.
        loop {
            due.extend(self.packets.extract_if(.., |packet| packet.at <= tick));
            if due.is_empty() {
                return;
            }
            let next = self.one_of(due.len());
            let packet = due.swap_remove(next);
            self.deliver_packet(packet);
        }
    }

    fn deliver_packet(&mut self, packet: Packet) {
        let (tick, who) = (self.tick, packet.who);
        let replica = self.replica(who);
        if replica.as_ref().is_some_and(|replica| tick < replica.cut_until) {
            return;
        }
        if replica.as_ref().is_some_and(|replica| replica.clogged) {
            self.packets.push(Packet { at: tick + 1, ..packet });
            return;
        }
        match packet.what {
            Message::Beat(beat) => {
                let (now, flaw) = (self.now(), self.flaw);
                if let Some(grant) = self.store.apply_heartbeat(now, &beat, flaw) {
                    self.send(who, Message::Grant(tick, grant));
                }
            }
            Message::Grant(given, grant) => {
                let Some(replica) = replica else { return };
                if tick < replica.paused_until {
                    self.packets.push(Packet { at: tick + 1, ..packet });
                    return;
                }
                let applied = replica.apply_grant(tick, given, &grant);
                self.count(applied, &grant);
            }
        }
    }

    pub(super) fn count(&mut self, applied: GrantOutcome, grant: &Grant) {
        match applied {
            GrantOutcome::Ignored => self.tally.late_grants += 1,
            GrantOutcome::Applied(before) if grant.share < before => self.shrank = true,
            GrantOutcome::Applied(before) if before < grant.share && self.shrank => {
                self.tally.handoffs += 1;
                self.shrank = false;
            }
            GrantOutcome::Applied(_) => {}
        }
    }
}
