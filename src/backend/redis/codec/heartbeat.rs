//! Encodes a round of share reports for
//! [`HEARTBEAT`](super::super::HEARTBEAT), and decodes the reply.
//!
//! Guarantees:
//! - Pure.
//! - All keys of a fleet share one slot, so they are lost together.
//! - An impossible reply is rejected as a whole.
//!
//! Not covered:
//! - Sending and deadlines.
//!
//! Times are cut to microseconds. Counts above 2^32 - 1 become 2^32 - 1.

use sha2::{Digest as _, Sha256};

use super::{LONGEST_KEY, NotUnderstood};
use crate::backend::heartbeat::{Beat, Heard, Round};
use crate::kernel::coordinator::aggregate::{Aggregate, Ratio};
use crate::kernel::coordinator::split::Split;
use crate::kernel::coordinator::{Grant, Reply};
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::{Generation, Incarnation, Nanos, Share};

/// The integers in the result of one report.
const FIELDS: usize = 8;
/// The result for a concurrency limit whose state the script does not understand.
const UNREADABLE: [u64; FIELDS] = [6, 0, 0, 0, 0, 0, 0, 0];

/// An encoded round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// KEYS: the fleet's incarnation and table, then the state of each concurrency limit.
    pub keys: Vec<Vec<u8>>,
    /// ARGV: the instant, the store's `run_id`, the
    /// replica, then one report for each concurrency limit.
    pub args: Vec<Vec<u8>>,
}

/// Encodes `round` for the store with this `run_id`.
/// Uses the instant `at`, or else the store's clock.
#[must_use]
pub fn pack(round: &Round, prefix: &[u8], store: &str, at: Option<Nanos>) -> Packed {
    let now = at.map_or_else(Vec::new, |at| micros(at).to_string().into_bytes());
    let keys = std::iter::once(lives(prefix));
    let args = [now, store.as_bytes().to_vec(), replica(round)];
    Packed {
        keys: keys.chain(round.beats.iter().map(|beat| state(&beat.bucket, prefix))).collect(),
        args: args.into_iter().chain(round.beats.iter().map(said)).collect(),
    }
}

/// Decodes the reply to `round`.
///
/// # Errors
/// The script cannot have sent this reply to this round.
pub fn read(round: &Round, reply: &[i64]) -> Result<Heard, NotUnderstood> {
    let refused = |wanted| NotUnderstood::of(wanted, reply);
    let natural = |number: &i64| u64::try_from(*number).ok().filter(|number| *number <= EXACT);
    let numbers: Option<Vec<u64>> = reply.iter().map(natural).collect();
    let numbers = numbers.ok_or_else(|| refused("integers from 0 to 2^53"))?;
    let [life, at, answers @ ..] = &numbers[..] else {
        return Err(refused("a life and an instant"));
    };
    let at = Nanos(at.saturating_mul(Nanos::MICRO.0));
    let (answers, rest) = answers.as_chunks::<FIELDS>();
    if !rest.is_empty() || answers.len() != round.beats.len() {
        return Err(refused("eight integers for each ceiling"));
    }
    let answer = |(beat, answer): (&Beat, &[u64; FIELDS])| match *answer {
        UNREADABLE => Ok(None),
        _ => {
            answered(beat, answer).map(Some).ok_or_else(|| refused("a code and what goes with it"))
        }
    };
    let replies: Result<_, _> = round.beats.iter().zip(answers).map(answer).collect();
    let replies = replies?;
    Ok(Heard { life: Incarnation(*life), at, replies })
}

/// The key of the fleet's incarnation and table.
#[must_use]
pub fn lives(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"sg:{fleet}:lives"].concat()
}

/// The key of a concurrency limit's state.
#[must_use]
pub fn state(bucket: &[u8], prefix: &[u8]) -> Vec<u8> {
    let mut key = [prefix, b"sg:{fleet}:c:"].concat();
    if bucket.len() <= LONGEST_KEY {
        key.extend(bucket);
    } else {
        // A bucket's bytes never begin with `#`.
        key.push(b'#');
        key.extend(Sha256::digest(bucket));
    }
    key
}

fn answered(beat: &Beat, answer: &[u64; FIELDS]) -> Option<Reply> {
    let [code, coordinator, generation, share, fair, ceiling, members, recovering] = *answer;
    if code != 0 && answer[1..] != [0; FIELDS - 1] || 1 < recovering {
        return None;
    }
    let said = &beat.said;
    Some(match code {
        0 => Reply::Grant(Grant {
            member: said.member,
            life: said.life,
            number: said.number,
            coordinator: Incarnation(coordinator),
            generation: Generation(generation),
            share: Share(share),
            fair: Share(fair),
            ceiling: Share(ceiling),
            members,
            recovering: recovering == 1,
        }),
        1 => Reply::Left,
        2 => Reply::Late,
        3 => Reply::Superseded,
        4 => Reply::Lost,
        5 => Reply::Full,
        _ => return None,
    })
}

fn replica(round: &Round) -> Vec<u8> {
    let mut bytes = Bytes::default();
    bytes.double(round.record.member.0);
    bytes.double(round.record.life.0);
    bytes.perhaps(round.record.under.map(|under| under.0));
    bytes.perhaps(round.answered.map(micros));
    bytes.double(micros(round.longest));
    bytes.0.push(u8::from(round.leaves));
    bytes.0
}

fn said(beat: &Beat) -> Vec<u8> {
    let Beat { law, said, .. } = beat;
    let mut bytes = Bytes::default();
    for time in [law.terms.heartbeat, law.terms.term, law.terms.max_duration] {
        bytes.double(micros(time));
    }
    for share in [law.min, law.start, law.max] {
        bytes.share(share);
    }
    bytes.0.push(u8::from(law.aggregate == Aggregate::Min));
    bytes.0.push(u8::from(law.split == Split::Demand));
    for number in [said.member.0, said.life.0, said.number] {
        bytes.double(number);
    }
    bytes.0.push(u8::from(said.holds.is_some()));
    let held = |field: fn(&_) -> u64| said.holds.as_ref().map_or(0, field);
    bytes.double(held(|holds| holds.coordinator.0));
    bytes.double(held(|holds| holds.generation.0));
    bytes.share(Share(held(|holds| holds.share.0)));
    bytes.share(Share(held(|holds| holds.ceiling.0)));
    bytes.share(said.in_flight);
    bytes.share(said.wanted);
    bytes.share(Share(said.vote.map_or(0, |Ratio(ratio)| u64::from(ratio) + 1)));
    bytes.0.push(u8::from(said.leaves));
    bytes.0
}

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn double(&mut self, number: u64) {
        self.0.extend(super::double(number));
    }

    /// Encodes `None` as -1.
    fn perhaps(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.double(number),
            None => self.0.extend((-1.0_f64).to_le_bytes()),
        }
    }

    fn share(&mut self, share: Share) {
        let share = u32::try_from(share.0).unwrap_or(u32::MAX);
        self.0.extend(share.to_le_bytes());
    }
}

const fn micros(time: Nanos) -> u64 {
    time.0 / Nanos::MICRO.0
}
