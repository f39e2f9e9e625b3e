//! Every integration test, in one binary.
#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

mod conformance;
mod edge;
mod law;
mod settings;
mod tidy;
