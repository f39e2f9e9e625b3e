//! An HTTP filter that enforces rate limits and concurrency limits inside Envoy, as a dynamic
//! module.
//!
//! Guarantees:
//! - A panic in the filter ends neither Envoy nor the request.
//! - An Envoy without a needed function rejects the module with a message.
//! - An invalid config is rejected with field and fix.
//!
//! Not covered:
//! - A future Envoy that changes the signature of a function: only tested versions are safe.

mod abi;
mod additions;
mod answer;
mod config_text;
mod counters;
mod filter;
mod guard;
mod headers;
mod in_flight;
mod limiter;
mod log;
mod module;
mod request;
mod stream;
mod sums;
