//! A lease sizer that learns by `AdaGrad`, and the store calls of its leases.
//!
//! It is the published law of throttlekit's `leaseSizer` with its example's costs, for comparison with ours. The cost
//! of leases of `b` hits in a window with `d` hits is `c·d/b + h·b/2` (economic order quantity). Its minimum is at
//! `b = √(2·c·d/h)`: √(2·20·40/1) = 40 hits for 40 hits in each window.
//!
//! Guarantees:
//! - A window has the duration of a lease and starts at a multiple of it.
//! - Hits of a lease end with their window, and are unspent then.
//!
//! Not covered:
//! - The time of a store call. It is 0.

use sluicegate_kernel::units::Nanos;

use super::lease_traces::{LEASE, LeaseUse};

/// The cost `c` of one store call, in the unit of [`UNSPENT_COST`].
const CALL_COST: f64 = 20.0;
/// The cost `h` of one unspent hit.
const UNSPENT_COST: f64 = 1.0;
/// The first step of the logarithm of the size.
const STEP: f64 = 1.0;
const EPSILON: f64 = 1e-8;

/// The learned size of one key.
pub struct AdaGradSizer {
    log_size: f64,
    squared_gradients: f64,
    max_log_size: f64,
}

impl AdaGradSizer {
    pub fn new(first: u64, max_lease: u64) -> Self {
        let max_log_size = (max_lease as f64).ln();
        let log_size = (first as f64).ln().clamp(0.0, max_log_size);
        Self { log_size, squared_gradients: 0.0, max_log_size }
    }

    pub fn size(&self) -> u64 {
        self.log_size.exp().round() as u64
    }

    /// Learns from the hits of a window that ended.
    pub fn observe(&mut self, hits: u64) {
        let size = self.log_size.exp();
        let gradient = UNSPENT_COST * size / 2.0 - CALL_COST * hits as f64 / size;
        self.squared_gradients += gradient * gradient;
        let step = STEP / (EPSILON + self.squared_gradients).sqrt();
        self.log_size = (self.log_size - step * gradient).clamp(0.0, self.max_log_size);
    }
}

/// The calls of a replica whose first lease has `first` hits.
pub fn simulate_adagrad(first: u64, trace: &[Nanos], max_lease: u64) -> LeaseUse {
    let mut sizer = AdaGradSizer::new(first, max_lease);
    let (mut window, mut balance, mut spent) = (0, 0, 0);
    let mut total = LeaseUse::default();
    for hit in trace {
        if window != hit.0 / LEASE.0 {
            if 0 < spent {
                sizer.observe(spent);
            }
            total.unspent += balance;
            (window, balance, spent) = (hit.0 / LEASE.0, 0, 0);
        }
        if balance == 0 {
            total.calls += 1;
            balance = sizer.size();
        }
        balance -= 1;
        spent += 1;
    }
    total.unspent += balance;
    total
}
