//! Tests the demand history: the learned period, the forecast and the time that it is kept.

use sluicegate_kernel::lease::history::{DemandHistory, INTERVAL};
use sluicegate_kernel::units::{Hits, Nanos};

const HALF_MINUTE: Nanos = Nanos::from_secs(30);

/// Bursts of 100 hits, `period` seconds apart, from second 1,000 on; and the first hit of the next.
fn bursts(period: u64, count: u64) -> (DemandHistory, Nanos) {
    let mut history = DemandHistory::default();
    for burst in 0..count {
        history.record(Nanos::from_secs(1_000 + burst * period), Hits(100));
    }
    let now = Nanos::from_secs(1_000 + count * period);
    history.record(now, Hits(1));
    (history, now)
}

#[test]
fn bursts_are_forecast_from_the_third_on() {
    for period in [30, 40, 60, 90, 120] {
        let forecast = |count| {
            let (history, now) = bursts(period, count);
            // Shorter than the period, so that it contains one burst.
            history.forecast(now, Nanos::from_secs(20)).least
        };
        assert_eq!(forecast(1), Hits(0), "one burst may be the only one: {period}");
        assert_eq!(forecast(2), Hits(99), "{period}");
    }
    let (history, now) = bursts(20, 6);
    assert_eq!(history.forecast(now, HALF_MINUTE).least, Hits(199), "the next burst, too");
}

#[test]
fn a_period_that_divides_a_learned_one_repeats_in_it() {
    let (history, now) = bursts(45, 6);
    assert_eq!(history.forecast(now, Nanos::from_secs(20)).least, Hits(99));
}

#[test]
fn periods_above_two_minutes_are_not_learned() {
    let (history, now) = bursts(130, 3);
    assert_eq!(history.forecast(now, HALF_MINUTE).least, Hits(0));
}

#[test]
fn the_forecast_ranges_over_the_last_two_periods() {
    let mut history = DemandHistory::default();
    for (second, hits) in [(1_000, 80), (1_060, 100), (1_120, 10)] {
        history.record(Nanos::from_secs(second), Hits(hits));
    }
    let now = Nanos::from_secs(1_120);
    let forecast = history.forecast(now, HALF_MINUTE);
    assert_eq!(forecast.least, Hits(80 - 10));
    assert_eq!(forecast.most, Some(Hits(100 + 20 - 10)), "100, and their difference");
    history.record(now, Hits(111));
    let exceeded = history.forecast(now, HALF_MINUTE);
    assert_eq!((exceeded.least, exceeded.most), (Hits(0), None), "121 of 120");
}

#[test]
fn steady_demand_is_forecast_for_any_time() {
    let mut history = DemandHistory::default();
    for second in 1_000..1_300 {
        history.record(Nanos::from_secs(second), Hits(2));
    }
    let now = Nanos::from_secs(1_300);
    for (seconds, hits) in [(10, 20), (25, 50), (30, 60)] {
        let forecast = history.forecast(now, Nanos::from_secs(seconds));
        assert_eq!((forecast.least, forecast.most), (Hits(hits), Some(Hits(hits))), "{seconds} s");
    }
}

#[test]
fn a_history_is_kept_for_the_longest_period() {
    let mut history = DemandHistory::default();
    history.record(Nanos::from_secs(1_000), Hits(63));
    assert!(!history.may_repeat(Nanos::from_secs(1_000)), "too few hits to predict anything");
    history.record(Nanos::from_secs(1_000), Hits(1));
    assert!(history.may_repeat(Nanos::from_secs(1_000 + 120)));
    assert!(!history.may_repeat(Nanos::from_secs(1_000 + 120).plus(INTERVAL)));
}
