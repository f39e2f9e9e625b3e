//! Open-loop load on a rate limit service, for `sluicegate bench`.
//!
//! A closed loop sends its next check after a reply, so it sends nothing while the server stalls,
//! and its percentiles leave the stall out (coordinated omission). An open loop has a send time for
//! each check, which no reply changes. A latency begins at that time.
//!
//! Guarantees:
//! - The memory depends on keys and on checks in flight. Only with a law, it depends on the checks.
//! - A step ends at most one call timeout after its duration.
//! - A server that stalls, resets or replies garbage is counted. It never stops the load.
//!
//! Not covered:
//! - Several machines as clients.

mod answer;
mod checks;
pub mod cpu;
mod grpc;
mod http;
mod keys;
mod latency;
mod law;
mod load;
mod pacer;
mod plot;
mod report;
mod schedule;
mod tally;

pub use answer::{AnswerCode, KeyedAnswer};
pub use checks::{BenchCheck, CheckSeries, Entries, KEY_PLACEHOLDER};
pub use grpc::{FirstError, GrpcSender};
pub use http::HttpSender;
pub use keys::KeyChooser;
pub use latency::LatencyHistogram;
pub use law::{LawError, LawStrategy, LimitLaw, law_error};
pub use load::{BenchLoad, BenchSender, RunningStep, StepResult};
pub use plot::svg;
pub use report::BenchReport;
pub use schedule::SendSchedule;
pub use tally::{CheckTimes, StepTally};
