//! The oracles of the laws: they count permits and hits at the replicas, and do not know the protocols.

use sluicegate_kernel::coordinator::ShareClient;
use sluicegate_kernel::units::Nanos;

use super::store::PERMITS;
use super::world::{MAX_DEMAND, World, time};

impl World {
    pub(super) fn measure_shares(&mut self) {
        let (now, flaw) = (self.now(), self.flaw);
        let limit = self.store.config.max.0;
        for at in 0..2 {
            let on = self
                .replicas
                .iter()
                .filter(|replica| replica.is_on)
                .map(|replica| &replica.requests[at]);
            let used =
                on.map(|requests| requests.usable_share(now, flaw).max(requests.in_flight)).sum();
            self.figures.record_permits(now, used, limit);
        }
        if let Some((event, at)) = self.pending.filter(|_| self.has_converged(now, limit)) {
            self.pending = None;
            self.figures.converged.push((event, time(self.tick - at)));
        }
    }

    /// True if each replica that reaches the store has its demand, or its part of the limit.
    fn has_converged(&self, now: Nanos, limit: u64) -> bool {
        let live = || self.replicas.iter().filter(|replica| replica.is_on && !replica.is_cut);
        (0..2).all(|at| {
            let requests = || live().map(|replica| &replica.requests[at]);
            let total =
                |level: u64| requests().map(|requests| requests.demand.min(level)).sum::<u64>();
            let level = (PERMITS..=MAX_DEMAND)
                .rev()
                .find(|level| total(*level) <= limit)
                .unwrap_or(PERMITS);
            requests()
                .all(|requests| self.has_share(now, &requests.client, requests.demand.min(level)))
        })
    }

    /// True if the replica may use `least` permits under a grant of the current incarnation.
    fn has_share(&self, now: Nanos, client: &ShareClient, least: u64) -> bool {
        client.current_grant(now).is_some_and(|grant| {
            least <= grant.share.0
                && grant.coordinator_incarnation == self.store.incarnation.incarnation
                && !grant.is_recovering
        })
    }

    pub(super) fn measure_leases(&mut self) {
        let now = self.now();
        let mut held = vec![0_u64; self.allowed.len()];
        for replica in self.replicas.iter().filter(|replica| replica.is_on) {
            for (key, lease) in &replica.leases {
                held[*key as usize] += lease.balance.total(now).0;
            }
        }
        for (at, key) in self.store.keys.iter().enumerate() {
            self.figures.record_key(now, key, self.allowed[at], held[at]);
        }
    }
}
