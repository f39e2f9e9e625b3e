//! Ours: follow the capacity that Little's law shows, and look below it to know the ideal latency.
//!
//! A queue shows as latency: with `m` in flight before a backend that serves `C` at once, a request
//! takes `m/C` times as long as without a queue. So every window of samples measures `C` by
//! itself, whatever the limit was meanwhile:
//!
//! | formula | worked row: minRTT 10 ms, 60 in flight, RTT 15 ms |
//! |---|---|
//! | stretch x = RTT / minRTT | 15 / 10 = 1.5 |
//! | capacity C = m / x | 60 / 1.5 = 40 |
//! | limit = 1.3 · C, once x shows a queue | 52 |
//!
//! * **Growth.** Without a queue (x ≤ 1.15) and with the limit in use, × 1.3 a window. Where that is beyond doubt,
//!   faster while nothing is met, and × 2 until the first queue was ever seen. A handful of samples leaves doubt, and
//!   so do samples that vary: two quick windows in a row are no news there.
//! * **Overload** (x > 1.55, beyond doubt): the limit falls to 0.3 · C until the queue is gone,
//!   then returns to 1.3 · C. Far too many (x > 2) are not waited for: a window is looked at in quarters for them,
//!   because what is admitted meanwhile waits longest.
//! * **The ideal latency** (minRTT) is not a minimum, which noise biases low, but a mean of
//!   samples that were alone: those admitted below 0.7 · C, after an overload or, for its own sake,
//!   once in 128 to 191 windows, when the limit is lowered to 0.7 · C for about one round trip. It
//!   also falls when a window is below it beyond doubt. A backend that became slower shows there:
//!   fewer in flight and no quicker.
//! * **Latencies that vary** by a fifth or more: of many that began together the quick ones return
//!   first, and the mean of those that have returned is far below the true one. Then the ideal is
//!   what Little's law shows of the drain, in flight × time / served, where the limit is used, and what returns within
//!   two round trips of its end is not judged.
//! * **A margin there**: the limit is higher by two standard errors of what the window shows, beyond one of 5 %, and by
//!   half of the spread beyond a fifth. Too few leave workers idle at once; some more hardly show in latencies that
//!   are long by themselves. What counts as an overload is higher by as much.
//! * **The least is alone**: at the least limit nothing lower can be looked at, and what is seen there is the ideal. One that
//!   is too small would hold the limit there for ever.
//! * **A wrong ideal shows**: a queue is shorter by as many as are fewer in flight. Where the limit was
//!   lowered by a quarter for a queue and those that followed were no quicker, there was none, and
//!   what was taken for ideal is raised to what is seen.
//! * **Boldness.** Where the capacity moved by more than its own measurement error for many windows
//!   (a moving average above 5 %), an estimate is worth little by the time it is used, and after a
//!   queue has drained the limit returns to 5 · C instead: it costs one queue to learn more.
//!
//! Guarantees: bounded, and never stuck: a lowered limit always admits, whatever it admits counts
//! as alone, and it ends with time if nothing succeeds. The limit is not judged where it was not
//! used; latency may always lower it. With a share, `m` is scaled from the share to the whole.
//! Leaves out: certainty where service times vary by half their mean or more, of which a window shows
//! little: `benches/real_backend` shows how often the limit is held too low then. And a backend that serves less
//! than `min`: there the limit is a little above `min`, whatever the latency. And replicas that share a backend without
//! sharing a ceiling: at its least each takes the others' queue for ideal, and together they keep one.
//! Source of the numbers: chosen together for both experiments of `benches/`; none is per backend.

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

/// Where the limit is held, in capacities: a short queue keeps the backend busy.
const TARGET: Ratio = Ratio::percent(130);
/// After a drain where the capacity does not hold still.
const BOLD: Ratio = Ratio::percent(500);
/// Of the capacity, while a queue drains.
const DRAIN: Ratio = Ratio::percent(30);
/// Of the capacity, while only the ideal latency is measured.
const LOOK: Ratio = Ratio::percent(70);
/// While the first ideal latency might have had a queue in it.
const HALF: Ratio = Ratio::percent(50);
/// Below this part of the capacity a request is alone.
const ALONE: Ratio = Ratio::percent(70);
/// Stretches, in millionths: no queue, and far too much of one.
const CALM: u64 = 1_150_000;
const QUICKER: u64 = 820_000;
/// Fewer in flight, by enough to show what a queue does: it would be quicker by as much, and is not by
/// the middle of both.
const FEWER: Ratio = Ratio::percent(75);
const NO_QUICKER: Ratio = Ratio::percent(87);
/// Round trips after a drain of varying latencies until all that return are of a kind again.
const SETTLING: u64 = 2;
/// Samples below which a window does not tell by how much single ones vary: at limits below it that stays what it was.
const TELLS_SPREAD: u64 = 4;
/// Samples a window has at most before its error is looked at.
const WINDOW: u64 = 4_096;
/// Error of a mean good enough to act on, in millionths, and how many windows' worth to wait for it.
const GOOD_ERROR: u64 = 50_000;
const PATIENCE: u64 = 8;
/// Windows from one look at the ideal latency to the next, and by how many more at most.
const LOOK_EVERY: u64 = 128;
const LOOK_JITTER: u64 = 63;
/// Moving average of moves, in millionths, from which the capacity does not hold still.
const RESTLESS: u64 = 50_000;
/// One move counts no more than this: a single step is news, not restlessness.
const LARGEST_MOVE: u64 = 260_000;
/// A block is looked at in so many parts, of so many samples at least, for far too many in flight: twice as
/// many as there would be without a queue, in parts of what an overload is.
const PARTS: u64 = 4;
const LEAST_PART: u64 = 4;
const FAR: Ratio = Ratio { times: 200, per: 155 };
/// A queue that was found already is found anew where the capacity is below this part of what it was then.
const DEEPER: Ratio = Ratio::percent(87);
/// More in flight where latencies vary: for each standard error beyond a good one, up to the largest that counts,
/// and for the spread beyond a narrow one.
const MARGIN: u64 = 2;
const LARGEST_DOUBT: u64 = 300_000;
const FOR_SPREAD: Ratio = HALF;
/// So much sooner a look follows where a handful of samples moved the ideal far.
const SOONER: u64 = 8;
/// Below this capacity every request more is a large move.
const FEW: u32 = 4;

/// What gradient has learnt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gradient {
    ideal: Option<Nanos>,
    /// The ideal when it was last measured alone.
    alone_at: Option<Nanos>,
    capacity: Level,
    /// By how much single latencies vary, in millionths: a moving average of what windows showed.
    spread: u64,
    window: Tally,
    /// The newest part of the window, until it is seen whether it agrees with the rest.
    block: Tally,
    dropped: u64,
    drain: Option<Drain>,
    /// Windows without a queue, beyond doubt, since the last queue or drain.
    calm: u32,
    /// Was there ever a queue?
    met: bool,
    /// The capacity that was last seen, and the moving average of its moves.
    seen: Option<Level>,
    moves: u64,
    /// Windows until the next look, and the limit after the last one.
    look_in: u64,
    looked_at: Level,
    jitter: u64,
    /// Until then those that return are the quick ones of many that began together.
    settles: Nanos,
    /// A window from which the limit has been lowered since, as a queue would need.
    high: Option<(Level, Nanos)>,
    /// Where a fleet holds the ceiling together: what is learnt of the whole.
    together: Option<Box<Together>>,
}

impl Gradient {
    /// Nothing learnt; `jitter` spreads the looks of many ceilings.
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

    /// The ideal latency, as far as known.
    #[must_use]
    pub fn ideal(&self) -> Option<Nanos> {
        self.together.as_ref().map_or(self.ideal, |together| together.ideal())
    }

    /// Holds a part of a fleet's ceiling from now on, or goes on alone from `limit`.
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

    /// How many may be in flight here at `now`, where a fleet holds the ceiling; none where it does not.
    pub(super) fn limit(&mut self, now: Nanos) -> Option<Level> {
        self.together.as_mut().map(|together| together.limit(now))
    }

    /// What it would have in flight: `limit`, unless a fleet holds the ceiling; none as long as it knows
    /// nothing of that.
    pub(super) fn estimate(&self, limit: Level) -> Option<Level> {
        self.together.as_ref().map_or(Some(limit), |together| together.estimate())
    }

    /// The limit after `sample`, given the one before it and what this replica may use of it.
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

    /// At most so many in flight are alone; a drained limit is never above.
    fn alone(&self, min: u32) -> Level {
        self.capacity.times(ALONE).max(Level::whole(min))
    }

    /// Looks whenever a block is full: a window grows while its mean is in doubt, but only of blocks
    /// that agree. What does not agree is a change, and averaging over it would hide it.
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

    /// Far too many are not waited for until a block is full: each quarter of it is looked at.
    fn is_far_beyond(&mut self, limit: Level, share: u32, enough: u64) -> bool {
        let part = enough.div_ceil(PARTS).max(LEAST_PART);
        let is_part = self.block.count() != 0 && self.block.count().is_multiple_of(part);
        if self.drain.is_some() || !is_part {
            return false;
        }
        let found = self.show(&self.block, limit, share);
        let far = found.is_overload(FAR);
        if far {
            // The rest of the window is of before.
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
        // Those of before the drain still tell of the capacity.
        if !self.is_window_over(limit, share) || self.window.count() == 0 {
            return limit;
        }
        let found = self.find(limit, share);
        self.fall_to(&found);
        // What those of before say once more is no news.
        let deeper = found.capacity < self.capacity.times(DEEPER);
        if deeper && self.is_overload(&found) { self.overload(&found, sample.at) } else { limit }
    }

    /// What the window shows; the next one begins.
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

    /// What these samples say, given what is taken for ideal.
    fn show(&self, window: &Tally, limit: Level, share: u32) -> Finding {
        let rtt = window.mean();
        let ideal = self.ideal.unwrap_or(rtt);
        let in_flight = scaled(window.in_flight(), limit, share);
        let stretch = Ratio { times: 1_000_000, per: ideal.0 }.of(rtt.0).max(1);
        // Of a limit that was hardly used only the limit itself can be judged.
        let judged = if in_flight < limit.times(HALF) { limit } else { in_flight };
        let capacity = judged.times(Ratio { times: 1_000_000, per: stretch });
        let (error, is_wide) = (window.error_of(self.spread), window.is_wide());
        Finding { in_flight, rtt, error, is_wide, stretch, capacity }
    }

    fn is_overload(&self, found: &Finding) -> bool {
        found.is_overload(self.margin(found.error))
    }

    /// The limit for what took longer than the ideal.
    fn lower(&mut self, limit: Level, found: &Finding, min: u32) -> Level {
        if found.in_flight <= Level::whole(min) {
            // There is nothing lower to look at: they were alone.
            self.take_for_ideal(found.rtt, limit);
            return limit;
        }
        if found.is_wide && self.is_no_queue(found) {
            // Fewer in flight and no quicker: what was taken for ideal never was.
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

    /// As many more as the capacity may be larger than it seems, where single latencies vary much: too few
    /// cost goodput at once, and a longer queue hardly shows in latencies that are long by themselves.
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

    /// Dropped requests tell of too many, but not of how many too many.
    fn give_way(&mut self, limit: Level) -> Level {
        self.window = Tally::default();
        (self.calm, self.met) = (0, true);
        self.capacity = self.capacity.min(limit).times(Ratio::percent(90));
        limit.times(Ratio::percent(90))
    }

    /// The ideal is no more than what is seen, beyond doubt: moved a little at once, unless the
    /// backend is so much quicker that it must have changed. True when it is now far below what was
    /// last measured alone: what is quicker may still have a queue in it.
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
        // Quicker than ideal: the ideal is wrong, and what it would call calm may be a queue.
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

    /// A queue is shorter by as many as are fewer in flight. Notes where the limit came from.
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

    /// Takes the capacity for what the window shows, and its move into the average.
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
        // Any number after the last: the next one of a congruential sequence, high bits first.
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
            // Fewer in flight and quicker: there was a queue in what was taken for ideal.
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
            // Nothing is known of the capacity but that the limit was not beyond it.
            return Ratio::percent(100);
        }
        let few = self.seen.is_none_or(|seen| seen < Level::whole(FEW));
        let bold = drain.why == Why::Overload && RESTLESS < self.moves && !slower && !few;
        if bold { BOLD } else { TARGET }
    }

    /// Moves the ideal towards what was measured alone; a backend beyond doubt slower or quicker is believed
    /// at once, and its capacity was never what it seemed. Gives what was measured.
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

/// How far, in percent, an ideal goes towards what was measured with that error. Quicker is not believed at once
/// where latencies vary much: the quick ones return first.
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

/// How many samples make a window: about a round trip of what this replica may have in flight.
fn enough(limit: Level, share: u32) -> u64 {
    u64::from(limit.floor().min(share)).clamp(1, WINDOW)
}

/// What `in_flight` of a share would be of the whole limit.
fn scaled(in_flight: Level, limit: Level, share: u32) -> Level {
    let allowed = u64::from(limit.floor().min(share)).max(1);
    let whole = u64::from(limit.floor()).max(1);
    in_flight.times(Ratio { times: whole, per: allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_a_sample_or_three_tells_nothing_of_the_spread() {
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
