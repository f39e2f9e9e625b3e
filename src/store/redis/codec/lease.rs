//! Encodes lease messages for [`LEASE_SCRIPT`](super::super::LEASE_SCRIPT), and decodes the reply.
//!
//! Guarantees:
//! - The functions are pure: no I/O and no clock.
//! - The lease table of a counter has its own key, in the same Cluster slot as the counter.
//! - A reply that the script cannot have sent is rejected as a whole.
//!
//! Not covered:
//! - Sending the call and its deadline.

use super::{
    ChargeResult, DENY, InvalidReply, LOG_RECORD, TAG_BYTES, counter_key, decode_result,
    encode_double, encode_record,
};
use crate::kernel::decision::{Cost, Enforcement};
use crate::kernel::lease::{self, BorrowRequest, Overshoot};
use crate::kernel::rate::CounterDecision;
use crate::kernel::rate::limit::{EXACT_BOUND, Tick};
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::{LeaseMessage, LeaseOutcome};
use crate::store::{Charge, ChargeOutcome, StoreFailure};

/// The result code for a message after which the store applied a later one of the same replica.
const SUPERSEDED: i64 = 6;

/// The first byte after the prefix and the tag in the key of a lease table. In the keys of counters
/// and hashed counters this byte differs.
const LIST: u8 = b'$';

/// The number of integers in the script's result for one lease message.
pub const RESULT_FIELDS: usize = 8;

/// The script's result for one lease message, which [`read`] decodes.
pub type RawLeaseResult = [i64; RESULT_FIELDS];

/// An encoded lease message or action on a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedMessage {
    /// KEYS: the counter, and its lease table or its reservations.
    pub keys: [Vec<u8>; 2],
    /// ARGV: the instant, the message, and a record. For a reservation, the record is the encoded
    /// charge. For a lease message, it is the encoded limit, the lease settings and the replica.
    pub args: [Vec<u8>; 3],
}

/// Encodes `message`. The script uses the given instant, rounded down to microseconds, or without
/// one the clock of Redis. Numbers of 2^53 or more become 2^53 - 1; lease budgets are at most 2^32
/// - 1.
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

/// Returns KEYS and ARGV of one script call for all of `messages`, at the instant of the first
/// message. Equal records of consecutive messages are sent once, and all messages form one string,
/// because each further argument costs Redis time.
#[must_use]
pub fn encode_call(messages: &[PackedMessage]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let keys = messages.iter().flat_map(|message| message.keys.clone());
    let (mut now, mut all, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for PackedMessage { args: [its_now, its, record], .. } in messages {
        if records.is_empty() {
            now.clone_from(its_now);
        }
        if records.last() != Some(record) {
            records.push(record.clone());
        }
        // The conversion never saturates, because a call has at most a thousand messages.
        let number = u16::try_from(records.len()).unwrap_or(u16::MAX);
        all.extend(number.to_le_bytes());
        all.extend(its);
    }
    (keys.collect(), [now, all].into_iter().chain(records).collect())
}

/// Splits `reply` into one result for each message that the script executed. The script executes
/// the first messages of a call, and may leave out the last ones.
///
/// # Errors
/// The reply does not fit this number of messages, or the script executed none.
pub fn split_reply(reply: &[i64], messages: usize) -> Result<Vec<RawLeaseResult>, InvalidReply> {
    let (results, rest) = reply.as_chunks();
    if !rest.is_empty() || results.is_empty() || messages < results.len() {
        return Err(InvalidReply::new("eight integers for each message that was come to", reply));
    }
    Ok(results.to_vec())
}

impl PackedMessage {
    /// Returns the estimated script time of the message in microseconds, which is above the
    /// measured time.
    pub(in crate::store::redis) fn micros(&self) -> usize {
        if self.args[2].first() == Some(&LOG_RECORD) { 40 } else { 16 }
    }
}

/// Decodes the script's result of `message`.
///
/// # Errors
/// The script cannot have sent this result for this message.
pub fn read(message: &LeaseMessage, reply: &[i64]) -> Result<LeaseOutcome, InvalidReply> {
    let refused = |wanted| InvalidReply::new(wanted, reply);
    let natural = |number: i64| u64::try_from(number).ok().filter(|number| *number <= EXACT_BOUND);
    let [code, numbers @ ..] = reply else { return Err(refused("eight integers")) };
    let numbers: Option<Vec<u64>> = numbers.iter().map(|number| natural(*number)).collect();
    let Some(&[remaining, retry, reset, granted, kept, parked, good_for]) = numbers.as_deref()
    else {
        return Err(refused("eight integers from 0 to 2^53"));
    };
    let lent = [granted, kept, parked, good_for];
    if *code == SUPERSEDED && [remaining, retry, reset] == [0; 3] && lent == [0; 4] {
        return Ok(LeaseOutcome::Superseded);
    }
    let charge_result = decode_result(
        &zero_charge(message),
        super::RawChargeResult { code: *code, remaining, retry, reset },
    )?;
    let step = match charge_result {
        ChargeResult::Outcome(ChargeOutcome::Decided(step)) => step,
        ChargeResult::Stale(now) if lent == [0; 4] => return Ok(LeaseOutcome::Stale(now)),
        ChargeResult::Unreadable if lent == [0; 4] => {
            return Ok(LeaseOutcome::Failed(StoreFailure::WrongType));
        }
        _ => return Err(refused("nothing lent beside nothing charged")),
    };
    if *code != DENY && retry != 0 || !can_be_granted(message, step, granted) {
        return Err(refused("no more lent than was asked for, and nothing beside a denial"));
    }
    Ok(LeaseOutcome::Applied(lease::BorrowReply {
        number: message.borrow.number,
        decision: step,
        granted: Hits(granted),
        kept: Hits(kept),
        outstanding_elsewhere: Hits(parked),
        valid_for: Tick::Micro.nanos(good_for),
    }))
}

/// Returns `true` if the script can have granted `granted` hits together with this decision.
fn can_be_granted(message: &LeaseMessage, decision: CounterDecision, granted: u64) -> bool {
    let passes = matches!(decision, CounterDecision::Allow(_)) || message.borrow.hits == Hits(0);
    granted <= message.borrow.wanted.0 && (passes || granted == 0)
}

/// Returns a charge of zero hits to the leased counter.
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

/// Encodes the report, the returned hits, the charge and the borrow in the script's format.
fn encode_message(message: &LeaseMessage) -> Vec<u8> {
    let BorrowRequest {
        number,
        hits,
        wanted: want,
        demand,
        balance: held,
        returned,
        last_lease: lease,
    } = message.borrow;
    let all = [number.0, hits.0, want.0, demand.0, held.0, returned.0, lease.0];
    all.into_iter().flat_map(encode_double).collect()
}

/// Encodes the lease settings and the replica, which follow the limit in the record.
fn encode_terms(message: &LeaseMessage) -> Vec<u8> {
    let LeaseMessage { terms, sender: member, .. } = message;
    let budget = match terms.overshoot {
        Overshoot::AtMost(hits) => encode_double(hits.0.min(u32::MAX.into())),
        Overshoot::InWindow => (-1.0_f64).to_le_bytes(),
    };
    [budget, encode_double(Tick::Micro.floor(terms.duration)), member.0.to_le_bytes()].concat()
}
