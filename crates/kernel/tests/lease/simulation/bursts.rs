//! Idle phases and worst-case bursts.

use sluicegate_kernel::rate::CounterDecision;
use sluicegate_kernel::units::{Hits, Nanos};

use super::LeaseSimulation;

impl LeaseSimulation {
    /// A phase without checks.
    pub(super) fn idle_phase(&mut self) {
        for _ in 0..10 {
            let longest = self.store.terms.duration.0.min(self.span.0) / 10;
            let step = self.dice.up_to(longest);
            self.wait(Nanos(step));
            self.deliver();
            self.assert_invariants();
        }
    }

    /// Sends a few checks to every replica, so that each has a balance.
    fn fill_balances(&mut self) {
        for _ in 0..3 {
            for replica in 0..self.replicas.len() {
                self.check(replica, Hits(1));
            }
            self.wait(Nanos(self.span.0 / 100));
            self.deliver();
        }
    }

    /// Spends every balance and the rest of the limit at once, sometimes as a window begins.
    pub(super) fn worst_case_burst(&mut self) {
        self.fill_balances();
        let window = self.store.counted.window(self.now);
        let waits = window != 0 && self.dice.once_in(2);
        while waits && self.store.counted.window(self.now) == window {
            self.wait(Nanos(self.span.0 / 300));
        }
        self.deliver();
        for replica in 0..self.replicas.len() {
            let now = self.replicas[replica].clock(self.now);
            while 0 < self.replicas[replica].ledger.balance(now).0 {
                self.check(replica, Hits(1));
            }
        }
        while matches!(self.store.charge(self.now, Hits(1)), CounterDecision::Allow(_)) {
            self.record_allowed(Hits(1));
        }
    }
}
