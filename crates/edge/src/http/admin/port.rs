//! The dependencies of the admin port.
//!
//! Not covered:
//! - The routes (see [`super::router`]).

use std::sync::Arc;

use super::access::AdminAccess;
use super::config_diff::ConfigDiff;
use super::show::ConfigLoads;
use crate::engine::Engine;
use crate::mirror::MirrorReport;

/// The dependencies of the admin port.
#[derive(Clone)]
pub struct Admin {
    /// The tokens, and the pages that need none.
    pub access: AdminAccess,
    /// The engine whose limits and counters the pages show and change.
    pub engine: Arc<Engine>,
    /// Returns the results of all configuration loads, for `/config`.
    pub load_report: Arc<dyn Fn() -> ConfigLoads + Send + Sync>,
    /// The difference between the last two configurations, for `/config/diff`.
    pub config_diff: Arc<ConfigDiff>,
    /// The results of the mirror, for `/mirror`; `None` without a mirror.
    pub mirror: Option<Arc<MirrorReport>>,
}
