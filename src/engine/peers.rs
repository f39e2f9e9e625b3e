//! Ends of requests that reach another replica than the one that holds their permits.
//!
//! Guarantees: what is known here is settled here and at once, whoever is named. What names its owner goes to that life of
//! that replica, known here or not, and leaves nothing behind anywhere; an end that names nobody is asked of all, and
//! remembered only where none of them knows it. What another passed on goes no further. What waits to be passed on is
//! bounded; what finds no room is counted.
//! Leaves out: how a replica is called and believed, which is `edge::grpc::peer`'s. An owner that is gone: the permit's
//! deadline is its end.

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

/// For how long an end that names no owner is looked for.
pub const SEARCH: Nanos = Nanos(100 * Nanos::MILLI.0);

/// How long whoever wants to know what became of an end waits for that: a search and two ways.
const PATIENCE: Duration = Duration::from_millis(250);

/// How often it is looked whether all has arrived.
const LOOK: Duration = Duration::from_millis(2);

/// What may wait to be sorted by owner: a burst of a tenth of a second at 160,000 ends a second.
const WAITING: usize = 16_384;

/// What is told of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told<'i> {
    /// Its id.
    pub id: Cow<'i, str>,
    /// What.
    pub about: About,
    /// Where it was told, for the bounds on what is remembered.
    pub source: Option<IpAddr>,
}

/// What there is to tell of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// It has ended, so, with the upstream's latency where that was measured.
    Ended(Outcome, Option<Nanos>),
    /// The same, and no replica knew it.
    UnknownEverywhere(Outcome, Option<Nanos>),
    /// It goes on.
    GoesOn,
}

/// What is known of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It held permits.
    Held,
    /// It held none, as one that was turned away.
    Nothing,
    /// Nothing is known of it.
    Unknown,
}

/// Where what is told is settled.
enum Settled {
    /// Here, and whether anything was held.
    Here(bool),
    /// Here, where something was held, and at its owner.
    Both,
    /// Elsewhere, if anywhere.
    There,
}

/// Something to be told to another replica.
#[derive(Debug)]
pub struct Post {
    /// What.
    pub told: Told<'static>,
    /// Whom; all of them where nobody is named.
    pub owner: Option<Box<str>>,
    /// Who waits to hear whether anything was held.
    pub answer: Option<oneshot::Sender<bool>>,
    /// Kept until it has arrived, or never will.
    pub way: Arc<()>,
}

/// The way to other replicas.
#[derive(Debug)]
pub(super) struct Peers {
    membership: Arc<Membership>,
    post: mpsc::Sender<Post>,
    /// Held by each that is on its way.
    way: Arc<()>,
}

/// The name of one life of a replica, as answers show it: 16 hexadecimal digits, which tell strangers nothing else.
#[must_use]
pub fn name(node: &str, incarnation: u64) -> Box<str> {
    let mut bytes = node.as_bytes().to_vec();
    // A name has no zero byte.
    bytes.push(0);
    bytes.extend(incarnation.to_be_bytes());
    format!("{:016x}", SipHasher24::new().hash(&bytes)).into()
}

/// Whether `text` can be the name of a replica's life.
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl<'i> Told<'i> {
    /// That `id` has ended, told by `source`.
    #[must_use]
    pub fn ended(id: &'i str, source: Option<IpAddr>, how: Outcome, rtt: Option<Nanos>) -> Self {
        Self { id: Cow::Borrowed(id), about: About::Ended(how, rtt), source }
    }

    /// That `id` goes on.
    #[must_use]
    pub const fn goes_on(id: &'i str) -> Self {
        Self { id: Cow::Borrowed(id), about: About::GoesOn, source: None }
    }

    /// The same, and that no replica knew it.
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
    /// The same engine, one of those that pass ends on to each other, and what is to be passed on. Nothing where its store
    /// is its own, and with it the fleet.
    #[must_use]
    pub fn with_peers(mut self) -> (Self, Option<mpsc::Receiver<Post>>) {
        let Some(local) = self.local() else { return (self, None) };
        let (post, posted) = mpsc::channel(WAITING);
        self.peers =
            Some(Peers { membership: Arc::clone(&local.membership), post, way: Arc::default() });
        (self, Some(posted))
    }

    /// How answers name this replica, where others pass ends on to it.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        Some(self.peers.as_ref()?.membership.name())
    }

    /// Heeds what is told, here or, by way of others, at `owner`. Without one an end is looked for at all replicas.
    pub fn tell(&self, told: Told<'_>, owner: Option<&str>) {
        let owner = owner.filter(|owner| is_name(owner));
        if !matches!(self.settle(&told, owner), Settled::Here(_)) {
            self.pass_on(told, owner, None);
        }
    }

    /// The same, and says whether anything was held. False where that could not be learnt in a quarter of a second.
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

    /// Heeds what another replica tells; only what is known nowhere is remembered.
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

    /// Waits until all that was told has arrived where it belongs, for at most `patience`.
    pub async fn pass_on_all(&self, patience: Duration) {
        let Some(peers) = &self.peers else { return };
        let mut ticks = tokio::time::interval(LOOK);
        let arrived = async {
            while 1 < Arc::strong_count(&peers.way) {
                ticks.tick().await;
            }
        };
        // What has not arrived by then is free when its deadline is over.
        timeout(patience, arrived).await.ok();
    }

    fn settle(&self, told: &Told<'_>, owner: Option<&str>) -> Settled {
        let (found, ours) = (self.hear(told), self.owner());
        // An id may be known at two: one turned it away, or its answer was lost, and the next that was asked let it in.
        let is_anothers = ours.is_some() && owner.is_some() && owner != ours;
        match found {
            Found::Held if is_anothers => Settled::Both,
            Found::Held => Settled::Here(true),
            _ if is_anothers => Settled::There,
            Found::Nothing => Settled::Here(false),
            Found::Unknown if ours.is_none() => Settled::Here(self.remember(told)),
            // Whose name is known was answered, and so it has been here and is over.
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
    fn a_life_has_a_name_of_its_own_and_it_tells_nothing() {
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
