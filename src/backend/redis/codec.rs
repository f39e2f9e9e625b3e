//! Charges to the arguments of [`super::CHARGE`], and its reply to outcomes.
//!
//! Guarantees: pure; distinct counters have distinct keys, and those of one [`Home`] share a Cluster
//! slot; a reply that the script could not have given is refused whole.
//! Leaves out: sending, deadlines, and what is done about a charge that got no outcome.
//!
//! A key is `{prefix}sg:{tag}:` and the counter's own bytes, or `#` and their SHA-256 where they
//! are more than [`LONGEST_KEY`]. The tag is the home, a 64-bit number in hexadecimal: a
//! collision there only makes strangers share a slot. The digest has to be a cryptographic one:
//! a collision there would make two counters one, and whoever sends descriptors could look for it.

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

use crate::backend::{Charge, Charges, Home, Outcome, Rule};
use crate::kernel::decision::{Cost, Group};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::rate::limit::{EXACT, Tick};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// Bytes of a counter's key that are kept as they are; longer ones are digested.
pub const LONGEST_KEY: usize = 256;

/// Integers per charge in a reply.
const FIELDS: usize = 4;

/// What is sent for one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// KEYS, one per charge.
    pub keys: Vec<Vec<u8>>,
    /// ARGV: two for the question, then one per charge.
    pub args: Vec<Vec<u8>>,
}

/// One answer per charge, in order.
pub type Answers = SmallVec<[Answer; 2]>;

/// What the script says of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was asked or given back; never with `Step::Stale` in it.
    Outcome(Outcome),
    /// Not charged: at this instant of the store's clock none of the windows that the plan brought
    /// is open.
    Stale(Nanos),
    /// Not charged: something else lives under the key.
    Unreadable,
}

/// A reply that is not one of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wanted {wanted}, got {got:?}")]
pub struct NotUnderstood {
    wanted: &'static str,
    got: Vec<i64>,
}

/// The arguments for `charges`, at the store's own instant or at `at`, whose rest below a
/// microsecond is dropped. Hits of 2^53 and more are that less one.
#[must_use]
pub fn encode(charges: &Charges, prefix: &[u8], at: Option<Nanos>) -> Call {
    let now = at.map_or_else(String::new, |at| Tick::Micro.floor(at).to_string());
    let head = [rule(charges.rule).into_bytes(), now.into_bytes()];
    Call {
        keys: charges.list.iter().map(|charge| key(&charge.key, charge.home, prefix)).collect(),
        args: head.into_iter().chain(charges.list.iter().map(record)).collect(),
    }
}

/// What `reply` says of `charges`.
///
/// # Errors
/// It is not a reply that the script gives to these charges.
pub fn decode(charges: &Charges, reply: &[i64]) -> Result<Answers, NotUnderstood> {
    let (fields, rest) = reply.as_chunks::<FIELDS>();
    if fields.len() != charges.list.len() || !rest.is_empty() {
        return Err(NotUnderstood { wanted: "four integers per charge", got: reply.to_vec() });
    }
    let answers = charges.list.iter().zip(fields);
    answers.map(|(charge, fields)| answer(charge, *fields)).collect()
}

/// The key of a counter in the store.
#[must_use]
pub fn key(counter: &CounterKey, home: Home, prefix: &[u8]) -> Vec<u8> {
    let bytes = counter.as_bytes();
    let place = match home {
        // The key of the hash is no secret: every replica must come to the same slot.
        Home::Itself => SipHasher24::new().hash(bytes),
        Home::Beside(place) => place,
    };
    let tag = format!("sg:{{{place:016x}}}:");
    if bytes.len() <= LONGEST_KEY {
        return [prefix, tag.as_bytes(), bytes].concat();
    }
    // No counter's own bytes begin so: they begin with the form of the key.
    [prefix, tag.as_bytes(), b"#", &Sha256::digest(bytes)].concat()
}

fn rule(rule: Rule) -> String {
    match rule {
        Rule::Each => "e".to_owned(),
        Rule::AllOrNothing { quota_for_all, rescued } => {
            let quota = if quota_for_all { "q" } else { "" };
            format!("a{quota}{}", if rescued { "r" } else { "" })
        }
    }
}

/// A charge as the script unpacks it.
fn record(charge: &Charge) -> Vec<u8> {
    let numbers = Numbers::of(&charge.strategy);
    let (act, hits) = match charge.cost {
        Cost::Charge(hits) => (0, hits),
        Cost::Refund(hits) => (1, hits),
    };
    let group = match charge.standing.group {
        Group::Enforced => 0,
        Group::Quota => 1,
        Group::Aside => 2,
    };
    let mut bytes = Vec::with_capacity(64);
    bytes.extend([numbers.code, act, group, u8::from(charge.standing.shadow)]);
    bytes.extend(double(hits.0));
    bytes.extend(numbers.limit.to_le_bytes());
    bytes.extend(double(numbers.period));
    bytes.extend(numbers.burst.to_le_bytes());
    bytes.extend(micros(numbers.tick).to_le_bytes());
    for start in numbers.starts.iter().flatten() {
        bytes.extend(double(Tick::Micro.floor(*start)));
    }
    bytes
}

/// A limit's numbers in the order of the record.
struct Numbers {
    code: u8,
    limit: u32,
    period: u64,
    burst: u32,
    tick: Tick,
    starts: Option<[Nanos; 4]>,
}

impl Numbers {
    fn of(strategy: &Strategy) -> Self {
        let tick = strategy.tick();
        let (code, limit, period, burst, starts) = match strategy {
            Strategy::Gcra(gcra) => {
                (1, gcra.worth().hits, gcra.worth().ticks.get(), gcra.burst(), None)
            }
            Strategy::FixedWindow(window) => match *window.windows() {
                Windows::Every(length) => (2, window.limit(), Tick::Micro.floor(length), 0, None),
                Windows::Calendar { starts } => (3, window.limit(), 0, 0, Some(starts)),
            },
            Strategy::SlidingWindow(window) => {
                (4, window.limit(), window.worth().ticks.get(), 0, None)
            }
            Strategy::SlidingLog(log) => (5, log.limit(), Tick::Micro.floor(log.period()), 0, None),
        };
        Self { code, limit, period, burst, tick, starts }
    }
}

/// An integer as the script's numbers are; what a double cannot hold is cut to what it can.
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn double(integer: u64) -> [u8; 8] {
    let held = if integer < EXACT { integer } else { EXACT - 1 };
    (held as f64).to_le_bytes()
}

const fn micros(tick: Tick) -> u32 {
    match tick {
        Tick::Micro => 1,
        Tick::Milli => 1_000,
        Tick::Second => 1_000_000,
    }
}

fn answer(charge: &Charge, fields: [i64; FIELDS]) -> Result<Answer, NotUnderstood> {
    let refused = |wanted| NotUnderstood { wanted, got: fields.to_vec() };
    let [code, remaining, retry, reset] = fields;
    let natural = |field: i64| u64::try_from(field).ok().filter(|field| *field <= EXACT);
    let (Some(remaining), Some(retry), Some(reset)) =
        (natural(remaining), natural(retry), natural(reset))
    else {
        return Err(refused("fields from 0 to 2^53"));
    };
    let tick = charge.strategy.tick();
    let room = Room { remaining: Hits(remaining), reset_after: tick.nanos(reset) };
    let refund = matches!(charge.cost, Cost::Refund(_));
    let outcome = match (code, retry) {
        (0, 0) if !refund => Outcome::Stepped(Step::Admit(room)),
        (1, _) if !refund => Outcome::Stepped(Step::Deny { retry_after: tick.nanos(retry), room }),
        (2, 0) if !refund => Outcome::Stepped(Step::Never(room)),
        (4, 0) if refund => Outcome::Refunded(Step::Admit(room)),
        (3, 0) if reset == 0 && is_calendar(&charge.strategy) => {
            return Ok(Answer::Stale(Tick::Micro.nanos(remaining)));
        }
        (5, 0) if (remaining, reset) == (0, 0) => return Ok(Answer::Unreadable),
        _ => return Err(refused("a code that fits the charge")),
    };
    if u64::from(charge.strategy.most()) < remaining {
        return Err(refused("no more remaining than the limit"));
    }
    Ok(Answer::Outcome(outcome))
}

const fn is_calendar(strategy: &Strategy) -> bool {
    match strategy {
        Strategy::FixedWindow(window) => matches!(window.windows(), Windows::Calendar { .. }),
        _ => false,
    }
}
