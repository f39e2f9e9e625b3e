//! Metrics, traces and the statistics of envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Counting an event takes no lock and allocates no memory.
//! - Every metric label has a bounded number of values.

pub mod cloud_events;
mod error_text;
pub mod event;
pub mod http_client;
pub mod label;
pub mod metrics;
pub mod otlp;
pub mod pem;
pub mod reason_log;
pub mod stats;
pub mod trace;

pub use error_text::with_causes;

use sluicegate_kernel as kernel;
