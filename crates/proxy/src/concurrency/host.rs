//! This process as one more replica of concurrency limits.

use std::num::NonZeroU32;
use std::sync::Arc;

use sluicegate_concurrency::host::{ConcurrencyEvent, Host};
use sluicegate_concurrency::store::fleet::MembershipHeartbeat;

use crate::connection::Connection;

/// This process as one more replica.
#[derive(Debug)]
pub(super) struct ProxyHost {
    name: String,
    connection: Arc<Connection>,
}

impl ProxyHost {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { name: format!("proxy-{}", connection.incarnation()), connection }
    }
}

impl Host for ProxyHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn replicas(&self) -> NonZeroU32 {
        self.connection.fleet_info().replicas
    }

    fn metric_part(&self, _bucket: &[u8], limit: u32) -> u32 {
        limit
    }

    /// Sluicegate lists connected proxies itself.
    fn departure(&self) -> Option<MembershipHeartbeat> {
        None
    }

    /// Sluicegate counts the rejected requests, which the proxy reports.
    fn count(&self, _event: ConcurrencyEvent<'_>) {}
}
