//! The network and the store: messages that are sent, lost, repeated and applied.

use sluicegate_kernel::lease::{BorrowReply, BorrowRequest, ReplicaIncarnation};
use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::units::{Hits, Nanos};

use super::{InTransit, LeaseFlaw, LeaseSimulation};

impl LeaseSimulation {
    pub(super) fn send(&mut self, replica: usize, borrow: BorrowRequest) {
        let undoes_sent = self.flaw == LeaseFlaw::UndoneThoughSent;
        if self.dice.once_in(if undoes_sent { 2 } else { 12 }) {
            self.replicas[replica].unsent = Some(borrow);
            if !undoes_sent {
                return;
            }
            self.undo_unsent(replica);
        }
        self.replicas[replica].last = Some(borrow);
        let member = self.replicas[replica].member;
        self.transmit(InTransit::ToStore(member, borrow));
    }

    pub(super) fn resend(&mut self, replica: usize) {
        if let Some(borrow) = self.replicas[replica].last {
            let member = self.replicas[replica].member;
            self.transmit(InTransit::ToStore(member, borrow));
        }
    }

    /// Sends, loses, duplicates or delays a message.
    pub(super) fn transmit(&mut self, in_transit: InTransit) {
        for _ in 0..[1, 1, 1, 1, 1, 1, 1, 2, 0, 1][usize::try_from(self.dice.up_to(9)).unwrap()] {
            let slow = self.dice.once_in(15);
            let longest = if slow { 3 * self.store.terms.duration.0 } else { self.span.0 / 100 };
            let due = Nanos(self.now.0 + self.dice.up_to(longest));
            self.in_transit.push((due, in_transit));
        }
    }

    pub(super) fn deliver(&mut self) {
        self.in_transit.sort_by_key(|(due, _)| *due);
        let due = self.in_transit.partition_point(|(due, _)| *due <= self.now);
        for (_, in_transit) in self.in_transit.drain(..due).collect::<Vec<_>>() {
            match in_transit {
                InTransit::ToStore(member, borrow) => self.store_receives(member, borrow),
                InTransit::ToReplica(member, answer) => self.replica_receives(member, answer),
                InTransit::Charge(hits) => self.charge(hits),
            }
        }
    }

    fn store_receives(&mut self, member: ReplicaIncarnation, borrow: BorrowRequest) {
        let borrow = self.apply_store_flaw(member, borrow);
        let out_before = self.store.book.outstanding_of(member, self.now);
        let Some(answer) = self.store.step(self.now, member, &borrow) else {
            self.counts.superseded += 1;
            return;
        };
        if answer.granted != Hits(0) {
            self.grant_windows.insert((member, answer.number), self.store.counted.window(self.now));
        }
        let is_repeated = self.applied.contains(&(member, borrow.number));
        self.counts.repeated += u64::from(is_repeated);
        self.counts.lent += answer.granted.0;
        if borrow.returned != Hits(0) && !is_repeated {
            let count = if out_before == Hits(0) {
                &mut self.counts.voided
            } else {
                &mut self.counts.given_back
            };
            *count += 1;
        }
        let is_allowed =
            borrow.hits != Hits(0) && matches!(answer.decision, CounterDecision::Allow(_));
        if is_allowed && !is_repeated {
            self.record_allowed(borrow.hits);
        }
        if is_allowed || borrow.hits == Hits(0) {
            self.applied.insert((member, borrow.number));
        }
        self.transmit(InTransit::ToReplica(member, answer));
    }

    /// Delivers a reply, unless its replica has crashed.
    fn replica_receives(&mut self, member: ReplicaIncarnation, mut reply: BorrowReply) {
        let Some(replica) = self.replicas.iter_mut().find(|replica| replica.member == member)
        else {
            return;
        };
        let now = replica.clock(self.now);
        if self.flaw == LeaseFlaw::WindowOnReplicaClock {
            reply.valid_for = reply.valid_for.plus(replica.behind);
        }
        if let (LeaseFlaw::OldReplyAccepted, Some(last)) = (self.flaw, replica.last) {
            reply.number = last.number;
        }
        let before = replica.ledger.balance(now);
        replica.ledger.settle(now, &reply);
        let credited = before < replica.ledger.balance(now);
        if self.flaw == LeaseFlaw::CreditedToEachWaiter && credited {
            self.record_allowed(reply.granted);
        }
    }

    /// Simulates a store that refunds ended leases.
    fn apply_store_flaw(
        &mut self,
        member: ReplicaIncarnation,
        borrow: BorrowRequest,
    ) -> BorrowRequest {
        let listed = self.store.book.outstanding_of(member, self.now) != Hits(0);
        let grant_window = self.grant_windows.get(&(member, borrow.last_lease)).copied();
        let rolled = grant_window
            .is_some_and(|grant_window| grant_window != self.store.counted.window(self.now));
        let is_flawed = match self.flaw {
            LeaseFlaw::RefundedAfterWindowEnd => rolled,
            LeaseFlaw::RefundedAfterExpiry => !listed && !rolled,
            _ => false,
        };
        if !is_flawed {
            return borrow;
        }
        self.store.counted.refund_blindly(self.now, borrow.returned);
        BorrowRequest { returned: Hits(0), ..borrow }
    }
}
