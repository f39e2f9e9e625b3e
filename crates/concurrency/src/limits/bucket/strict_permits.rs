//! This replica's permits of one limit in mode `strict`, and their state in the store.
//!
//! Guarantees:
//! - Every permit that the store may count is reported as released after it ends at this replica.
//!
//! Not covered:
//! - The permits in the limiter of this replica: see `bucket::strict`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::host::PermitEvent;
use crate::kernel::concurrency::Permit;
use crate::kernel::units::{Nanos, Share};
use crate::limits::reporter::permit_ledger::{PermitLedger, ReleasedPermit};
use crate::limits::strict_limit::StrictQueue;
use crate::store::permits::{AcquireOutcome, PermitId, StrictPermitReply};

#[derive(Debug)]
pub(super) struct StrictPermits {
    name: Arc<[u8]>,
    pub(super) ledger: Arc<PermitLedger>,
    pub(super) queue: Arc<StrictQueue>,
    pub(super) permits: HashMap<Permit, StrictPermit>,
    /// `true` while the permit reporter has this bucket in its list.
    pub(super) is_reported: bool,
    pub(super) limit: u32,
    pub(super) max_duration: Nanos,
    pub(super) fleet_permits: Option<Share>,
    pub(super) closed_for: Nanos,
    pub(super) is_outage: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StrictPermit {
    pub(super) id: PermitId,
    /// The time for which the store keeps the permit if it is not reported.
    store_lifetime: Nanos,
    pub(super) is_granted: bool,
    pub(super) known: StoreKnowledge,
    /// The latest end of the request, if its release will not be reported to this replica.
    pub(super) latest_end: Option<Nanos>,
}

/// The last known state of a permit in the store: counted or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreKnowledge {
    No,
    /// The acquire call has no reply yet, and may still reach the store.
    Pending,
    Yes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum AcquireReply {
    Replied(StrictPermitReply),
    /// The acquire call was sent and got no reply.
    NoReply,
    /// The acquire call was not sent.
    No,
}

impl StrictPermits {
    pub(super) fn new(name: &[u8], ledger: &Arc<PermitLedger>) -> Self {
        Self {
            name: name.into(),
            ledger: Arc::clone(ledger),
            queue: Arc::default(),
            permits: HashMap::new(),
            is_reported: false,
            limit: 0,
            max_duration: Nanos(0),
            fleet_permits: None,
            closed_for: Nanos(0),
            is_outage: false,
        }
    }

    /// Returns `true` while a request acquires or waits in this bucket, or a report is pending. The
    /// bucket must stay then: a new bucket of the same name would replace it in the permit
    /// reporter.
    pub(super) fn is_in_use(&self) -> bool {
        // Each such request, and each unreported release, has a reference to the queue.
        self.is_reported || 1 < Arc::strong_count(&self.queue)
    }

    pub(super) fn add_permit(&mut self, permit: Permit, store_lifetime: Nanos) -> PermitId {
        let id = self.ledger.next_id();
        self.permits.insert(
            permit,
            StrictPermit {
                id,
                store_lifetime,
                is_granted: false,
                known: StoreKnowledge::Pending,
                latest_end: None,
            },
        );
        id
    }

    /// Records the reply to an acquire call, and returns `true` if the request has its permit.
    ///
    /// - `alone`: the requests in flight are within the limit that applies here without the store.
    /// - `late`: the reply took a heartbeat interval or longer, so the permit may expire in the
    ///   store before its first report.
    pub(super) fn record_reply(
        &mut self,
        permit: Permit,
        answer: AcquireReply,
        alone: bool,
        late: bool,
    ) -> bool {
        let Some(entry) = self.permits.get_mut(&permit) else { return false };
        let AcquireReply::Replied(StrictPermitReply { result: acquired, held }) = answer else {
            self.is_outage = true;
            if matches!(answer, AcquireReply::No) {
                entry.known = StoreKnowledge::No;
            }
            entry.is_granted = alone;
            self.ledger.count(PermitEvent::NoReply, 1);
            return alone;
        };
        (self.is_outage, self.fleet_permits) = (false, Some(held));
        self.closed_for = match acquired {
            AcquireOutcome::Closed(closed_for) => closed_for,
            AcquireOutcome::Acquired | AcquireOutcome::LimitReached => Nanos(0),
        };
        let is_held = acquired == AcquireOutcome::Acquired;
        entry.known = if is_held { StoreKnowledge::Yes } else { StoreKnowledge::No };
        entry.is_granted = is_held && !late;
        let is_granted = entry.is_granted;
        let event = match acquired {
            AcquireOutcome::Acquired => PermitEvent::Granted,
            AcquireOutcome::LimitReached => PermitEvent::LimitReached,
            AcquireOutcome::Closed(_) => PermitEvent::GrantsPaused,
        };
        self.ledger.count(event, 1);
        is_granted
    }

    pub(super) fn end_permit(&mut self, now: Nanos, permit: Permit) {
        let Some(StrictPermit { id, store_lifetime: keep, is_granted: is_held, known, .. }) =
            self.permits.remove(&permit)
        else {
            return;
        };
        if known == StoreKnowledge::No {
            if is_held {
                self.queue.wake_first();
            }
            return;
        }
        let (bucket, queue) = (Arc::clone(&self.name), Arc::clone(&self.queue));
        let repeats = known == StoreKnowledge::Pending;
        self.ledger.queue_release(
            now,
            ReleasedPermit {
                bucket,
                queue,
                id,
                due: now,
                store_deadline: now.plus(keep),
                is_repeated: repeats,
            },
        );
    }
}
