//! The task that keeps one connection open.
//!
//! Guarantees:
//! - A lost connection is replaced at once, then with jittered pauses, forever.
//! - So is a read-only or loading one, and one to a demoted primary.
//! - Nothing from the old connection is sent on the new one.
//! - The address of the primary is looked up for every connection.
//! - A silent connection is replaced after [`PATIENCE`].
//! - Each reason for an outage is logged once, until a call succeeds.
//! - Refused writes are logged alike, but the connection stays open.
//!
//! Not covered:
//! - Calls over the connection ([`super::connection`]).

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike as _;
use fred::types::Value;
use tokio::time::{sleep, timeout};

use super::Cause;
use super::breaker::LATE_IN_A_ROW;
use super::client::{At, Opened, PATIENCE, in_words, run};
use super::cluster::Cluster;
use super::connection::{Link, Live, Refused, Refusing};
use super::options::Options;
use super::pauses::Pauses;
use super::sentinel::Watchers;

/// The longest pause between two probes of a slow Redis.
const PROBE_PAUSE: Duration = Duration::from_millis(100);

/// The time without a refusal after which Redis accepts writes again. Each replica
/// writes its membership record once a second. A call that only reads proves nothing.
const WILLING: Duration = Duration::from_secs(3);

/// The most logged reasons that are remembered. An unreachable store has only a few.
const MOST_REASONS: usize = 16;

#[derive(Debug)]
pub(super) enum Whereabouts {
    /// A configured address.
    Fixed(At),
    /// A node, as long as the Cluster lists it.
    Node(At, Weak<Cluster>),
    /// The primary that sentinels name.
    Named(Watchers),
}

impl Whereabouts {
    async fn find(&self) -> Result<At, Error> {
        match self {
            Self::Fixed(at) | Self::Node(at, _) => Ok(at.clone()),
            Self::Named(watchers) => watchers.primary().await.map(At::Tcp),
        }
    }

    /// Waits until the process is at another address.
    async fn leaves(&self, at: &At, pauses: &mut Pauses) {
        match (self, at) {
            (Self::Named(watchers), At::Tcp(address)) => watchers.leaves(address, pauses).await,
            _ => std::future::pending().await,
        }
    }

    /// The address, if no query is needed.
    const fn known(&self) -> Option<&At> {
        match self {
            Self::Fixed(at) | Self::Node(at, _) => Some(at),
            // Errors of sentinels contain their own addresses.
            Self::Named(_) => None,
        }
    }

    fn cluster(&self) -> Option<Weak<Cluster>> {
        match self {
            Self::Node(_, cluster) => Some(Weak::clone(cluster)),
            Self::Fixed(_) | Self::Named(_) => None,
        }
    }

    /// Requests a slot query, because another node may own the slots now.
    fn doubt(&self) {
        if let Some(cluster) = self.cluster().and_then(|cluster| cluster.upgrade()) {
            cluster.doubt();
        }
    }
}

/// Keeps `link` connected; never returns.
pub(super) async fn keep(link: Arc<Link>, place: Whereabouts, options: Arc<Options>, jitter: u64) {
    let mut pauses = Pauses::new(jitter);
    let mut told = Told::default();
    loop {
        match open(&place, &options).await {
            Ok((at, opened, live)) => {
                let live = Arc::new(live);
                let _counted = options.connections.hold();
                link.set(Arc::clone(&live));
                if !told.is_out() {
                    told.answers(&at);
                }
                let mut watched = Watched { link: &link, live: &live, opened, place: &place };
                let why = watched.until_useless(&at, &options, &mut pauses, &mut told).await;
                link.lose();
                told.is_lost(why, &at);
            }
            Err(error) => {
                link.cannot_be_had(&error);
                told.cannot_be_had(&in_words(&error), place.known());
            }
        }
        place.doubt();
        sleep(pauses.next()).await;
    }
}

#[derive(Debug, Default)]
struct Told {
    /// The logged reasons of the current outage; empty while the store replies.
    reasons: Vec<String>,
}

impl Told {
    /// Returns `true` if an outage was logged, but not its end.
    const fn is_out(&self) -> bool {
        !self.reasons.is_empty()
    }

    fn answers(&mut self, at: &At) {
        tracing::info!(%at, "redis answers");
        self.reasons.clear();
    }

    fn is_lost(&mut self, why: &'static str, at: &At) {
        if self.is_new(why) {
            tracing::warn!(why, %at, "redis is lost: on_backend_failure answers until it is back");
        }
    }

    fn refuses(&mut self, refusing: &Refusing, at: &At) {
        let lets_go = refusing.what != Refused::Expiry;
        if !self.is_new(if lets_go { refusing.cause.as_str() } else { "EXPIRE" }) {
            return;
        }
        if !lets_go {
            tracing::warn!(error = %refusing.why, %at, "redis lets no counter expire, and keeps all of them for ever: let the user run EXPIRE");
        } else if refusing.cause == Cause::OutOfMemory {
            tracing::warn!(%at, "redis is out of memory (maxmemory): on_backend_failure answers what it cannot count");
        } else {
            tracing::warn!(error = %refusing.why, %at, "redis refuses to count: on_backend_failure answers");
        }
    }

    fn cannot_be_had(&mut self, why: &str, at: Option<&At>) {
        if self.is_new(why) {
            let at = at.map(tracing::field::display);
            tracing::warn!(error = %why, at, "redis cannot be had: on_backend_failure answers");
        }
    }

    /// Remembers `why`, and returns `true` if it is new. An
    /// outage of an hour would otherwise log ten thousand lines.
    fn is_new(&mut self, why: &str) -> bool {
        if self.reasons.iter().any(|said| said == why) {
            return false;
        }
        if MOST_REASONS <= self.reasons.len() {
            self.reasons.remove(0);
        }
        self.reasons.push(why.to_owned());
        true
    }
}

async fn open(place: &Whereabouts, options: &Options) -> Result<(At, Opened, Live), Error> {
    let at = place.find().await?;
    let opened = Opened::new(&at, options.login()).await?;
    if let Whereabouts::Named(_) = place {
        is_primary(&opened).await?;
    }
    let live = Live::new(opened.client().clone(), at.clone(), place.cluster());
    let live = timeout(PATIENCE, live).await;
    let live = live.unwrap_or_else(|_| Err(Error::new(ErrorKind::Timeout, "it is silent")))?;
    Ok((at, opened, live))
}

/// Sentinels name a new primary shortly before its promotion,
/// and an old one for some time after its failure.
async fn is_primary(opened: &Opened) -> Result<(), Error> {
    let Value::Array(role) = run(opened.client(), &["ROLE"]).await? else {
        return Err(Error::new(ErrorKind::Protocol, "an answer to ROLE that is none"));
    };
    match role.first().and_then(Value::as_string) {
        Some(role) if role == "master" => Ok(()),
        _ => Err(Error::new(ErrorKind::Routing, "the sentinels name a primary that is none")),
    }
}

struct Watched<'a> {
    link: &'a Link,
    live: &'a Live,
    opened: Opened,
    place: &'a Whereabouts,
}

impl Watched<'_> {
    /// Returns the reason when the connection must be replaced.
    async fn until_useless(
        &mut self,
        at: &At,
        options: &Options,
        pauses: &mut Pauses,
        told: &mut Told,
    ) -> &'static str {
        let deadline = options.deadline;
        let mut telling = pin!(self.opened.telling(options.login(), at));
        let mut proves_itself = pin!(sleep(PATIENCE));
        let mut is_proven = false;
        let mut looking = pauses.clone();
        let mut leaves = pin!(self.place.leaves(at, &mut looking));
        let mut doubts = Box::pin(looks_behind_calls(self.link, self.live, deadline));
        loop {
            tokio::select! {
                () = self.opened.closed() => return "the connection was closed",
                () = &mut telling => {}
                () = self.live.useless() => return "it may not write, or is not ready",
                () = &mut doubts => {}
                () = &mut leaves => return "the sentinels name another primary",
                refusing = self.live.refused() => {
                    is_proven = false;
                    proves_itself.set(sleep(WILLING));
                    self.link.mistrust(refusing.cause);
                    told.refuses(&refusing, at);
                }
                // Counting succeeded all along. Only a period
                // without a refused `EXPIRE` proves the recovery.
                () = self.live.let_go() => proves_itself.set(sleep(WILLING)),
                () = &mut proves_itself, if !is_proven && !self.live.is_keeping_all() => {
                    is_proven = true;
                    pauses.start_anew();
                    self.link.believe();
                }
                // A read-only Redis also connects, so only a successful call ends the outage.
                () = self.live.served(), if is_proven && told.is_out() => told.answers(at),
                () = self.link.breaker.opened() => {
                    self.place.doubt();
                    tokio::select! {
                        () = &mut leaves => return "the sentinels name another primary",
                        again = answers_again(self.live, deadline, pauses) => if !again {
                            return "it was silent";
                        },
                    }
                    self.link.breaker.close();
                    tracing::info!(at = %at, "redis answers in time again");
                }
            }
        }
    }
}

/// Probes Redis after a caller abandoned a call; never returns. The caller reports no failure,
/// and its timeout may be shorter than the deadline. Probes queue behind the call, so they
/// show if the store is late. [`LATE_IN_A_ROW`] late probes open the breaker, like late calls.
async fn looks_behind_calls(link: &Link, live: &Live, deadline: Duration) {
    loop {
        live.doubted().await;
        let mut late = 0;
        while late < LATE_IN_A_ROW
            && timeout(deadline, live.client.ping::<Value>(None)).await.is_err()
        {
            late += 1;
        }
        if late == LATE_IN_A_ROW {
            link.is_silent();
        }
    }
}

/// Probes until Redis replies in time (`true`) or is silent
/// (`false`). Sends one probe at a time; a probe charges nothing.
async fn answers_again(live: &Live, deadline: Duration, pauses: &mut Pauses) -> bool {
    loop {
        let mut probe = pin!(live.client.ping::<Value>(None));
        match timeout(deadline, &mut probe).await {
            Ok(answer) => return answer.is_ok(),
            Err(_elapsed) => match timeout(PATIENCE, probe).await {
                Ok(Ok(_late)) => {}
                Ok(Err(_)) | Err(_) => return false,
            },
        }
        sleep(pauses.up_to(PROBE_PAUSE)).await;
    }
}
