//! Random limits of each strategy, with more edge cases than uniform numbers give.

use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::limit::LimitError;
use sluicegate::kernel::rate::on_excess::OnExcess;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::units::Nanos;

use crate::support::dice::Dice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gcra,
    Fixed,
    Calendar,
    Sliding,
    Log,
}

impl Kind {
    pub(super) const ALL: [Self; 5] =
        [Self::Gcra, Self::Fixed, Self::Calendar, Self::Sliding, Self::Log];

    /// As [`Kind::limit`]. Every second limit charges excess hits.
    pub(super) fn limit_or_charging(
        self,
        dice: &mut Dice,
        now: Nanos,
        before: Option<&Strategy>,
    ) -> Strategy {
        let drawn = self.limit(dice, now, before);
        if dice.once_in(2) { charging_excess(&drawn).unwrap_or(drawn) } else { drawn }
    }

    /// Draws a limit for a counter whose limit was `before`. Changes only fields that are not part
    /// of the counter's key.
    pub(super) fn limit(self, dice: &mut Dice, now: Nanos, before: Option<&Strategy>) -> Strategy {
        loop {
            let drawn = match (self, before) {
                (Self::Gcra, Some(Strategy::Gcra(limit))) if dice.once_in(3) => {
                    // Sometimes changes only the burst.
                    let (worth, tick) = (limit.refill_rate(), limit.tick());
                    Gcra::new(worth.hits, tick.nanos(worth.ticks.get()), count(dice))
                        .map(Strategy::Gcra)
                }
                (Self::Gcra, _) => gcra(dice),
                (Self::Fixed, Some(Strategy::FixedWindow(limit))) => {
                    FixedWindow::new(requests(dice), *limit.windows()).map(Strategy::FixedWindow)
                }
                (Self::Fixed, _) => FixedWindow::new(requests(dice), Windows::Every(period(dice)))
                    .map(Strategy::FixedWindow),
                (Self::Calendar, _) => {
                    let windows = Windows::Calendar { starts: months(dice, now) };
                    FixedWindow::new(requests(dice), windows).map(Strategy::FixedWindow)
                }
                (Self::Sliding, Some(Strategy::SlidingWindow(limit))) => {
                    sliding(dice, limit.tick().nanos(limit.refill_rate().ticks.get()))
                }
                (Self::Sliding, _) => {
                    let period = period(dice);
                    sliding(dice, period)
                }
                (Self::Log, _) => {
                    SlidingLog::new(requests(dice), period(dice)).map(Strategy::SlidingLog)
                }
            };
            if let Ok(limit) = drawn {
                return limit;
            }
        }
    }
}

fn charging_excess(limit: &Strategy) -> Result<Strategy, LimitError> {
    const CHARGE: OnExcess = OnExcess::Charge;
    Ok(match limit {
        Strategy::Gcra(limit) => {
            let rate = limit.refill_rate();
            let period = limit.tick().nanos(rate.ticks.get());
            Strategy::Gcra(Gcra::with_on_excess(rate.hits, period, limit.burst(), CHARGE)?)
        }
        Strategy::FixedWindow(limit) => Strategy::FixedWindow(limit.with_on_excess(CHARGE)),
        Strategy::SlidingWindow(limit) => Strategy::SlidingWindow(limit.with_on_excess(CHARGE)),
        Strategy::SlidingLog(limit) => Strategy::SlidingLog(limit.with_on_excess(CHARGE)),
    })
}

pub(super) const fn is_calendar(limit: &Strategy) -> bool {
    match limit {
        Strategy::FixedWindow(limit) => matches!(limit.windows(), Windows::Calendar { .. }),
        _ => false,
    }
}

/// The typical duration of `limit`: its window, or the time in which its burst drains.
pub(super) fn span(limit: &Strategy) -> Nanos {
    match limit {
        Strategy::Gcra(limit) => {
            let drain = limit.refill_rate().ticks.get() * u64::from(limit.burst());
            limit.tick().nanos(drain / u64::from(limit.refill_rate().hits) + 1)
        }
        Strategy::FixedWindow(limit) => match *limit.windows() {
            Windows::Every(length) => length,
            Windows::Calendar { starts } => starts[2].since(starts[1]),
        },
        Strategy::SlidingWindow(limit) => limit.tick().nanos(limit.refill_rate().ticks.get()),
        Strategy::SlidingLog(limit) => limit.period(),
    }
}

fn gcra(dice: &mut Dice) -> Result<Strategy, LimitError> {
    let (requests, period) = (requests(dice).max(1), period(dice));
    if dice.once_in(5) {
        // Uses the largest valid burst, or nearly. All products in the script are then close to
        // 2^53.
        let largest = match Gcra::new(requests, period, u32::MAX) {
            Ok(limit) => return Ok(Strategy::Gcra(limit)),
            Err(LimitError::TooLarge { largest, .. }) => largest,
            Err(error) => return Err(error),
        };
        let burst = largest - u32::try_from(dice.up_to(2)).unwrap().min(largest - 1);
        return Gcra::new(requests, period, burst).map(Strategy::Gcra);
    }
    Gcra::new(requests, period, count(dice)).map(Strategy::Gcra)
}

fn sliding(dice: &mut Dice, period: Nanos) -> Result<Strategy, LimitError> {
    match (dice.once_in(5), SlidingWindow::new(u32::MAX, period)) {
        (true, Err(LimitError::TooLarge { largest, .. })) => SlidingWindow::new(largest, period),
        (_, _) => SlidingWindow::new(requests(dice), period),
    }
    .map(Strategy::SlidingWindow)
}

/// The starts of four calendar windows of two lengths. `now` is usually inside them, sometimes
/// outside.
fn months(dice: &mut Dice, now: Nanos) -> [Nanos; 4] {
    const PAIR: u64 = 5_200_000;
    // The window starts do not depend on `now`: windows of 2,680,000 s and 2,520,000 s alternate.
    let start = |window: u64| Nanos::from_secs(window / 2 * PAIR + window % 2 * 2_680_000);
    let pair = now.0 / Nanos::from_secs(PAIR).0 * 2;
    let current = if now < start(pair + 1) { pair } else { pair + 1 };
    let first = current + dice.pick(&[0, 1, 2, 2, 3, 3, 3, 3, 3, 4]) - 4;
    [start(first + 1), start(first + 2), start(first + 3), start(first + 4)]
}

/// A random period from a microsecond to 41 years.
fn period(dice: &mut Dice) -> Nanos {
    let unit = dice.pick(&[1, 60, 3_600, 86_400, 604_800, 31_536_000]);
    match dice.up_to(7) {
        0 => Nanos((1 + dice.up_to(50)) * 1_000),
        1 | 2 => Nanos((1 + dice.up_to(10_000_000)) * 1_000),
        3 => Nanos((1 + dice.up_to(100_000)) * 1_000_000),
        4 => Nanos::from_secs(unit * (1 + dice.up_to(40))),
        _ => Nanos::from_secs(unit),
    }
}

fn requests(dice: &mut Dice) -> u32 {
    if dice.once_in(20) { 0 } else { count(dice) }
}

/// A random number of requests. Most are small, because these reach edge cases often; large ones
/// need long ticks.
fn count(dice: &mut Dice) -> u32 {
    let most = dice.pick(&[8, 8, 8, 8, 2_000, 2_000, 1_000_000, u64::from(u32::MAX) - 1]);
    1 + u32::try_from(dice.up_to(most)).unwrap()
}
