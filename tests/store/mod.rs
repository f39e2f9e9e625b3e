//! Tests of stores that need a file or a real server.

mod file;
pub mod postgres;
pub mod redis;
