//! Counts the arrivals of each class and customer, for the curve in a share report.
//!
//! The demand of a customer is the larger of two numbers: its requests in flight and in the queue now,
//! and by Little's law its arrivals in the window times the mean duration of all requests. The second
//! one also counts denied requests.
//!
//! Guarantees:
//! - At most [`MAX_COUNTED`] customers are counted in a window; further ones count only as far as they
//!   have requests in flight or in the queue.

use std::collections::HashMap;

use crate::kernel::concurrency::{Limiter, Requester};
use crate::kernel::coordinator::DemandCurve;
use crate::kernel::coordinator::demand_curve::{CustomerDemand, MOST_DEMAND, UNITS_PER_PERMIT};
use crate::kernel::units::Nanos;

/// The most classes and customers that are counted in one window.
const MAX_COUNTED: usize = 10_000;

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
    weight: u32,
}

impl RequesterMeter {
    pub(super) fn count(&mut self, by: Requester) {
        let key = (by.class, by.customer);
        if MAX_COUNTED <= self.arrivals.len() && !self.arrivals.contains_key(&key) {
            return;
        }
        let arrivals = self.arrivals.entry(key).or_default();
        *arrivals = Arrivals { count: arrivals.count.saturating_add(1), weight: by.weight };
    }

    pub(super) fn start_window(&mut self, window: Nanos) {
        std::mem::swap(&mut self.arrivals, &mut self.previous);
        self.arrivals.clear();
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
            let arrived = arrivals.get(&(class, customer)).map_or(0, |it: &Arrivals| it.count);
            let demand = offered(arrived, requests, mean_duration, window);
            CustomerDemand { class, demand, weight }
        };
        DemandCurve::of_customers(&mut requests.into_iter().map(demand).collect())
    }
}

/// Returns the permits that a customer could use, in units of demand.
fn offered(arrived: u64, requests: u32, mean_duration: Option<Nanos>, window: Nanos) -> u32 {
    let units = u128::from(UNITS_PER_PERMIT);
    let here = u128::from(requests).saturating_mul(units);
    let offered = match mean_duration {
        Some(mean) => u128::from(arrived)
            .saturating_mul(mean.0.into())
            .saturating_mul(units)
            .checked_div(window.0.into())
            .unwrap_or(0),
        // If no request has ended yet, the need behind a denial is unknown.
        None if u64::from(requests) < arrived => MOST_DEMAND.into(),
        None => 0,
    };
    u32::try_from(offered.max(here)).unwrap_or(MOST_DEMAND).min(MOST_DEMAND)
}
