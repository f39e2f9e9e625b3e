//! The constants of the algorithm `gradient`.
//!
//! Source: chosen with both experiments of `benches/`, the same for every backend.

use super::super::fixed_point::Fraction;

/// The largest growth after a window that leaves doubt about a queue.
pub(super) const MAX_UNSURE_GROWTH: Fraction = Fraction::percent(130);
/// The multiple of the capacity to which the limit returns after a drain, if the capacity
/// fluctuates.
pub(super) const EXPLORATION: Fraction = Fraction::percent(500);
/// The multiple of the capacity that is the limit while a queue drains.
pub(super) const DRAIN: Fraction = Fraction::percent(30);
/// The multiple of the capacity that is the limit while the first min RTT may include a queue.
pub(super) const HALF: Fraction = Fraction::percent(50);
/// The part of the limit that must be in flight on average for the limit to grow.
pub(super) const USED: Fraction = Fraction::percent(80);
/// The part of the capacity below which requests in flight cause no queue.
pub(super) const UNQUEUED: Fraction = Fraction::percent(70);
/// The slowdown (RTT / min RTT), in millionths, below which the min RTT is wrong.
pub(super) const BELOW_MIN_RTT: u64 = 820_000;
/// The part of the earlier requests in flight at which a shorter queue would show in the latency.
///
/// With a queue, latency would fall to the same 75 %. There was no queue if latency stays above
/// `NOT_FASTER`, midway between 75 % and 100 %.
pub(super) const FEWER_IN_FLIGHT: Fraction = Fraction::percent(75);
pub(super) const NOT_FASTER: Fraction = Fraction::percent(87);
/// The number of round trips after a drain until finished requests are representative again.
pub(super) const SETTLING_ROUND_TRIPS: u64 = 2;
/// The number of samples that a window needs to update the spread of latencies.
pub(super) const MIN_SPREAD_SAMPLES: u64 = 4;
/// The largest number of samples in a block, the part of a window that is added at once.
pub(super) const MAX_BLOCK: u64 = 4_096;
/// The standard error of the mean latency, in millionths, below which a window ends.
///
/// `MAX_BLOCKS` blocks end a window at any error.
pub(super) const SMALL_ERROR: u64 = 50_000;
pub(super) const MAX_BLOCKS: u64 = 8;
/// The number of windows between two min RTT probes, plus up to `PROBE_JITTER` more.
pub(super) const PROBE_INTERVAL: u64 = 128;
pub(super) const PROBE_JITTER: u64 = 63;
/// The average change of the measured capacity, in millionths, above which the capacity fluctuates.
pub(super) const FLUCTUATION: u64 = 50_000;
/// The largest change that enters this average, because a single jump is not a fluctuation.
pub(super) const MAX_CHANGE: u64 = 260_000;
/// The number of parts of a block; after each part a slowdown above 2 is detected early.
///
/// A part has at least `MIN_PART` samples. `FAR_OVERLOAD` is the slowdown 2 divided by the overload
/// threshold 1.55.
pub(super) const BLOCK_PARTS: u64 = 4;
pub(super) const MIN_PART: u64 = 4;
pub(super) const FAR_OVERLOAD: Fraction = Fraction { numerator: 200, denominator: 155 };
/// The part of the known capacity; an overload during a drain is new if it measures even less.
pub(super) const NEW_OVERLOAD: Fraction = Fraction::percent(87);
/// The number of standard errors by which the limit is raised if latencies vary by more than a
/// fifth.
///
/// Only the error between `SMALL_ERROR` and `MAX_ERROR` counts. `SPREAD_WEIGHT` is the weight of
/// the spread.
pub(super) const MARGIN_ERRORS: u64 = 2;
pub(super) const MAX_ERROR: u64 = 300_000;
pub(super) const SPREAD_WEIGHT: Fraction = HALF;
/// The divisor of the time to the next probe, if few samples changed the min RTT much.
pub(super) const EARLY_PROBE_DIVISOR: u64 = 8;
/// The capacity, in requests, below which one more request is a large change.
pub(super) const SMALL_CAPACITY: u32 = 4;
