//! The dependencies of the port for checks and health.
//!
//! Not covered:
//! - The routes (see [`super::router`]).

use std::sync::Arc;

use tokio::sync::watch;

use crate::ReplyOptions;
use crate::body_memory::BodyLimits;
use crate::config::hooks::Hooks;
use crate::engine::Engine;
use crate::health::Health;

/// The dependencies of the port for checks and health.
#[derive(Clone, Debug)]
pub struct CheckPort {
    /// The engine that decides the checks.
    pub engine: Arc<Engine>,
    /// The optional contents of replies to checks.
    pub reporting: ReplyOptions,
    /// The readiness that the health endpoints report.
    pub health: Health,
    /// The hooks of `/check` and `/acquire`.
    pub hooks: Arc<Hooks>,
    /// Becomes `true` when the process drains and open `/acquire` connections must end.
    pub draining: watch::Receiver<bool>,
    /// The bounds on bodies, which the gRPC port shares.
    pub bodies: BodyLimits,
}
