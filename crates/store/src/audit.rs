//! The audit log in the store: a list of texts, each with its age.
//!
//! Guarantees:
//! - The log has at most [`MAX_AUDIT_RECORDS`] records; a new record removes the oldest.
//! - Ages are by the store's clock, so clocks of replicas may differ.
//!
//! Not covered:
//! - The content of a record (see `engine::actions`).

use crate::kernel::units::Nanos;

/// The largest number of records in the audit log.
pub const MAX_AUDIT_RECORDS: usize = 500;

/// A record is removed at this age.
pub const AUDIT_RETENTION: Nanos = Nanos::from_secs(90 * 86_400);

/// A record of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// The id, unique in the fleet and not empty.
    pub id: Box<str>,
    /// The text, not empty.
    pub text: Box<str>,
}

/// A record as the store returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAuditRecord {
    /// The record.
    pub record: AuditRecord,
    /// The time since the record was appended.
    pub age: Nanos,
}
