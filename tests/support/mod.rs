//! External systems and test infrastructure: Redis, xDS, OTLP, network faults, certificates.

pub mod certificates;
pub mod cluster;
pub mod collector;
pub mod dice;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod resp;
pub mod sentinel;
pub mod watchers;
pub mod xds;
