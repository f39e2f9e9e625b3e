//! Serves proxies that lease hits and decide requests themselves, each as one more replica.
//!
//! Guarantees:
//! - `max_overshoot` of a limit bounds all replicas and all proxies together.
//! - Every change of the configuration is announced to all proxies.
//! - Limits, durations and strategies come from the configuration, never from a proxy.
//! - A report about a limit that the configuration does not have reaches no store.
//! - At most [`MAX_PROXY_STREAMS`] streams of proxies are open; see [`PeerKey`] for more bounds.
//!
//! Not covered:
//! - The protocol (see `crate::edge::grpc::leases`).

mod asked_rows;
mod calls;
mod concurrency;
mod counter;
mod history;
mod peer;
mod registry;
mod reports;
mod rule;
mod share_history;
mod usage;
mod votes;

pub use crate::store::ChargeOutcome;
pub use crate::store::lease::LeaseOutcome;
pub use asked_rows::RowsChange;
pub use concurrency::ProxyPermitUsage;
pub use counter::{ProxyCallError, ProxyCounter};
pub use peer::{
    MAX_LEASES, MAX_PEER_LEASES, MAX_PEER_RECORDS, MAX_PEER_STREAMS, MAX_PROXY_STREAMS,
    MAX_RECORDS, PeerKey, StreamSlot,
};
pub use registry::{
    IncarnationTaken, Proxies, ProxyBucket, ProxyConnection, ProxyHits, ProxyIdentity, ProxyInfo,
};
pub use reports::{ProxyReply, ProxyReport};
pub use usage::ProxyUsage;
