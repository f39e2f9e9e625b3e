//! Every integration test, in one binary.
#![allow(missing_docs)]

mod conformance;
mod law;
mod tidy;
mod settings;
