//! Admits the connections of one port, and refuses connections above the maximum.
//!
//! Guarantees:
//! - Admitting or refusing a connection never waits for another connection to close.
//! - At most `max_connections` admitted connections are open.
//! - Refused connections get a short reply ([`BriefConnections`]), except with TLS.
//! - Refusals and failed accepts are logged once, then counted.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use super::accept_errors::AcceptErrors;
use super::brief_connections::BriefConnections;
use crate::telemetry::event::{ConnectionEvent, Event as _};
pub use crate::telemetry::label::ListenPort;

/// The pause after an accept error, because a process without free file descriptors would otherwise
/// be in a busy loop.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The bound on the open connections of one port.
#[derive(Debug)]
pub struct ConnectionGate {
    port: ListenPort,
    max_connections: usize,
    slots: Arc<Semaphore>,
    refusals: BriefConnections,
    errors: AcceptErrors,
}

impl ConnectionGate {
    /// Creates the bound of `port`.
    #[must_use]
    pub fn new(port: ListenPort, max_connections: usize) -> Self {
        let max_connections = max_connections.min(Semaphore::MAX_PERMITS);
        Self {
            port,
            max_connections,
            slots: Arc::new(Semaphore::new(max_connections)),
            refusals: BriefConnections::default(),
            errors: AcceptErrors::new(port),
        }
    }

    /// Records a failed accept and pauses.
    pub(super) async fn pause_after(&mut self, error: &io::Error) {
        self.errors.record_failure(error);
        sleep(ACCEPT_RETRY_PAUSE).await;
    }

    /// Returns a slot for an accepted connection. Returns `None` if the maximum is reached.
    pub(super) fn admit(&mut self) -> Option<ConnectionSlot> {
        let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() else {
            self.errors.record_refusal(self.max_connections);
            ConnectionEvent::Refused(self.port).emit();
            return None;
        };
        self.errors.record_success();
        Some(ConnectionSlot::new(self.port, permit))
    }

    /// Replies to a refused connection: runs `reply` in a task.
    pub(super) fn refuse(&mut self, reply: impl Future<Output = ()> + Send + 'static) {
        self.refusals.serve(reply);
    }

    /// Returns the reason of a refusal for the client.
    pub(super) fn refusal_text(&self) -> String {
        let most = self.max_connections;
        let setting = match self.port {
            ListenPort::Grpc | ListenPort::Http => " (setting listen.max_connections)",
            ListenPort::Metrics | ListenPort::Admin | ListenPort::Peer => "",
        };
        format!("too many connections: the maximum is {most}{setting}")
    }
}

/// One of the slots of a port; its drop frees it.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    port: ListenPort,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    fn new(port: ListenPort, permit: OwnedSemaphorePermit) -> Self {
        ConnectionEvent::Opened(port).emit();
        Self { port, _permit: permit }
    }

    pub(super) const fn port(&self) -> ListenPort {
        self.port
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        ConnectionEvent::Closed(self.port).emit();
    }
}
