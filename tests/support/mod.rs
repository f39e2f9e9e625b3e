//! External systems and test infrastructure: Redis, xDS, OTLP, network faults, certificates.

pub mod browser;
pub mod certificates;
pub mod cluster;
pub mod collector;
pub mod dice;
pub mod engine;
pub mod event_receiver;
pub mod faulty_store;
pub mod http1;
pub mod log_lines;
pub mod ports;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod rate_limit_server;
pub mod redis;
pub mod replica;
pub mod resp;
pub mod scheduling_delays;
pub mod sentinel;
pub mod service;
pub mod signals;
pub mod store_server;
pub mod twemproxy;
pub mod waiting;
pub mod xds;
