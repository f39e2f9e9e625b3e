//! Tests of decisions.

mod decision_log;
mod local_share;
mod retry_after;
