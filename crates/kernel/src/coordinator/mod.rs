//! One concurrency limit for the whole fleet: replicas vote on it and receive shares of it.
//!
//! A [`ShareClient`] sends heartbeats, and the [`Coordinator`] replies to each with
//! a grant. A share moves to another replica only after its owner confirmed, by
//! grant number, that it gave the share up. These rules apply in every mode:
//!
//! 1. A grant reserves the *exposure* of every other replica: the largest of
//!    its share in use, its last granted share and its requests in flight.
//!    Otherwise a joining replica would receive permits that are still in use.
//! 2. A share is given up by the number of its grant, never by its size.
//!    Otherwise a late grant of the same size would count as the newer one.
//! 3. Sending a heartbeat voids the reply to the previous one, and so does a
//!    fence. Otherwise a delayed reply would restore a share that has moved.
//! 4. A heartbeat reads its number, the share and the in-flight count at one
//!    instant. Otherwise a new number with an old count would hide requests.
//! 5. A replica stops one margin before the share expires, counted from *sending* the heartbeat.
//!    The coordinator reserves the exposure for the share lifetime plus `max_duration`, counted
//!    from *receipt*. It reserves longer if a request was admitted under a longer `max_duration`.
//!    Otherwise the share of a paused replica would be used twice.
//! 6. Numbers belong to one incarnation of the coordinator and one of the replica.
//!    Otherwise an old large number would confirm a grant that was never received.
//! 7. A coordinator without state grants no replica more than its proven share.
//!    Otherwise the first replica after a flush would receive the whole limit.
//!
//! Guarantees:
//! - Under a constant limit, shares and requests in flight never exceed it in total.
//! - This includes lost, duplicated, late and reordered messages.
//! - This includes joins, leaves, crashes, pauses of any length, and loss of the state.
//! - After a decrease, the total never rises; it falls once all replicas know.
//! - Requests in flight above a replica's share are not granted to others.
//! - Fair shares sum exactly to the limit.
//!
//! Assumes:
//! - Clock rates differ by at most the drift in [`ShareTiming`].
//! - Requests end within `max_duration`.
//! - State is lost completely or together with its [`CoordinatorIncarnation`], not entry by entry.
//!
//! Not covered:
//! - Transport, storage of the state, and liveness detection.

pub mod aggregate;
pub mod clock_reading;
pub mod config;
#[allow(clippy::module_inception, reason = "the room is named for its first tenant")]
pub mod coordinator;
pub mod incarnation;
pub mod message;
pub mod share_client;
pub mod share_state;
pub mod split;

pub use clock_reading::ClockReading;
pub use config::{CoordinatorConfig, ShareTiming};
pub use coordinator::{Coordinator, HeartbeatReply};
pub use incarnation::CoordinatorIncarnation;
pub use message::{Grant, Heartbeat};
pub use share_client::ShareClient;
