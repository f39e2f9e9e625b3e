//! Tests that decoding inverts encoding, and that damaged bytes are errors.

use proptest::prelude::*;

use super::*;

fn limit() -> impl Strategy<Value = Gcra> {
    let on_excess = prop_oneof![Just(OnExcess::ByStrategy), Just(OnExcess::Charge)];
    let limit = (1..=u32::MAX, 1..=10_000_000_000_u64, 1..=u32::MAX, on_excess);
    limit.prop_filter_map("a limit that fits", |(requests, micros, burst, on_excess)| {
        Gcra::with_on_excess(requests, Nanos(micros * 1_000), burst, on_excess).ok()
    })
}

fn state() -> impl Strategy<Value = CounterState<'static>> {
    let nanos = || any::<u64>().prop_map(Nanos);
    let arrivals = prop::collection::btree_map(any::<u64>(), any::<u32>(), 0..20);
    prop_oneof![
        (limit(), any::<u64>(), any::<u32>())
            .prop_map(|(gcra, whole, frac)| CounterState::Gcra(gcra, Tat { whole, frac })),
        (nanos(), any::<u64>(), nanos()).prop_map(|(start, count, empty_at)| {
            CounterState::FixedWindow(WindowCount { start, count }, empty_at)
        }),
        (nanos(), any::<u32>(), any::<u32>(), nanos()).prop_map(|(start, prev, cur, empty_at)| {
            CounterState::SlidingWindow(WindowPair { start, prev, cur }, empty_at)
        }),
        (arrivals, nanos()).prop_map(|(arrivals, empty_at)| {
            let log = ArrivalLog::from_arrivals(arrivals).unwrap_or_default();
            CounterState::SlidingLog(Cow::Owned(log), empty_at)
        }),
    ]
}

fn record() -> impl Strategy<Value = CounterRecord<'static>> {
    (any::<u64>(), 1..=u64::MAX, state()).prop_map(|(position, tag, state)| {
        let tag = NonZeroU64::new(tag).unwrap_or(NonZeroU64::MIN);
        CounterRecord { hash: KeyHash { position, tag }, state }
    })
}

proptest! {
    #[test]
    fn decoded_records_equal_the_encoded_ones(records in prop::collection::vec(record(), 0..8)) {
        let mut bytes = Vec::new();
        for record in &records {
            encode_record(record, &mut bytes);
        }
        let mut decoder = Decoder(&bytes);
        for record in &records {
            prop_assert_eq!(decoder.record(), Ok(Some(record.clone())));
        }
        prop_assert_eq!(decoder.record(), Ok(None));
    }

    #[test]
    fn a_truncated_record_is_an_error(record in record(), cut in 0_usize..1_000) {
        let mut bytes = Vec::new();
        encode_record(&record, &mut bytes);
        let len = 1 + cut % (bytes.len() - 1);
        prop_assert_eq!(Decoder(&bytes[..len]).record(), Err(InvalidRecord));
    }
}
