//! Tests of the pure parts of `sluicegate bench`.

mod checks;
mod latency;
mod law;
mod report;
mod schedule;
mod stall;
