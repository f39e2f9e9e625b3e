//! Tests of metrics and traces.

mod cloud_events;
mod monitoring;
mod otlp;
mod reason_log;
