//! Tests of stores that need a file or a real server.

mod file;
mod partitions;
pub mod postgres;
pub mod redis;
