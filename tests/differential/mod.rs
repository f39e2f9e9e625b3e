//! Compares the store's Lua scripts with the kernel and the memory store on random traces.
//!
//! Guarantees:
//! - The same calls at the same instants get the same replies, with equal fields.
//! - Keys in Redis expire when the kernel's state is empty.
//! - A failure prints its random seed; `SLUICEGATE_SEED` repeats the run.
//! - `SLUICEGATE_TRACES` multiplies the number of random traces, for long runs.
//!
//! To prove that the tests can fail, bugs were put into the scripts on purpose. Each test below
//! failed with each of the bugs after its name.
//!
//! - `gcra_script_matches_the_kernel`: ticks not converted, or rounded up. Debt not capped, or the
//!   cap not stored. Unused credit accumulated. Retry or reset rounded down, or summed beyond 2^53.
//!   `ExceedsLimit` for exactly the burst. Off by one. Refund below zero. Key of an empty counter kept.
//!   Converted debt rounded down, not capped by both bursts, or in the wrong tick. Change of the
//!   burst ignored.
//! - `fixed_window_script_matches_the_kernel`: boundary counted in the old window. Future window
//!   restarted. Large counts not stored separately. `<` for `<=`. Saturation missing or off by one.
//!   14 digits. Refund below zero.
//! - `calendar_window_script_matches_the_kernel`: end inclusive, window off by one, stale reply
//!   without its instant.
//! - `sliding_window_script_matches_the_kernel`: weight rounded down. Wrong or old windows carried
//!   over. One tick late. Window moved back. Move not stored. Start in ticks. Reset without the
//!   next window.
//! - `sliding_log_script_matches_the_kernel`: off by one at the period. Future entries kept.
//!   Lowered limit keeps all entries, or does not rewrite the oldest. Refund of the wrong entry.
//!   Search skips entries. Totals without their origin. Longer period not stored. No entry stored
//!   under a limit of 0.
//! - `sliding_log_stores_one_entry_per_instant`: entries of one instant not merged.
//! - `…_leases_match_the_kernel`: budget ignores other replicas or expired leases. Report ignored.
//!   Return of another lease, window or entry accepted. Superseded message applied. Demand not
//!   capped. Lease outlives its window. Grant beside a denial. Record expires late. Repeated
//!   message charged again, or its verdict lost. Remaining hits not divided.
//! - `gcra_leases_match_the_kernel`: converted debt not stored.
//! - `sliding_log_leases_match_the_kernel`, `return_refunds_at_most_the_newest_charge`: totals of
//!   an entry not updated. Newest part merged across instants.
//! - `full_redis_rejects_lease_messages_without_changes`: refund before the list is written.
//! - `lease_table_key_lives_at_most_twice_its_longest_lease`: no expiry.
//! - `permit_scripts_match_the_kernel`: one permit too many. Deadline a microsecond late. Grace
//!   ends early. Future deadlines kept. Grace beyond its length. Another store trusted. Report
//!   without effect. Repeated acquire counted twice.
//! - `budget_script_matches_the_kernel`: hold added to the settled amount, or released from a later
//!   period. Settle not idempotent. Expiry forgets the id, is late, or ignores `on_expiry`. Periods
//!   mixed up. Hold kept after a denial or in the next period. Excess not counted. Ended id purged early
//!   or known too long. Saturation missing. 33 periods kept. Settle after expiry charged twice.
//! - `full_budgets_deny_and_expire_as_in_the_kernel`: no bound in shadow mode. Purge of a full budget
//!   omitted.
//! - `multi_charge_check_matches_the_memory_store`: duplicates not summed. Refunds summed
//!   or skipped. Denial by a shadow limit or a lone quota limit. Rescue or `quota_for_all` ignored.
//!   Uncharged limit reported as charged. Read that charges.
//! - `batched_charges_behave_like_single_charges`: one hit too few allowed. Denial by a full
//!   window without its time. Large count not stored separately. Key omitted.
//! - `key_expires_within_3_ms_after_its_counter_empties`: a millisecond early.
//! - `gcra_key_expires_within_101_ms_of_its_debt`: expiry rounded down, or not moved to
//!   another tenth of a second, also in a batch.
//! - `partly_refunded_gcra_debt_expires_when_drained`: expiry rounded down.
//! - `foreign_value_in_a_batch_spares_its_neighbors`: reply has the time of the previous
//!   key.
//! - `foreign_value_stays_and_other_charges_succeed`: INCRBY not undone. Unaligned
//!   start accepted. Denial because of an unreadable key.

mod batch;
mod budgets;
mod checks;
mod heartbeats;
mod keys;
mod leases;
mod limits;
mod model;
mod one_counter;
mod permits;

use sluicegate::kernel::units::Nanos;
use sluicegate::store::Charges;
use sluicegate::store::redis::charge_call::ChargeCall;
use sluicegate::store::redis::codec::{ChargeResults, InvalidReply, pack, read};
use sluicegate::store::redis::{CHARGE_SCRIPT, codec};

use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const PREFIX: &[u8] = b"test:";

/// Multiplies a number of random traces, or of events in them, by `SLUICEGATE_TRACES`.
fn traces(count: u64) -> u64 {
    let factor = std::env::var("SLUICEGATE_TRACES").map_or(1, |factor| factor.parse().unwrap());
    count * factor
}

struct Scripted {
    client: Client,
    sha: String,
}

impl Scripted {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let sha = client.call(&["SCRIPT", "LOAD", CHARGE_SCRIPT]).text();
        Self { client, sha }
    }

    fn queue(&mut self, charges: &Charges, at: Option<Nanos>) {
        self.queue_all(std::slice::from_ref(charges), at);
    }

    fn queue_all(&mut self, checks: &[Charges], at: Option<Nanos>) {
        let call = call(checks, at);
        let count = call.keys.len().to_string();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count.into_bytes()];
        let parts: Vec<_> = head.into_iter().chain(call.keys).chain(call.args).collect();
        self.client.queue(&parts);
    }

    fn charge(&mut self, charges: &Charges, at: Option<Nanos>) -> ChargeResults {
        self.queue(charges, at);
        self.client.flush();
        answers(charges, &self.client.receive())
    }
}

fn call(checks: &[Charges], at: Option<Nanos>) -> ChargeCall {
    ChargeCall::encode(checks.iter().map(|charges| pack(charges, PREFIX)).collect(), at)
}

fn answers(charges: &Charges, reply: &Value) -> ChargeResults {
    all_answers(std::slice::from_ref(charges), reply).remove(0)
}

fn all_answers(questions: &[Charges], reply: &Value) -> Vec<ChargeResults> {
    decode(questions, &integers(reply)).unwrap()
}

fn integers(reply: &Value) -> Vec<i64> {
    match reply {
        Value::Text(packed) => codec::decode_doubles(packed).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn decode(questions: &[Charges], reply: &[i64]) -> Result<Vec<ChargeResults>, InvalidReply> {
    let shares = call(questions, None).split_reply(reply)?;
    questions.iter().zip(&shares).map(|(charges, share)| read(charges, share)).collect()
}

#[test]
fn packed_integers_decode_unless_truncated() {
    let packed = [0.0, 12.0, -3.0, 9_007_199_254_740_991.0].map(f64::to_le_bytes).concat();
    assert_eq!(codec::decode_doubles(&packed), Some(vec![0, 12, -3, 9_007_199_254_740_991]));
    assert_eq!(codec::decode_doubles(&[]), Some(vec![]));
    for length in [1, 7, 9, 31] {
        assert_eq!(codec::decode_doubles(&packed[..length]), None, "{length} bytes");
    }
}
