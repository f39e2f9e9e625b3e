//! All integration tests, in one binary.

// The binary has no public API, and a helper that panics fails its test.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::expect_used, clippy::let_underscore_must_use, clippy::unwrap_used)]

mod bad_input;
mod chart;
mod compat;
mod concurrency;
mod config;
mod config_meaning;
mod conformance;
mod coordinator;
mod differential;
mod docs;
mod drop_in;
mod e2e;
mod edge;
mod http1;
mod law;
mod lease;
mod leased;
mod monitoring;
mod redis;
mod service;
mod settings;
mod signals;
mod simulation;
mod source;
mod support;
mod telemetry;
mod tidy;
mod twin;
mod twin_coordinator;
mod waiting;
