//! Tests of configuration from files: reading directory trees and watching them for changes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod file;
