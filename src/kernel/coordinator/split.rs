//! A ceiling, divided into parts for its members.
//!
//! Guarantees: the parts sum to the ceiling exactly; with a ceiling at least as large as the fleet
//! nobody's part is zero; with a smaller one the parts rotate, longest waiting first, so nobody
//! waits for ever; what is taken away is taken from the idle first.
//! Leaves out: whether a part can be granted yet; it says what would be fair.

use std::num::NonZeroU64;

use super::aggregate::Level;
use super::terms::MOST;
use crate::kernel::units::{Nanos, Share};

/// By what a ceiling is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// All alike.
    Equal,
    /// By what each would use: the idle keep enough to show demand, the rest is shared evenly by
    /// those that can use it.
    #[default]
    Demand,
}

/// What the split knows of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    /// Permits it would use; zero when it is idle.
    pub need: Share,
    /// Whether its share is zero.
    pub waits: bool,
    /// Since when it is.
    pub since: Nanos,
}

/// What came to a member lately, over about one heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage {
    /// For how long this was watched.
    pub window: Nanos,
    /// The mean of requests in flight and queued.
    pub mean: Level,
    /// Requests that came.
    pub arrived: u64,
    /// Requests that were turned away.
    pub refused: u64,
    /// How long those took that ended, on average.
    pub lasted: Option<Nanos>,
}

/// Permits that a member would use, had it all it wants: by Little's law, and no fewer than it uses.
/// Not its peak: what each keeps for its own peak is missing where it could be used.
///
/// | 30 came in 1 s, each lasts 90 ms | worked row |
/// |---|---|
/// | ⌈arrived·lasted / window⌉ | ⌈30·90 / 1,000⌉ = 3 |
///
/// ```
/// use sluicegate::kernel::coordinator::aggregate::Level;
/// use sluicegate::kernel::coordinator::split::{wanted, Usage};
/// use sluicegate::kernel::units::{Nanos, Share};
///
/// let lasted = Some(Nanos(90_000_000));
/// let mean = Level::of(Share(2));
/// let usage = Usage { window: Nanos::SECOND, mean, arrived: 30, refused: 9, lasted };
/// assert_eq!(wanted(&usage), Share(3));
/// ```
#[must_use]
pub fn wanted(usage: &Usage) -> Share {
    let used = usage.mean.up();
    let Some(lasted) = usage.lasted else {
        // Nothing to measure by yet: all it can get, if it could not get what it asked for.
        return if usage.refused == 0 { used } else { MOST };
    };
    let busy = u128::from(usage.arrived).saturating_mul(u128::from(lasted.0));
    let offered = busy.div_ceil(u128::from(usage.window.0.max(1)));
    // Who turned somebody away wants one, also where those that ended took no time that the window saw.
    let least = Share(usage.refused.min(1));
    u64::try_from(offered).map_or(MOST, |offered| used.max(Share(offered)).max(least).min(MOST))
}

impl Split {
    /// The fair part of member `me` of `wants`, which are in the fleet's one order. Whoever has had
    /// its turn since `turned` or before makes way where the ceiling is smaller than the fleet.
    /// Cost: O(members), a few rounds; O(members²) only where each round satisfies one.
    #[must_use]
    pub fn part(self, ceiling: Share, wants: &[Want], me: usize, turned: Nanos) -> Share {
        match (self, self.rule(ceiling, wants)) {
            (_, Rule::Turns) => {
                let ahead = self.ahead(wants, me, turned).count();
                let mine = u64::try_from(ahead).is_ok_and(|ahead| ahead < ceiling.0);
                Share(u64::from(mine && me < wants.len()))
            }
            (Self::Equal, _) => even(ceiling, wants.len(), me),
            (Self::Demand, Rule::All) => fill(ceiling, wants, me, Share(1)),
            (Self::Demand, Rule::Hungry) => fill(ceiling, wants, me, Share(0)),
        }
    }

    /// Permits that are not free for member `me` although nobody holds them: where members take
    /// turns, those ahead of it wait for them. Without this two members can pass what each gives up
    /// back to each other for as long as the first in line speaks at the wrong moments.
    #[must_use]
    pub fn owed(self, ceiling: Share, wants: &[Want], me: usize, turned: Nanos) -> Share {
        match self.rule(ceiling, wants) {
            Rule::Turns => {
                let waiting = self.ahead(wants, me, turned).filter(|want| want.waits);
                Share(u64::try_from(waiting.count()).unwrap_or(u64::MAX))
            }
            Rule::All | Rule::Hungry => Share(0),
        }
    }

    fn rule(self, ceiling: Share, wants: &[Want]) -> Rule {
        let fits = |count: usize| u64::try_from(count).is_ok_and(|n| n <= ceiling.0);
        let hungry = wants.iter().filter(|want| Share(0) < want.need).count();
        match self {
            _ if fits(wants.len()) => Rule::All,
            // The idle show demand by whom they turn away; what they held would be of no use.
            Self::Demand if 0 < hungry && fits(hungry) => Rule::Hungry,
            Self::Equal | Self::Demand => Rule::Turns,
        }
    }

    /// Those before member `me` in the line for a permit.
    fn ahead(self, wants: &[Want], me: usize, turned: Nanos) -> impl Iterator<Item = &Want> {
        let place = move |at: usize, want: &Want| (self.class(want, turned), want.since, at);
        let mine = wants.get(me).map(|want| place(me, want));
        let before = move |at: usize, want: &Want| mine.is_some_and(|mine| place(at, want) < mine);
        wants.iter().enumerate().filter(move |(at, want)| before(*at, want)).map(|(_, want)| want)
    }

    /// Those in their turn first, then those who wait, then those who had theirs.
    fn class(self, want: &Want, turned: Nanos) -> u8 {
        let idle = self == Self::Demand && want.need == Share(0);
        match (want.waits, turned < want.since) {
            _ if idle => 3,
            (false, true) => 0,
            (true, _) => 1,
            (false, false) => 2,
        }
    }
}

/// Who takes part at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Everybody: there is a permit for each.
    All,
    /// Those that want any: there is one for each of these.
    Hungry,
    /// As many as there are permits, one each.
    Turns,
}

/// `total` in `count` parts that differ by one at most, the larger ones first.
fn even(total: Share, count: usize, me: usize) -> Share {
    let Some(count) = u64::try_from(count).ok().and_then(NonZeroU64::new) else {
        return Share(0);
    };
    let extra = u64::try_from(me).is_ok_and(|me| me < total.0 % count);
    Share(total.0 / count).plus(Share(u64::from(extra)))
}

/// Fills all needs evenly until the ceiling is used up, and spreads evenly what is left over.
/// Members whose need is below `floor` count as needing that; a need of zero takes no part.
fn fill(ceiling: Share, wants: &[Want], me: usize, floor: Share) -> Share {
    let need = |want: &Want| want.need.max(floor);
    let mine = wants.get(me).map_or(Share(0), need);
    if mine == Share(0) {
        return Share(0);
    }
    let takes = |want: &&Want| Share(0) < need(want);
    let level = level(ceiling, || wants.iter().map(need));
    let below = wants.iter().fold(Share(0), |sum, want| sum.plus(need(want).min(level)));
    // Who shares in the rest: those that want more, or everybody once nobody does.
    let short = |want: &&Want| level < need(want);
    let any_short = wants.iter().any(|want| short(&want));
    let shares_rest = |want: &&Want| if any_short { short(want) } else { takes(want) };
    let among = wants.iter().filter(shares_rest).count();
    let before = wants.iter().take(me).filter(shares_rest).count();
    let gets = wants.get(me).is_some_and(|want| shares_rest(&want));
    let rest = if gets { even(ceiling.less(below), among, before) } else { Share(0) };
    mine.min(level).plus(rest)
}

/// The highest level to which every need can be filled, rounded down.
fn level<N: Iterator<Item = Share>>(ceiling: Share, needs: impl Fn() -> N) -> Share {
    let mut level = Share(0);
    loop {
        let met = needs().filter(|need| *need <= level);
        let rest = met.fold(ceiling, Share::less);
        let short = u64::try_from(needs().filter(|need| level < *need).count());
        // Nobody is short: the level is above every need.
        let Some(short) = short.ok().and_then(NonZeroU64::new) else { return level };
        let raised = Share(rest.0 / short);
        if raised <= level {
            return level;
        }
        level = raised;
    }
}
