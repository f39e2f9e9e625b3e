//! Tests of the compatibility mode: the binary runs as `ratelimit` with envoyproxy/ratelimit's
//! environment variables.
//!
//! Guarantees:
//! - Environment variables, directory layouts, ports and Redis keys match envoyproxy/ratelimit.
//! - `SLUICEGATE_*` environment variables override envoyproxy/ratelimit's.

mod client;
mod files;
mod gateway;
mod internal_stats;
mod own_variables;
pub mod process;
mod profiles;
mod stat_names;
mod stats;
mod tls;
mod trusted_cas;
mod variables;
mod xds;
