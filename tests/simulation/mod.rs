//! Simulations of whole engines under random faults, reproducible from a seed.

mod engine;
#[path = "../../crates/kernel/tests/simulation/flaws.rs"]
mod flaws;
