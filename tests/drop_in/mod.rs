//! Tests of the compatibility mode: the binary runs as `ratelimit` with envoyproxy/ratelimit's
//! environment variables.
//!
//! Guarantees:
//! - Environment variables, directory layouts, ports and Redis keys match envoyproxy/ratelimit.
//! - `SLUICEGATE_*` environment variables override envoyproxy/ratelimit's.

mod beside;
mod client;
mod files;
mod gateway;
mod inside;
mod names;
pub mod process;
mod profiles;
mod roots;
mod stats;
mod tls;
mod variables;
mod xds;
