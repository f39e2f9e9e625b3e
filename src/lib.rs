//! Sluicegate, a rate limiting service for Envoy and NGINX.
//!
//! Each layer is a crate, or a module of this one, and uses only the layers below it:
//!
//! ```text
//! cli → edge, source, replay, bench → engine → store → config, telemetry → kernel
//! ```
//!
//! # Layers
//!
//! * [`kernel`] has the algorithms: pure functions of state, time and hits. The Lua scripts in Redis
//!   are transcriptions of them.
//! * [`config`] parses and validates configuration, but opens no files. Its part
//!   [`config::hooks`], a crate of its own, builds descriptors from requests.
//! * `crates/lease` borrows hits from a store and spends them. It has the interface of a store of
//!   counters, and [`clock`], the only reader of time.
//! * `crates/concurrency` acquires and releases permits, queues requests, and splits concurrency
//!   limits among processes. It has the interface of a store of these limits.
//! * [`telemetry`] has metrics, traces and statistics. Every label has a bounded number of values.
//!   Its part [`pem`] reads certificates and keys for TLS. No error contains part of a key.
//! * [`store`] stores counters, in memory or in a Redis that replicas share.
//! * [`engine`] turns a check into a decision. Its part [`recording`] is the file format of recorded
//!   checks.
//! * [`edge`] implements the protocols: gRPC, HTTP, NGINX and others. It makes no decisions.
//! * [`replay`] decides recorded checks again, with other limits.
//! * [`bench`] sends checks at given rates, and measures the replies. It uses no other layer but the
//!   kernel and the clock.
//! * [`source`] loads configuration from files or xDS. A rejected load changes nothing.
//! * [`cli`] has the commands, and connects the other layers.
//!
//! # One check, step by step
//!
//! 1. `edge::grpc::rls` reads the message. `edge::grpc::convert` builds a
//!    [`Check`](kernel::decision::Check), or rejects the message.
//! 2. [`Engine::decide_within`](engine::Engine::decide_within)
//!    reads the clock and the configuration once.
//! 3. `engine::decide::plan` finds each descriptor's limit ([`config::tree`]),
//!    its counter key ([`kernel::key`]), and the effect of its denial.
//! 4. With a shared store, `engine::decide::deny_cache` returns remembered denials, if the limit allows it.
//! 5. [`CounterStore::charge`](store::CounterStore::charge) runs the strategy on
//!    each counter: under a shard lock in memory, or in one script in Redis.
//! 6. `engine::decide::fallback` decides by each limit's `on_store_failure` if the store call failed.
//! 7. [`kernel::decision::combine`] applies shadow mode and quota group, and returns the verdict.
//! 8. `edge::grpc::convert` and [`edge::headers`] write the reply.
//! 9. [`telemetry::event`] counts the decision.
//!
//! `/json` has its own steps 1 and 8. Hooks, which are calls without descriptors (`ext_authz`,
//! NGINX), use [`edge::hook`], which builds the message that Envoy's rate limit filter would send.
//!
//! **Leased limits.** Instead of step 5, [`engine::lease`] spends from a balance borrowed with
//! [`exchange_lease_message`](store::CounterStore::exchange_lease_message) ([`kernel::lease`]). If
//! balances cover the whole check, the decision needs no waiting.
//!
//! **Concurrency limits.** Before step 2, [`engine::concurrency::path`] acquires a permit of each
//! concurrency limit of the check from [`kernel::concurrency`], or waits in its queue. The end of
//! the request releases the permit with the latency, from which an adaptive limit is inferred.
//!
//! **Shared limits.** The concurrency limit is this replica's share of a limit of the fleet.
//! [`engine::fleet::reporter`] reports all shares to the store
//! ([`FleetStore::report`](store::FleetStore::report)), and [`kernel::coordinator`] splits the
//! limit. Only the first request of a new limit waits for a report.
//!
//! **Strict limits.** The store counts the permits ([`kernel::concurrency::permit_table`]).
//! Every request calls
//! [`acquire_strict_permit`](store::FleetStore::acquire_strict_permit).
//! The same reporter reports renewed and released permits.

pub mod bench;
pub mod cli;
pub mod replay;
pub mod source;

pub use sluicegate_config as config;
pub use sluicegate_edge as edge;
pub use sluicegate_engine as engine;
pub use sluicegate_engine::recording;
pub use sluicegate_kernel as kernel;
pub use sluicegate_lease::clock;
pub use sluicegate_store as store;
pub use sluicegate_telemetry as telemetry;
pub use sluicegate_telemetry::pem;
