//! Tests the lease kernel: the bound in simulated fleets, and each part alone.
//!
//! Each property was verified by mutation: with each defect below, the named tests failed.
//!
//! - table: budget ignores other replicas; a report ignored →
//!   `no_simulation_exceeds_limit_plus_outstanding_hits`
//! - table: a superseded message applied → `a_superseded_message_charges_nothing`
//! - table: a repeated message charged again → `a_repeated_message_is_charged_once`
//! - table: refund of another lease → `only_the_last_lease_is_refunded`
//! - table: refund beyond the newest lease → `a_window_refunds_only_its_newest_lease`
//! - table: refund in another window → `a_window_refunds_only_its_own_hits`
//! - table: refund of the newest log entries first → `a_log_refunds_the_entries_of_the_lease`
//! - table: an in-window lease outlives its window →
//!   `a_lease_without_overshoot_ends_with_its_window`
//! - table: a lease with a denial → `a_denied_borrow_grants_no_lease`
//! - balance: no drift margin; expiry counted from the reply →
//!   `a_lease_lifetime_counts_from_sending_minus_the_drift_margin`
//! - balance: any reply settled → `a_reply_to_an_abandoned_message_is_ignored`
//! - balance: unlisted hits kept → `hits_missing_in_the_lease_table_leave_the_balance`
//! - balance: returned hits still spendable →
//!   `a_full_return_happens_once_and_ignores_pending_replies`

mod balance;
mod bound;
mod history;
mod oracle;
mod prediction;
mod simulation;
mod sizer;
pub mod store;
mod table;
