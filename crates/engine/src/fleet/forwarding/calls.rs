//! Applies and forwards permit updates.

use super::{
    ForwardedRelease, ForwardingQueue, IdState, POLL_INTERVAL, PermitEvent, PermitUpdate,
    QUEUE_CAPACITY, RESULT_TIMEOUT, UpdateTarget,
};
use crate::Engine;
use crate::fleet::incarnation::is_incarnation_name;
use crate::telemetry::event::{Event as _, ForwardingEvent};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

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
