//! Simulates one concurrency limit of a fleet under random faults, reproducible from a seed.

mod coordinator;
mod fair_fleet;
pub mod flaws;
