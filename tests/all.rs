//! All integration tests, in one binary.

// The binary has no public API, and a helper that panics fails its test.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::expect_used, clippy::let_underscore_must_use, clippy::unwrap_used)]

mod bad_input;
mod bench;
mod chart;
mod cli;
mod compat;
mod config;
mod conformance;
mod differential;
mod docs;
mod drop_in;
mod e2e;
mod edge;
mod engine;
mod recording;
mod replay;
mod simulation;
mod source;
mod store;
mod support;
mod telemetry;
mod tidy;
