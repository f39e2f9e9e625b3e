//! Tests of stores that need a file or a real server.

mod file;
pub mod redis;
