//! Charges that are held, kept or given back, as [`HOLD`](super::super::HOLD) takes them, and what the
//! script says of each.
//!
//! Guarantees: pure; the list of holds has the counter's slot and a key that no counter has; a
//! reply that the script could not have given is refused whole.
//! Leaves out: sending, and deadlines.

use std::time::Duration;

use super::lending::Packed;
use super::{Answer, NotUnderstood, TAG, answer, double, key, record};
use crate::backend::Charge;
use crate::kernel::decision::Cost;
use crate::kernel::lease::hold::Id;
use crate::kernel::rate::limit::{EXACT, Tick};
use crate::kernel::units::{Hits, Nanos};

/// Not held, or not held any more.
const REFUSED: i64 = 6;

/// No counter's own bytes begin so, nor their digest, nor a list of leases.
const LIST: u8 = b'%';

/// Integers that the script says of a charge.
const FIELDS: usize = 4;

/// What the script says of a charge: what [`read`] reads.
pub type Said = [i64; FIELDS];

/// What is done with a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is made, if it passes, and can be given back within this time.
    Hold(Duration),
    /// It stays.
    Keep,
    /// It is given back.
    GiveBack,
}

/// What the script says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// What became of the charge; once it is given back, what is left.
    Answered(Answer),
    /// Its hits stay charged.
    Kept,
    /// It cannot be held, or it is held no more.
    Refused,
}

/// `act` on a charge as it travels, at the store's own instant or at `at`, whose rest below a
/// microsecond is dropped.
#[must_use]
pub fn pack(charge: &Charge, id: Id, act: Act, prefix: &[u8], at: Option<Nanos>) -> Packed {
    let counter = key(&charge.key, charge.home, prefix);
    let mut list = counter.clone();
    list.insert(prefix.len() + TAG, LIST);
    let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
    Packed { keys: [counter, list], args: [now, message(id, act), record(charge).into_vec()] }
}

/// What is said of each of so many charges.
///
/// # Errors
/// It is no reply to so many.
pub fn share_out(reply: &[i64], charges: usize) -> Result<Vec<Said>, NotUnderstood> {
    match reply.as_chunks() {
        (said, []) if said.len() == charges => Ok(said.to_vec()),
        _ => Err(NotUnderstood::of("four integers for each charge", reply)),
    }
}

/// What `reply` says of `act` on `charge`.
///
/// # Errors
/// It is not what the script says of it.
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

/// What is left is that of no hits.
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
