//! The dependencies of the admin port.
//!
//! Not covered:
//! - The routes (see [`super::router`]).

use std::sync::Arc;

use super::show::ConfigLoads;
use crate::config::settings::SecretText;
use crate::edge::mirror::MirrorReport;
use crate::engine::Engine;

/// The dependencies of the admin port.
#[derive(Clone)]
pub struct Admin {
    /// The setting `listen.admin_token`, which callers must send as `Authorization: Bearer …`.
    pub token: Option<SecretText>,
    /// Serves the pages that envoyproxy/ratelimit has too (`/`, `/rlconfig` and `/stats`)
    /// without a token. The other paths still need a token.
    pub debug_pages: bool,
    /// The engine whose limits and counters the pages show and change.
    pub engine: Arc<Engine>,
    /// Returns the results of all configuration loads, for `/config`.
    pub load_report: Arc<dyn Fn() -> ConfigLoads + Send + Sync>,
    /// The results of the mirror, for `/mirror`; `None` without a mirror.
    pub mirror: Option<Arc<MirrorReport>>,
}
