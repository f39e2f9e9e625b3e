//! Permits as [`ACQUIRE`](super::super::ACQUIRE) and [`TELL`](super::super::TELL) take them, and what the scripts
//! say.
//!
//! Guarantees: pure; ceilings that live in one place share one slot with its life, because what the life knows
//! must be lost together; a reply that the script could not have given is refused whole.
//! Leaves out: sending, and deadlines. Times are cut to microseconds, and none is longer than 140 years.

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher24;

use super::{LONGEST_KEY, NotUnderstood};
use crate::backend::Cause;
use crate::backend::permits::{Acquire, Acquired, Answer, Found, Heard, Id, Times, Told};
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::{Nanos, Share};

/// Into how many places a Cluster's ceilings are divided: enough that no node has all calls, few enough to
/// tell each of them once a beat. Elsewhere there is one.
pub const PLACES: u64 = 16;

/// Microseconds; with the instant below what a double holds, until the year 2112.
const LONGEST: u64 = 1 << 52;

/// Where ceilings live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// All of them in one.
    One,
    /// In one of [`PLACES`].
    Of(u64),
}

/// A call, ready to travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// KEYS: the life, then each ceiling.
    pub keys: Vec<Vec<u8>>,
    /// ARGV.
    pub args: Vec<Vec<u8>>,
}

/// What a call is sent with: `at` is an instant other than the store's own.
#[derive(Clone, Copy, Debug)]
pub struct Letter<'a> {
    /// What every key begins with.
    pub prefix: &'a [u8],
    /// Where the ceilings live.
    pub place: Place,
    /// What the store is called.
    pub store: &'a str,
    /// What all who ask and tell agree on.
    pub times: &'a Times,
    /// The instant, where it is not the store's own.
    pub at: Option<Nanos>,
}

impl Place {
    /// Where the ceiling of that name lives among [`PLACES`].
    #[must_use]
    pub fn of(bucket: &[u8]) -> Self {
        // No secret: every replica must come to the same place.
        Self::Of(SipHasher24::new().hash(bucket) % PLACES)
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..PLACES).map(Self::Of)
    }

    fn key(self, prefix: &[u8], rest: &[u8]) -> Vec<u8> {
        let tag = match self {
            Self::One => "sg:{permits}:".to_owned(),
            Self::Of(number) => format!("sg:{{permits:{number}}}:"),
        };
        [prefix, tag.as_bytes(), rest].concat()
    }

    /// The key of its life.
    #[must_use]
    pub fn life(self, prefix: &[u8]) -> Vec<u8> {
        self.key(prefix, b"life")
    }

    /// The key of a ceiling that lives there.
    #[must_use]
    pub fn ceiling(self, prefix: &[u8], bucket: &[u8]) -> Vec<u8> {
        let mut key = self.key(prefix, b"c:");
        if bucket.len() <= LONGEST_KEY {
            key.extend(bucket);
        } else {
            // No bucket's own bytes begin so.
            key.push(b'#');
            key.extend(Sha256::digest(bucket));
        }
        key
    }
}

/// One permit asked for.
#[must_use]
pub fn pack_acquire(asked: &Acquire, letter: Letter<'_>) -> Packed {
    let ask = &asked.ask;
    let mut packed = packed(letter);
    packed.keys.push(letter.place.ceiling(letter.prefix, &asked.bucket));
    let numbers = [ask.limit.0.min(EXACT), micros(ask.keep), micros(ask.times.longest)];
    let numbers = numbers.into_iter().flat_map(super::double).collect();
    packed.args.extend([bytes(ask.id).to_vec(), numbers]);
    packed
}

/// What is told of some ceilings, all of one place.
#[must_use]
pub fn pack_tell<'t>(told: impl Iterator<Item = &'t Told>, letter: Letter<'_>) -> Packed {
    let mut packed = packed(letter);
    for told in told {
        packed.keys.push(letter.place.ceiling(letter.prefix, &told.bucket));
        let held = u64::try_from(told.held.len()).unwrap_or(EXACT);
        let mut said = super::double(held).to_vec();
        for &(id, keep) in &told.held {
            said.extend(bytes(id));
            said.extend(super::double(micros(keep)));
        }
        said.extend(told.over.iter().flat_map(|id| bytes(*id)));
        packed.args.push(said);
    }
    packed
}

/// What `reply` says of a permit that was asked for; nothing where the script does not understand what lives
/// under the ceiling's key.
///
/// # Errors
/// It is not what the script says.
pub fn read_acquire(reply: &[i64]) -> Result<Option<Answer>, NotUnderstood> {
    let refused = || NotUnderstood::of("a code, a count and a time that go together", reply);
    let numbers: Vec<u64> = naturals(reply).ok_or_else(refused)?;
    let answer = |acquired, held| Some(Answer { acquired, held: Share(held) });
    Ok(match numbers[..] {
        [0, held, 0] if 0 < held => answer(Acquired::Held, held),
        [1, held, 0] if 0 < held => answer(Acquired::Full, held),
        [2, held, wait] if (1..=LONGEST).contains(&wait) => {
            answer(Acquired::Closed(Nanos(wait.saturating_mul(Nanos::MICRO.0))), held)
        }
        [3, 0, 0] => None,
        _ => return Err(refused()),
    })
}

/// What `reply` says of so many ceilings.
///
/// # Errors
/// It is not what the script says.
pub fn read_tell<'t>(
    told: impl Iterator<Item = &'t Told>,
    reply: &[i64],
) -> Result<Vec<Result<Heard, Cause>>, NotUnderstood> {
    let refused = || NotUnderstood::of("a time, then a code and three counts for each", reply);
    let numbers = naturals(reply).ok_or_else(refused)?;
    let Some((_closed, answers)) = numbers.split_first() else { return Err(refused()) };
    let (answers, []) = answers.as_chunks::<4>() else { return Err(refused()) };
    let mut answers = answers.iter();
    let heard = told.map(|told| heard(told, answers.next()?)).collect::<Option<_>>();
    let heard = heard.ok_or_else(refused)?;
    if answers.next().is_some() { Err(refused()) } else { Ok(heard) }
}

fn heard(told: &Told, answer: &[u64; 4]) -> Option<Result<Heard, Cause>> {
    let count = |all: usize| u64::try_from(all).unwrap_or(u64::MAX);
    match *answer {
        [0, put_back, freed, held]
            if put_back <= count(told.held.len()) && freed <= count(told.over.len()) =>
        {
            Some(Ok(Heard { found: Found { put_back, freed }, held: Share(held) }))
        }
        [1, 0, 0, 0] => Some(Err(Cause::WrongType)),
        _ => None,
    }
}

fn packed(letter: Letter<'_>) -> Packed {
    let now = letter.at.map_or_else(Vec::new, |at| text(at.0 / Nanos::MICRO.0));
    let times = [letter.times.grace, letter.times.silence].map(micros);
    let times = times.into_iter().flat_map(super::double).collect();
    Packed {
        keys: vec![letter.place.life(letter.prefix)],
        args: vec![now, letter.store.as_bytes().to_vec(), times],
    }
}

fn naturals(reply: &[i64]) -> Option<Vec<u64>> {
    let natural = |number: &i64| u64::try_from(*number).ok().filter(|number| *number <= EXACT);
    reply.iter().map(natural).collect()
}

fn text(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn bytes(Id(life, number): Id) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&life.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}

const fn micros(time: Nanos) -> u64 {
    let micros = time.0 / Nanos::MICRO.0;
    if micros < LONGEST { micros } else { LONGEST }
}
