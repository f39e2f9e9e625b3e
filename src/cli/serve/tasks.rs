//! The running tasks of `serve`, and the error that ends it.
//!
//! Guarantees:
//! - If a background task ends, `serve` ends with an error.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::engine::Engine;

/// An error that prevents or ends serving.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{}", .0.join("\n"))]
    Listen(Vec<String>),
    #[error("{0}")]
    InvalidLimits(String),
    #[error("{0}")]
    UnreadableLimits(String),
    #[error("{0}")]
    InvalidSettings(String),
    #[error("internal error: {0}; exiting")]
    TaskEnded(String),
}

#[derive(Default)]
pub(super) struct ServiceTasks {
    /// The tasks of the listeners. Each ends when the requests in flight of its listener are
    /// finished.
    listeners: JoinSet<Result<(), ServeError>>,
    /// The tasks that run as long as the process.
    background: JoinSet<()>,
}

impl ServiceTasks {
    pub(super) fn spawn_listener(
        &mut self,
        part: impl Future<Output = Result<(), ServeError>> + Send + 'static,
    ) {
        self.listeners.spawn(part);
    }

    pub(super) fn spawn_background(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn(part);
    }

    /// Starts the tasks of a process without a fleet: it counts strikes, and sends the audit log to
    /// the store periodically. With a fleet, each heartbeat does that.
    pub(super) fn start_without_fleet(&mut self, engine: &Arc<Engine>) {
        self.count_strikes(Arc::clone(engine));
        let engine = Arc::clone(engine);
        self.spawn_background(async move { engine.synchronize_audit_forever().await });
    }

    /// Counts the strikes that lead to bans, in the background.
    pub(super) fn count_strikes(&mut self, engine: Arc<Engine>) {
        self.spawn_background(async move { engine.charge_strikes_forever().await });
    }

    /// Waits until all listeners have finished. Returns an error at once if a listener fails or a
    /// background task ends.
    pub(super) async fn wait_for_listeners(&mut self) -> Result<(), ServeError> {
        let lost =
            |how: &dyn std::fmt::Display| ServeError::TaskEnded(format!("a task failed: {how}"));
        loop {
            tokio::select! {
                ended = self.listeners.join_next() => match ended {
                    None => return Ok(()),
                    Some(ended) => ended.map_err(|died| lost(&died))??,
                },
                Some(ended) = self.background.join_next() => {
                    return Err(ended.map_or_else(|died| lost(&died), |()| lost(&"it ended early")));
                }
            }
        }
    }
}
