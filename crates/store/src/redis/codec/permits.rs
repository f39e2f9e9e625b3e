//! Encodes calls for the permits of strict concurrency limits, for
//! [`ACQUIRE_SCRIPT`](super::super::ACQUIRE_SCRIPT) and
//! [`PERMIT_REPORT_SCRIPT`](super::super::PERMIT_REPORT_SCRIPT), and decodes the replies.
//!
//! Guarantees:
//! - The limits of one partition and its incarnation share a slot, so a failed node loses them
//!   together.
//! - A reply that the script cannot have sent is rejected as a whole.
//!
//! Times are rounded down to microseconds; the longest is 140 years.

use siphasher::sip::SipHasher24;

use super::{InvalidReply, with_name};
use crate::StoreFailure;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::{Nanos, Share};
use crate::permits::{
    AcquireOutcome, LimitPermits, LimitPermitsReply, PermitCorrections, PermitId, PermitTiming,
    StrictPermitReply, StrictPermitRequest,
};

/// The number of partitions of the strict concurrency limits in a Redis Cluster: enough to spread
/// calls over nodes, and few enough to report to each one once per heartbeat. Outside a Cluster
/// there is one partition.
pub const PARTITIONS: u64 = 16;

/// The longest duration in microseconds: added to an instant before the year 2112, it is below
/// 2^53, which a double represents exactly.
const MAX_MICROS: u64 = 1 << 52;

/// The partition that stores a strict concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PermitPartition {
    /// The only partition, outside a Cluster.
    Only,
    /// One of the [`PARTITIONS`] partitions of a Cluster.
    Numbered(u64),
}

/// The arguments of one script call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedPermitCall {
    /// KEYS: the partition's incarnation, then each concurrency limit.
    pub keys: Vec<Vec<u8>>,
    /// ARGV, as `permits.lua`, `acquire.lua` and `report_permits.lua` document it.
    pub args: Vec<Vec<u8>>,
}

/// The arguments that acquire calls and permit reports have in common.
#[derive(Clone, Copy, Debug)]
pub struct PermitCallContext<'a> {
    /// The prefix of every key.
    pub prefix: &'a [u8],
    /// The partition that contains the concurrency limits of the call.
    pub partition: PermitPartition,
    /// The `run_id` of Redis; a new one shows a restart.
    pub run_id: &'a str,
    /// The grace period, the longest silence and the longest lifetime, equal at all replicas.
    pub times: &'a PermitTiming,
    /// The instant of the call. `None` uses the clock of Redis.
    pub at: Option<Nanos>,
}

impl PermitPartition {
    /// Returns the partition of the concurrency limit with the name `bucket`.
    #[must_use]
    pub fn for_bucket(bucket: &[u8]) -> Self {
        // The hash has no secret key: every replica must choose the same partition.
        Self::Numbered(SipHasher24::new().hash(bucket) % PARTITIONS)
    }

    /// Returns all partitions of a Cluster.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..PARTITIONS).map(Self::Numbered)
    }

    fn key(self, prefix: &[u8], rest: &[u8]) -> Vec<u8> {
        let tag = match self {
            Self::Only => "sg:{permits}:".to_owned(),
            Self::Numbered(number) => format!("sg:{{permits:{number}}}:"),
        };
        [prefix, tag.as_bytes(), rest].concat()
    }

    /// Returns the Redis key of the partition's incarnation.
    #[must_use]
    pub fn incarnation_key(self, prefix: &[u8]) -> Vec<u8> {
        self.key(prefix, b"life")
    }

    /// Returns the Redis key of a concurrency limit in this partition.
    #[must_use]
    pub fn limit_key(self, prefix: &[u8], bucket: &[u8]) -> Vec<u8> {
        with_name(self.key(prefix, b"c:"), bucket)
    }
}

/// Encodes the acquisition of one permit.
#[must_use]
pub fn pack_acquire(
    request: &StrictPermitRequest,
    context: PermitCallContext<'_>,
) -> PackedPermitCall {
    let acquire = &request.permit;
    let mut packed = shared_arguments(context);
    packed.keys.push(context.partition.limit_key(context.prefix, &request.bucket));
    let numbers = [
        acquire.limit.0.min(EXACT_BOUND),
        micros(acquire.lifetime),
        micros(acquire.timing.max_lifetime),
    ];
    let numbers = numbers.into_iter().flat_map(super::encode_double).collect();
    packed.args.extend([permit_id_bytes(acquire.id).to_vec(), numbers]);
    packed
}

/// Encodes the permit reports for concurrency limits of one partition.
#[must_use]
pub fn pack_report<'t>(
    limits: impl Iterator<Item = &'t LimitPermits>,
    context: PermitCallContext<'_>,
) -> PackedPermitCall {
    let mut packed = shared_arguments(context);
    for limit in limits {
        packed.keys.push(context.partition.limit_key(context.prefix, &limit.bucket));
        let in_use_count = u64::try_from(limit.in_use.len()).unwrap_or(EXACT_BOUND);
        let mut encoded = super::encode_double(in_use_count).to_vec();
        if limit.is_claimed {
            // The sign bit of a little-endian double.
            encoded.iter_mut().last().into_iter().for_each(|byte| *byte |= 0x80);
        }
        for &(id, lifetime) in &limit.in_use {
            encoded.extend(permit_id_bytes(id));
            encoded.extend(super::encode_double(micros(lifetime)));
        }
        encoded.extend(limit.released.iter().flat_map(|id| permit_id_bytes(*id)));
        packed.args.push(encoded);
    }
    packed
}

/// Decodes the reply to an acquisition. `None` if Sluicegate did not write the value under the key.
///
/// # Errors
/// Fails if the script cannot have sent this reply.
pub fn read_acquire(reply: &[i64]) -> Result<Option<StrictPermitReply>, InvalidReply> {
    let invalid = || InvalidReply::new("a code with a fitting count and time", reply);
    let numbers: Vec<u64> = naturals(reply).ok_or_else(invalid)?;
    let reply_with = |result, held| Some(StrictPermitReply { result, held: Share(held) });
    Ok(match numbers[..] {
        [0, in_use, 0] if 0 < in_use => reply_with(AcquireOutcome::Acquired, in_use),
        [1, in_use, 0] if 0 < in_use => reply_with(AcquireOutcome::LimitReached, in_use),
        [2, in_use, wait] if (1..=MAX_MICROS).contains(&wait) => {
            reply_with(AcquireOutcome::Closed(Nanos(wait.saturating_mul(Nanos::MICRO.0))), in_use)
        }
        [3, 0, 0] => None,
        _ => return Err(invalid()),
    })
}

/// Decodes the reply to the permit reports of one partition.
///
/// # Errors
/// Fails if the script cannot have sent this reply.
pub fn read_report<'t>(
    limits: impl Iterator<Item = &'t LimitPermits>,
    reply: &[i64],
) -> Result<Vec<Result<LimitPermitsReply, StoreFailure>>, InvalidReply> {
    let invalid = || InvalidReply::new("a time, then a code and three counts for each", reply);
    let numbers = naturals(reply).ok_or_else(invalid)?;
    let Some((_closed, results)) = numbers.split_first() else { return Err(invalid()) };
    let (results, []) = results.as_chunks::<4>() else { return Err(invalid()) };
    let mut results = results.iter();
    let decoded = limits.map(|limit| decode_report(limit, results.next()?)).collect::<Option<_>>();
    let replies = decoded.ok_or_else(invalid)?;
    if results.next().is_some() { Err(invalid()) } else { Ok(replies) }
}

fn decode_report(
    permits: &LimitPermits,
    result: &[u64; 4],
) -> Option<Result<LimitPermitsReply, StoreFailure>> {
    let count = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
    match *result {
        [0, restored, freed, in_use]
            if restored <= count(permits.in_use.len())
                && freed <= count(permits.released.len()) =>
        {
            Some(Ok(LimitPermitsReply {
                changes: PermitCorrections { restored, freed },
                held: Share(in_use),
            }))
        }
        [1, 0, 0, 0] => Some(Err(StoreFailure::WrongType)),
        _ => None,
    }
}

fn shared_arguments(context: PermitCallContext<'_>) -> PackedPermitCall {
    let now = context.at.map_or_else(Vec::new, |at| (at.0 / Nanos::MICRO.0).to_string().into());
    let times = [context.times.grace, context.times.max_silence].map(micros);
    let times = times.into_iter().flat_map(super::encode_double).collect();
    PackedPermitCall {
        keys: vec![context.partition.incarnation_key(context.prefix)],
        args: vec![now, context.run_id.as_bytes().to_vec(), times],
    }
}

fn naturals(reply: &[i64]) -> Option<Vec<u64>> {
    let natural =
        |number: &i64| u64::try_from(*number).ok().filter(|number| *number <= EXACT_BOUND);
    reply.iter().map(natural).collect()
}

fn permit_id_bytes(PermitId(incarnation, number): PermitId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&incarnation.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    bytes
}

const fn micros(time: Nanos) -> u64 {
    let micros = time.0 / Nanos::MICRO.0;
    if micros < MAX_MICROS { micros } else { MAX_MICROS }
}
