//! The fleet harnesses of Redis, over PostgreSQL: leases, shared limits and strict permits under
//! faults of replicas and of the server.

use crate::store::redis::{overshoot, shared_concurrency, strict_concurrency};
use crate::support::store_server::StoreKind;

#[test]
fn leases_over_postgres_never_exceed_the_overshoot_bound() {
    overshoot::assert_bound_during_faults(StoreKind::Postgres, 3);
}

#[test]
fn shared_limits_over_postgres_hold_during_faults() {
    shared_concurrency::assert_limit_during_faults(StoreKind::Postgres);
}

#[test]
fn strict_limits_over_postgres_hold_during_faults() {
    strict_concurrency::assert_limit_during_faults(StoreKind::Postgres);
}
