//! Serves proxies that lease hits and decide requests themselves, each as one more replica.
//!
//! Guarantees:
//! - `max_overshoot` of a limit bounds all replicas and all proxies together.
//! - Every change of the configuration is announced to all proxies.
//! - At most [`MAX_PROXY_STREAMS`] streams of proxies are open.
//!
//! Not covered:
//! - The protocol (see `crate::edge::grpc::leases`).

mod concurrency;
mod counter;
mod registry;
mod rule;
mod usage;

use crate::engine::Engine;

pub use crate::store::ChargeOutcome;
pub use crate::store::fleet::{FleetReply, FleetReport};
pub use crate::store::lease::LeaseOutcome;
pub use crate::store::permits::StrictPermitRequest;
pub use concurrency::{ProxyConcurrencyLimit, ProxyPermitUsage};
pub use counter::{ProxyCallError, ProxyCounter};
pub use registry::{
    MAX_PROXY_STREAMS, Proxies, ProxyBucket, ProxyConnection, ProxyHits, ProxyIdentity, ProxyInfo,
    StreamSlot,
};
pub use rule::{ProxyHandling, ProxyLimit, ProxyRule};
pub use usage::{ProxyDecisionKind, ProxyUsage};

impl Engine {
    /// Returns the proxies that are connected to this replica.
    #[must_use]
    pub const fn proxies(&self) -> &Proxies {
        &self.proxies
    }

    /// Runs `begin`, which starts several calls, and sends them to the store after it returns, in
    /// one store call where possible.
    pub fn batch_store_calls(&self, begin: &mut dyn FnMut()) {
        self.store().batch_calls(begin);
    }
}
