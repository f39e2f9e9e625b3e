//! Counters in a Redis that replicas share.
//!
//! Guarantees: one script call per question, whatever the number of its charges, and one for all
//! questions that came while another was under way; the script is the
//! kernel's arithmetic, so that every answer is the one a single process would give. Every charge is
//! answered within the deadline, by Redis or with a [`Cause`]; a charge is sent once, and never again after its answer was given up; Redis' own clock rules; a process
//! starts, serves and reconnects for ever while there is no Redis; no text made here has the
//! password in it.
//! Leaves out: what the caller gets for a charge that failed (`engine::degrade`); TLS, Sentinel and
//! Cluster; more than one connection, which Redis' one thread would not answer faster.

mod batch;
pub mod beat;
mod breaker;
pub mod call;
pub mod codec;
mod connection;

use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::fleet::{Beat, Fleet};
use super::{Backend, Cause, Charges, Outcome, Outcomes, Reply};
use crate::kernel::units::Nanos;
use batch::Calls;
use call::Share;
use codec::Answer;
use connection::{Link, Live};

/// The script that puts the hits of questions to their counters; its protocol stands at its top.
pub const CHARGE: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/plan.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/charge.lua"),
);

/// Which Redis, as whom, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub place: Place,
    /// The ACL user.
    pub user: Option<String>,
    /// Its password.
    pub password: Option<Password>,
    /// The number of the database.
    pub database: u8,
    /// What every key begins with.
    pub key_prefix: String,
    /// How long one call may take. At least a millisecond, which is what timers can tell.
    pub deadline: Duration,
    /// Any number, another one in every process: where its jitter begins.
    pub jitter: u64,
    /// Whether questions travel together.
    pub batching: Batching,
}

/// Whether questions that come while a call is under way share the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// They do.
    #[default]
    On,
    /// Every question has a call of its own: only to measure what the other way saves.
    Off,
}

/// Where a Redis listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A host's name or address, and a port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// A password; its debug form is blank.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// The shared backend.
#[derive(Debug)]
pub struct Redis {
    link: Arc<Link>,
    calls: Arc<Calls>,
    key_prefix: String,
}

/// A single Redis is one place for all scripts.
const EVERY_SLOT: u16 = 0;

impl Redis {
    /// A backend that is not connected yet, and the task that connects it and keeps it so. Without
    /// that task running every charge fails.
    pub fn new(options: Options) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let link = Arc::new(Link::default());
        let lanes = NonZeroU16::MIN;
        let calls = Calls::new(Arc::clone(&link), options.deadline, options.batching, lanes);
        let key_prefix = options.key_prefix.clone();
        let redis = Self { link: Arc::clone(&link), calls, key_prefix };
        (redis, connection::keep(link, options))
    }

    async fn ask(&self, charges: &Charges) -> Outcomes {
        let question = codec::pack(charges, self.key_prefix.as_bytes());
        let answer = self.calls.ask(EVERY_SLOT, question).await;
        answer.and_then(|said| outcomes(charges, &said)).unwrap_or_else(|c| failed(charges, c))
    }
}

impl Redis {
    async fn tell(&self, live: Arc<Live>, beat: &Beat) -> Result<Fleet, Cause> {
        let key = beat::key(&self.key_prefix);
        beat::fleet(live.run(beat::SCRIPT, key, beat::args(beat)).await?)
    }
}

/// What was `said` of `charges`.
fn outcomes(charges: &Charges, said: &Share) -> Result<Outcomes, Cause> {
    let answers = codec::read(charges, said).map_err(|refused| {
        tracing::error!(error = %refused, "redis answered what the script does not");
        Cause::NotUnderstood
    })?;
    let outcome = |answer| match answer {
        Answer::Outcome(outcome) => outcome,
        Answer::Stale(store_now) => Outcome::Stale(store_now),
        Answer::Unreadable => Outcome::Failed(Cause::WrongType),
    };
    Ok(answers.into_iter().map(outcome).collect())
}

impl Backend for Redis {
    fn charge<'a>(&'a self, _now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        if charges.list.is_empty() {
            return Reply::Now(Outcomes::new());
        }
        if call::MOST_CHARGES < charges.list.len() {
            return Reply::Now(failed(charges, Cause::Overloaded));
        }
        match self.link.live() {
            Ok(_) => Reply::Later(Box::pin(self.ask(charges))),
            Err(cause) => Reply::Now(failed(charges, cause)),
        }
    }

    fn beat<'a>(&'a self, beat: &'a Beat) -> Reply<'a, Result<Fleet, Cause>> {
        match self.link.live() {
            Ok(live) => Reply::Later(Box::pin(self.tell(live, beat))),
            Err(cause) => Reply::Now(Err(cause)),
        }
    }

    fn trouble(&self) -> Option<Cause> {
        self.link.live().err()
    }
}

fn failed(charges: &Charges, cause: Cause) -> Outcomes {
    charges.list.iter().map(|_| Outcome::Failed(cause)).collect()
}
