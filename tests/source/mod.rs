//! Tests of configuration from files and xDS.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod file;
mod tables;
mod xds;
