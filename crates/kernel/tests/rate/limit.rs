//! A GCRA limit uses the finest clock tick in which its numbers fit. Otherwise the error reports
//! the largest limit that fits.

use std::num::NonZeroU64;

use proptest::prelude::*;
use sluicegate_kernel::rate;
use sluicegate_kernel::rate::gcra::Gcra;
use sluicegate_kernel::rate::limit::{EXACT_BOUND, LimitError, RefillRate, Tick};
use sluicegate_kernel::rate::sliding_log::SlidingLog;
use sluicegate_kernel::rate::sliding_window::SlidingWindow;
use sluicegate_kernel::units::Nanos;

use super::traffic::{cases, counts, periods};

const DAY: Nanos = Nanos::from_secs(86_400);
const YEAR: Nanos = Nanos::from_secs(31_536_000);

/// The period P of the fraction N/P in lowest terms, for every tick that divides the period, finest
/// first.
fn lowest_terms(n: u32, period: Nanos) -> Vec<(Tick, u128)> {
    let whole = Tick::ALL.into_iter().filter(|tick| period.0.is_multiple_of(tick.size().0));
    whole
        .map(|tick| {
            let ticks = u128::from(period.0 / tick.size().0);
            let divisor = (1..=ticks.min(u128::from(n)))
                .rev()
                .find(|d| ticks.is_multiple_of(*d) && u128::from(n).is_multiple_of(*d));
            (tick, ticks / divisor.unwrap())
        })
        .collect()
}

fn fits(burst: u32, period: u128) -> bool {
    (u128::from(burst) + 1) * period < u128::from(EXACT_BOUND)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn the_finest_fitting_tick_is_used(n in 1..500_u32, period in periods(), burst in counts()) {
        let terms = lowest_terms(n, period);
        let finest = terms.iter().find(|(_, period)| fits(burst, *period));
        match (Gcra::new(n, period, burst), finest) {
            (Ok(limit), Some((tick, period))) => {
                prop_assert_eq!(limit.tick(), *tick);
                prop_assert_eq!(u128::from(limit.refill_rate().ticks.get()), *period);
            }
            (Err(LimitError::TooLarge { asked, largest, .. }), None) => {
                prop_assert_eq!(asked, burst);
                prop_assert!(terms.iter().any(|(_, period)| fits(largest, *period)));
                prop_assert!(!terms.iter().any(|(_, period)| fits(largest + 1, *period)));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn the_reported_largest_limit_is_exact(
        n in counts(), period in periods(),
    ) {
        if let Err(LimitError::TooLarge { largest, .. }) = SlidingWindow::new(n, period) {
            prop_assert!(largest < n);
            prop_assert!(SlidingWindow::new(largest, period).is_ok());
            prop_assert!(SlidingWindow::new(largest + 1, period).is_err());
        }
    }
}

#[test]
fn a_common_limit_uses_microseconds_and_lowest_terms() {
    let limit = Gcra::new(600, Nanos::from_secs(60), 50).unwrap();
    assert_eq!(limit.tick(), Tick::Micro);
    assert_eq!(
        limit.refill_rate(),
        RefillRate { hits: 1, ticks: NonZeroU64::new(100_000).unwrap() }
    );
    assert_eq!(limit.refill_rate().to_string(), "1/100000");
}

#[test]
fn a_huge_burst_has_a_coarser_tick() {
    // 1,000,000,007 is prime, so N/P is in lowest terms and P is a day in ticks. A burst of at most
    // ⌊(2^53 − 1) / P⌋ − 1 fits.
    let ticks = [(104_248, Tick::Micro), (104_249, Tick::Milli), (104_249_991, Tick::Second)];
    for (burst, tick) in ticks {
        assert_eq!(Gcra::new(1_000_000_007, DAY, burst).unwrap().tick(), tick, "{burst}");
    }
}

#[test]
fn a_too_large_burst_reports_the_largest_fit() {
    // The largest fit is ⌊(2^53 − 1) / 31,536,000⌋ − 1.
    let (asked, largest) = (4_294_967_291, 285_616_413);
    let refused = Err(LimitError::TooLarge { asked, period: YEAR, largest });
    assert_eq!(Gcra::new(asked, YEAR, asked), refused);
    assert!(Gcra::new(asked, YEAR, largest).is_ok());
    assert!(Gcra::new(asked, YEAR, largest + 1).is_err());
}

#[test]
fn a_product_of_exactly_2_pow_53_is_rejected() {
    // One hit in 2^22 µs, which is no whole number of milliseconds; 2^31 · 2^22 = 2^53.
    let period = Nanos((1 << 22) * 1_000);
    let largest = (1 << 31) - 2;
    let refused = Err(LimitError::TooLarge { asked: largest + 1, period, largest });
    assert_eq!(Gcra::new(1, period, largest + 1), refused);
    assert!(Gcra::new(1, period, largest).is_ok());
}

#[test]
fn zeros_and_uneven_periods_have_specific_errors() {
    let period = Nanos(1_500);
    assert_eq!(Gcra::new(0, DAY, 1), Err(LimitError::ZeroRequests));
    assert_eq!(Gcra::new(1, DAY, 0), Err(LimitError::ZeroBurst));
    assert_eq!(Gcra::new(1, Nanos(0), 1), Err(LimitError::ZeroPeriod));
    assert_eq!(Gcra::new(1, period, 1), Err(LimitError::UnevenPeriod { period }));
    assert_eq!(SlidingWindow::new(1, Nanos(0)), Err(LimitError::ZeroPeriod));
    assert_eq!(SlidingWindow::new(1, period), Err(LimitError::UnevenPeriod { period }));
    assert_eq!(SlidingLog::new(1, Nanos(0)), Err(LimitError::ZeroPeriod));
    assert_eq!(SlidingLog::new(1, period), Err(LimitError::UnevenPeriod { period }));
}

#[test]
fn an_overlong_period_is_rejected() {
    // 500 years and a microsecond: only microseconds divide this period.
    let period = Nanos(15_768_000_000_000_001_000);
    assert_eq!(Gcra::new(1, period, 1), Err(LimitError::LongPeriod { period }));
    assert_eq!(SlidingLog::new(1, period), Err(LimitError::LongPeriod { period }));
}

#[test]
fn a_tick_above_one_percent_of_burst_is_coarse() {
    let coarse =
        |n, per, burst| rate::Strategy::Gcra(Gcra::new(n, per, burst).unwrap()).is_coarse();
    // One hit per microsecond is coarse below a burst of 100.
    assert!(coarse(1_000_000, Nanos::SECOND, 99));
    assert!(!coarse(1_000_000, Nanos::SECOND, 100));
    assert!(!coarse(600, Nanos::from_secs(60), 1));
    let log = rate::Strategy::SlidingLog(SlidingLog::new(1, DAY).unwrap());
    assert!(!log.is_coarse() && log.refill_rate().is_none());
}
