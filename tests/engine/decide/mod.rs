//! Tests of decisions.

mod counted;
mod decision_log;
mod limit_list;
mod local_share;
mod retry_after;
