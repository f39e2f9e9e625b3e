//! Permits by the ids that proxies mint, where asking and giving back are two calls.
//!
//! Guarantees: an id holds what it was given once; a release that comes before its acquire is
//! remembered for a while, and what the acquire then takes is given back at once. What is remembered
//! is bounded for each source.
//! Leaves out: how a call says what it is, which is the edge's.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use super::ceilings::Keep;
use super::{Admitted, Engine, Permits, Refusal};
use crate::kernel::concurrency::register::{Acquired, Bounds, Released};
use crate::kernel::concurrency::{Outcome, Register};
use crate::kernel::decision::Question;
use crate::kernel::units::Nanos;

/// How long after its deadline at most an id is forgotten.
const SWEEP: Duration = Duration::from_secs(1);

/// Early releases that are remembered: ten seconds' worth of one busy proxy's denials, whose
/// releases come as well and find nothing.
const BOUNDS: Bounds = Bounds { per_source: 50_000, total: 200_000, keep: Nanos::from_secs(10) };

/// Where a release comes from; nobody can tell apart those without an address.
type Source = Option<IpAddr>;

/// What ids hold.
#[derive(Debug)]
pub(super) struct Ids(Mutex<Register<Box<str>, Source, Permits>>);

impl Ids {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Register::new(BOUNDS)))
    }
}

impl Engine {
    /// As [`Engine::admit`], but only `covered`, a part of `question`, meets ceilings, and the permits
    /// are held by `id` until it is released or their `max_duration` is over. `descriptor` is where
    /// the id stands, for whom it is refused to.
    ///
    /// # Errors
    /// As [`Engine::admit`]; [`Refusal::BadId`] where the id holds something already.
    pub async fn acquire(
        &self,
        id: (&str, usize),
        covered: &Question<'_>,
        question: &Question<'_>,
        patience: Option<Nanos>,
    ) -> Result<Admitted, Refusal> {
        let admitted = self.admit_under(covered, question, patience, Keep::MaxDuration).await?;
        let (id, descriptor) = id;
        let (answer, permits) = match admitted {
            Admitted::Decided(answer, permits) if !permits.is_empty() => (answer, permits),
            other => return Ok(other),
        };
        let now = self.clock().now();
        let until = now.plus(self.longest_keep(covered));
        match self.ids.0.lock().acquire(now, id.into(), until, permits) {
            // Whose release came first is over: what it took is given back here.
            Acquired::Held | Acquired::Over(_) => Ok(Admitted::Decided(answer, Permits::default())),
            Acquired::Taken(_) => {
                let why = "this id is in flight already: one id is for one request";
                Err(Refusal::BadId { descriptor, why })
            }
        }
    }

    /// Gives back what `id` holds, or remembers that it is over. `rtt` is the request's latency where
    /// the proxy measured it.
    pub fn release(&self, id: &str, source: Option<IpAddr>, outcome: Outcome, rtt: Option<Nanos>) {
        let released = self.ids.0.lock().release(self.clock().now(), &id.into(), &source);
        if let Released::Held(permits) = released {
            permits.finish(outcome, rtt);
        }
    }

    /// Takes back for ever what is over its deadline.
    pub async fn expire_on(&self) {
        tokio::join!(self.ceilings.run(), self.forget_ids());
    }

    async fn forget_ids(&self) {
        let mut ticks = tokio::time::interval(SWEEP);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            while self.ids.0.lock().expire(self.clock().now()).is_some() {}
        }
    }
}
