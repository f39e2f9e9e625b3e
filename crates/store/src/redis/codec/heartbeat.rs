//! Encodes a share round for [`HEARTBEAT_SCRIPT`](super::super::HEARTBEAT_SCRIPT), and decodes the
//! reply.
//!
//! Guarantees:
//! - The functions are pure: no I/O and no clock.
//! - All keys of a fleet share one Cluster slot, so a node that fails loses all of them together.
//! - A reply that the script cannot have sent is rejected as a whole.
//!
//! Not covered:
//! - Sending the call and its deadline.
//!
//! Times are rounded down to microseconds. Counts above 2^32 - 1 become 2^32 - 1.

use super::{InvalidReply, with_name};
use crate::heartbeat::{ShareReport, ShareRound, ShareRoundReply};
use crate::kernel::coordinator::aggregate::{LimitFactor, VoteAggregate};
use crate::kernel::coordinator::{DemandCurve, Grant, HeartbeatReply};
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::units::{Generation, Incarnation, Nanos, Share};

/// The number of integers in the script's result for one share report.
const FIELDS: usize = 8;
/// The script's result for a concurrency limit whose stored state has an unknown format.
const UNREADABLE: [u64; FIELDS] = [6, 0, 0, 0, 0, 0, 0, 0];

/// The arguments of the script call for one share round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedRound {
    /// KEYS: the coordinator's incarnation with the fleet table, then the state of each concurrency
    /// limit.
    pub keys: Vec<Vec<u8>>,
    /// ARGV: the instant, the `run_id` of Redis, the replica, then one share report for each
    /// concurrency limit.
    pub args: Vec<Vec<u8>>,
}

/// Encodes `round`. `store` is the `run_id` of Redis. Without an instant, the script uses the clock
/// of Redis.
#[must_use]
pub fn pack(round: &ShareRound, prefix: &[u8], store: &str, at: Option<Nanos>) -> PackedRound {
    let now = at.map_or_else(Vec::new, |at| micros(at).to_string().into_bytes());
    let keys = std::iter::once(incarnation_key(prefix));
    let args = [now, store.as_bytes().to_vec(), encode_replica(round)];
    PackedRound {
        keys: keys
            .chain(round.reports.iter().map(|report| state_key(&report.bucket, prefix)))
            .collect(),
        args: args.into_iter().chain(round.reports.iter().map(encode_report)).collect(),
    }
}

/// Decodes the reply to `round`.
///
/// # Errors
/// The script cannot have sent this reply to this round.
pub fn read(round: &ShareRound, reply: &[i64]) -> Result<ShareRoundReply, InvalidReply> {
    let refused = |wanted| InvalidReply::new(wanted, reply);
    let natural =
        |number: &i64| u64::try_from(*number).ok().filter(|number| *number <= EXACT_BOUND);
    let numbers: Option<Vec<u64>> = reply.iter().map(natural).collect();
    let numbers = numbers.ok_or_else(|| refused("integers from 0 to 2^53"))?;
    let [incarnation, store_time, results @ ..] = &numbers[..] else {
        return Err(refused("an incarnation and an instant"));
    };
    let (incarnation, store_time) =
        (Incarnation(*incarnation), Nanos(store_time.saturating_mul(Nanos::MICRO.0)));
    let (results, rest) = results.as_chunks::<FIELDS>();
    if !rest.is_empty() || results.len() != round.reports.len() {
        return Err(refused("eight integers for each concurrency limit"));
    }
    let decode_result = |(report, result): (&ShareReport, &[u64; FIELDS])| match *result {
        UNREADABLE => Ok(None),
        _ => decode_reply(report, result)
            .map(Some)
            .ok_or_else(|| refused("a known code with its values")),
    };
    let replies: Result<_, _> = round.reports.iter().zip(results).map(decode_result).collect();
    Ok(ShareRoundReply { incarnation, store_time, replies: replies? })
}

/// The key of the coordinator's incarnation and of the fleet table (a record of each replica).
#[must_use]
pub fn incarnation_key(prefix: &[u8]) -> Vec<u8> {
    [prefix, b"sg:{fleet}:incarnation"].concat()
}

/// The key of a concurrency limit's state.
#[must_use]
pub fn state_key(bucket: &[u8], prefix: &[u8]) -> Vec<u8> {
    with_name([prefix, b"sg:{fleet}:c:"].concat(), bucket)
}

fn decode_reply(report: &ShareReport, result: &[u64; FIELDS]) -> Option<HeartbeatReply> {
    let [code, coordinator, generation, share, fair, limit, replicas, recovering] = *result;
    if code != 0 && result[1..] != [0; FIELDS - 1] || 1 < recovering {
        return None;
    }
    let heartbeat = &report.heartbeat;
    Some(match code {
        0 => HeartbeatReply::Grant(Grant {
            replica: heartbeat.replica,
            incarnation: heartbeat.incarnation,
            heartbeat_number: heartbeat.number,
            coordinator_incarnation: Incarnation(coordinator),
            generation: Generation(generation),
            share: Share(share),
            fair_share: Share(fair),
            limit: Share(limit),
            replicas,
            is_recovering: recovering == 1,
        }),
        1 => HeartbeatReply::Left,
        2 => HeartbeatReply::Stale,
        3 => HeartbeatReply::Superseded,
        4 => HeartbeatReply::StateLost,
        5 => HeartbeatReply::TooManyReplicas,
        _ => return None,
    })
}

fn encode_replica(round: &ShareRound) -> Vec<u8> {
    let mut bytes = ReportBytes::default();
    bytes.double(round.record.replica.0);
    bytes.double(round.record.incarnation.0);
    bytes.optional_double(round.record.coordinator_incarnation.map(|under| under.0));
    bytes.optional_double(round.last_reply_at.map(micros));
    bytes.double(micros(round.longest_use));
    bytes.0.push(u8::from(round.is_leaving));
    bytes.0
}

fn encode_report(report: &ShareReport) -> Vec<u8> {
    let ShareReport { law, heartbeat, .. } = report;
    let mut bytes = ReportBytes::default();
    for time in [law.timing.heartbeat, law.timing.share_lifetime, law.timing.max_duration] {
        bytes.double(micros(time));
    }
    for share in [law.min, law.start, law.max] {
        bytes.share(share);
    }
    bytes.0.push(u8::from(law.aggregate == VoteAggregate::Min));
    for number in [heartbeat.replica.0, heartbeat.incarnation.0, heartbeat.number] {
        bytes.double(number);
    }
    bytes.0.push(u8::from(heartbeat.grant_in_use.is_some()));
    let grant_field = |field: fn(&_) -> u64| heartbeat.grant_in_use.as_ref().map_or(0, field);
    bytes.double(grant_field(|in_use| in_use.coordinator_incarnation.0));
    bytes.double(grant_field(|in_use| in_use.generation.0));
    bytes.share(Share(grant_field(|in_use| in_use.share.0)));
    bytes.share(Share(grant_field(|in_use| in_use.limit.0)));
    bytes.share(heartbeat.in_flight);
    bytes.share(heartbeat.demand);
    bytes.share(Share(heartbeat.vote.map_or(0, |LimitFactor(ratio)| u64::from(ratio) + 1)));
    bytes.0.push(u8::from(heartbeat.is_leaving) + 2 * u8::from(heartbeat.is_claimed));
    if !heartbeat.curve.is_empty() {
        bytes.curve(law.classes.percents(), &heartbeat.curve);
    }
    bytes.0
}

#[derive(Default)]
struct ReportBytes(Vec<u8>);

impl ReportBytes {
    fn double(&mut self, number: u64) {
        self.0.extend(super::encode_double(number));
    }

    /// Appends a number as a double; `None` becomes -1.
    fn optional_double(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.double(number),
            None => self.0.extend((-1.0_f64).to_le_bytes()),
        }
    }

    /// Appends the parts of the classes and the points of a curve.
    fn curve(&mut self, percents: &[u8], curve: &DemandCurve) {
        self.0.extend([u8::try_from(percents.len()).unwrap_or(u8::MAX)]);
        self.0.extend(percents);
        for point in curve.points() {
            self.0.extend(point.place.to_le_bytes());
            self.0.extend(point.demand.to_le_bytes());
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
