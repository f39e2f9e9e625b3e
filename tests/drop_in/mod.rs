//! Started under the name `ratelimit`: envoyproxy/ratelimit's variables, files, ports and keys.

mod client;
mod files;
mod gateway;
mod inside;
pub mod process;
mod roots;
mod stats;
mod tls;
mod variables;
mod xds;
