//! Tests of the send times of a step.

use proptest::prelude::*;
use sluicegate::bench::SendSchedule;
use sluicegate::kernel::units::Nanos;

#[test]
fn a_step_has_exactly_rate_times_duration_checks() {
    let count = |rate, duration| SendSchedule { rate, duration }.count();
    assert_eq!(count(1_000, Nanos::from_secs(10)), 10_000);
    assert_eq!(count(7, Nanos::from_secs(3)), 21);
    assert_eq!(count(333, Nanos(100 * Nanos::MILLI.0)), 34, "33.3, rounded up");
    assert_eq!(count(1_000_000, Nanos::from_secs(3_600)), 3_600_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn send_times_are_within_the_step_and_due_counts_them(
        rate in 1_u32..2_000, duration in 1_u64..2_000_000_000, elapsed in 0_u64..3_000_000_000,
    ) {
        let schedule = SendSchedule { rate, duration: Nanos(duration) };
        let times: Vec<_> = (0..schedule.count()).map(|index| schedule.send_time(index)).collect();
        prop_assert!(times.is_sorted());
        prop_assert!(times.iter().all(|time| time.0 < duration));
        prop_assert!(duration <= schedule.send_time(schedule.count()).0 + 1);
        let due = times.iter().filter(|time| time.0 <= elapsed).count() as u64;
        prop_assert_eq!(schedule.due(Nanos(elapsed)), due);
        for (index, time) in times.into_iter().enumerate().take(100) {
            prop_assert_eq!(schedule.due(time), index as u64 + 1, "due at its send time");
        }
    }
}
