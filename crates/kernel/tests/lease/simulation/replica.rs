//! Decisions, refills and returns of one replica.

use sluicegate_kernel::lease::balance::SpendResult;
use sluicegate_kernel::units::{Hits, Nanos};

use super::{InTransit, LeaseFlaw, LeaseSimulation, Undecided};

impl LeaseSimulation {
    pub(super) fn hits(&mut self) -> Hits {
        let most = self.store.counted.most();
        Hits(match self.dice.up_to(30) {
            0 => self.dice.up_to(most + 2),
            1..=5 => self.dice.up_to(3),
            _ => 1,
        })
    }

    pub(super) fn check(&mut self, replica: usize, hits: Hits) {
        let now = self.replicas[replica].clock(self.now);
        match self.replicas[replica].ledger.spend(now, hits) {
            SpendResult::Spent(_) => {
                self.counts.spent += 1;
                if self.dice.once_in(3) {
                    self.mark_undecided(replica, hits);
                }
                self.record_allowed(hits);
            }
            SpendResult::Denied { .. } => self.counts.denied_here += 1,
            SpendResult::NeedsStore => self.call_store(replica, hits),
        }
    }

    fn call_store(&mut self, replica: usize, hits: Hits) {
        self.counts.asked += 1;
        let now = self.replicas[replica].clock(self.now);
        let number = self.replicas[replica].number();
        match self.replicas[replica].ledger.borrow(now, number, hits) {
            Some(borrow) => self.send(replica, borrow),
            None if self.dice.once_in(2) => self.transmit(InTransit::Charge(hits)),
            None => {}
        }
    }

    /// Marks the check that just spent hits as undecided.
    fn mark_undecided(&mut self, replica: usize, hits: Hits) {
        let (at, replica) = (self.log.len(), &mut self.replicas[replica]);
        if self.flaw != LeaseFlaw::PutBackAfterReport {
            replica.ledger.mark_undecided(hits);
        }
        let (grip, last_message) = (replica.ledger.undecided_epoch(), replica.last);
        replica.undecided.push(Undecided { hits, grip, last_message, at });
    }

    /// Decides an undecided check. A denied one puts its hits back, so it allowed none.
    /// Other checks count as allowed at the time of spending.
    pub(super) fn decide(&mut self, replica: usize) {
        let now = self.replicas[replica].clock(self.now);
        let replica = &mut self.replicas[replica];
        let Some(last) = replica.undecided.len().checked_sub(1) else { return };
        let which = usize::try_from(self.dice.up_to(last as u64)).unwrap();
        let Undecided { hits, grip, last_message, at } = replica.undecided.swap_remove(which);
        let is_allowed = self.dice.once_in(4);
        if is_allowed {
            return replica.ledger.mark_spent(hits, grip);
        }
        self.log[at].hits = 0;
        replica.ledger.expire(now);
        let before = replica.ledger.balance(now);
        let grip = match self.flaw {
            LeaseFlaw::PutBackAfterReport | LeaseFlaw::PutBackThoughVoided => {
                replica.ledger.undecided_epoch()
            }
            _ => grip,
        };
        if self.flaw == LeaseFlaw::PutBackAfterReport {
            replica.ledger.mark_undecided(hits);
        }
        replica.ledger.put_back(now, hits, grip);
        if before < replica.ledger.balance(now) {
            self.counts.put_back += 1;
            self.counts.put_back_after_a_message += u64::from(last_message != replica.last);
        } else if hits != Hits(0) {
            self.counts.put_back_in_vain += 1;
        }
    }

    pub(super) fn refill(&mut self, replica: usize) {
        let now = self.replicas[replica].clock(self.now);
        let number = self.replicas[replica].number();
        let at_leisure = self.dice.once_in(2);
        let time = Nanos(self.dice.up_to(self.store.terms.duration.0));
        let ledger = &mut self.replicas[replica].ledger;
        let borrow = if at_leisure {
            ledger.refill_early(now, number, time)
        } else {
            ledger.refill(now, number)
        };
        if let Some(borrow) = borrow {
            self.counts.ahead += 1;
            self.send(replica, borrow);
        }
    }

    pub(super) fn return_hits(&mut self, replica: usize, with_all: bool) {
        let now = self.replicas[replica].clock(self.now);
        let number = self.replicas[replica].number();
        let is_quiet = self.dice.once_in(2);
        let quiet = Nanos(self.dice.up_to(2 * self.store.terms.duration.0));
        let ledger = &mut self.replicas[replica].ledger;
        let message = match (with_all, is_quiet) {
            (true, _) => ledger.return_all(now, number),
            (false, true) => ledger.return_if_idle(now, number, quiet),
            (false, false) => ledger.return_surplus(now, number),
        };
        if let Some(message) = message {
            self.send(replica, message);
        }
    }

    /// Reports to a replica that its message was never sent.
    pub(super) fn undo_unsent(&mut self, replica: usize) {
        let now = self.replicas[replica].clock(self.now);
        let replica = &mut self.replicas[replica];
        let Some(borrow) = replica.unsent.take() else { return };
        let before = replica.ledger.balance(now);
        replica.ledger.undo_unsent(now, borrow.number);
        if before < replica.ledger.balance(now) {
            self.counts.undone += 1;
        } else if borrow.returned != Hits(0) {
            self.counts.undone_in_vain += 1;
        }
    }

    pub(super) fn abandon_call(&mut self, replica: usize) {
        if let Some(borrow) = self.replicas[replica].last {
            self.replicas[replica].ledger.give_up(borrow.number);
        }
    }

    pub(super) fn crash(&mut self, replica: usize) {
        if self.dice.once_in(2) {
            self.counts.crashed += 1;
            self.replicas[replica] = self.new_replica();
        }
    }
}
