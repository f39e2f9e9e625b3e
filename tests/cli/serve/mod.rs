//! Tests of the command `serve`.

mod log;
