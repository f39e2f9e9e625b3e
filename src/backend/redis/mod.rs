//! Counters in Redis, shared by all replicas.
//!
//! Guarantees: one script call per question, whatever the number of its charges; the script is the
//! kernel's arithmetic, so that every answer is the one a single process would give; the store's
//! clock is the clock.
//! Leaves out: what an outcome means ([`crate::engine`]).

pub mod codec;

/// The script that puts one question's hits to their counters; its protocol stands at its top.
pub const CHARGE: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/charge.lua"),
);
