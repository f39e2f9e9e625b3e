//! Seeded schedules with faults by name: what a fleet does when everything that can go wrong does.

mod bad;
mod coordinator;
mod engine;
