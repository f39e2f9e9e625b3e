//! Encodes one check for [`super::CHARGE_SCRIPT`], and decodes the reply into charge outcomes.
//!
//! Guarantees:
//! - Distinct counters have distinct keys; those of one [`Placement`] share a Cluster slot.
//! - If the script cannot have sent one of the results, all charges of the check fail.
//!
//! A Redis key is `{prefix}sg:{tag}:` plus the counter's [`CounterKey`] bytes. Above
//! [`MAX_KEY_BYTES`], `#` and the SHA-256 of these bytes replace them.
//!
//! - The tag, a 64-bit hash in hexadecimal, selects the Cluster slot. Equal hashes are harmless:
//!   unrelated counters then share a slot.
//! - SHA-256 is cryptographic, because clients choose the descriptors in the key. With a weaker
//!   hash a client could make two counters one.

pub mod budgets;
pub mod heartbeat;
pub mod lease;
pub mod permits;

use std::io::Write as _;

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

use crate::kernel::decision::{Cost, VoteGroup};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::rate::limit::{EXACT_BOUND, Tick};
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::{Charge, ChargeMode, ChargeOutcome, Charges, Placement};

/// The longest counter key in bytes that is stored unhashed.
pub const MAX_KEY_BYTES: usize = 256;

/// The length of `sg:{tag}:` in bytes.
const TAG_BYTES: usize = 22;

/// The codes in a reply of the charge script. A third integer follows [`DENY`] and larger codes.
const ADMIT: i64 = 0;
const NEVER: i64 = 1;
const REFUNDED: i64 = 2;
const UNREADABLE: i64 = 3;
const DENY: i64 = 4;
const STALE: i64 = 5;

/// The first byte of the encoded charge (record) of a sliding log.
const LOG_RECORD: u8 = 5;

/// A check, encoded for the charge script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedCheck {
    /// The number of the check's charge mode in the plan; 0 is [`ChargeMode::Each`].
    pub(super) mode: u16,
    pub(super) charges: SmallVec<[PackedCharge; 1]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedCharge {
    pub(super) key: Vec<u8>,
    pub(super) record: ChargeRecord,
}

/// A charge and its limit, encoded for the charge script: at most 32 bytes without a calendar
/// window.
pub(super) type ChargeRecord = SmallVec<[u8; 32]>;

/// The script's result for one charge: a code, the remaining hits, and times in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawChargeResult {
    code: i64,
    remaining: u64,
    retry: u64,
    reset: u64,
}

/// The results of a check, one per charge, in order.
pub type ChargeResults = SmallVec<[ChargeResult; 2]>;

/// The decoded result of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeResult {
    /// The counter was charged, queried or refunded; never [`CounterDecision::OutsideWindows`].
    Outcome(ChargeOutcome),
    /// Nothing was charged: at this instant of the clock of Redis, no calendar window is open.
    Stale(Nanos),
    /// Nothing was charged: Sluicegate did not write the value under the key.
    Unreadable,
}

/// A reply that the script cannot have sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got {actual:?}")]
pub struct InvalidReply {
    expected: &'static str,
    actual: Vec<i64>,
}

/// Encodes `charges`. Hits of 2^53 or more become 2^53 - 1.
#[must_use]
pub fn pack(charges: &Charges, prefix: &[u8]) -> PackedCheck {
    let packed = |charge: &Charge| PackedCharge {
        key: counter_key(&charge.key, charge.placement, prefix),
        record: encode_record(charge),
    };
    PackedCheck {
        mode: mode_number(charges.mode),
        charges: charges.list.iter().map(packed).collect(),
    }
}

/// Decodes one result for each charge.
///
/// # Errors
/// Fails if the script cannot have sent these results for these charges.
pub fn read(charges: &Charges, results: &[RawChargeResult]) -> Result<ChargeResults, InvalidReply> {
    if results.len() != charges.list.len() {
        return Err(InvalidReply { expected: "one result for each charge", actual: Vec::new() });
    }
    charges
        .list
        .iter()
        .zip(results)
        .map(|(charge, result)| decode_result(charge, *result))
        .collect()
}

impl PackedCheck {
    /// Returns an estimate of the script time in microseconds, above the measured time.
    pub(super) fn micros(&self) -> usize {
        let charge_micros =
            |charge: &PackedCharge| if charge.record.first() == Some(&LOG_RECORD) { 24 } else { 4 };
        // The script queries each counter of an all-or-nothing check before it charges any.
        let steps = if self.mode == 0 { 1 } else { 3 };
        self.charges.iter().map(charge_micros).sum::<usize>() * steps
    }
}

impl RawChargeResult {
    /// Decodes and removes the first result of `reply`; `None` if it is invalid. `previous` gives a
    /// reset-after that the script left out because it was equal.
    pub(super) fn read(reply: &mut &[i64], previous: Option<&Self>) -> Option<Self> {
        let natural = |field: i64| u64::try_from(field).ok().filter(|field| *field <= EXACT_BOUND);
        let mut next = || reply.split_off_first().copied();
        let first = next()?;
        let (code, is_shared) = (first.rem_euclid(8), 8 <= first.rem_euclid(16));
        let reset = if is_shared { previous?.reset } else { natural(next()?)? };
        let retry = if code < DENY { 0 } else { natural(next()?)? };
        Some(Self { code, remaining: natural(first)? / 16, retry, reset })
    }
}

/// Decodes a reply of packed doubles, truncated to integers as Redis does; `None` if the length is
/// wrong.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "saturates; numbers above 2^53 are rejected later"
)]
pub fn decode_doubles(packed: &[u8]) -> Option<Vec<i64>> {
    let (numbers, rest) = packed.as_chunks();
    let all = || numbers.iter().map(|bytes| f64::from_le_bytes(*bytes) as i64).collect();
    rest.is_empty().then(all)
}

impl InvalidReply {
    pub(super) fn new(expected: &'static str, actual: &[i64]) -> Self {
        Self { expected, actual: actual.to_vec() }
    }
}

/// Returns the Redis key of a counter.
#[must_use]
pub fn counter_key(counter: &CounterKey, placement: Placement, prefix: &[u8]) -> Vec<u8> {
    let bytes = counter.as_bytes();
    let mut key = Vec::with_capacity(prefix.len() + TAG_BYTES + bytes.len().min(MAX_KEY_BYTES));
    key.extend(prefix);
    let slot_hash = match placement {
        // The hash has no secret key: every replica must choose the same slot.
        Placement::ByKey => SipHasher24::new().hash(bytes),
        Placement::Group(group) => group,
    };
    // Writing to a vector cannot fail.
    drop(write!(key, "sg:{{{slot_hash:016x}}}:"));
    with_name(key, bytes)
}

/// Appends the name of a counter or limit to its key. Above [`MAX_KEY_BYTES`], appends its hash.
pub(crate) fn with_name(mut key: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if name.len() <= MAX_KEY_BYTES {
        key.extend(name);
    } else {
        // `#` marks a hash: unhashed names begin with another byte.
        key.push(b'#');
        key.extend(Sha256::digest(name));
    }
    key
}

/// Returns the Redis Cluster slot of a key, 0 to 16383.
#[must_use]
pub fn cluster_slot(key: &[u8]) -> u16 {
    fred::util::redis_keyslot(key)
}

fn mode_number(mode: ChargeMode) -> u16 {
    match mode {
        ChargeMode::Each => 0,
        ChargeMode::Preview => 8,
        ChargeMode::AllOrNothing { quota_for_all, quota_cannot_deny } => {
            1 + 2 * u16::from(quota_for_all) + 4 * u16::from(quota_cannot_deny)
        }
    }
}

fn encode_record(charge: &Charge) -> ChargeRecord {
    let numbers = LimitNumbers::of(&charge.strategy);
    let (action, hits) = match charge.cost {
        Cost::Charge(hits) => (0, hits),
        Cost::Refund(hits) => (1, hits),
    };
    let group = match charge.standing.group {
        VoteGroup::Enforced => 0,
        VoteGroup::Quota => 1,
        VoteGroup::Unlimited => 2,
    };
    let charges_excess = charge.strategy.on_excess().is_charge();
    let flags = u8::from(charge.standing.shadow) + 2 * u8::from(charges_excess);
    let mut bytes = ChargeRecord::new();
    bytes.extend([numbers.code, action, group, flags]);
    bytes.extend_from_slice(&encode_double(hits.0));
    bytes.extend_from_slice(&numbers.limit.to_le_bytes());
    bytes.extend_from_slice(&encode_double(numbers.period));
    bytes.extend_from_slice(&numbers.burst.to_le_bytes());
    bytes.extend_from_slice(&tick_micros(numbers.tick).to_le_bytes());
    for start in numbers.starts.iter().flatten() {
        bytes.extend_from_slice(&encode_double(Tick::Micro.floor(*start)));
    }
    bytes
}

/// The numbers of a limit, in the order in which the script expects them (see `head.lua`).
struct LimitNumbers {
    code: u8,
    limit: u32,
    period: u64,
    burst: u32,
    tick: Tick,
    starts: Option<[Nanos; 4]>,
}

impl LimitNumbers {
    fn of(strategy: &Strategy) -> Self {
        let tick = strategy.tick();
        let (code, limit, period, burst, starts) = match strategy {
            Strategy::Gcra(gcra) => {
                (1, gcra.refill_rate().hits, gcra.refill_rate().ticks.get(), gcra.burst(), None)
            }
            Strategy::FixedWindow(window) => match *window.windows() {
                Windows::Every(length) => (2, window.limit(), Tick::Micro.floor(length), 0, None),
                Windows::Calendar { starts } => (3, window.limit(), 0, 0, Some(starts)),
            },
            Strategy::SlidingWindow(window) => {
                (4, window.limit(), window.refill_rate().ticks.get(), 0, None)
            }
            Strategy::SlidingLog(log) => {
                (LOG_RECORD, log.limit(), Tick::Micro.floor(log.period()), 0, None)
            }
        };
        Self { code, limit, period, burst, tick, starts }
    }
}

/// Encodes an integer as a double. Values of 2^53 or more become 2^53 - 1.
#[allow(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn encode_double(integer: u64) -> [u8; 8] {
    let bounded = if integer < EXACT_BOUND { integer } else { EXACT_BOUND - 1 };
    (bounded as f64).to_le_bytes()
}

const fn tick_micros(tick: Tick) -> u32 {
    match tick {
        Tick::Micro => 1,
        Tick::Milli => 1_000,
        Tick::Second => 1_000_000,
    }
}

fn decode_result(charge: &Charge, raw: RawChargeResult) -> Result<ChargeResult, InvalidReply> {
    let RawChargeResult { code, remaining, retry, reset } = raw;
    let invalid = |expected| {
        let fields =
            [remaining, retry, reset].map(|field| i64::try_from(field).unwrap_or(i64::MAX));
        InvalidReply { expected, actual: [&[code], &fields[..]].concat() }
    };
    let tick = charge.strategy.tick();
    let room = Headroom { remaining: Hits(remaining), reset_after: tick.nanos(reset) };
    let is_refund = matches!(charge.cost, Cost::Refund(_));
    let outcome = match code {
        ADMIT if !is_refund => ChargeOutcome::Decided(CounterDecision::Allow(room)),
        DENY if !is_refund => ChargeOutcome::Decided(CounterDecision::Deny {
            retry_after: tick.nanos(retry),
            headroom: room,
        }),
        NEVER if !is_refund => ChargeOutcome::Decided(CounterDecision::ExceedsLimit(room)),
        REFUNDED if is_refund => ChargeOutcome::Refunded(CounterDecision::Allow(room)),
        STALE if (remaining, reset) == (0, 0) && is_calendar(&charge.strategy) => {
            return Ok(ChargeResult::Stale(Tick::Micro.nanos(retry)));
        }
        UNREADABLE if (remaining, reset) == (0, 0) => return Ok(ChargeResult::Unreadable),
        _ => return Err(invalid("a code that fits the charge")),
    };
    if u64::from(charge.strategy.max_at_once()) < remaining {
        return Err(invalid("at most as many remaining hits as the limit"));
    }
    Ok(ChargeResult::Outcome(outcome))
}

const fn is_calendar(strategy: &Strategy) -> bool {
    match strategy {
        Strategy::FixedWindow(window) => matches!(window.windows(), Windows::Calendar { .. }),
        _ => false,
    }
}
