//! Simulations of a fleet under random faults, reproducible from a seed.

mod bad;
mod coordinator;
mod engine;
