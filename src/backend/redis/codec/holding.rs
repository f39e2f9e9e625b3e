//! Encodes reservations, commits and cancellations for
//! [`HOLD`](super::super::HOLD), and decodes the reply.
//!
//! Guarantees:
//! - Pure.
//! - The list of reservations has the counter's slot, and a key of its own.
//! - An impossible reply is rejected as a whole.
//!
//! Not covered:
//! - Sending and deadlines.

use std::time::Duration;

use super::lending::Packed;
use super::{Answer, NotUnderstood, TAG, answer, double, key, record};
use crate::backend::Charge;
use crate::kernel::decision::Cost;
use crate::kernel::lease::hold::Id;
use crate::kernel::rate::limit::{EXACT, Tick};
use crate::kernel::units::{Hits, Nanos};

/// Not reserved, or the reservation has ended.
const REFUSED: i64 = 6;

/// The first byte of a reservation list's key. Keys of
/// counters, digests and lease lists begin with another byte.
const LIST: u8 = b'%';

/// The integers in the result of one charge.
const FIELDS: usize = 4;

/// The script's result for one charge, which [`read`] decodes.
pub type Said = [i64; FIELDS];

/// The action on a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Charges the hits if they pass, and allows a cancellation within this time.
    Hold(Duration),
    /// Makes the charge final.
    Keep,
    /// Cancels the charge.
    GiveBack,
}

/// A decoded result for one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// The result of the charge; after a cancellation, the remaining hits.
    Answered(Answer),
    /// The charge is final.
    Kept,
    /// There are too many reservations, or this one has ended.
    Refused,
}

/// Encodes `act` on a charge. Uses `at`, cut to microseconds, or else the store's clock.
#[must_use]
pub fn pack(charge: &Charge, id: Id, act: Act, prefix: &[u8], at: Option<Nanos>) -> Packed {
    let counter = key(&charge.key, charge.home, prefix);
    let mut list = counter.clone();
    list.insert(prefix.len() + TAG, LIST);
    let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
    Packed { keys: [counter, list], args: [now, message(id, act), record(charge).into_vec()] }
}

/// Splits `reply` into the results of this many charges.
///
/// # Errors
/// The reply has another length.
pub fn share_out(reply: &[i64], charges: usize) -> Result<Vec<Said>, NotUnderstood> {
    match reply.as_chunks() {
        (said, []) if said.len() == charges => Ok(said.to_vec()),
        _ => Err(NotUnderstood::of("four integers for each charge", reply)),
    }
}

/// Decodes the result of `act` on `charge`.
///
/// # Errors
/// The script cannot have sent this result.
pub fn read(charge: &Charge, act: Act, reply: &Said) -> Result<Held, NotUnderstood> {
    let refused = |wanted| NotUnderstood::of(wanted, reply);
    let natural = |number: i64| u64::try_from(number).ok().filter(|number| *number <= EXACT);
    let &[code, remaining, retry, reset] = reply;
    let numbers = (natural(remaining), natural(retry), natural(reset));
    let (Some(remaining), Some(retry), Some(reset)) = numbers else {
        return Err(refused("integers from 0 to 2^53"));
    };
    match (act, code, [remaining, retry, reset]) {
        (Act::Keep, 0, [0, 0, 0]) => Ok(Held::Kept),
        (Act::Hold(_) | Act::Keep, REFUSED, [0, 0, 0]) => Ok(Held::Refused),
        (Act::Keep, 3, [0, 0, 0]) => Ok(Held::Answered(Answer::Unreadable)),
        (Act::Keep, ..) => Err(refused("kept, or no more held")),
        (Act::Hold(_) | Act::GiveBack, ..) => {
            let asked = Charge { cost: asked(charge, act), ..charge.clone() };
            answer(&asked, super::Said { code, remaining, retry, reset }).map(Held::Answered)
        }
    }
}

/// A cancellation returns the result of a charge of zero hits.
fn asked(charge: &Charge, act: Act) -> Cost {
    if act == Act::GiveBack { Cost::Charge(Hits(0)) } else { charge.cost }
}

fn message(Id(process, question): Id, act: Act) -> Vec<u8> {
    let (what, term) = match act {
        Act::Hold(term) => (0, u64::try_from(term.as_micros()).unwrap_or(u64::MAX)),
        Act::Keep => (1, 0),
        Act::GiveBack => (2, 0),
    };
    let mut bytes = vec![what];
    bytes.extend(double(term));
    bytes.extend(process.to_le_bytes());
    bytes.extend(question.to_le_bytes());
    bytes
}
