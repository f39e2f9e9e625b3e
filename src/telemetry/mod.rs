//! Metrics, traces and the statistics of envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Counting an event takes no lock, allocates nothing and never blocks.
//! - Every metric label has a bounded number of values.
//!
//! Not covered:
//! - The HTTP endpoints that show the metrics (see [`crate::edge::http::metrics`]).

pub mod event;
pub mod label;
pub mod metrics;
pub mod otlp;
pub mod stats;
pub mod trace;
