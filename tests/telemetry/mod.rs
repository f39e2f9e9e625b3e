//! Tests of metrics and traces.

mod monitoring;
mod otlp;
