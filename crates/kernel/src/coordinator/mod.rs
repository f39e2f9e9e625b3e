//! One concurrency limit for the whole fleet: replicas vote on it and receive shares of it.
//!
//! A [`ShareClient`] sends heartbeats, and the [`Coordinator`] replies to each with a grant. A
//! permit moves to another replica only after the first replica confirmed, by the number of its
//! grant, that it gave the permit up. The rules:
//!
//! 1. Before a grant, the coordinator subtracts from the limit the *exposure* of every other
//!    replica: the largest of its confirmed share, its last granted share and its requests in
//!    flight. Otherwise a joining replica would receive permits that are still in use.
//! 2. A replica confirms a grant by its number, never by the size of the share. Otherwise a late
//!    grant of the same size would count as the newer one.
//! 3. Sending a heartbeat voids the pending reply to the previous one, and so does the expiry of a
//!    share. Otherwise a delayed reply would restore a share that has moved to another replica.
//! 4. A heartbeat reads its number, the share and the number of requests in flight at one instant.
//!    Otherwise a new heartbeat number with an old count would hide requests.
//! 5. A replica stops using a share one clock margin before it expires, counted from *sending* the
//!    heartbeat. The coordinator reserves the exposure for the share lifetime plus `max_duration`,
//!    counted from *receipt*. It reserves longer if a request was admitted under a longer
//!    `max_duration`. Otherwise the share of a paused replica would be used twice.
//! 6. Grant and heartbeat numbers are valid only within one incarnation of the coordinator and one
//!    of the replica. Otherwise an old large number would confirm a grant that was never received.
//! 7. A coordinator that lost its state grants no replica more than the share that it reports.
//!    Otherwise the first replica after a flush of Redis would receive the whole limit.
//!
//! Guarantees:
//! - Under a constant limit, shares and requests in flight never exceed it in total.
//! - This also holds with lost, duplicated, late and reordered messages.
//! - It also holds when replicas join, leave, crash or pause, and after lost state.
//! - A lowered limit never raises this total, which falls once all replicas received it.
//! - The permits of requests in flight above a replica's share are not granted to others.
//! - Fair shares sum exactly to the limit.
//!
//! Assumes:
//! - Clock rates differ by at most the drift in [`ShareTiming`].
//! - Requests end within `max_duration`.
//! - State is never lost entry by entry, only completely or together with its
//!   [`CoordinatorIncarnation`].
//!
//! Not covered:
//! - Transport, storage of the state, and liveness detection.

pub mod aggregate;
pub mod clock_reading;
pub mod config;
#[allow(clippy::module_inception, reason = "the room is named for its first tenant")]
pub mod coordinator;
pub mod demand_curve;
pub mod entitlement;
mod grant;
pub mod incarnation;
pub mod message;
pub mod running_sums;
pub mod share_client;
pub mod share_state;
pub mod split;

pub use clock_reading::ClockReading;
pub use config::{ConcurrencyFallback, CoordinatorConfig, ShareTiming};
pub use coordinator::{Coordinator, HeartbeatReply};
pub use demand_curve::DemandCurve;
pub use incarnation::CoordinatorIncarnation;
pub use message::{Grant, Heartbeat};
pub use running_sums::RunningSums;
pub use share_client::ShareClient;
