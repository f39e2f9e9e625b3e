//! Tests of decisions.

mod local_share;
mod retry_after;
