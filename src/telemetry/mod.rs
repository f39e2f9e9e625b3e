//! What happened, counted, logged and told to collectors.
//!
//! Guarantees: counting takes no lock, allocates nothing and never blocks; every label is bounded.
//! Leaves out: why it happened, and serving the pages that show the counts.

pub mod event;
pub mod letters;
pub mod metrics;
pub mod otlp;
pub mod stats;
pub mod trace;
