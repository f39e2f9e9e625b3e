//! Sluicegate answers one question: may this request pass?
//!
//! One crate, layered; each layer names only those below it, which `tests/tidy.rs` holds against the
//! code:
//!
//! ```text
//! cli → edge, source, engine → config, clock, backend, telemetry → kernel, pem
//! ```
//!
//! # The layers, and what is always true of each
//!
//! * [`kernel`] decides. Time and state are arguments; there is no I/O, no clock, no wait and no
//!   float in it. Everything that counts hits calls the same steps, and the scripts in Redis are
//!   transcriptions of them.
//! * [`config`] turns text into meaning without opening a file. A configuration is complete and
//!   sound or it does not exist; everything that is wrong is said at once.
//! * [`pem`] reads certificates and keys, for all that speak TLS. An error shows nothing of a key.
//! * [`clock`] is the only reader of time, and never runs backwards.
//! * [`backend`] is where counters live: in this process, or in a Redis that replicas share. The
//!   charges of a question are answered in order, one outcome each.
//! * [`engine`] is the one path from a question to an answer. A question lives under exactly one
//!   configuration and one instant, and what cannot be asked is refused before any counter moves.
//! * [`source`] is where configuration comes from. A refused load changes nothing.
//! * [`edge`] speaks protocols and decides nothing; all of them show an answer by the same tables.
//! * [`telemetry`] counts what happened. Every label is bounded.
//! * [`cli`] is the command line, and the only place that wires the rest together.
//!
//! # The one path
//!
//! 1. `edge::grpc::rls` takes the message; `edge::grpc::convert` makes a
//!    [`Question`](kernel::decision::Question) of it, or refuses it.
//! 2. [`Engine::decide_within`](engine::Engine::decide_within) reads the clock and the configuration
//!    once each.
//! 3. `engine::plan` finds each descriptor's limit ([`config::tree`]), names its counter
//!    ([`kernel::key`]) and says how its denial bears on the question.
//! 4. Over a shared store, and for limits that allow it, `engine::ledgers` answers what is known, and
//!    learns from what the store answers to the rest.
//! 5. [`Backend::charge`](backend::Backend::charge) runs the kernel's step on each counter: under a
//!    shard's lock in memory, in one script in Redis.
//! 6. `engine::degrade` answers for a store that did not, by each limit's `on_backend_failure`.
//! 7. [`kernel::decision::combine`] weighs the findings: shadow mode, the quota group, the verdict.
//! 8. `edge::grpc::convert` and [`edge::headers`] make the reply; [`telemetry::event`] counts it.
//!
//! `/json` enters at 2 with a first and a last step of its own. So do the hooks that carry no
//! descriptors, `ext_authz` and NGINX's: [`edge::hook`] makes the message that was not sent.
//!
//! Ceilings on requests in flight have a path of their own: [`engine::admit`] asks
//! [`kernel::concurrency`] for a permit, waits in its queue, and gives it back with the latency from
//! which the ceiling is inferred. [`engine::ceilings`] leads a question through its ceilings to 2;
//! `edge::grpc::ext_proc` asks it.
//!
//! A ceiling that a fleet shares is the same path with a share as its limit: [`engine::admit::fleet`] speaks for
//! all of them ([`kernel::coordinator`], [`Backend::heartbeat`](backend::Backend::heartbeat)), and no request
//! waits for it but the first. Of one that is strict the store counts the permits:
//! [`Backend::acquire`](backend::Backend::acquire) is asked for each ([`kernel::concurrency::permits`]), and
//! [`Backend::tell`](backend::Backend::tell) told what is held and what is over.
//!
//! Leased limits are asked of [`engine::leases`] where others are charged: it spends from a balance that it
//! borrowed with [`Backend::borrow`](backend::Backend::borrow) ([`kernel::lease`]). A question that balances
//! answer whole is answered in the first poll, between 3 and 7.

pub mod backend;
pub mod cli;
pub mod clock;
pub mod config;
pub mod edge;
pub mod engine;
pub mod kernel;
pub mod pem;
pub mod source;
pub mod telemetry;
