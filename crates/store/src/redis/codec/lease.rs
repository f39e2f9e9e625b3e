//! Encodes lease messages for [`LEASE_SCRIPT`](super::super::LEASE_SCRIPT), and decodes the reply.
//!
//! Guarantees:
//! - The lease table of a counter has its own key, in the same Cluster slot as the counter.
//! - A reply that the script cannot have sent is rejected as a whole.

use super::{
    ChargeResult, DENY, InvalidReply, LOG_RECORD, TAG_BYTES, counter_key, decode_result,
    encode_double, encode_record,
};
use crate::kernel::decision::{Cost, Enforcement};
use crate::kernel::lease::{self, BorrowRequest, Overshoot};
use crate::kernel::rate::CounterDecision;
use crate::kernel::rate::limit::{EXACT_BOUND, Tick};
use crate::kernel::units::{Hits, Nanos};
use crate::lease::{LeaseMessage, LeaseOutcome};
use crate::{Charge, ChargeOutcome, StoreFailure};

/// The result code if the store had applied a later message of the same replica.
const SUPERSEDED: i64 = 6;

/// The first byte after the prefix and the tag in the key of a lease table; it differs in other
/// keys.
const LIST: u8 = b'$';

/// The number of integers in the script's result for one lease message.
pub const RESULT_FIELDS: usize = 8;

/// The script's result for one lease message, which [`read`] decodes.
pub type RawLeaseResult = [i64; RESULT_FIELDS];

/// An encoded lease message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedMessage {
    /// KEYS: the counter, and its lease table.
    pub keys: [Vec<u8>; 2],
    /// ARGV: the instant, the message, and a record: the limit, lease settings and replica.
    pub args: [Vec<u8>; 3],
}

/// Encodes `message`. The script uses the instant `at`, rounded down to microseconds; without it,
/// the clock of Redis. Larger numbers become 2^53 - 1, lease budgets 2^32 - 1.
#[must_use]
pub fn pack(message: &LeaseMessage, prefix: &[u8], at: Option<Nanos>) -> PackedMessage {
    let peek = zero_charge(message);
    let counter = counter_key(&peek.key, peek.placement, prefix);
    let mut list = counter.clone();
    list.insert(prefix.len() + TAG_BYTES, LIST);
    let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
    let record = [encode_record(&peek).into_vec(), encode_terms(message)].concat();
    PackedMessage { keys: [counter, list], args: [now, encode_message(message), record] }
}

/// Returns KEYS and ARGV of one script call for all of `messages`, at the instant of the first.
/// Equal records in a row are sent once, and all messages form one string, because each further
/// argument costs Redis time.
#[must_use]
pub fn encode_call(messages: &[PackedMessage]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let keys = messages.iter().flat_map(|message| message.keys.clone());
    let (mut now, mut encoded, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for PackedMessage { args: [message_now, message, record], .. } in messages {
        if records.is_empty() {
            now.clone_from(message_now);
        }
        if records.last() != Some(record) {
            records.push(record.clone());
        }
        // Never saturates, because a call has at most a thousand messages.
        let number = u16::try_from(records.len()).unwrap_or(u16::MAX);
        encoded.extend(number.to_le_bytes());
        encoded.extend(message);
    }
    (keys.collect(), [now, encoded].into_iter().chain(records).collect())
}

/// Splits `reply` into one result for each executed message. The script may leave out the last
/// messages of a call.
///
/// # Errors
/// Fails if the reply does not fit this number of messages, or the script executed none.
pub fn split_reply(reply: &[i64], messages: usize) -> Result<Vec<RawLeaseResult>, InvalidReply> {
    let (results, rest) = reply.as_chunks();
    if !rest.is_empty() || results.is_empty() || messages < results.len() {
        return Err(InvalidReply::new("eight integers for each executed message", reply));
    }
    Ok(results.to_vec())
}

impl PackedMessage {
    /// Returns an estimate of the script time in microseconds, above the measured time.
    pub(in crate::redis) fn micros(&self) -> usize {
        if self.args[2].first() == Some(&LOG_RECORD) { 40 } else { 16 }
    }
}

/// Decodes the script's result of `message`.
///
/// # Errors
/// Fails if the script cannot have sent this result for this message.
pub fn read(message: &LeaseMessage, reply: &[i64]) -> Result<LeaseOutcome, InvalidReply> {
    let invalid = |expected| InvalidReply::new(expected, reply);
    let natural = |number: i64| u64::try_from(number).ok().filter(|number| *number <= EXACT_BOUND);
    let [code, numbers @ ..] = reply else { return Err(invalid("eight integers")) };
    let numbers: Option<Vec<u64>> = numbers.iter().map(|number| natural(*number)).collect();
    let Some(&[remaining, retry, reset, granted, kept, outstanding, valid_for]) =
        numbers.as_deref()
    else {
        return Err(invalid("eight integers from 0 to 2^53"));
    };
    let lease_fields = [granted, kept, outstanding, valid_for];
    if *code == SUPERSEDED && [remaining, retry, reset] == [0; 3] && lease_fields == [0; 4] {
        return Ok(LeaseOutcome::Superseded);
    }
    let charge_result = decode_result(
        &zero_charge(message),
        super::RawChargeResult { code: *code, remaining, retry, reset },
    )?;
    let decision = match charge_result {
        ChargeResult::Outcome(ChargeOutcome::Decided(decision)) => decision,
        ChargeResult::Stale(now) if lease_fields == [0; 4] => return Ok(LeaseOutcome::Stale(now)),
        ChargeResult::Unreadable if lease_fields == [0; 4] => {
            return Ok(LeaseOutcome::Failed(StoreFailure::WrongType));
        }
        _ => return Err(invalid("no lease without a charge")),
    };
    if *code != DENY && retry != 0 || !can_be_granted(message, decision, granted) {
        return Err(invalid("a grant of at most the wanted hits, and none with a denial"));
    }
    Ok(LeaseOutcome::Applied(lease::BorrowReply {
        number: message.borrow.number,
        decision,
        granted: Hits(granted),
        kept: Hits(kept),
        outstanding_elsewhere: Hits(outstanding),
        valid_for: Tick::Micro.nanos(valid_for),
    }))
}

/// Returns `true` if the script can have granted `granted` hits together with this decision.
fn can_be_granted(message: &LeaseMessage, decision: CounterDecision, granted: u64) -> bool {
    let is_allowed =
        matches!(decision, CounterDecision::Allow(_)) || message.borrow.hits == Hits(0);
    granted <= message.borrow.wanted.0 && (is_allowed || granted == 0)
}

fn zero_charge(message: &LeaseMessage) -> Charge {
    Charge {
        key: message.key.clone(),
        placement: message.placement,
        strategy: message.strategy,
        cost: Cost::Charge(Hits(0)),
        standing: Enforcement::default(),
        per_second: message.per_second,
    }
}

/// Encodes the report, the returned hits, the charge and the hits to borrow.
fn encode_message(message: &LeaseMessage) -> Vec<u8> {
    let BorrowRequest { number, hits, wanted, demand, balance, returned, last_lease } =
        message.borrow;
    let all = [number.0, hits.0, wanted.0, demand.0, balance.0, returned.0, last_lease.0];
    all.into_iter().flat_map(encode_double).collect()
}

/// Encodes the lease settings and the replica, which follow the limit in the record.
fn encode_terms(message: &LeaseMessage) -> Vec<u8> {
    let LeaseMessage { terms, sender: replica, .. } = message;
    let budget = match terms.overshoot {
        Overshoot::AtMost(hits) => encode_double(hits.0.min(u32::MAX.into())),
        Overshoot::InWindow => (-1.0_f64).to_le_bytes(),
        Overshoot::Occupying(hits) => {
            let hits = u32::try_from(hits.0).unwrap_or(u32::MAX);
            (-2.0 - f64::from(hits)).to_le_bytes()
        }
    };
    [budget, encode_double(Tick::Micro.floor(terms.duration)), replica.0.to_le_bytes()].concat()
}
