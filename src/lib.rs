//! Sluicegate answers one question: may this request pass?
//!
//! One crate, layered; each layer names only those below it:
//!
//! ```text
//! cli → edge, source, engine → config, clock, backend, telemetry → kernel
//! ```
//!
//! * [`kernel`] decides. It is pure: time and state are arguments.
//! * [`config`] turns text into meaning, without opening a file.
//! * [`clock`] is the only reader of time.
//! * [`backend`] is where counters live.
//! * [`engine`] is the one path from a question to an answer.
//! * [`source`] is where configuration comes from.
//! * [`edge`] speaks protocols and decides nothing.
//! * [`telemetry`] counts and logs what happened.
//! * [`cli`] is the command line, and the only place that wires the rest together.
//!
//! `tests/tidy.rs` holds this list against the code.

pub mod backend;
pub mod cli;
pub mod clock;
pub mod config;
pub mod edge;
pub mod engine;
pub mod kernel;
pub mod source;
pub mod telemetry;
