//! Tests of the histogram of latencies.

use proptest::prelude::*;
use sluicegate::bench::LatencyHistogram;
use sluicegate::kernel::units::Nanos;

#[test]
fn an_empty_histogram_has_no_latency() {
    let empty = LatencyHistogram::default();
    assert_eq!((empty.count(), empty.max(), empty.quantile(999_000)), (0, Nanos(0), Nanos(0)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn a_quantile_is_at_most_one_128th_above_the_real_one(
        mut latencies in prop::collection::vec((0_u32..64, any::<u64>()).prop_map(|(bits, x)| x >> bits), 1..300),
        millionths in 0_u64..=1_000_000,
    ) {
        let mut histogram = LatencyHistogram::default();
        for latency in &latencies {
            histogram.record(Nanos(*latency));
        }
        latencies.sort_unstable();
        let rank = (latencies.len() as u64 * millionths).div_ceil(1_000_000).max(1);
        let real = latencies[usize::try_from(rank).unwrap() - 1];
        let found = histogram.quantile(millionths).0;
        prop_assert!(real <= found && found - real <= real / 128, "{} for {}", found, real);
        prop_assert_eq!(histogram.max(), Nanos(*latencies.last().unwrap()));
    }
}
