//! Gradient where a fleet holds the ceiling together.
//!
//! No member can lower the queue of a backend by itself, and what it measures is about what all hold. So a
//! member does not follow a limit of its own: it judges the whole ceiling as long as that stands, and says
//! by which factor it would change it.
//!
//! | formula | worked row: ceiling 60, ideal latency 10 ms, RTT 15 ms |
//! |---|---|
//! | stretch x = RTT / ideal | 15 / 10 = 1.5 |
//! | factor = 1.3 / x, once x shows a queue (x > 1.15) | 1.3 / 1.5 = 0.87, a ceiling of 52 |
//! | without a queue: 2 until the first was met, then 1.3, and 2 once the ceiling grew and met none | 1.3 |
//!
//! * **The ideal latency** is measured in a *look*: all members lower what they have in flight in the same
//!   stretch of time, to 0.7 of the capacity, for about four round trips; what was admitted once the queue was gone was
//!   alone. One that lowered its own part at a time of its own would measure the queue of the others,
//!   take it for ideal, and drive the ceiling up: so they did before.
//! * **When**: by the store's clock, of which each heartbeat tells. A fleet's next look is a multiple of a few
//!   heartbeats away, of more where round trips are long: looks cost two hundredths of the goodput.
//! * **An ideal that may have had a queue in it**, the first one, and one that became larger beyond doubt,
//!   is *unsure*: the next look goes down to a quarter, and until fewer in flight are no quicker nobody says that
//!   the ceiling may grow.
//! * **Overload** (x > 1.55, beyond doubt): a member lowers its own part at once, as all others do that see the same, for
//!   two heartbeats at most and to a quarter at most; the ceiling follows.
//!
//! Guarantees: bounded: a look ends with time, and so does what a member lowers by itself.
//! Leaves out: use of the share, which [`crate::kernel::coordinator::aggregate::vote`] judges.

use super::super::level::{Level, Ratio};
use super::super::tally::Tally;
use super::super::{Outcome, Part, Sample};
use super::look::{self, Look};
use crate::kernel::units::Nanos;

/// Samples below which a block says nothing.
const BLOCK: u64 = 8;
/// Samples that count at most, so that what is old is forgotten.
const REMEMBERED: u64 = 512;
/// The least and the most that dropped requests take off the ceiling at once.
const DROPPED: (u64, u64) = (100_000, 500_000);
const WHOLE: u64 = 1_000_000;
/// Far too many, in millionths.
const OVERLOAD: u64 = 1_550_000;

/// The share is lowered for a while, to so many millionths of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Cut {
    left: u64,
    until: Nanos,
}

/// What one member has learnt of a ceiling that it shares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Together {
    part: Part,
    /// Those that were alone.
    ideal: Tally,
    /// Fewer in flight were no quicker.
    sure: bool,
    /// Those that left under this ceiling: what agrees with the newest block, and that block.
    window: Tally,
    block: Tally,
    dropped: u64,
    cut: Option<Cut>,
    /// Who leaves before tells of another ceiling, or of a look.
    from: Nanos,
    rtt: Option<Nanos>,
    look: Option<Look>,
    next_look: Nanos,
    /// Ceilings in a row that met no queue, and whether any ever did.
    calm: u64,
    met: bool,
}

impl Together {
    /// A member with that part, which takes `ideal` for the latency without a queue until it knows better.
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

    /// The ideal latency, as far as known.
    pub(super) fn ideal(&self) -> Option<Nanos> {
        (0 < self.ideal.count()).then(|| self.ideal.mean())
    }

    /// Goes on with another part.
    pub(super) fn take(&mut self, now: Nanos, part: Part) {
        let before = std::mem::replace(&mut self.part, part);
        if before.ceiling != part.ceiling {
            let grew = before.ceiling.saturating_add(before.ceiling / 5) < part.ceiling;
            self.calm = if grew { self.calm.saturating_add(1) } else { 0 };
            self.begin_anew(now);
        }
        // Told of by now: those of before must not count for ever.
        self.dropped = 0;
        self.plan_look(now);
    }

    /// How many may be in flight here at `now`.
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

    /// The part of the share that is left by a cut.
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

    /// A window grows of blocks that agree; what does not is a change, over which no mean is taken.
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

    /// What all requests take on average is no less than what one takes alone.
    fn fall_to_window(&mut self) {
        let quicker = self.ideal().is_some_and(|ideal| self.window.mean() < ideal);
        if quicker && self.window.error() < super::GOOD_ERROR && !self.ideal.agrees(&self.window) {
            (self.ideal, self.sure) = (self.window.clone(), false);
        }
    }

    /// Far too much: every member sees it and lowers its own part at once, before the ceiling can follow. For a short
    /// time and to a quarter at most: one that sees it alone must not starve.
    fn cut_to(&mut self, at: Nanos, stretch: u64) {
        let left = self.left().of(super::TARGET.of(Ratio { times: WHOLE, per: stretch }.of(WHOLE)));
        let until = at.plus(Nanos(self.part.looks.heartbeat.0.saturating_mul(2)));
        let until = self.cut.map_or(until, |cut| cut.until);
        self.begin_anew(at);
        self.cut = Some(Cut { left: left.clamp(WHOLE / 4, WHOLE), until });
    }

    /// What was seen was about another number in flight.
    fn begin_anew(&mut self, now: Nanos) {
        (self.window, self.block, self.dropped, self.cut) = Default::default();
        // Who leaves a round trip from now was admitted after it.
        self.from = self.from.max(now.plus(self.rtt.unwrap_or_default()));
    }

    /// The latency over the ideal one, in millionths.
    fn stretch(&self) -> Option<u64> {
        let ideal = self.ideal().filter(|_| BLOCK <= self.window.count())?;
        Some(Ratio { times: WHOLE, per: ideal.0 }.of(self.window.mean().0).max(1))
    }

    /// How many it would have in flight, given what the ceiling does to the latency; none as long as
    /// nothing is known.
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

    /// How many may be in flight here in a look: of the capacity, which is what is in flight by how much it is
    /// stretched, where that can be believed.
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
        // The first has nothing to be compared with but what is seen with more in flight.
        let known = self.ideal.count() != 0;
        let before = if known { &self.ideal } else { &self.window };
        self.sure = before.count() != 0 && before.agrees(&seen);
        if known && self.sure {
            self.ideal.join(&seen);
            forget(&mut self.ideal);
        } else {
            // Slower or quicker, beyond doubt: the one has changed, the other had a queue in it.
            self.ideal = seen;
        }
    }
}

/// The new counts for more than the old.
fn forget(tally: &mut Tally) {
    while REMEMBERED < tally.count() {
        tally.halve();
    }
}
