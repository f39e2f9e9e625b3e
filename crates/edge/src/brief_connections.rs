//! Serves connections for a short time: those above the maximum, and those during startup.
//!
//! Guarantees:
//! - At most [`MAX_OPEN`] are open. A new one closes the oldest one.
//! - Each one closes after [`MAX_DURATION`] at the latest, and when [`BriefConnections`] is dropped.
//!
//! So a client that sends its request at once, such as a health probe, gets a reply even if many
//! slow clients are connected.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The largest number of open connections.
const MAX_OPEN: usize = 64;

/// The longest duration of a connection.
const MAX_DURATION: Duration = Duration::from_secs(2);

/// The open brief connections of one port.
#[derive(Debug, Default)]
pub struct BriefConnections(VecDeque<AbortHandle>);

impl BriefConnections {
    /// Serves a connection: runs `connection` in a task.
    pub fn serve(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|open| !open.is_finished());
        if MAX_OPEN <= self.0.len()
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.abort();
        }
        let task = tokio::spawn(timeout(MAX_DURATION, connection));
        self.0.push_back(task.abort_handle());
    }
}

impl Drop for BriefConnections {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}
