//! Started under the name `ratelimit`: envoyproxy/ratelimit's variables, files, ports and keys.

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
