//! The gradient algorithm for a limit that a fleet adapts together.
//!
//! One replica cannot shorten the backend's queue alone, and its latency depends on the requests of
//! all replicas. So a replica judges the whole limit while it is constant, and votes for a factor.
//!
//! | formula | worked row: limit 60, min RTT 10 ms, RTT 15 ms |
//! |---|---|
//! | slowdown x = RTT / min RTT | 15 / 10 = 1.5 |
//! | factor = 1.3 / x, once x shows a queue (x > 1.15) | 1.3 / 1.5 = 0.87, a limit of 52 |
//! | no queue: 2 before the first queue, 2 after growth without one, else 1.3 | 1.3 |
//!
//! * **The min RTT** is measured in a *probe*. For about four round trips, all
//!   replicas lower their requests in flight to 0.7 of the capacity. Requests
//!   that are admitted after the queue drained are unqueued. A replica that
//!   probed alone would measure the queue of the others, and raise the limit.
//! * **Probe times** follow the store's clock, which each heartbeat reports. Probes are a
//!   few heartbeats apart, and more if round trips are long: they cost 2 % of the goodput.
//! * **An unconfirmed min RTT** may include a queue. This applies to the first one, and
//!   to one that rose beyond doubt. The next probe lowers the requests in flight to a
//!   quarter. Until a probe is not faster than before, no replica votes for growth.
//! * **Overload** (x > 1.55, beyond doubt). Every replica that observes it lowers its own share
//!   at once, for at most two heartbeats and to no less than a quarter. The limit follows.
//!
//! Guarantees:
//! - A probe ends by time, and so does a lowered share.
//!
//! Not covered:
//! - The use of the share; see [`crate::kernel::coordinator::aggregate::vote`].

use super::super::level::{Level, Ratio};
use super::super::tally::Tally;
use super::super::{Outcome, Part, Sample};
use super::look::{self, Look};
use crate::kernel::units::Nanos;

/// The least number of samples in a block.
const BLOCK: u64 = 8;
/// The largest weight of past samples, so that old ones fade.
const REMEMBERED: u64 = 512;
/// The least and largest reduction after drops, in millionths of the limit.
const DROPPED: (u64, u64) = (100_000, 500_000);
const WHOLE: u64 = 1_000_000;
/// The slowdown above which there is an overload, in millionths.
const OVERLOAD: u64 = 1_550_000;

/// A temporary reduction of the share to `left` millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cut {
    left: u64,
    until: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Together {
    part: Part,
    /// The unqueued samples, whose mean is the min RTT.
    ideal: Tally,
    /// Set once a probe with fewer in flight was not faster.
    sure: bool,
    /// The samples under the current limit that agree with the newest block, and that block.
    window: Tally,
    block: Tally,
    dropped: u64,
    cut: Option<Cut>,
    /// Samples that finish earlier belong to another limit, or to a probe.
    from: Nanos,
    rtt: Option<Nanos>,
    look: Option<Look>,
    next_look: Nanos,
    /// The consecutive increases without a queue; `met` is set once a queue was observed.
    calm: u64,
    met: bool,
}

impl Together {
    /// Starts with `part`, and with `ideal` as the min RTT until it is measured.
    pub(super) fn new(now: Nanos, part: Part, ideal: Option<Nanos>) -> Self {
        let mut known = Tally::default();
        if let Some(ideal) = ideal {
            known.push(1, ideal);
        }
        let mut new = Self {
            part,
            ideal: known,
            sure: false,
            window: Tally::default(),
            block: Tally::default(),
            dropped: 0,
            cut: None,
            from: now,
            rtt: ideal,
            look: None,
            next_look: now,
            calm: 0,
            met: false,
        };
        new.plan_look(now);
        new
    }

    pub(super) fn ideal(&self) -> Option<Nanos> {
        (0 < self.ideal.count()).then(|| self.ideal.mean())
    }

    pub(super) fn take(&mut self, now: Nanos, part: Part) {
        let before = std::mem::replace(&mut self.part, part);
        if before.ceiling != part.ceiling {
            let grew = before.ceiling.saturating_add(before.ceiling / 5) < part.ceiling;
            self.calm = if grew { self.calm.saturating_add(1) } else { 0 };
            self.begin_anew(now);
        }
        // The last heartbeat reported these drops, so they must not count again.
        self.dropped = 0;
        self.plan_look(now);
    }

    pub(super) fn limit(&mut self, now: Nanos) -> Level {
        if self.look.as_ref().is_some_and(|look| look.closes <= now) {
            self.end_look();
        }
        if self.next_look <= now && self.look.is_none() {
            self.begin_look(now);
        }
        if self.cut.is_some_and(|cut| cut.until <= now) {
            self.begin_anew(now);
        }
        let share = Level::whole(self.part.share);
        let cut = share.times(self.left());
        let low = self.look.as_ref().filter(|look| now < look.ends).map(|look| look.limit);
        low.map_or(cut, |low| low.min(cut))
    }

    /// The fraction of the share that a cut leaves.
    fn left(&self) -> Ratio {
        Ratio { times: self.cut.map_or(WHOLE, |cut| cut.left), per: WHOLE }
    }

    pub(super) fn note(&mut self, sample: &Sample) {
        if let Some(look) = &mut self.look {
            look.note(sample);
        }
        if sample.at < self.from {
            return;
        }
        match sample.outcome {
            Outcome::Success => self.block.push(sample.in_flight, sample.rtt),
            Outcome::Dropped => self.dropped = self.dropped.saturating_add(1),
            Outcome::Ignored => {}
        }
        let enough = u64::from(self.part.share).max(BLOCK).max(self.window.count() / 4);
        if enough <= self.block.count() {
            self.end_block(sample.at);
        }
    }

    /// Merges the block into the window if they agree. Otherwise the latency changed: start again.
    fn end_block(&mut self, at: Nanos) {
        let block = std::mem::take(&mut self.block);
        if self.window.agrees(&block) {
            self.window.join(&block);
        } else {
            self.window = block;
        }
        forget(&mut self.window);
        self.rtt = Some(self.window.mean());
        self.fall_to_window();
        let Some(stretch) = self.stretch() else { return };
        self.met |= super::CALM < stretch && self.window.error() < super::GOOD_ERROR;
        let sure = WHOLE.saturating_sub(self.window.cautious_error().saturating_mul(2));
        if OVERLOAD < (Ratio { times: sure, per: WHOLE }).of(stretch) {
            self.cut_to(at, stretch);
        }
    }

    /// Lowers the min RTT to the window's mean, since no mean can be below it.
    fn fall_to_window(&mut self) {
        let quicker = self.ideal().is_some_and(|ideal| self.window.mean() < ideal);
        if quicker && self.window.error() < super::GOOD_ERROR && !self.ideal.agrees(&self.window) {
            (self.ideal, self.sure) = (self.window.clone(), false);
        }
    }

    /// Lowers this replica's share at once, before the limit follows.
    ///
    /// The cut is short and leaves a quarter: a replica
    /// that alone observes an overload must not starve.
    fn cut_to(&mut self, at: Nanos, stretch: u64) {
        let left = self.left().of(super::TARGET.of(Ratio { times: WHOLE, per: stretch }.of(WHOLE)));
        let until = at.plus(Nanos(self.part.looks.heartbeat.0.saturating_mul(2)));
        let until = self.cut.map_or(until, |cut| cut.until);
        self.begin_anew(at);
        self.cut = Some(Cut { left: left.clamp(WHOLE / 4, WHOLE), until });
    }

    /// Discards samples that were taken with another number in flight.
    fn begin_anew(&mut self, now: Nanos) {
        (self.window, self.block, self.dropped, self.cut) = Default::default();
        // Requests that finish after one more round trip were admitted after now.
        self.from = self.from.max(now.plus(self.rtt.unwrap_or_default()));
    }

    /// The slowdown: latency divided by the min RTT, in millionths.
    fn stretch(&self) -> Option<u64> {
        let ideal = self.ideal().filter(|_| BLOCK <= self.window.count())?;
        Some(Ratio { times: WHOLE, per: ideal.0 }.of(self.window.mean().0).max(1))
    }

    /// The wanted number in flight, which is the vote; `None` without enough samples.
    pub(super) fn estimate(&self) -> Option<Level> {
        let share = Level::whole(self.part.share);
        if 0 < self.dropped {
            return Some(share.times(self.without_the_dropped()));
        }
        let Some(stretch) = self.stretch() else {
            return self.cut.map(|_| share.times(self.left()));
        };
        let target = super::TARGET.of(Ratio { times: WHOLE, per: stretch }.of(WHOLE));
        let level = share.times(self.left()).times(Ratio { times: target, per: WHOLE });
        Some(match (self.cut.is_none() && self.sure, super::CALM < stretch) {
            (true, true) => level,
            (true, false) => share.times(self.growth()),
            (false, _) => level.min(share),
        })
    }

    fn without_the_dropped(&self) -> Ratio {
        let (least, most) = DROPPED;
        let served = self.window.count().saturating_add(self.block.count());
        let part = Ratio { times: self.dropped, per: served.saturating_add(self.dropped) };
        Ratio { times: WHOLE.saturating_sub(part.of(WHOLE).clamp(least, most)), per: WHOLE }
    }

    fn growth(&self) -> Ratio {
        if self.met && self.calm == 0 { super::TARGET } else { Ratio::percent(200) }
    }

    fn plan_look(&mut self, now: Nanos) {
        let every = self.part.looks.every(self.rtt.unwrap_or_default());
        let began = self.look.as_ref().map(|look| look.began);
        let soon = began.map_or(now, |began| now.max(began.plus(Nanos(every.0 / 2))));
        self.next_look = self.part.looks.clock.after(soon, every);
    }

    fn begin_look(&mut self, now: Nanos) {
        if let Some(rtt) = self.rtt {
            let trips = if self.sure { look::LASTS } else { look::LASTS_DEEP };
            let longest = Nanos(self.part.looks.every(rtt).0 / 4);
            let lasts = Nanos(rtt.0.saturating_mul(trips)).min(longest);
            let look = Look::new(now, self.low(), rtt, lasts);
            self.from = self.from.max(look.ends.plus(rtt));
            self.look = Some(look);
        }
        self.plan_look(now.plus(Nanos(1)));
    }

    /// The requests in flight during a probe.
    ///
    /// A confirmed min RTT gives the capacity: in flight divided by slowdown.
    fn low(&self) -> Level {
        let share = Level::whole(self.part.share);
        let stretch = self.stretch().unwrap_or(WHOLE).max(super::TARGET.of(WHOLE));
        if self.sure {
            share.times(super::LOOK).times(Ratio { times: WHOLE, per: stretch })
        } else {
            share.times(look::DEEP)
        }
    }

    fn end_look(&mut self) {
        let Some(Look { alone: seen, .. }) = self.look.take() else { return };
        if seen.count() == 0 {
            return;
        }
        // The first probe can only be compared with normal samples.
        let known = self.ideal.count() != 0;
        let before = if known { &self.ideal } else { &self.window };
        self.sure = before.count() != 0 && before.agrees(&seen);
        if known && self.sure {
            self.ideal.join(&seen);
            forget(&mut self.ideal);
        } else {
            // Different beyond doubt: the backend changed, or the old value included a queue.
            self.ideal = seen;
        }
    }
}

/// Halves the weight of old samples until it is within its bound.
fn forget(tally: &mut Tally) {
    while REMEMBERED < tally.count() {
        tally.halve();
    }
}
