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

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher24;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::kernel::concurrency::ReportedOutcome;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Event as _, ForwardingEvent};
use crate::{Engine, Membership};

/// The longest search among the replicas for the owner of a release that names none.
pub const SEARCH_TIMEOUT: Nanos = Nanos(100 * Nanos::MILLI.0);

/// The longest wait for the result of a forwarded release: one search and two network hops.
const RESULT_TIMEOUT: Duration = Duration::from_millis(250);

/// The interval at which [`Engine::flush_forwarded`] tests whether all updates have arrived.
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

/// Returns the public name of a replica incarnation: 16 hexadecimal digits of a hash. They reveal
/// neither the name of the replica nor the number of the incarnation.
#[must_use]
pub fn incarnation_name(node: &str, incarnation: u64) -> Box<str> {
    let mut bytes = node.as_bytes().to_vec();
    // A separator, because a replica name contains no zero byte.
    bytes.push(0);
    bytes.extend(incarnation.to_be_bytes());
    format!("{:016x}", SipHasher24::new().hash(&bytes)).into()
}

/// Returns `true` if `text` has the format of [`incarnation_name`].
#[must_use]
pub fn is_incarnation_name(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
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

impl Engine {
    /// Enables forwarding between replicas, and returns the queue of forwarded releases. Returns no
    /// queue if the store is not shared, because there is no fleet then.
    #[must_use]
    pub fn with_forwarding(mut self) -> (Self, Option<mpsc::Receiver<ForwardedRelease>>) {
        let Some(local) = self.local_fallback() else { return (self, None) };
        let (post, posted) = mpsc::channel(QUEUE_CAPACITY);
        self.forwarding = Some(ForwardingQueue {
            membership: Arc::clone(&local.membership),
            sender: post,
            in_transit: Arc::default(),
        });
        (self, Some(posted))
    }

    /// Returns the public name of this replica's incarnation, which replies give as the owner.
    /// `None` without forwarding.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        Some(self.forwarding.as_ref()?.membership.incarnation_name())
    }

    /// Applies an update at this replica, or forwards it to `owner`. A release without an owner is
    /// forwarded to all replicas.
    pub fn apply_or_forward(&self, update: PermitUpdate<'_>, owner: Option<&str>) {
        let owner = owner.filter(|owner| is_incarnation_name(owner));
        if !matches!(self.apply_and_route(&update, owner), UpdateTarget::Local(_)) {
            self.forward(update, owner, None);
        }
    }

    /// Like [`Engine::apply_or_forward`], but waits for the result: `true` if the id had permits.
    /// Returns `false` if the result is unknown after 250 ms.
    pub async fn apply_or_forward_and_wait(
        &self,
        told: PermitUpdate<'_>,
        owner: Option<&str>,
    ) -> bool {
        let owner = owner.filter(|owner| is_incarnation_name(owner));
        match self.apply_and_route(&told, owner) {
            UpdateTarget::Local(held) => return held,
            UpdateTarget::LocalAndOwner => {
                self.forward(told, owner, None);
                return true;
            }
            UpdateTarget::Remote => {}
        }
        let (answer, heard) = oneshot::channel();
        self.forward(told, owner, Some(answer));
        matches!(timeout(RESULT_TIMEOUT, heard).await, Ok(Ok(true)))
    }

    /// Applies an update that another replica forwarded. Stores an early release only if no replica
    /// knows the id.
    pub fn apply_forwarded(&self, update: &PermitUpdate<'_>) -> IdState {
        match update.event {
            PermitEvent::Released(how, rtt) => self.release_known(&update.id, how, rtt),
            PermitEvent::ReleasedUnknown(how, rtt) => {
                let held = self.release(&update.id, update.source, how, rtt);
                if held { IdState::HadPermits } else { IdState::Unknown }
            }
            PermitEvent::Renewed if self.renew(&update.id) => IdState::HadPermits,
            PermitEvent::Renewed => IdState::Unknown,
        }
    }

    /// Waits until all forwarded updates have arrived at their replicas, or the timeout passes.
    pub async fn flush_forwarded(&self, max_wait: Duration) {
        let Some(peers) = &self.forwarding else { return };
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        let arrived = async {
            while 1 < Arc::strong_count(&peers.in_transit) {
                ticks.tick().await;
            }
        };
        // Permits whose release has not arrived end by their deadlines.
        timeout(max_wait, arrived).await.ok();
    }

    fn apply_and_route(&self, update: &PermitUpdate<'_>, owner: Option<&str>) -> UpdateTarget {
        let (found, ours) = (self.apply_forwarded(update), self.owner());
        // Two replicas can know an id: the first rejected its request, or the reply was lost. Then
        // the request was retried at the second replica.
        let belongs_to_other = ours.is_some() && owner.is_some() && owner != ours;
        match found {
            IdState::HadPermits if belongs_to_other => UpdateTarget::LocalAndOwner,
            IdState::HadPermits => UpdateTarget::Local(true),
            _ if belongs_to_other => UpdateTarget::Remote,
            IdState::NoPermits => UpdateTarget::Local(false),
            IdState::Unknown if ours.is_none() => {
                UpdateTarget::Local(self.remember_early_release(update))
            }
            // A reply of this replica named the owner, so the request was here and has ended.
            IdState::Unknown if owner.is_some() => UpdateTarget::Local(false),
            IdState::Unknown if update.event == PermitEvent::Renewed => UpdateTarget::Local(false),
            IdState::Unknown if self.is_alone() => {
                UpdateTarget::Local(self.remember_early_release(update))
            }
            IdState::Unknown => UpdateTarget::Remote,
        }
    }

    fn is_alone(&self) -> bool {
        let seen = self.forwarding.as_ref().and_then(|peers| peers.membership.snapshot());
        seen.is_none_or(|seen| seen.peers.is_empty())
    }

    fn remember_early_release(&self, update: &PermitUpdate<'_>) -> bool {
        self.apply_forwarded(&update.clone().into_unknown()) == IdState::HadPermits
    }

    fn forward(
        &self,
        told: PermitUpdate<'_>,
        owner: Option<&str>,
        answer: Option<oneshot::Sender<bool>>,
    ) {
        let Some(peers) = &self.forwarding else { return };
        let (told, owner, way) =
            (told.into_owned(), owner.map(Box::from), Arc::clone(&peers.in_transit));
        let post = ForwardedRelease { update: told, owner, result_sender: answer, in_transit: way };
        let Err(refused) = peers.sender.try_send(post) else { return };
        ForwardingEvent::Dropped.emit();
        let post = refused.into_inner();
        if post.owner.is_none() {
            self.remember_early_release(&post.update);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_incarnation_has_its_own_opaque_name() {
        let of = incarnation_name("host-1", 1);
        assert!(is_incarnation_name(&of), "{of}");
        let others = [
            incarnation_name("host-1", 2),
            incarnation_name("host-2", 1),
            incarnation_name("host-1\0", 1),
            incarnation_name("", 1),
        ];
        assert!(others.iter().all(|other| *other != of));
        assert_eq!(incarnation_name("host-1", 1), of, "every replica comes to the same");
        for text in ["", "-", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(!is_incarnation_name(text), "{text}");
        }
    }
}
