//! Compatibility mode: the binary started as `ratelimit` with envoyproxy/ratelimit's environment.
//!
//! Guarantees:
//! - Variables, file layouts, ports and Redis keys match envoyproxy/ratelimit.
//! - `SLUICEGATE_*` variables override them.

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
