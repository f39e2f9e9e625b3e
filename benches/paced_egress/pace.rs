//! The pace of the kernel as a controller of the model.

use std::fmt;

use sluicegate_kernel::concurrency::adaptive::Hundredths;
use sluicegate_kernel::concurrency::limiter::{
    Limiter, LimiterConfig, LimiterEffect, LimiterEvent,
};
use sluicegate_kernel::concurrency::pace::{AdaptivePace, Pace, PaceConfig};
use sluicegate_kernel::concurrency::{Permit, RequestOutcome, Requester};
use sluicegate_kernel::units::Nanos;

use super::model::{self, Played, Shock};

/// `increase` in requests per second, `decrease` in percent.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub increase: u32,
    pub decrease: u32,
}

/// The defaults.
pub const CHOSEN: Settings = Settings { increase: 1, decrease: 80 };

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pace +{} x{:.1}", self.increase, f64::from(self.decrease) / 100.0)
    }
}

/// Returns a limiter from `start` to `max` requests per second.
pub fn limiter(settings: Settings, (start, max): (u32, u32)) -> Limiter {
    let Settings { increase, decrease } = settings;
    let adaptive = AdaptivePace { min: 1, max, increase, decrease: Hundredths(decrease) };
    let pace = Some(PaceConfig { unit: Nanos::SECOND, adaptive: Some(adaptive) });
    Limiter::new(&LimiterConfig { pace, ..LimiterConfig::fixed(start) }, 0)
}

pub fn next_turn(limiter: &Limiter) -> Nanos {
    limiter.pace().map_or(Nanos(0), Pace::next_turn)
}

pub fn rate(limiter: &Limiter) -> f64 {
    limiter.pace().map_or(0.0, |pace| pace.millis_per_second() as f64 / 1e3)
}

/// Takes the turn that is due at `now`.
pub fn take(limiter: &mut Limiter, now: Nanos) -> Permit {
    let acquire = LimiterEvent::Acquire { lifetime: None, timeout: Nanos(0), by: Requester::ANY };
    match limiter.step(now, acquire)[..] {
        [LimiterEffect::Admit(permit)] => permit,
        ref other => unreachable!("{other:?}"),
    }
}

pub fn release(limiter: &mut Limiter, now: Nanos, permit: Permit, is_refused: bool) {
    let outcome = if is_refused { RequestOutcome::Dropped } else { RequestOutcome::Success };
    limiter.step(now, LimiterEvent::Release { permit, outcome, rtt: None });
}

/// The result of [`controller`], from 1 request per second.
pub fn in_the_model(trace: &[Shock], settings: Settings) -> Played {
    model::play(trace, 1.0, &mut controller(settings))
}

/// Sends a call at each turn of a second. Its answer arrives at the end of the second.
pub fn controller(settings: Settings) -> impl FnMut(f64, f64) -> f64 {
    let mut limiter = limiter(settings, (1, 40));
    let mut end = Nanos(0);
    move |latency, _| {
        let start = end;
        end = start.plus(Nanos::SECOND);
        let mut permits = Vec::new();
        while next_turn(&limiter) < end {
            let now = next_turn(&limiter).max(start);
            permits.push(take(&mut limiter, now));
        }
        for permit in permits {
            release(&mut limiter, end, permit, model::FAILS_ABOVE < latency);
        }
        rate(&limiter)
    }
}
