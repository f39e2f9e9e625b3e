//! Forwards releases and renewals of permits to the replica that has the permits (the owner).
//!
//! Guarantees:
//! - A release is applied at once if this replica has the permits.
//! - A release that names an owner goes to that incarnation, and is never stored as an early
//!   release.
//! - A release without an owner goes to all replicas. If no replica knows its id, it is stored as
//!   an early release.
//! - A release from another replica is not forwarded again.
//! - The queue of forwarded releases is bounded. Releases that do not fit are counted.
//!
//! Not covered:
//! - Calls between replicas and their authentication: see `edge::grpc::peer`.
//! - An owner that has left the fleet: its permits end by their deadlines.

mod calls;

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::Membership;
use crate::kernel::concurrency::ReportedOutcome;
use crate::kernel::units::Nanos;

/// The longest search among the replicas for the owner of a release that names none.
pub const SEARCH_TIMEOUT: Nanos = Nanos(100 * Nanos::MILLI.0);

/// The longest wait for the result of a forwarded release: one search and two network hops.
const RESULT_TIMEOUT: Duration = Duration::from_millis(250);

/// The interval at which [`crate::Engine::flush_forwarded`] tests whether all updates have arrived.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The capacity of the queue of forwarded releases: 0.1 s of traffic at 160,000 releases per
/// second.
const QUEUE_CAPACITY: usize = 16_384;

/// A release or a renewal of the permits of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitUpdate<'i> {
    /// The request id.
    pub id: Cow<'i, str>,
    /// The event: a release or a renewal.
    pub event: PermitEvent,
    /// The address that sent the release, for the bounds on early releases.
    pub source: Option<IpAddr>,
}

/// The event of a permit update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitEvent {
    /// The request has ended. Contains the upstream latency if it was measured.
    Released(ReportedOutcome, Option<Nanos>),
    /// The request has ended, and no replica knows its id, so this is an early release.
    ReleasedUnknown(ReportedOutcome, Option<Nanos>),
    /// The request is still in flight.
    Renewed,
}

/// The state of a request id at this replica when a release or renewal arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdState {
    /// The id had permits.
    HadPermits,
    /// The id had no permits: its request was rejected, or needed none.
    NoPermits,
    /// The id is unknown.
    Unknown,
}

/// The replica that must apply a permit update.
enum UpdateTarget {
    /// Only this replica. `true` if the id had permits here.
    Local(bool),
    /// This replica, where the id had permits, and the owner that the update names.
    LocalAndOwner,
    /// The owner, or all other replicas if the update names none.
    Remote,
}

/// A permit update on its way to another replica.
#[derive(Debug)]
pub struct ForwardedRelease {
    /// The permit update.
    pub update: PermitUpdate<'static>,
    /// The public name of the owner's incarnation. `None`: the update goes to all replicas.
    pub owner: Option<Box<str>>,
    /// Receives `true` if the id had permits at another replica.
    pub result_sender: Option<oneshot::Sender<bool>>,
    /// Dropped when the update has arrived at the other replica or was given up.
    pub in_transit: Arc<()>,
}

/// The queue of permit updates for other replicas.
#[derive(Debug)]
pub(crate) struct ForwardingQueue {
    membership: Arc<Membership>,
    sender: mpsc::Sender<ForwardedRelease>,
    /// Each update that has not arrived yet has a reference to this value.
    in_transit: Arc<()>,
}

impl<'i> PermitUpdate<'i> {
    /// Creates the release of `id`.
    #[must_use]
    pub fn release(
        id: &'i str,
        source: Option<IpAddr>,
        how: impl Into<ReportedOutcome>,
        rtt: Option<Nanos>,
    ) -> Self {
        Self { id: Cow::Borrowed(id), event: PermitEvent::Released(how.into(), rtt), source }
    }

    /// Creates the renewal of `id`.
    #[must_use]
    pub const fn renewal(id: &'i str) -> Self {
        Self { id: Cow::Borrowed(id), event: PermitEvent::Renewed, source: None }
    }

    /// Marks a release as one whose id no replica knows: it becomes an early release.
    #[must_use]
    pub fn into_unknown(self) -> Self {
        let about = match self.event {
            PermitEvent::Released(how, rtt) => PermitEvent::ReleasedUnknown(how, rtt),
            other => other,
        };
        Self { event: about, ..self }
    }

    fn into_owned(self) -> PermitUpdate<'static> {
        PermitUpdate { id: Cow::Owned(self.id.into_owned()), ..self }
    }
}
