//! The default algorithm: a limit that follows the backend's capacity, measured with Little's law.
//!
//! A queue shows as latency. With `m` requests in flight at a backend that
//! serves `C` at once, a request takes `m/C` times as long as without a
//! queue. So every window of samples measures `C`, at any limit:
//!
//! | formula | worked row: min RTT 10 ms, 60 in flight, RTT 15 ms |
//! |---|---|
//! | slowdown x = RTT / min RTT | 15 / 10 = 1.5 |
//! | capacity C = m / x | 60 / 1.5 = 40 |
//! | limit = 1.3 · C, once x shows a queue | 52 |
//!
//! A request is *unqueued* if fewer than 0.7 · C are in flight at its admission.
//!
//! * **Growth.** Without a queue (x ≤ 1.15) and with the limit in use, × 1.3 a window.
//!   Further windows that are beyond doubt raise this to × 2. Before the first queue,
//!   every such window gives × 2. Few samples, or samples that vary, leave doubt.
//! * **Overload** (x > 1.55, beyond doubt). The limit falls to 0.3 · C until the
//!   queue is empty, then returns to 1.3 · C. A slowdown above 2 is detected within a
//!   quarter of a window, because requests that are admitted meanwhile wait longest.
//! * **The min RTT** is a mean of unqueued samples, because noise biases a minimum low. They come
//!   from the drain after an overload, or from a probe every 128 to 191 windows. A probe lowers
//!   the limit to 0.7 · C for about one round trip. A backend that became slower shows there:
//!   fewer in flight, but not faster. The min RTT also falls if a window is below it beyond doubt.
//! * **Latencies that vary** by a fifth or more. If many requests start together, the
//!   fast ones return first, and the mean of the finished ones is far too low. Then
//!   the min RTT is in flight × time / served during the drain (Little's law), if the
//!   limit is used. Samples within two round trips after the drain are ignored.
//! * **Margin for variance.** The limit is higher by two standard errors of
//!   the window beyond 5 %, and by half of the spread beyond a fifth. Too low
//!   a limit leaves workers idle at once; a slightly longer queue is small
//!   against such latencies. The overload threshold rises by the same factor.
//! * **At the least limit** nothing lower can be measured, so its latency is the min
//!   RTT. Otherwise a min RTT that is too low would keep the limit there forever.
//! * **A wrong min RTT** is detected, because with fewer in flight a queue must
//!   shrink. If a queue lowered the limit by a quarter and requests were not
//!   faster, there was no queue. The min RTT then rises to the observed latency.
//! * **Fluctuating capacity.** If it moves by more than its measurement error for
//!   many windows (moving average above 5 %), an estimate is soon outdated. After
//!   a drain the limit then returns to 5 · C: it costs one queue to measure again.
//!
//! Guarantees:
//! - The state is bounded.
//! - A lowered limit always admits requests, which count as unqueued, and ends by time.
//! - An unused limit does not grow; latency can always lower it.
//! - With a share, `m` is scaled from the share to the whole limit.
//!
//! Not covered:
//! - Service times that vary by half their mean: the limit can be too low (`benches/real_backend`).
//! - A backend that serves less than `min`: the limit stays slightly above `min`.
//! - Replicas that share a backend without sharing a limit: they keep a common queue.
//!
//! Source of the constants: chosen for both experiments of `benches/`; none is per backend.

mod drain;
mod finding;
mod look;
mod together;

use super::level::{Level, Ratio};
use super::tally::{self, Tally};
use super::{Outcome, Part, Sample};
use crate::kernel::units::Nanos;
use drain::{Drain, Why};
use finding::Finding;
use together::Together;

/// The limit as a multiple of the capacity: a short queue keeps the backend busy.
const TARGET: Ratio = Ratio::percent(130);
/// The multiple after a drain if the capacity fluctuates.
const BOLD: Ratio = Ratio::percent(500);
/// The multiple while a queue drains.
const DRAIN: Ratio = Ratio::percent(30);
/// The multiple during a min RTT probe.
const LOOK: Ratio = Ratio::percent(70);
/// The multiple while the first min RTT may include a queue.
const HALF: Ratio = Ratio::percent(50);
/// The part of the capacity below which a request is unqueued.
const ALONE: Ratio = Ratio::percent(70);
/// The slowdown, in millionths, up to which there is no queue.
const CALM: u64 = 1_150_000;
const QUICKER: u64 = 820_000;
/// The reduction of requests in flight after which a shorter queue would show.
///
/// With a queue, latency would fall to the same 75 %. Above `NO_QUICKER`, midway, it did not.
const FEWER: Ratio = Ratio::percent(75);
const NO_QUICKER: Ratio = Ratio::percent(87);
/// The round trips after a drain until finished requests are representative again.
const SETTLING: u64 = 2;
/// The samples that a window needs to update the spread.
const TELLS_SPREAD: u64 = 4;
/// The largest number of samples in a block.
const WINDOW: u64 = 4_096;
/// The error of a mean, in millionths, that ends a window; `PATIENCE` blocks end it at any error.
const GOOD_ERROR: u64 = 50_000;
const PATIENCE: u64 = 8;
/// The windows between two min RTT probes, plus up to `LOOK_JITTER` more.
const LOOK_EVERY: u64 = 128;
const LOOK_JITTER: u64 = 63;
/// The average change, in millionths, above which the capacity fluctuates.
const RESTLESS: u64 = 50_000;
/// The largest change that enters the average, because a single step is not a fluctuation.
const LARGEST_MOVE: u64 = 260_000;
/// The parts of a block that are checked early for a slowdown above 2.
///
/// A part has at least `LEAST_PART` samples. `FAR` is 2 divided by the overload threshold, 1.55.
const PARTS: u64 = 4;
const LEAST_PART: u64 = 4;
const FAR: Ratio = Ratio { times: 200, per: 155 };
/// The part of the known capacity below which an overload during a drain is a new one.
const DEEPER: Ratio = Ratio::percent(87);
/// The standard errors by which the limit is raised if latencies vary.
///
/// Only the error from `GOOD_ERROR` to `LARGEST_DOUBT` counts. `FOR_SPREAD` applies to the spread.
const MARGIN: u64 = 2;
const LARGEST_DOUBT: u64 = 300_000;
const FOR_SPREAD: Ratio = HALF;
/// The divisor of the time to the next probe after few samples moved the min RTT far.
const SOONER: u64 = 8;
/// The capacity below which one request more is a large change.
const FEW: u32 = 4;

/// The state of the gradient algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gradient {
    ideal: Option<Nanos>,
    /// The min RTT at its last measurement without a queue.
    alone_at: Option<Nanos>,
    capacity: Level,
    /// The relative standard deviation of a latency, in millionths; a moving average over windows.
    spread: u64,
    window: Tally,
    /// The newest samples, before they are compared with the window.
    block: Tally,
    dropped: u64,
    drain: Option<Drain>,
    /// The windows without a queue, beyond doubt, since the last queue or drain.
    calm: u32,
    met: bool,
    /// The last measured capacity; `moves` is the moving average of its changes, in millionths.
    seen: Option<Level>,
    moves: u64,
    look_in: u64,
    looked_at: Level,
    jitter: u64,
    /// The end of the period after a drain in which finished requests are biased low.
    settles: Nanos,
    /// Requests in flight and RTT of the window from which a queue lowered the limit.
    high: Option<(Level, Nanos)>,
    together: Option<Box<Together>>,
}

impl Gradient {
    /// The initial state; `jitter` spreads the probes of many limits.
    pub(super) fn new(limit: Level, jitter: u64) -> Self {
        let mut new = Self {
            ideal: None,
            alone_at: None,
            capacity: limit,
            spread: 0,
            window: Tally::default(),
            block: Tally::default(),
            dropped: 0,
            drain: None,
            calm: 0,
            met: false,
            seen: None,
            moves: 0,
            look_in: 0,
            looked_at: Level::whole(0),
            jitter,
            settles: Nanos(0),
            high: None,
            together: None,
        };
        new.plan_look();
        new
    }

    /// The min RTT, if known.
    #[must_use]
    pub fn ideal(&self) -> Option<Nanos> {
        self.together.as_ref().map_or(self.ideal, |together| together.ideal())
    }

    /// Switches to a share of a fleet's limit, or back to a limit of this replica alone.
    pub(super) fn take(&mut self, now: Nanos, part: Option<Part>, limit: Level) {
        match (part, &mut self.together) {
            (Some(part), Some(together)) => together.take(now, part),
            (Some(part), none) => *none = Some(Box::new(Together::new(now, part, self.ideal))),
            (None, None) => {}
            (None, Some(together)) => {
                let ideal = together.ideal();
                *self = Self { ideal, alone_at: ideal, ..Self::new(limit, self.jitter) };
            }
        }
    }

    /// The limit at `now` if the fleet adapts it; otherwise `None`.
    pub(super) fn limit(&mut self, now: Nanos) -> Option<Level> {
        self.together.as_mut().map(|together| together.limit(now))
    }

    /// The wanted limit; `None` until there are enough samples under the fleet's limit.
    pub(super) fn estimate(&self, limit: Level) -> Option<Level> {
        self.together.as_ref().map_or(Some(limit), |together| together.estimate())
    }

    /// The limit after `sample`, given the previous limit and this replica's share.
    pub(super) fn step(&mut self, limit: Level, sample: &Sample, share: u32, min: u32) -> Level {
        if let Some(together) = &mut self.together {
            together.note(sample);
            return limit;
        }
        self.note(sample, min);
        if self.drain.is_some() {
            return self.step_drain(limit, sample, share, min);
        }
        if self.is_window_over(limit, share) {
            self.judge(limit, sample.at, share, min)
        } else {
            limit
        }
    }

    fn note(&mut self, sample: &Sample, min: u32) {
        let alone = self.alone(min);
        let ideal = self.ideal.unwrap_or_default();
        if let Some(drain) = &mut self.drain {
            drain.note(sample, alone, ideal);
        }
        match sample.outcome {
            Outcome::Success if sample.at < self.settles => {}
            Outcome::Success => self.block.push(sample.in_flight, sample.rtt),
            Outcome::Dropped => self.dropped = self.dropped.saturating_add(1),
            Outcome::Ignored => {}
        }
    }

    /// The largest number in flight without a queue; a drained limit never exceeds it.
    fn alone(&self, min: u32) -> Level {
        self.capacity.times(ALONE).max(Level::whole(min))
    }

    /// Ends a full block and returns `true` if the window can be judged.
    ///
    /// A window grows while its mean is uncertain, but only by blocks that
    /// agree. A block that disagrees is a change, which an average would hide.
    fn is_window_over(&mut self, limit: Level, share: u32) -> bool {
        let enough = enough(limit, share);
        if self.block.count().saturating_add(self.dropped) < enough {
            return self.is_far_beyond(limit, share, enough);
        }
        let block = std::mem::take(&mut self.block);
        if self.window.agrees(&block) {
            self.window.join(&block);
        } else {
            self.window = block;
        }
        let at_last = enough.saturating_mul(PATIENCE) <= self.window.count();
        at_last || 0 < self.dropped || self.window.error() < GOOD_ERROR
    }

    /// Checks each quarter of a block for a slowdown above 2.
    fn is_far_beyond(&mut self, limit: Level, share: u32, enough: u64) -> bool {
        let part = enough.div_ceil(PARTS).max(LEAST_PART);
        let is_part = self.block.count() != 0 && self.block.count().is_multiple_of(part);
        if self.drain.is_some() || !is_part {
            return false;
        }
        let found = self.show(&self.block, limit, share);
        let far = found.is_overload(FAR);
        if far {
            // Older samples of the window precede the overload.
            self.window = std::mem::take(&mut self.block);
        }
        far
    }

    fn step_drain(&mut self, limit: Level, sample: &Sample, share: u32, min: u32) -> Level {
        let ideal = self.ideal.unwrap_or_default();
        let (enough, is_narrow) = (enough(limit, share), self.spread <= tally::WIDE);
        let over =
            self.drain.as_ref().is_some_and(|d| d.is_over(enough, is_narrow, sample.at, ideal));
        if over {
            return self.end_drain(sample.at, min);
        }
        // Requests that were admitted before the drain still show the capacity.
        if !self.is_window_over(limit, share) || self.window.count() == 0 {
            return limit;
        }
        let found = self.find(limit, share);
        self.fall_to(&found);
        // Requests that were admitted before the drain repeat the known overload.
        let deeper = found.capacity < self.capacity.times(DEEPER);
        if deeper && self.is_overload(&found) { self.overload(&found, sample.at) } else { limit }
    }

    /// Measures the window and starts the next one.
    fn find(&mut self, limit: Level, share: u32) -> Finding {
        let window = std::mem::take(&mut self.window);
        self.note_spread(&window);
        let found = self.show(&window, limit, share);
        self.ideal.get_or_insert(found.rtt);
        found
    }

    fn note_spread(&mut self, window: &Tally) {
        if window.count() < TELLS_SPREAD {
            return;
        }
        self.spread = match self.spread {
            0 => window.spread(),
            before => before.saturating_mul(7).saturating_add(window.spread()) / 8,
        };
    }

    fn show(&self, window: &Tally, limit: Level, share: u32) -> Finding {
        let rtt = window.mean();
        let ideal = self.ideal.unwrap_or(rtt);
        let in_flight = scaled(window.in_flight(), limit, share);
        let stretch = Ratio { times: 1_000_000, per: ideal.0 }.of(rtt.0).max(1);
        // With hardly any use, judge the limit instead of the requests in flight.
        let judged = if in_flight < limit.times(HALF) { limit } else { in_flight };
        let capacity = judged.times(Ratio { times: 1_000_000, per: stretch });
        let (error, is_wide) = (window.error_of(self.spread), window.is_wide());
        Finding { in_flight, rtt, error, is_wide, stretch, capacity }
    }

    fn is_overload(&self, found: &Finding) -> bool {
        found.is_overload(self.margin(found.error))
    }

    /// The limit after a window with a queue.
    fn lower(&mut self, limit: Level, found: &Finding, min: u32) -> Level {
        if found.in_flight <= Level::whole(min) {
            // Nothing lower can be measured, so these samples count as unqueued.
            self.take_for_ideal(found.rtt, limit);
            return limit;
        }
        if found.is_wide && self.is_no_queue(found) {
            // Fewer in flight, but not faster: the min RTT was too low.
            self.take_for_ideal(found.rtt, found.in_flight);
            self.high = None;
            return self.capacity.times(TARGET);
        }
        self.see(found);
        self.capacity.times(TARGET).times(self.margin(found.error))
    }

    fn take_for_ideal(&mut self, rtt: Nanos, capacity: Level) {
        (self.ideal, self.alone_at, self.capacity) = (Some(rtt), Some(rtt), capacity);
    }

    /// The factor for a capacity that may be underestimated because latencies vary.
    ///
    /// Too low a limit costs goodput at once; a longer queue is small against such latencies.
    fn margin(&self, error: u64) -> Ratio {
        let Some(wide) = self.spread.checked_sub(tally::WIDE) else { return Ratio::percent(100) };
        let doubt = error.min(LARGEST_DOUBT).saturating_sub(GOOD_ERROR).saturating_mul(MARGIN);
        let more = doubt.saturating_add(FOR_SPREAD.of(wide.min(1_000_000)));
        Ratio { times: 1_000_000_u64.saturating_add(more), per: 1_000_000 }
    }

    fn judge(&mut self, limit: Level, at: Nanos, share: u32, min: u32) -> Level {
        if 0 < std::mem::take(&mut self.dropped) {
            return self.give_way(limit);
        }
        let first = self.ideal.is_none();
        let found = self.find(limit, share);
        let changed = self.fall_to(&found);
        if (first || changed) && Level::whole(min) < limit {
            self.capacity = limit;
            return self.start_drain(at, Why::First);
        }
        if self.is_overload(&found) {
            return self.overload(&found, at);
        }
        if self.is_look_due(limit) && Level::whole(min) < limit {
            self.capacity = limit.times(TARGET.inverse());
            return self.start_drain(at, Why::Look);
        }
        self.follow(limit, &found, min)
    }

    /// Lowers the limit after drops, which show an overload but not its size.
    fn give_way(&mut self, limit: Level) -> Level {
        self.window = Tally::default();
        (self.calm, self.met) = (0, true);
        self.capacity = self.capacity.min(limit).times(Ratio::percent(90));
        limit.times(Ratio::percent(90))
    }

    /// Lowers the min RTT if the window is faster beyond doubt.
    ///
    /// The step is small, unless the backend is so much faster that it
    /// must have changed. Returns `true` if the result is far below
    /// the last unqueued measurement: it may still include a queue.
    fn fall_to(&mut self, found: &Finding) -> bool {
        let Some(ideal) = self.ideal else { return false };
        let doubt = Ratio { times: found.error.saturating_mul(4), per: 1_000_000 };
        let most = found.rtt.plus(Nanos(doubt.of(found.rtt.0)));
        if most < ideal {
            let changed = most < Nanos(Ratio::percent(65).of(ideal.0));
            let (goal, pace) = if changed { (found.rtt, 100) } else { (most, 9) };
            self.ideal = Some(ideal.toward(goal, Ratio::percent(pace)));
        }
        self.ideal < self.alone_at.map(|alone| Nanos(Ratio::percent(88).of(alone.0)))
    }

    fn overload(&mut self, found: &Finding, at: Nanos) -> Level {
        self.see(found);
        self.start_drain(at, Why::Overload)
    }

    fn follow(&mut self, limit: Level, found: &Finding, min: u32) -> Level {
        let used = limit.times(HALF) <= found.in_flight;
        if CALM < found.stretch && used {
            return self.lower(limit, found, min);
        }
        self.high = None;
        // Faster than the min RTT: it is wrong, so a window without a visible queue may have one.
        if found.stretch < QUICKER {
            return limit;
        }
        if CALM < found.stretch || found.in_flight < limit.floored().times(Ratio::percent(80)) {
            return limit;
        }
        let next = limit.times(self.growth(found)).max(limit.plus(Level::whole(1)));
        self.capacity = self.capacity.max(next.times(TARGET.inverse()));
        next
    }

    /// Returns `true` if fewer in flight were not faster, so there was no queue.
    ///
    /// Records the window with the most in flight as the reference.
    fn is_no_queue(&mut self, found: &Finding) -> bool {
        let (most, rtt) = *self.high.get_or_insert((found.in_flight, found.rtt));
        if most <= found.in_flight {
            self.high = Some((found.in_flight, found.rtt));
            return false;
        }
        let fewer = found.in_flight < most.times(FEWER);
        fewer && NO_QUICKER.of(rtt.0) < found.rtt.0
    }

    fn growth(&mut self, found: &Finding) -> Ratio {
        if !found.is_calm() {
            return TARGET;
        }
        let faster = u64::from(self.calm).saturating_mul(26).saturating_add(130);
        self.calm = self.calm.saturating_add(1);
        Ratio::percent(if self.met { faster.min(200) } else { 200 })
    }

    /// Adopts the measured capacity and adds its change to the moving average.
    fn see(&mut self, found: &Finding) {
        if let Some(before) = self.seen {
            let moved = before.apart(found.capacity);
            let counts = found.error.saturating_mul(4) < moved;
            let moved = if counts { moved.min(LARGEST_MOVE) } else { 0 };
            self.moves = self.moves.saturating_mul(31).saturating_add(moved) / 32;
        }
        self.seen = Some(found.capacity);
        (self.capacity, self.calm, self.met) = (found.capacity, 0, true);
    }

    fn is_look_due(&mut self, limit: Level) -> bool {
        self.look_in = self.look_in.saturating_sub(1);
        self.look_in == 0 || limit < self.looked_at.times(HALF)
    }

    fn plan_look(&mut self) {
        // A linear congruential generator; its high bits are the best.
        self.jitter = self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let more = Ratio { times: LOOK_JITTER, per: u64::MAX >> 8 }.of(self.jitter >> 8);
        self.look_in = LOOK_EVERY.saturating_add(more);
    }

    fn start_drain(&mut self, since: Nanos, why: Why) -> Level {
        self.drain = Some(Drain::new(since, why));
        self.capacity.times(match why {
            Why::Overload => DRAIN,
            Why::Look => LOOK,
            Why::First => HALF,
        })
    }

    fn end_drain(&mut self, at: Nanos, min: u32) -> Level {
        let Some(drain) = self.drain.take() else { return self.capacity };
        (self.window, self.block) = (Tally::default(), Tally::default());
        (self.dropped, self.calm) = (0, 0);
        self.plan_look();
        if drain.alone.is_wide() {
            self.settles =
                at.plus(Nanos(self.ideal.unwrap_or_default().0.saturating_mul(SETTLING)));
        }
        self.high = None;
        let before = self.ideal.unwrap_or(Nanos(1));
        let learnt = self.learn_ideal(&drain);
        if drain.why == Why::First && learnt.0 < Ratio::percent(80).of(before.0) {
            // Fewer in flight and faster: the assumed min RTT included a queue.
            self.ideal = Some(learnt);
            self.capacity = self.capacity.times(HALF);
            if Level::whole(min) < self.capacity {
                return self.start_drain(at, Why::First);
            }
        }
        self.alone_at = self.ideal;
        let slower = self.ideal.is_some_and(|ideal| Ratio::percent(110).of(before.0) < ideal.0);
        let limit = self.capacity.times(self.way_back(&drain, slower));
        self.looked_at = self.capacity.times(TARGET);
        limit
    }

    fn way_back(&self, drain: &Drain, slower: bool) -> Ratio {
        if drain.why == Why::First {
            // So far it is known only that the capacity is at least the limit.
            return Ratio::percent(100);
        }
        let few = self.seen.is_none_or(|seen| seen < Level::whole(FEW));
        let bold = drain.why == Why::Overload && RESTLESS < self.moves && !slower && !few;
        if bold { BOLD } else { TARGET }
    }

    /// Moves the min RTT towards the drain's measurement, and returns that measurement.
    ///
    /// A change beyond doubt is adopted at once and rescales the capacity.
    fn learn_ideal(&mut self, drain: &Drain) -> Nanos {
        let (alone, ideal) = (&drain.alone, self.ideal.unwrap_or(Nanos(1)));
        if alone.count() == 0 {
            return ideal;
        }
        let rtt = drain.measured();
        let error = alone.error_of(self.spread);
        let pace = pace(ideal, rtt, error, tally::WIDE < self.spread);
        let learnt = ideal.toward(rtt, Ratio::percent(pace));
        self.ideal = Some(learnt);
        if 20 < pace {
            self.capacity = self.capacity.times(Ratio { times: learnt.0, per: ideal.0 });
            if GOOD_ERROR <= error {
                self.look_in = self.look_in.div_ceil(SOONER);
            }
        }
        rtt
    }
}

/// The step, in percent, of the min RTT towards the measurement.
///
/// If latencies vary much, a faster value is not adopted at once: fast requests return first.
fn pace(ideal: Nanos, measured: Nanos, error: u64, is_wide: bool) -> u64 {
    let part = |times: u64| Nanos(Ratio { times, per: 1_000_000 }.of(measured.0));
    let doubt = error.saturating_mul(2);
    let least = part(1_000_000_u64.saturating_sub(doubt));
    let most = part(1_000_000_u64.saturating_add(doubt));
    let slower = Nanos(drain::CHANGED.of(ideal.0));
    let quicker = Nanos(drain::CHANGED.inverse().of(ideal.0));
    match () {
        () if slower < least || (!is_wide && most < quicker) => 100,
        () if slower < measured => 50,
        () => 20,
    }
}

/// The samples of a block: about one round trip of this replica's requests in flight.
fn enough(limit: Level, share: u32) -> u64 {
    u64::from(limit.floor().min(share)).clamp(1, WINDOW)
}

/// Scales `in_flight` from this replica's share to the whole limit.
fn scaled(in_flight: Level, limit: Level, share: u32) -> Level {
    let allowed = u64::from(limit.floor().min(share)).max(1);
    let whole = u64::from(limit.floor()).max(1);
    in_flight.times(Ratio { times: whole, per: allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_windows_keep_the_spread() {
        let window = |rtts: &[u64]| {
            let mut window = Tally::default();
            for &rtt in rtts {
                window.push(1, Nanos(rtt));
            }
            window
        };
        let mut gradient = Gradient::new(Level::whole(4), 1);
        gradient.note_spread(&window(&[1_000, 3_000, 1_000, 3_000]));
        assert_eq!(gradient.spread, 500_000, "1 ± 0.5");
        for few in [&[2_000][..], &[2_000; 2], &[2_000; 3]] {
            gradient.note_spread(&window(few));
            assert_eq!(gradient.spread, 500_000, "forgotten over {few:?}");
        }
    }
}
