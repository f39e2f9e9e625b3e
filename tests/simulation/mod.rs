//! Simulations of a fleet under random faults, reproducible from a seed.

mod coordinator;
mod engine;
mod flaws;
