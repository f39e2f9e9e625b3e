//! Tests of metrics and traces.

mod monitoring;
mod otlp;
mod reason_log;
