//! The location of one Redis process: a configured address, a node of a Cluster, or the primary
//! that sentinels name.
//!
//! Guarantees:
//! - The address of a primary is looked up again for every new connection.

use std::sync::Weak;

use fred::error::Error;

use super::client::ServerAddress;
use super::connection::ClusterNodes;
use super::sentinel::SentinelGroup;
use crate::backoff::Backoff;

/// The place to which a keeper connects.
#[derive(Debug)]
pub(super) enum ServerLocation {
    /// A configured address.
    Fixed(ServerAddress),
    /// A node of a Cluster, as long as the slot map or a recent redirect names it.
    Node(ServerAddress, Weak<dyn ClusterNodes>),
    /// The primary that sentinels name.
    Sentinel(SentinelGroup),
}

impl ServerLocation {
    pub(super) async fn resolve(&self) -> Result<ServerAddress, Error> {
        match self {
            Self::Fixed(address) | Self::Node(address, _) => Ok(address.clone()),
            Self::Sentinel(sentinels) => sentinels.primary().await.map(ServerAddress::Tcp),
        }
    }

    /// Waits until the primary has another address.
    pub(super) async fn wait_moved(&self, address: &ServerAddress, pauses: &mut Backoff) {
        match (self, address) {
            (Self::Sentinel(sentinels), ServerAddress::Tcp(address)) => {
                sentinels.wait_replaced(address, pauses).await;
            }
            _ => std::future::pending().await,
        }
    }

    pub(super) const fn known_address(&self) -> Option<&ServerAddress> {
        match self {
            Self::Fixed(address) | Self::Node(address, _) => Some(address),
            // Errors of sentinels contain their own addresses.
            Self::Sentinel(_) => None,
        }
    }

    pub(super) fn cluster(&self) -> Option<Weak<dyn ClusterNodes>> {
        match self {
            Self::Node(_, cluster) => Some(Weak::clone(cluster)),
            Self::Fixed(_) | Self::Sentinel(_) => None,
        }
    }

    /// Requests a slot query in a Cluster: another node may own the slots now.
    pub(super) fn request_slot_query(&self) {
        if let Some(cluster) = self.cluster().and_then(|cluster| cluster.upgrade()) {
            cluster.request_query();
        }
    }
}
