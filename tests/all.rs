//! Every integration test, in one binary.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::expect_used, clippy::let_underscore_must_use, clippy::unwrap_used)]

mod config;
mod config_meaning;
mod conformance;
mod edge;
//!
//! Nothing outside can reach or document what is in here, and a helper that panics is a failed test.
mod compat;
mod e2e;
mod http1;
mod law;
mod service;
mod settings;
mod tidy;
mod source;
mod waiting;
