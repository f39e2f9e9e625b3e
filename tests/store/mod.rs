//! Tests of stores that need a real server.

pub mod postgres;
pub mod redis;
