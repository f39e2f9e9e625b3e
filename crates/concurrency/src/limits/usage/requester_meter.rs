//! Counts the arrivals of each class and customer, for the curve in a share report.
//!
//! The demand of a customer is the larger of two numbers: its requests in flight and in the queue now,
//! with one more if some were denied, and by Little's law its arrivals in the window times the mean
//! duration of all requests.
//!
//! Guarantees:
//! - At most [`MAX_COUNTED`] pairs of class and customer are counted in a window; further ones count only
//!   as far as they have requests in flight or in the queue.

use std::collections::HashMap;

use crate::kernel::concurrency::{Limiter, Requester};
use crate::kernel::coordinator::DemandCurve;
use crate::kernel::coordinator::demand_curve::{CustomerDemand, MOST_DEMAND, UNITS_PER_PERMIT};
use crate::kernel::units::Nanos;

/// The most classes and customers that are counted in one window.
const MAX_COUNTED: usize = 10_000;

/// The room for pairs that is kept for the next window.
const MAX_KEPT: usize = 256;

/// The arrivals in the current window and in the one before.
#[derive(Clone, Debug, Default)]
pub(super) struct RequesterMeter {
    arrivals: HashMap<(u8, u64), Arrivals>,
    previous: HashMap<(u8, u64), Arrivals>,
    previous_window: Nanos,
}

/// The requests of one class and customer that arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Arrivals {
    count: u64,
    /// `true` if some were denied.
    is_denied: bool,
    weight: u32,
}

impl RequesterMeter {
    pub(super) fn count(&mut self, by: Requester, is_denied: bool) {
        let key = (by.class, by.customer);
        if MAX_COUNTED <= self.arrivals.len() && !self.arrivals.contains_key(&key) {
            return;
        }
        let arrivals = self.arrivals.entry(key).or_default();
        *arrivals = Arrivals {
            count: arrivals.count.saturating_add(1),
            is_denied: arrivals.is_denied || is_denied,
            weight: by.weight,
        };
    }

    pub(super) fn start_window(&mut self, window: Nanos) {
        std::mem::swap(&mut self.arrivals, &mut self.previous);
        self.arrivals.clear();
        // One flood must not keep its memory.
        self.arrivals.shrink_to(MAX_KEPT);
        self.previous_window = window;
    }

    /// Returns the curve from the arrivals of the current `window`; with `None`, of the one before.
    pub(super) fn curve(
        &self,
        limiter: &Limiter,
        mean_duration: Option<Nanos>,
        window: Option<Nanos>,
    ) -> DemandCurve {
        let arrivals = if window.is_some() { &self.arrivals } else { &self.previous };
        let window = window.unwrap_or(self.previous_window);
        let mut requests = limiter.requests_by_requester();
        for (requester, arrived) in arrivals {
            requests.entry(*requester).or_insert((0, arrived.weight));
        }
        let demand = |((class, customer), (requests, weight))| {
            let arrived = arrivals.get(&(class, customer)).copied().unwrap_or_default();
            let demand = offered(arrived, requests, mean_duration, window);
            CustomerDemand { class, demand, weight }
        };
        DemandCurve::of_customers(&mut requests.into_iter().map(demand).collect())
    }
}

/// Returns the permits that a customer could use, in units of demand.
fn offered(arrived: Arrivals, requests: u32, mean_duration: Option<Nanos>, window: Nanos) -> u32 {
    let units = u128::from(UNITS_PER_PERMIT);
    let one_more = u128::from(arrived.is_denied);
    let here = u128::from(requests).saturating_add(one_more).saturating_mul(units);
    let offered = match mean_duration {
        Some(mean) => u128::from(arrived.count)
            .saturating_mul(mean.0.into())
            .saturating_mul(units)
            .checked_div(window.0.into())
            .unwrap_or(0),
        // If no request has ended yet, the need behind a denial is unknown.
        None if arrived.is_denied => MOST_DEMAND.into(),
        None => 0,
    };
    u32::try_from(offered.max(here)).unwrap_or(MOST_DEMAND).min(MOST_DEMAND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_demands_one_more_permit_or_the_most() {
        let second = Nanos::SECOND;
        let [none, some, denied] = [(0, false), (30, false), (2, true)]
            .map(|(count, is_denied)| Arrivals { count, is_denied, weight: 1 });
        // By Little's law, 30 arrivals in 1 s that last 100 ms each are 3 requests.
        let mean = Some(Nanos(100 * Nanos::MILLI.0));
        assert_eq!(offered(some, 1, mean, second), 3 * 16);
        assert_eq!(offered(some, 9, mean, second), 9 * 16, "more are here");
        assert_eq!(offered(none, 9, None, second), 9 * 16);
        // Nine requests last long, and two short ones were denied.
        assert_eq!(offered(denied, 9, mean, second), 10 * 16);
        assert_eq!(offered(denied, 9, None, second), MOST_DEMAND);
        assert_eq!(offered(some, 0, mean, Nanos(0)), 0, "no window");
    }
}
