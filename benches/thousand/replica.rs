//! One simulated replica: the kernel's share clients and lease balances, and its requests.

use std::collections::HashMap;

use sluicegate_kernel::coordinator::share_client::{GrantOutcome, LoadReport};
use sluicegate_kernel::coordinator::{ClockReading, Grant, Heartbeat, ShareClient, ShareTiming};
use sluicegate_kernel::lease::balance::{LeaseBalance, SpendResult};
use sluicegate_kernel::lease::sizer::max_lease;
use sluicegate_kernel::lease::{BorrowReply, BorrowRequest, MessageNumber, ReplicaIncarnation};
use sluicegate_kernel::units::{Hits, Incarnation, Nanos, ReplicaId, Share};

use super::flaw::Flaw;
use super::store::{Key, is_allowed};

/// A request lasts this number of polls: 200 ms.
const POLLS: usize = 20;
/// A replica does not wait for a reply longer than this.
const TIMEOUT: Nanos = Nanos(50 * Nanos::MILLI.0);

/// The use of one shared limit by one replica.
pub struct Requests {
    pub client: ShareClient,
    pub demand: u64,
    /// The requests in flight, by the poll at which they end.
    ends: [u64; POLLS],
    pub in_flight: u64,
    sent: Nanos,
    /// The last granted share, although it may have expired; see [`Flaw::ExpiredShareKept`].
    granted: u64,
}

/// The lease of one key at one replica.
pub struct KeyLease {
    pub balance: LeaseBalance,
    last: MessageNumber,
    sent: Nanos,
    /// The hits of the check that waits for the reply to `last`.
    waiting: u64,
    settled: MessageNumber,
}

pub struct Replica {
    pub id: u64,
    pub life: u64,
    pub is_on: bool,
    /// Set before a restart: the replica admits nothing.
    pub is_draining: bool,
    /// Set if no message between this replica and the store arrives.
    pub is_cut: bool,
    pub requests: [Requests; 2],
    pub leases: HashMap<u32, KeyLease>,
    numbers: u64,
    flaw: Flaw,
}

impl Requests {
    fn new(id: u64, life: u64, timing: ShareTiming) -> Self {
        let client = ShareClient::new(ReplicaId(id), Incarnation(life), timing);
        Self { client, demand: 0, ends: [0; POLLS], in_flight: 0, sent: Nanos(0), granted: 0 }
    }

    pub fn usable_share(&self, now: Nanos, flaw: Flaw) -> u64 {
        if flaw == Flaw::ExpiredShareKept { self.granted } else { self.client.usable_share(now).0 }
    }

    /// Ends the requests of this poll, and admits others as far as the share allows.
    fn admit(&mut self, now: Nanos, poll: usize, flaw: Flaw) {
        self.client.fence(now);
        let most = self.demand.min(self.usable_share(now, flaw));
        let slot = &mut self.ends[poll % POLLS];
        self.in_flight -= std::mem::take(slot);
        *slot = most.saturating_sub(self.in_flight);
        self.in_flight += *slot;
    }

    fn heartbeat(&mut self, now: Nanos) -> Option<Heartbeat> {
        if self.sent.plus(TIMEOUT) <= now {
            self.client.discard_reply();
        }
        let load = LoadReport {
            in_flight: Share(self.in_flight),
            demand: Share(self.demand),
            ..LoadReport::default()
        };
        let is_due = self.client.next_heartbeat_at(now, &load) <= now;
        is_due.then(|| {
            self.sent = now;
            self.client.next_heartbeat(now, &load)
        })
    }
}

impl KeyLease {
    fn new(key: &Key) -> Self {
        let terms = key.terms();
        let balance = LeaseBalance::new(terms.sizing, terms.duration, max_lease(key.burst));
        Self {
            balance,
            last: MessageNumber(0),
            sent: Nanos(0),
            waiting: 0,
            settled: MessageNumber(0),
        }
    }
}

impl Replica {
    pub fn new(id: u64, life: u64, timing: ShareTiming, flaw: Flaw) -> Self {
        let requests = [(); 2].map(|()| Requests::new(id, life, timing));
        let leases = HashMap::new();
        Self {
            id,
            life,
            is_on: true,
            is_draining: false,
            is_cut: false,
            requests,
            leases,
            numbers: 0,
            flaw,
        }
    }

    pub fn member(&self) -> ReplicaIncarnation {
        ReplicaIncarnation((self.id << 8) | self.life)
    }

    /// Admits requests, and returns the heartbeats that are due.
    pub fn poll(&mut self, now: Nanos, poll: usize) -> [Option<Heartbeat>; 2] {
        let flaw = self.flaw;
        self.requests.each_mut().map(|requests| {
            requests.admit(now, poll, flaw);
            requests.heartbeat(now)
        })
    }

    /// The coordinator incarnation of all shares, if they have the same.
    pub fn under(&self, now: Nanos) -> Option<Incarnation> {
        let [first, second] =
            self.requests.each_ref().map(|requests| requests.client.coordinator_incarnation(now));
        first.filter(|_| first == second)
    }

    pub fn apply_grant(&mut self, now: Nanos, limit: usize, store_time: Nanos, grant: &Grant) {
        let requests = &mut self.requests[limit];
        requests.client.set_clock(ClockReading { local_time: now, coordinator_time: store_time });
        if requests.client.apply_grant(now, grant) != GrantOutcome::Ignored {
            requests.granted = grant.share.0;
        }
    }

    /// Decides a check of one hit. Returns the hits allowed, and the message to the store.
    pub fn check(&mut self, now: Nanos, at: u32, key: &Key) -> (u64, Option<BorrowRequest>) {
        self.numbers += 1;
        let number = MessageNumber(self.numbers);
        let lease = self.leases.entry(at).or_insert_with(|| KeyLease::new(key));
        if lease.sent.plus(TIMEOUT) <= now {
            lease.balance.give_up(lease.last);
        }
        let (allowed, message) = match lease.balance.spend(now, Hits(1)) {
            SpendResult::Spent(_) => (1, lease.balance.refill(now, number)),
            SpendResult::Denied { .. } => (0, None),
            SpendResult::NeedsStore => (0, lease.balance.borrow(now, number, Hits(1))),
        };
        if let Some(message) = message {
            (lease.last, lease.sent, lease.waiting) = (number, now, message.hits.0);
        }
        (allowed, message)
    }

    /// Applies a reply; returns the hits that it allows.
    pub fn settle(&mut self, now: Nanos, at: u32, reply: &BorrowReply) -> u64 {
        let Some(lease) = self.leases.get_mut(&at) else { return 0 };
        if reply.number == lease.settled && self.flaw == Flaw::ReplyAppliedTwice {
            self.numbers += 1;
            let (number, before) = (MessageNumber(self.numbers), lease.balance.balance(now));
            if lease.balance.borrow(now, number, Hits(0)).is_some() {
                let granted = before.plus(reply.granted);
                lease.balance.settle(now, &BorrowReply { number, granted, ..*reply });
            }
            return 0;
        }
        lease.balance.settle(now, reply);
        if reply.number != lease.last || lease.settled == reply.number {
            return 0;
        }
        lease.settled = reply.number;
        let is_in_time = now < lease.sent.plus(TIMEOUT);
        if is_allowed(reply) && is_in_time { lease.waiting } else { 0 }
    }

    /// Drains: returns all leases.
    pub fn return_leases(&mut self, now: Nanos) -> Vec<(u32, BorrowRequest)> {
        let mut messages = Vec::new();
        for (at, mut lease) in self.leases.drain() {
            self.numbers += 1;
            let message = lease.balance.return_all(now, MessageNumber(self.numbers));
            messages.extend(message.map(|message| (at, message)));
        }
        messages.sort_unstable_by_key(|(at, _)| *at);
        messages
    }
}
