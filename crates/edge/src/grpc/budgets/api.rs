//! The protobuf messages, the gRPC service and its client.
//!
//! `tests/edge/grpc/permits_code.rs` generates them from the proto file.
#![allow(clippy::all, clippy::pedantic, clippy::nursery, missing_docs, unreachable_pub)]

include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/sluicegate/v1/budgets.rs"));
