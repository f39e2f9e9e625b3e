//! Every integration test, in one binary.
#![allow(missing_docs, unreachable_pub)]
#![allow(clippy::expect_used, clippy::let_underscore_must_use, clippy::unwrap_used)]

mod config;
mod config_meaning;
mod conformance;
mod edge;
mod law;
mod settings;
mod tidy;
mod source;
