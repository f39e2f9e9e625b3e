//! Simulates a fleet under random faults, from a seed.

mod bad;
mod coordinator;
mod engine;
