//! The permits of a client that acquires, renews and releases on one stream, by ids of its own.
//!
//! Guarantees:
//! - An acquire that waits in a queue does not delay other calls.
//! - A release cancels an acquire of the same id that waits.
//! - Each acquire whose permits are fenced causes one [`SessionEvent::Fenced`].
//! - Dropping the session releases all permits, and cancels all acquires that wait.

use std::collections::HashMap;

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Aborted, BoxFuture, FutureExt as _, abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use crate::engine::{AdmissionOutcome, CheckError, Engine, RequestPermits};
use crate::kernel::concurrency::ReportedOutcome;
use crate::kernel::units::Nanos;

/// The largest number of ids of one session that wait for permits or have them.
pub(crate) const MAX_IDS: usize = 10_000;

type Acquired = (String, Result<Result<AdmissionOutcome, CheckError>, Aborted>);

enum PermitState {
    Waiting(AbortHandle),
    InFlight(RequestPermits),
    /// Like `InFlight`, but fenced: the event was returned, or the id is in `fenced_ids`.
    Fenced(RequestPermits),
}

/// The permits and acquires of one client.
pub(crate) struct PermitSession<'s> {
    states: HashMap<String, PermitState>,
    acquiring: FuturesUnordered<BoxFuture<'s, Acquired>>,
    /// The number of expired shares. `None` without a fleet.
    fences: Option<watch::Receiver<u64>>,
    /// The ids with fenced permits of which the client is not told yet.
    fenced_ids: Vec<String>,
}

/// An event of one id.
pub(crate) enum SessionEvent {
    /// The acquire is decided. With permits, the client must renew them within this time.
    Acquired(Box<AdmissionOutcome>, Option<Nanos>),
    /// The acquire failed.
    Failed(CheckError),
    /// The id was released while its acquire waited.
    Canceled,
    /// A share expired. Another replica may get it after this time.
    Fenced(Nanos),
}

/// The state of the permits of an id when they were renewed or released.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeldPermits {
    /// `true` if the id had permits and all of them were renewed, or one was released.
    pub(crate) was_held: bool,
    /// `true` if a share expired after the acquire.
    pub(crate) is_fenced: bool,
}

/// The reason why an acquire cannot start.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RefusedId {
    /// The id has permits or waits for them.
    InUse,
    /// The session has [`MAX_IDS`] ids.
    TooMany,
}

impl PermitState {
    const fn permits(&self) -> Option<&RequestPermits> {
        match self {
            Self::InFlight(permits) | Self::Fenced(permits) => Some(permits),
            Self::Waiting(_) => None,
        }
    }
}

impl<'s> PermitSession<'s> {
    pub(crate) fn new(engine: &Engine) -> Self {
        let (states, acquiring) = (HashMap::new(), FuturesUnordered::new());
        Self { states, acquiring, fences: engine.watch_fences(), fenced_ids: Vec::new() }
    }

    /// Returns an error if no acquire of `id` can start.
    pub(crate) fn check_id(&mut self, id: &str) -> Result<(), RefusedId> {
        // If a permit of this id has expired, the id is free again, and its other permits are
        // released here.
        let is_expired =
            |state: &PermitState| state.permits().is_some_and(|permits| !permits.is_valid());
        if self.states.get(id).is_some_and(is_expired) {
            self.states.remove(id);
        }
        match self.states.len() {
            _ if self.states.contains_key(id) => Err(RefusedId::InUse),
            MAX_IDS.. => Err(RefusedId::TooMany),
            _ => Ok(()),
        }
    }

    /// Starts an acquire, after [`PermitSession::check_id`].
    pub(crate) fn start(
        &mut self,
        id: String,
        acquire: impl Future<Output = Result<AdmissionOutcome, CheckError>> + Send + 's,
    ) {
        let (acquire, handle) = abortable(acquire);
        self.states.insert(id.clone(), PermitState::Waiting(handle));
        self.acquiring.push(async move { (id, acquire.await) }.boxed());
    }

    /// Waits for the next event. Safe to cancel.
    pub(crate) async fn next_event(&mut self) -> (String, SessionEvent) {
        loop {
            while let Some(id) = self.fenced_ids.pop() {
                // The permits may have been released since.
                if let Some(PermitState::Fenced(permits)) = self.states.get(&id) {
                    let left = permits.fenced_time_left();
                    return (id, SessionEvent::Fenced(left));
                }
            }
            tokio::select! {
                Some(acquired) = self.acquiring.next() => return self.finish(acquired),
                () = wait_for_fence(&mut self.fences) => self.find_fenced(),
            }
        }
    }

    fn finish(&mut self, (id, acquired): Acquired) -> (String, SessionEvent) {
        // If it was canceled, the release has removed the id, and a new acquire may use it.
        let Ok(admitted) = acquired else { return (id, SessionEvent::Canceled) };
        self.states.remove(&id);
        let event = match admitted {
            Err(error) => SessionEvent::Failed(error),
            Ok(AdmissionOutcome::Decided(decision, permits)) => {
                let renew_within = permits.shortest_lifetime();
                self.keep(&id, permits);
                let decided = AdmissionOutcome::Decided(decision, RequestPermits::default());
                SessionEvent::Acquired(Box::new(decided), renew_within)
            }
            Ok(rejected) => SessionEvent::Acquired(Box::new(rejected), None),
        };
        (id, event)
    }

    fn keep(&mut self, id: &str, permits: RequestPermits) {
        if permits.is_empty() {
            return;
        }
        // The share may have expired already.
        let is_fenced = permits.is_fenced();
        let state = if is_fenced { PermitState::Fenced } else { PermitState::InFlight };
        self.states.insert(id.to_owned(), state(permits));
        self.fenced_ids.extend(is_fenced.then(|| id.to_owned()));
    }

    /// Renews the permits of `id`.
    pub(crate) fn renew(&self, id: &str) -> HeldPermits {
        let permits = self.states.get(id).and_then(PermitState::permits);
        let renew = |permits: &RequestPermits| HeldPermits {
            was_held: permits.renew(),
            is_fenced: permits.is_fenced(),
        };
        permits.map(renew).unwrap_or_default()
    }

    /// Releases the permits of `id`, or cancels its acquire.
    pub(crate) fn release(
        &mut self,
        id: &str,
        (outcome, rtt): (ReportedOutcome, Option<Nanos>),
    ) -> HeldPermits {
        match self.states.remove(id) {
            Some(PermitState::InFlight(permits) | PermitState::Fenced(permits)) => {
                let is_fenced = permits.is_fenced();
                HeldPermits { was_held: permits.release_all(outcome, rtt), is_fenced }
            }
            Some(PermitState::Waiting(handle)) => {
                handle.abort();
                HeldPermits::default()
            }
            None => HeldPermits::default(),
        }
    }

    /// Lets all permits count until their deadlines, because this process stops while the requests continue.
    pub(crate) fn leave_to_deadlines(self) {
        for state in self.states.into_values() {
            if let PermitState::InFlight(permits) | PermitState::Fenced(permits) = state {
                permits.leave_to_deadlines();
            }
        }
    }

    /// Finds the permits that were fenced since the last call.
    fn find_fenced(&mut self) {
        for (id, state) in &mut self.states {
            if let PermitState::InFlight(permits) = state
                && permits.is_fenced()
            {
                *state = PermitState::Fenced(std::mem::take(permits));
                self.fenced_ids.push(id.clone());
            }
        }
    }
}

/// Waits until a share of this replica expires.
async fn wait_for_fence(fences: &mut Option<watch::Receiver<u64>>) {
    let changed = match fences {
        Some(fences) => fences.changed().await,
        None => std::future::pending().await,
    };
    if changed.is_err() {
        std::future::pending::<()>().await;
    }
}
