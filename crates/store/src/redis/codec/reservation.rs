//! Encodes reservations, commits and cancellations for
//! [`RESERVATION_SCRIPT`](super::super::RESERVATION_SCRIPT), and decodes the reply.
//!
//! Guarantees:
//! - The reservations of a counter have their own key, in the same Cluster slot as the counter.
//! - A reply that the script cannot have sent is rejected as a whole.

use std::time::Duration;

use super::lease::PackedMessage;
use super::{
    ChargeResult, InvalidReply, TAG_BYTES, counter_key, decode_result, encode_double, encode_record,
};
use crate::Charge;
use crate::kernel::decision::Cost;
use crate::kernel::lease::reservation::ReservationId;
use crate::kernel::rate::limit::{EXACT_BOUND, Tick};
use crate::kernel::units::{Hits, Nanos};

/// The result code for hits that were not reserved, or for a reservation that expired.
const NOT_RESERVED: i64 = 6;

/// The first byte after the prefix and the tag in the key of a reservation list; it differs in
/// other keys.
const LIST: u8 = b'%';

const FIELDS: usize = 4;

/// The script's result for one charge, which [`read`] decodes.
pub type RawReservationResult = [i64; FIELDS];

/// The action of a message on the reservation of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationAction {
    /// Charges the hits if the limit allows them. The charge can be canceled within this time.
    Reserve(Duration),
    /// Makes the reserved charge final.
    Commit,
    /// Cancels the reservation and refunds its hits.
    Cancel,
}

/// The decoded result of a [`ReservationAction`] on one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationResult {
    /// After a reservation, the result of the charge. After a cancellation, the remaining hits.
    Charged(ChargeResult),
    /// The reservation was committed.
    Committed,
    /// The counter has too many reservations, or the reservation to commit had expired.
    NotReserved,
}

/// Encodes an action on a charge. The script uses the instant `at`, rounded down to microseconds;
/// without it, the clock of Redis.
#[must_use]
pub fn pack(
    charge: &Charge,
    id: ReservationId,
    action: ReservationAction,
    prefix: &[u8],
    at: Option<Nanos>,
) -> PackedMessage {
    let counter = counter_key(&charge.key, charge.placement, prefix);
    let mut list = counter.clone();
    list.insert(prefix.len() + TAG_BYTES, LIST);
    let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
    PackedMessage {
        keys: [counter, list],
        args: [now, encode_message(id, action), encode_record(charge).into_vec()],
    }
}

/// Splits `reply` into one result for each of the expected charges.
///
/// # Errors
/// Fails if the length of the reply does not fit this number of charges.
pub fn split_reply(
    reply: &[i64],
    charges: usize,
) -> Result<Vec<RawReservationResult>, InvalidReply> {
    match reply.as_chunks() {
        (results, []) if results.len() == charges => Ok(results.to_vec()),
        _ => Err(InvalidReply::new("four integers for each charge", reply)),
    }
}

/// Decodes the script's result of an action on `charge`.
///
/// # Errors
/// Fails if the script cannot have sent this result.
pub fn read(
    charge: &Charge,
    action: ReservationAction,
    reply: &RawReservationResult,
) -> Result<ReservationResult, InvalidReply> {
    let invalid = |expected| InvalidReply::new(expected, reply);
    let natural = |number: i64| u64::try_from(number).ok().filter(|number| *number <= EXACT_BOUND);
    let &[code, remaining, retry, reset] = reply;
    let numbers = (natural(remaining), natural(retry), natural(reset));
    let (Some(remaining), Some(retry), Some(reset)) = numbers else {
        return Err(invalid("integers from 0 to 2^53"));
    };
    match (action, code, [remaining, retry, reset]) {
        (ReservationAction::Commit, 0, [0, 0, 0]) => Ok(ReservationResult::Committed),
        (ReservationAction::Reserve(_) | ReservationAction::Commit, NOT_RESERVED, [0, 0, 0]) => {
            Ok(ReservationResult::NotReserved)
        }
        (ReservationAction::Commit, 3, [0, 0, 0]) => {
            Ok(ReservationResult::Charged(ChargeResult::Unreadable))
        }
        (ReservationAction::Commit, ..) => Err(invalid("committed or expired")),
        (ReservationAction::Reserve(_) | ReservationAction::Cancel, ..) => {
            let expected_charge = Charge { cost: expected_cost(charge, action), ..charge.clone() };
            decode_result(
                &expected_charge,
                super::RawChargeResult { code, remaining, retry, reset },
            )
            .map(ReservationResult::Charged)
        }
    }
}

/// Returns the cost to which the script's result refers: 0 hits for a cancellation.
fn expected_cost(charge: &Charge, action: ReservationAction) -> Cost {
    if action == ReservationAction::Cancel { Cost::Charge(Hits(0)) } else { charge.cost }
}

fn encode_message(
    ReservationId(process, number): ReservationId,
    action: ReservationAction,
) -> Vec<u8> {
    let (code, lifetime_micros) = match action {
        ReservationAction::Reserve(lifetime) => {
            (0, u64::try_from(lifetime.as_micros()).unwrap_or(u64::MAX))
        }
        ReservationAction::Commit => (1, 0),
        ReservationAction::Cancel => (2, 0),
    };
    let mut bytes = vec![code];
    bytes.extend(encode_double(lifetime_micros));
    bytes.extend(process.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes
}
