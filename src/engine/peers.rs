//! Sends releases and renewals of permits to the replica that owns them.
//!
//! Guarantees:
//! - A release of a permit of this replica is applied at once.
//! - A release that names its owner goes to that incarnation, and is remembered nowhere.
//! - A release without an owner goes to all replicas; an unknown one is remembered.
//! - A release from another replica is not forwarded again.
//! - The queue of forwarded releases is bounded. A release beyond the bound is counted.
//!
//! Not covered:
//! - Calls between replicas and their authentication: see `edge::grpc::peer`.
//! - An owner that has left: its permits end by their deadlines.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher24;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Engine, Membership};
use crate::kernel::concurrency::Outcome;
use crate::kernel::units::Nanos;
use crate::telemetry::letters::LetterEvent;

/// The longest search for the owner of a release that names none.
pub const SEARCH: Nanos = Nanos(100 * Nanos::MILLI.0);

/// The longest wait for the result of a forwarded release: one search and two network hops.
const PATIENCE: Duration = Duration::from_millis(250);

/// The poll interval of [`Engine::pass_on_all`].
const LOOK: Duration = Duration::from_millis(2);

/// The capacity of the forwarding queue: a burst of a
/// tenth of a second at 160,000 releases per second.
const WAITING: usize = 16_384;

/// A release or renewal of one request's permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told<'i> {
    /// The request id.
    pub id: Cow<'i, str>,
    /// The event to apply.
    pub about: About,
    /// The address that sent it, for the bounds on early releases.
    pub source: Option<IpAddr>,
}

/// The kind of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The request has ended. Contains the upstream latency if it was measured.
    Ended(Outcome, Option<Nanos>),
    /// The request has ended, and no replica knows its id.
    UnknownEverywhere(Outcome, Option<Nanos>),
    /// The request is still active.
    GoesOn,
}

/// The state of a request id at this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The id had permits.
    Held,
    /// The id had no permits: its request was rejected, or needed none.
    Nothing,
    /// The id is unknown.
    Unknown,
}

/// The replica that settles an update.
enum Settled {
    /// This replica. `true` if the id had permits.
    Here(bool),
    /// This replica, where the id had permits, and the owner as well.
    Both,
    /// Another replica.
    There,
}

/// An update on its way to another replica.
#[derive(Debug)]
pub struct Post {
    /// The update.
    pub told: Told<'static>,
    /// The name of the owner's incarnation. `None`: send it to all replicas.
    pub owner: Option<Box<str>>,
    /// Receives `true` if the id had permits.
    pub answer: Option<oneshot::Sender<bool>>,
    /// Dropped when the update has arrived or was given up.
    pub way: Arc<()>,
}

/// The queue of updates for other replicas.
#[derive(Debug)]
pub(super) struct Peers {
    membership: Arc<Membership>,
    post: mpsc::Sender<Post>,
    /// Each update on its way has a reference to it.
    way: Arc<()>,
}

/// Returns the public name of a replica incarnation: 16 hexadecimal
/// digits of a hash, which reveal neither name nor number.
#[must_use]
pub fn name(node: &str, incarnation: u64) -> Box<str> {
    let mut bytes = node.as_bytes().to_vec();
    // A separator: a node name contains no zero byte.
    bytes.push(0);
    bytes.extend(incarnation.to_be_bytes());
    format!("{:016x}", SipHasher24::new().hash(&bytes)).into()
}

/// Returns `true` if `text` has the format of [`name`].
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl<'i> Told<'i> {
    /// Creates the release of `id`.
    #[must_use]
    pub fn ended(id: &'i str, source: Option<IpAddr>, how: Outcome, rtt: Option<Nanos>) -> Self {
        Self { id: Cow::Borrowed(id), about: About::Ended(how, rtt), source }
    }

    /// Creates the renewal of `id`.
    #[must_use]
    pub const fn goes_on(id: &'i str) -> Self {
        Self { id: Cow::Borrowed(id), about: About::GoesOn, source: None }
    }

    /// Marks a release as unknown to all replicas.
    #[must_use]
    pub fn unknown_everywhere(self) -> Self {
        let about = match self.about {
            About::Ended(how, rtt) => About::UnknownEverywhere(how, rtt),
            other => other,
        };
        Self { about, ..self }
    }

    fn into_owned(self) -> Told<'static> {
        Told { id: Cow::Owned(self.id.into_owned()), ..self }
    }
}

impl Engine {
    /// Enables forwarding, and returns the queue of forwarded releases. Returns no queue
    /// if the store belongs to this replica alone, because there is no fleet then.
    #[must_use]
    pub fn with_peers(mut self) -> (Self, Option<mpsc::Receiver<Post>>) {
        let Some(local) = self.local() else { return (self, None) };
        let (post, posted) = mpsc::channel(WAITING);
        self.peers =
            Some(Peers { membership: Arc::clone(&local.membership), post, way: Arc::default() });
        (self, Some(posted))
    }

    /// Returns this replica's name in replies, if forwarding is enabled.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        Some(self.peers.as_ref()?.membership.name())
    }

    /// Applies an update here, or forwards it to `owner`.
    /// A release without an owner is sent to all replicas.
    pub fn tell(&self, told: Told<'_>, owner: Option<&str>) {
        let owner = owner.filter(|owner| is_name(owner));
        if !matches!(self.settle(&told, owner), Settled::Here(_)) {
            self.pass_on(told, owner, None);
        }
    }

    /// Does the same, and returns `true` if the id had permits.
    /// Returns `false` if the result is unknown after 250 ms.
    pub async fn tell_and_hear(&self, told: Told<'_>, owner: Option<&str>) -> bool {
        let owner = owner.filter(|owner| is_name(owner));
        match self.settle(&told, owner) {
            Settled::Here(held) => return held,
            Settled::Both => {
                self.pass_on(told, owner, None);
                return true;
            }
            Settled::There => {}
        }
        let (answer, heard) = oneshot::channel();
        self.pass_on(told, owner, Some(answer));
        matches!(timeout(PATIENCE, heard).await, Ok(Ok(true)))
    }

    /// Applies an update from another replica. Remembers a release only if no replica knows its id.
    pub fn hear(&self, told: &Told<'_>) -> Found {
        match told.about {
            About::Ended(how, rtt) => self.release_known(&told.id, how, rtt),
            About::UnknownEverywhere(how, rtt) => {
                let held = self.release(&told.id, told.source, how, rtt);
                if held { Found::Held } else { Found::Unknown }
            }
            About::GoesOn if self.renew(&told.id) => Found::Held,
            About::GoesOn => Found::Unknown,
        }
    }

    /// Waits until all forwarded updates have arrived, at most for `patience`.
    pub async fn pass_on_all(&self, patience: Duration) {
        let Some(peers) = &self.peers else { return };
        let mut ticks = tokio::time::interval(LOOK);
        let arrived = async {
            while 1 < Arc::strong_count(&peers.way) {
                ticks.tick().await;
            }
        };
        // The remaining permits end by their deadlines.
        timeout(patience, arrived).await.ok();
    }

    fn settle(&self, told: &Told<'_>, owner: Option<&str>) -> Settled {
        let (found, ours) = (self.hear(told), self.owner());
        // Two replicas can know an id: the first rejected the request
        // or its reply was lost, and the retry reached another replica.
        let is_anothers = ours.is_some() && owner.is_some() && owner != ours;
        match found {
            Found::Held if is_anothers => Settled::Both,
            Found::Held => Settled::Here(true),
            _ if is_anothers => Settled::There,
            Found::Nothing => Settled::Here(false),
            Found::Unknown if ours.is_none() => Settled::Here(self.remember(told)),
            // The caller got this replica's name with a reply, so the request was here and is over.
            Found::Unknown if owner.is_some() => Settled::Here(false),
            Found::Unknown if told.about == About::GoesOn => Settled::Here(false),
            Found::Unknown if self.is_alone() => Settled::Here(self.remember(told)),
            Found::Unknown => Settled::There,
        }
    }

    fn is_alone(&self) -> bool {
        let seen = self.peers.as_ref().and_then(|peers| peers.membership.seen());
        seen.is_none_or(|seen| seen.peers.is_empty())
    }

    fn remember(&self, told: &Told<'_>) -> bool {
        self.hear(&told.clone().unknown_everywhere()) == Found::Held
    }

    fn pass_on(&self, told: Told<'_>, owner: Option<&str>, answer: Option<oneshot::Sender<bool>>) {
        let Some(peers) = &self.peers else { return };
        let (told, owner, way) = (told.into_owned(), owner.map(Box::from), Arc::clone(&peers.way));
        let post = Post { told, owner, answer, way };
        let Err(refused) = peers.post.try_send(post) else { return };
        LetterEvent::Dropped.emit();
        let post = refused.into_inner();
        if post.owner.is_none() {
            self.remember(&post.told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_incarnation_has_its_own_opaque_name() {
        let of = name("host-1", 1);
        assert!(is_name(&of), "{of}");
        let others = [name("host-1", 2), name("host-2", 1), name("host-1\0", 1), name("", 1)];
        assert!(others.iter().all(|other| *other != of));
        assert_eq!(name("host-1", 1), of, "every replica comes to the same");
        for text in ["", "-", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(!is_name(text), "{text}");
        }
    }
}
