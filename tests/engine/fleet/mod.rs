//! Tests of messages between replicas.

mod forwarding;
