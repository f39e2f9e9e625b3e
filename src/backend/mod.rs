//! Where counters live.
