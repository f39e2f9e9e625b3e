//! Counters in a Redis that replicas share.
//!
//! Guarantees: one script call per question, whatever the number of its charges; the script is the
//! kernel's arithmetic, so that every answer is the one a single process would give. Every charge is
//! answered within the deadline, by Redis or with a [`Cause`]; a charge is sent once, and never again after its answer was given up; Redis' own clock rules; a process
//! starts, serves and reconnects for ever while there is no Redis; no text made here has the
//! password in it.
//! Leaves out: what the caller gets for a charge that failed (`engine::degrade`); more than one
//! connection to one process, which Redis' one thread would not answer faster.

mod breaker;
mod client;
mod cluster;
pub mod codec;
mod connection;
mod files;
pub mod inspect;
mod keep;
mod options;
mod pauses;
mod route;
mod sentinel;
mod slots;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Cause, Charges, Outcome, Outcomes, Reply};
use crate::kernel::units::Nanos;
use codec::Answer;
use connection::Live;
pub use options::{Address, Identity, Options, Password, Place, Sentinels, Tls};
use route::Route;

/// The script that puts one question's hits to their counters; its protocol stands at its top.
pub const CHARGE: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/charge.lua"),
);

/// The shared backend.
#[derive(Debug)]
pub struct Redis {
    route: Route,
    key_prefix: String,
    deadline: Duration,
}

impl Redis {
    /// A backend that is not connected yet, and the task that connects it and keeps it so. Without
    /// that task running every charge fails.
    pub fn new(options: Options) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (key_prefix, deadline) = (options.key_prefix.clone(), options.deadline);
        let (route, kept) = Route::new(options);
        (Self { route, key_prefix, deadline }, kept)
    }

    /// The slot of all its keys: they are of one domain.
    fn slot(&self, charges: &Charges) -> u16 {
        let first = charges.list.first().filter(|_| self.route.is_clustered());
        first.map_or(0, |charge| {
            self.route.slot_of(&codec::key(&charge.key, self.key_prefix.as_bytes()))
        })
    }

    async fn ask(&self, live: Arc<Live>, charges: &Charges) -> Outcomes {
        let called = live.call(codec::encode(charges, self.key_prefix.as_bytes(), None));
        let answer = match tokio::time::timeout(self.deadline, called).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(Cause::Late),
        };
        live.saw(answer.as_ref().err().copied());
        answer.and_then(|reply| outcomes(charges, &reply)).unwrap_or_else(|c| failed(charges, c))
    }
}

/// What `reply` says of `charges`.
fn outcomes(charges: &Charges, reply: &[i64]) -> Result<Outcomes, Cause> {
    let answers = codec::decode(charges, reply).map_err(|refused| {
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
        match self.route.live(self.slot(charges)) {
            Ok(live) => Reply::Later(Box::pin(self.ask(live, charges))),
            Err(cause) => Reply::Now(failed(charges, cause)),
        }
    }

    fn trouble(&self) -> Option<Cause> {
        self.route.trouble()
    }
}

fn failed(charges: &Charges, cause: Cause) -> Outcomes {
    charges.list.iter().map(|_| Outcome::Failed(cause)).collect()
}
