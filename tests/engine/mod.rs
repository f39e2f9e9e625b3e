//! Tests of the engine: decisions, leases, concurrency limits and the fleet.

mod bans;
mod budgets;
mod concurrency;
mod decide;
mod events;
mod fleet;
mod lease;
mod recorder;
mod rule_counters;
mod tables;
mod top_keys;
