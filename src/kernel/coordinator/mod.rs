//! One ceiling for the whole fleet: folded from what the members infer, divided into their shares.
//!
//! A [`Member`] speaks in heartbeats, the [`Coordinator`] answers each with a grant, and a share
//! moves from one member to another only after the one that loses it has said by number that it
//! let go. There is no mode in which any of this is left out.
//!
//! | rule | what breaks without it |
//! |---|---|
//! | a grant reserves for every other member its *exposure*: the largest of the share it holds, the share it was last granted and its requests in flight | a joiner is granted what an incumbent still uses |
//! | a share is let go by the number of its grant, never by its size | a late grant of the same size counts as the newer one |
//! | sending a heartbeat voids the answer to the one before; so does a fence | a delayed answer brings back a share that was given away |
//! | a heartbeat takes its number, the holding and the in-flight count in one instant | a fresh number beside a stale count hides requests |
//! | a member stops at term less margin, counted from when it *sent*; the coordinator holds its exposure to term and `max_duration`, counted from when it *heard*, and no shorter than by the law under which each request was admitted | a paused member's share is used twice |
//! | numbers are of one life of the coordinator and one of the member | an old large number acknowledges a grant never seen |
//! | a coordinator that knows nothing grants nobody more than it proves to hold | the first to speak after a flush takes everything |
//!
//! Guarantees: while the ceiling stands, the shares in force and the requests in flight of the
//! fleet together never exceed it, whatever is lost, doubled, late or reordered, through joins,
//! leaves, crashes, pauses below and above a term, and the store's loss of all it knew. When the
//! ceiling falls there is never more than before; once all have heard of it, what each may use, which is its share or what
//! it has in flight above that, adds up to ever less until it fits, and what one has in flight above its share nobody else
//! is granted. Every sum of parts is exact.
//! Assumes: clocks that differ in rate by no more than the drift in [`Terms`]; requests that end
//! within `max_duration`; a state that is lost whole, or with its [`Life`], not entry by entry.
//! Leaves out: how messages travel, where the state is kept, who decides what is live.

pub mod aggregate;
#[allow(clippy::module_inception, reason = "the room is named for its first tenant")]
pub mod coordinator;
pub mod life;
pub mod member;
pub mod message;
pub mod reading;
pub mod seat;
pub mod split;
pub mod terms;

pub use coordinator::{Coordinator, Reply};
pub use life::Life;
pub use member::Member;
pub use message::{Grant, Heartbeat};
pub use reading::Reading;
pub use terms::{Law, Terms};
