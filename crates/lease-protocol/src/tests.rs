//! Strategies survive the way to Sluicegate and back.

use proptest::prelude::{Just, Strategy as Generator, prop, prop_assume, prop_oneof, proptest};
use proptest::prop_assert_eq;

use super::{api, strategy, strategy_message};
use sluicegate_kernel::rate::Strategy;
use sluicegate_kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate_kernel::rate::gcra::Gcra;
use sluicegate_kernel::rate::on_excess::OnExcess;
use sluicegate_kernel::rate::sliding_log::SlidingLog;
use sluicegate_kernel::rate::sliding_window::SlidingWindow;
use sluicegate_kernel::units::Nanos;

const PERIODS: [u64; 6] = [1, 7, 60, 3_600, 86_400, 31_536_000];

pub(crate) fn strategies() -> impl Generator<Value = Option<Strategy>> {
    let on_excess = prop_oneof![Just(OnExcess::ByStrategy), Just(OnExcess::Charge)];
    let numbers = (1_u32..100_000, prop::sample::select(&PERIODS[..]), 1_u32..1_000);
    (0..5, numbers, on_excess).prop_map(|(kind, (hits, seconds, burst), on_excess)| {
        let period = Nanos::from_secs(seconds);
        let starts = [1, 2, 3, 4].map(|day| Nanos::from_secs(day * 86_400));
        let fixed = |windows| FixedWindow::new(hits, windows).ok();
        match kind {
            0 => Gcra::with_on_excess(hits, period, burst, on_excess).ok().map(Strategy::Gcra),
            1 => SlidingWindow::new(hits, period)
                .ok()
                .map(|window| Strategy::SlidingWindow(window.with_on_excess(on_excess))),
            2 => SlidingLog::new(hits, period)
                .ok()
                .map(|log| Strategy::SlidingLog(log.with_on_excess(on_excess))),
            3 => fixed(Windows::Every(period))
                .map(|window| Strategy::FixedWindow(window.with_on_excess(on_excess))),
            _ => fixed(Windows::Calendar { starts })
                .map(|window| Strategy::FixedWindow(window.with_on_excess(on_excess))),
        }
    })
}

proptest! {
    #[test]
    fn a_strategy_is_the_same_after_both_conversions(sent in strategies()) {
        prop_assume!(sent.is_some());
        let sent = sent.unwrap();
        prop_assert_eq!(strategy(&strategy_message(&sent)), Some(sent));
    }

    #[test]
    fn a_strategy_of_any_numbers_is_the_same_after_both_conversions(
        kind in 0..7, hits: u32, period_ns: u64, burst: u32, charges_excess: bool, starts: [u64; 4],
    ) {
        let window_starts_us = starts.to_vec();
        let message =
            api::RateStrategy { kind, hits, period_ns, burst, charges_excess, window_starts_us };
        if let Some(received) = strategy(&message) {
            prop_assert_eq!(strategy(&strategy_message(&received)), Some(received));
        }
    }
}

#[test]
fn invalid_numbers_of_a_strategy_are_refused() {
    let message = strategy_message(&Strategy::Gcra(Gcra::new(10, Nanos::SECOND, 10).unwrap()));
    for (field, invalid) in [
        ("kind", api::RateStrategy { kind: 99, ..message.clone() }),
        ("no kind", api::RateStrategy { kind: 0, ..message.clone() }),
        ("period", api::RateStrategy { period_ns: 0, ..message.clone() }),
        ("burst", api::RateStrategy { burst: 0, ..message.clone() }),
        ("starts", api::RateStrategy { kind: 3, window_starts_us: vec![1], ..message }),
    ] {
        assert_eq!(strategy(&invalid), None, "{field}");
    }
}
