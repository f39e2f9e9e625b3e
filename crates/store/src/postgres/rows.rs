//! The rows of one transaction: their keys, values and expiry.
//!
//! A value is a version byte and a state of the kernel in the format of `postcard`.
//!
//! Guarantees:
//! - A value of an unknown version or format is an error, and its row stays unchanged.

use std::collections::HashMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::StoreFailure;
use crate::kernel::units::Nanos;
use crate::redis::codec::with_name;

/// The version of the format of values.
const VALUE_VERSION: u8 = 2;

/// The key of a row.
pub(super) type RowKey = Vec<u8>;

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// A counter and its leases.
    Counter = b'c' as isize,
    /// A budget, without the ids of holds that ended.
    Budget = b'b' as isize,
    /// Some ids of holds of a budget that ended.
    EndedIds = b'e' as isize,
    /// The live replicas.
    Membership = b'm' as isize,
    /// The audit log.
    Audit = b'a' as isize,
    /// The incarnation of the coordinator, and the fleet table.
    Fleet = b'f' as isize,
    /// The coordinator's state of one shared concurrency limit.
    Shares = b's' as isize,
    /// The gate of all strict concurrency limits.
    Gate = b'g' as isize,
    /// The permits of one strict concurrency limit.
    Permits = b'p' as isize,
}

/// Returns the key of the row of `kind` for `name`.
pub(super) fn row_key(prefix: &str, kind: RowKind, name: &[u8]) -> RowKey {
    with_name([prefix.as_bytes(), &[kind as u8]].concat(), name)
}

/// Returns the number of the advisory lock of a key. Keys with equal numbers wait for each other.
pub(super) fn lock_number(key: &[u8]) -> i64 {
    use std::hash::Hasher as _;
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(key);
    hasher.finish().cast_signed()
}

/// The locked rows of one transaction.
#[derive(Debug, Default)]
pub(super) struct Rows {
    now: Nanos,
    server_start: String,
    by_key: HashMap<RowKey, StoredRow>,
}

#[derive(Debug)]
struct StoredRow {
    value: Vec<u8>,
    empty_at: Nanos,
    is_changed: bool,
}

impl Rows {
    /// Creates the rows that the server returned at `now`, by its clock. `server_start` is the start
    /// of the server process.
    pub(super) fn new(
        now: Nanos,
        server_start: String,
        loaded: impl IntoIterator<Item = (RowKey, Vec<u8>)>,
    ) -> Self {
        let stored = |(key, value)| (key, StoredRow { value, empty_at: now, is_changed: false });
        Self { now, server_start, by_key: loaded.into_iter().map(stored).collect() }
    }

    /// The instant of the transaction, by the server's clock, after all locks were taken.
    pub(super) const fn now(&self) -> Nanos {
        self.now
    }

    /// The name of the server process. A restart and a failover change it.
    pub(super) fn server_name(&self) -> &str {
        &self.server_start
    }

    /// Returns the state in a row, or `None` without a row.
    pub(super) fn read<T: DeserializeOwned>(&self, key: &[u8]) -> Result<Option<T>, StoreFailure> {
        let Some(row) = self.by_key.get(key) else { return Ok(None) };
        let Some((&VALUE_VERSION, state)) = row.value.split_first() else {
            return Err(StoreFailure::WrongType);
        };
        postcard::from_bytes(state).map(Some).map_err(|_invalid| StoreFailure::WrongType)
    }

    /// Returns `true` if there is a row with this key.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.by_key.contains_key(key)
    }

    /// Replaces the state in a row. The row is deleted some time after `empty_at`.
    pub(super) fn write<T: Serialize>(
        &mut self,
        key: &[u8],
        state: &T,
        empty_at: Nanos,
    ) -> Result<(), StoreFailure> {
        let value = postcard::to_extend(state, vec![VALUE_VERSION])
            .map_err(|_impossible| StoreFailure::Other)?;
        let row = StoredRow { value, empty_at, is_changed: true };
        self.by_key.insert(key.to_vec(), row);
        Ok(())
    }

    /// Returns the changed rows in the order of their keys: each with its value, and the instant from
    /// which it can be deleted.
    pub(super) fn changed(&self) -> Vec<(&[u8], &[u8], Nanos)> {
        let changed = self.by_key.iter().filter(|(_, row)| row.is_changed);
        let mut sorted: Vec<_> = changed
            .map(|(key, row)| (key.as_slice(), row.value.as_slice(), row.empty_at))
            .collect();
        sorted.sort_unstable_by_key(|(key, ..)| *key);
        sorted
    }
}

/// Converts to the microseconds of a `bigint`, rounded up. Saturates.
pub(super) fn to_micros(instant: Nanos) -> i64 {
    i64::try_from(instant.0.div_ceil(Nanos::MICRO.0)).unwrap_or(i64::MAX)
}

/// Converts from the microseconds of a `bigint`; 0 for a negative number.
pub(super) fn from_micros(micros: i64) -> Nanos {
    Nanos(u64::try_from(micros).unwrap_or(0).saturating_mul(Nanos::MICRO.0))
}
