//! Members' messages as [`BORROW`](super::super::BORROW) takes them, and what the script says of each.
//!
//! Guarantees: pure; the list of holders has the counter's slot and a key that no counter has; a
//! reply that the script could not have given is refused whole.
//! Leaves out: sending, and deadlines.

use super::{Answer, DENY, LOG, NotUnderstood, TAG, answer, double, key, record};
use crate::backend::lease::{Lent, Message};
use crate::backend::{Cause, Charge, Outcome};
use crate::kernel::decision::{Cost, Standing};
use crate::kernel::lease::{self, Borrow, Overshoot};
use crate::kernel::rate::Step;
use crate::kernel::rate::limit::{EXACT, Tick};
use crate::kernel::units::{Hits, Nanos};

/// A later message of this member was taken before.
const SUPERSEDED: i64 = 6;

/// No counter's own bytes begin so, nor their digest: they begin with the form of the key.
const LIST: u8 = b'$';

/// Integers that the script says of a message.
pub const FIELDS: usize = 8;

/// What the script says of a message: what [`read`] reads.
pub type Said = [i64; FIELDS];

/// What is said about a counter, ready to travel: a message, or what is done with a charge that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// KEYS: the counter, and the list of those who hold leases of it, or of its holds.
    pub keys: [Vec<u8>; 2],
    /// The instant, the message, and the record of the limit, its terms and the member, or of the charge.
    pub args: [Vec<u8>; 3],
}

/// `message` as it travels, at the store's own instant or at `at`, whose rest below a microsecond is
/// dropped. Numbers of 2^53 and more are that less one; budgets end at 2^32 - 1.
#[must_use]
pub fn pack(message: &Message, prefix: &[u8], at: Option<Nanos>) -> Packed {
    let peek = peek(message);
    let counter = key(&peek.key, peek.home, prefix);
    let mut list = counter.clone();
    list.insert(prefix.len() + TAG, LIST);
    let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
    let record = [record(&peek).into_vec(), lends(message)].concat();
    Packed { keys: [counter, list], args: [now, said(message), record] }
}

/// KEYS and ARGV of one call for all of `messages`, at the instant of the first. They are one text, and a record that
/// several in a row have is said once: each text costs the store more than its bytes.
#[must_use]
pub fn call(messages: &[Packed]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let keys = messages.iter().flat_map(|message| message.keys.clone());
    let (mut now, mut all, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for Packed { args: [its_now, its, record], .. } in messages {
        if records.is_empty() {
            now.clone_from(its_now);
        }
        if records.last() != Some(record) {
            records.push(record.clone());
        }
        // A call has a thousand messages at most.
        let number = u16::try_from(records.len()).unwrap_or(u16::MAX);
        all.extend(number.to_le_bytes());
        all.extend(its);
    }
    (keys.collect(), [now, all].into_iter().chain(records).collect())
}

/// What is said of each message, from the first to the last that the script came to: [`FIELDS`] integers.
///
/// # Errors
/// It is no reply to so many messages, or the script came to none.
pub fn share_out(reply: &[i64], messages: usize) -> Result<Vec<Said>, NotUnderstood> {
    let (said, rest) = reply.as_chunks();
    if !rest.is_empty() || said.is_empty() || messages < said.len() {
        return Err(NotUnderstood::of("eight integers for each message that was come to", reply));
    }
    Ok(said.to_vec())
}

impl Packed {
    /// How long the script may take for it, in microseconds: what was measured, and some more.
    pub(in crate::backend::redis) fn micros(&self) -> usize {
        if self.args[2].first() == Some(&LOG) { 40 } else { 16 }
    }
}

/// What `reply` says of `message`.
///
/// # Errors
/// It is not what the script says of this message.
pub fn read(message: &Message, reply: &[i64]) -> Result<Lent, NotUnderstood> {
    let refused = |wanted| NotUnderstood::of(wanted, reply);
    let natural = |number: i64| u64::try_from(number).ok().filter(|number| *number <= EXACT);
    let [code, numbers @ ..] = reply else { return Err(refused("eight integers")) };
    let numbers: Option<Vec<u64>> = numbers.iter().map(|number| natural(*number)).collect();
    let Some(&[remaining, retry, reset, granted, kept, parked, good_for]) = numbers.as_deref()
    else {
        return Err(refused("eight integers from 0 to 2^53"));
    };
    let lent = [granted, kept, parked, good_for];
    if *code == SUPERSEDED && [remaining, retry, reset] == [0; 3] && lent == [0; 4] {
        return Ok(Lent::Superseded);
    }
    let answer = answer(&peek(message), super::Said { code: *code, remaining, retry, reset })?;
    let step = match answer {
        Answer::Outcome(Outcome::Stepped(step)) => step,
        Answer::Stale(now) if lent == [0; 4] => return Ok(Lent::Stale(now)),
        Answer::Unreadable if lent == [0; 4] => return Ok(Lent::Failed(Cause::WrongType)),
        _ => return Err(refused("nothing lent beside nothing charged")),
    };
    if *code != DENY && retry != 0 || !may_be_lent(message, step, granted) {
        return Err(refused("no more lent than was asked for, and nothing beside a denial"));
    }
    Ok(Lent::Answered(lease::Answer {
        number: message.borrow.number,
        step,
        granted: Hits(granted),
        kept: Hits(kept),
        parked: Hits(parked),
        good_for: Tick::Micro.nanos(good_for),
    }))
}

/// Whether so many hits may be lent beside `step`.
fn may_be_lent(message: &Message, step: Step, granted: u64) -> bool {
    let passes = matches!(step, Step::Admit(_)) || message.borrow.hits == Hits(0);
    granted <= message.borrow.want.0 && (passes || granted == 0)
}

/// The charge of nothing to the counter that is lent of.
fn peek(message: &Message) -> Charge {
    Charge {
        key: message.key.clone(),
        home: message.home,
        strategy: message.strategy,
        cost: Cost::Charge(Hits(0)),
        standing: Standing::default(),
        per_second: message.per_second,
    }
}

/// The message as the script unpacks it.
fn said(message: &Message) -> Vec<u8> {
    let Borrow { number, hits, want, demand, held, returned, lease } = message.borrow;
    let all = [number.0, hits.0, want.0, demand.0, held.0, returned.0, lease.0];
    all.into_iter().flat_map(double).collect()
}

/// What stands behind the record of a limit: under which terms it lends, and to whom.
fn lends(message: &Message) -> Vec<u8> {
    let Message { terms, member, .. } = message;
    let budget = match terms.overshoot {
        Overshoot::AtMost(hits) => double(hits.0.min(u32::MAX.into())),
        Overshoot::InWindow => (-1.0_f64).to_le_bytes(),
    };
    [budget, double(Tick::Micro.floor(terms.term)), member.0.to_le_bytes()].concat()
}
