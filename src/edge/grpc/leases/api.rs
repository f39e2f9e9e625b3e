//! The protobuf messages, the gRPC service and its client, generated from the proto file.
//!
//! Guarantees:
//! - The code matches the proto file (`tests/edge/grpc/permits_code.rs`).
#![allow(clippy::all, clippy::pedantic, clippy::nursery, missing_docs, unreachable_pub)]

include!(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/sluicegate/v1/leases.rs"));
