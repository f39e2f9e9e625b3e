//! Tests of the file format: round trips, malformed files, hashed values, and access logs.

mod access_log;
mod hashed_values;

use proptest::collection::vec;
use proptest::prelude::*;
use sluicegate::config::prices::TokenCounts;
use sluicegate::engine::budgets::RequestUsage;
use sluicegate::kernel::decision::{Check, Cost, Descriptor, LimitOverride};
use sluicegate::kernel::units::{Hits, Nanos, Unit};
use sluicegate::recording::percent::{Percent, format_share};
use sluicegate::recording::{
    CheckOrder, CheckOutcome, RecordedBudgets, RecordedCall, RecordedDecision, RecordedPlanning,
    RecordedReserve, RecordingEnd, RecordingError, RecordingHeader, RecordingReader,
    RecordingWriter,
};

/// One call, owned.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedCheck {
    pub time: Nanos,
    pub domain: String,
    pub descriptors: Vec<OwnedDescriptor>,
    pub outcome: CheckOutcome,
    pub denied_by: Option<String>,
    pub budgets: RecordedBudgets<String>,
}

type OwnedDescriptor = (Vec<(String, String)>, Cost, Option<LimitOverride>);

impl OwnedCheck {
    /// A check of `hits` for one entry at `time`, with an unknown decision.
    pub fn of_entry(time: Nanos, (key, value): (&str, &str), hits: u64) -> Self {
        let entries = vec![(key.to_owned(), value.to_owned())];
        Self {
            time,
            domain: "d".to_owned(),
            descriptors: vec![(entries, Cost::Charge(Hits(hits)), None)],
            outcome: CheckOutcome::Unknown,
            denied_by: None,
            budgets: RecordedBudgets::Charge,
        }
    }

    pub fn check(&self) -> Check<'_> {
        let descriptors = self.descriptors.iter().map(|(entries, cost, limit)| Descriptor {
            entries: entries.iter().map(|(key, value)| (&**key, &**value)).collect(),
            cost: *cost,
            limit: *limit,
        });
        Check { domain: &self.domain, descriptors: descriptors.collect() }
    }

    fn from_recorded(RecordedCall { check, decision, budgets }: RecordedCall<'_>) -> Self {
        let descriptors = check.descriptors.iter().map(|one| {
            let entries = one.entries.iter();
            let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            (entries.collect(), one.cost, one.limit)
        });
        Self {
            time: decision.time,
            domain: check.domain.to_owned(),
            descriptors: descriptors.collect(),
            outcome: decision.outcome,
            denied_by: decision.denied_by.map(str::to_owned),
            budgets: budgets.map_id(str::to_owned),
        }
    }
}

pub fn header() -> RecordingHeader {
    RecordingHeader {
        salt: None,
        sample: Percent::ALL,
        started_at: Nanos::from_secs(1_763_632_345),
        order: CheckOrder::Decisions,
        planning: RecordedPlanning::default(),
    }
}

pub fn write(header: &RecordingHeader, checks: &[OwnedCheck]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = RecordingWriter::start(&mut bytes, header).unwrap();
    for one in checks {
        let denied_by = one.denied_by.as_deref();
        let decision = RecordedDecision { time: one.time, outcome: one.outcome, denied_by };
        writer.add_call(&one.check(), decision, one.budgets.clone()).unwrap();
    }
    writer.finish().unwrap();
    bytes
}

/// A recording that was read to its end.
pub struct ReadRecording {
    pub header: RecordingHeader,
    pub checks: Vec<OwnedCheck>,
    pub end: Option<RecordingEnd>,
}

pub fn read(bytes: &[u8]) -> Result<ReadRecording, RecordingError> {
    let mut reader = RecordingReader::open(bytes)?;
    let mut checks = Vec::new();
    while let Some(block) = reader.next_block()? {
        checks.extend(block.calls().map(OwnedCheck::from_recorded));
    }
    Ok(ReadRecording { header: reader.header().clone(), checks, end: reader.end() })
}

fn descriptors() -> impl Strategy<Value = Vec<OwnedDescriptor>> {
    let cost = prop_oneof![
        Just(Cost::Charge(Hits(1))),
        any::<u64>().prop_map(|hits| Cost::Charge(Hits(hits))),
        any::<u64>().prop_map(|hits| Cost::Refund(Hits(hits))),
    ];
    let unit = prop::sample::select(vec![
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Week,
        Unit::Month,
        Unit::Year,
    ]);
    let limit = (any::<u32>(), unit).prop_map(|(requests, unit)| LimitOverride { requests, unit });
    let limit = prop::option::weighted(0.2, limit);
    vec((vec(("[a-c]", ".{0,6}"), 0..4), cost, limit), 0..4)
}

fn budgets() -> impl Strategy<Value = RecordedBudgets<String>> {
    let id = || "[~0-9a-f]{0,17}".prop_map(String::from);
    let tokens = any::<[u64; 4]>().prop_map(|[input, cached_input, output, any]| {
        RequestUsage::Tokens(TokenCounts { input, cached_input, output, any })
    });
    let usage = prop_oneof![tokens, Just(RequestUsage::Unknown), Just(RequestUsage::Nothing)];
    let reserve = (id(), prop::collection::btree_set(0_u32..4, 0..4), any::<(Option<u64>, bool)>());
    prop_oneof![
        Just(RecordedBudgets::Unused),
        Just(RecordedBudgets::Charge),
        reserve.prop_map(|(id, covered, (tokens, is_admitted))| {
            let covered = covered.into_iter().collect();
            RecordedBudgets::Reserve(RecordedReserve { id, covered, tokens, is_admitted })
        }),
        (id(), usage).prop_map(|(id, usage)| RecordedBudgets::Settle(id, usage)),
        id().prop_map(RecordedBudgets::Renew),
    ]
}

fn checks(most: usize) -> impl Strategy<Value = Vec<OwnedCheck>> {
    let outcome = prop::sample::select(vec![
        CheckOutcome::Allow,
        CheckOutcome::Deny,
        CheckOutcome::Failed,
        CheckOutcome::Unknown,
    ]);
    let denied_by = prop::option::of("[a-z.]{1,9}");
    let check = (0..u64::MAX / 2, "[de]", descriptors(), outcome, denied_by, budgets());
    vec(check, 0..most).prop_map(|mut checks| {
        checks.sort_by_key(|one| one.0);
        let to_owned_check = |(time, domain, descriptors, outcome, denied_by, mut budgets)| {
            let descriptors: Vec<OwnedDescriptor> = descriptors;
            if let RecordedBudgets::Reserve(RecordedReserve { covered, .. }) = &mut budgets {
                covered.retain(|index| (*index as usize) < descriptors.len());
            }
            OwnedCheck { time: Nanos(time), domain, descriptors, outcome, denied_by, budgets }
        };
        checks.into_iter().map(to_owned_check).collect()
    })
}

proptest! {
    #[test]
    fn every_check_is_read_as_it_was_written(checks in checks(40)) {
        let recording = read(&write(&header(), &checks)).unwrap();
        prop_assert_eq!(recording.header, header());
        let recorded = checks.len() as u64;
        prop_assert_eq!(recording.end, Some(RecordingEnd { recorded, dropped: 0 }));
        prop_assert_eq!(recording.checks, checks);
    }

    #[test]
    fn every_changed_byte_is_detected(
        checks in checks(20),
        position in any::<prop::sample::Index>(),
        flipped in 1_u8..,
    ) {
        let mut bytes = write(&header(), &checks);
        let position = position.index(bytes.len());
        bytes[position] ^= flipped;
        let error = read(&bytes).err().map(|error| error.to_string());
        prop_assert!(error.is_some_and(|error| error.starts_with("byte ")));
    }

    #[test]
    fn a_truncated_file_is_an_error_or_incomplete(
        checks in checks(20),
        length in any::<prop::sample::Index>(),
    ) {
        let bytes = write(&header(), &checks);
        match read(&bytes[..length.index(bytes.len())]) {
            Err(error) => prop_assert!(error.to_string().starts_with("byte ")),
            Ok(recording) => {
                prop_assert_eq!(recording.end, None);
                prop_assert!(checks.starts_with(&recording.checks));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        let mut frames = b"sgrecord\x02".to_vec();
        frames.extend(&bytes);
        prop_assert!(read(&bytes).is_err() && read(&frames).is_err());
    }

    #[test]
    fn a_percentage_is_printed_as_it_is_parsed(ppm in 0_u32..=1_000_000) {
        let text = format!("{}.{:04}%", ppm / 10_000, ppm % 10_000);
        let percent = Percent::parse(&text).unwrap();
        prop_assert_eq!(Percent::parse(&percent.to_string()), Some(percent));
        prop_assert!(!percent.is_exceeded_by(ppm.into(), 1_000_000));
        prop_assert!(percent.is_exceeded_by(u64::from(ppm) + 1, 1_000_000));
    }
}

#[test]
fn blocks_of_a_long_recording_share_no_texts() {
    let checks: Vec<_> = (0..50_000)
        .map(|n| OwnedCheck::of_entry(Nanos(n), ("key", &format!("value {}", n % 20_000)), 1))
        .collect();
    let bytes = write(&header(), &checks);
    assert_eq!(read(&bytes).unwrap().checks, checks);
    assert!(bytes.len() < 10 * checks.len(), "{} bytes", bytes.len());
}

#[test]
fn a_too_large_check_is_counted_as_dropped() {
    let large = "x".repeat(2 << 20);
    let checks = [
        OwnedCheck::of_entry(Nanos(1), ("key", &large), 1),
        OwnedCheck::of_entry(Nanos(2), ("key", "value"), 1),
    ];
    let recording = read(&write(&header(), &checks)).unwrap();
    assert_eq!(recording.end, Some(RecordingEnd { recorded: 1, dropped: 1 }));
    assert_eq!(recording.checks, checks[1..]);
}

#[test]
fn a_time_before_the_last_one_counts_as_the_last_one() {
    let at = |time| OwnedCheck::of_entry(Nanos(time), ("key", "value"), 1);
    let recording = read(&write(&header(), &[at(5), at(3), at(7)])).unwrap();
    let times: Vec<_> = recording.checks.iter().map(|one| one.time.0).collect();
    assert_eq!(times, [5, 5, 7]);
}

#[test]
fn another_version_of_the_format_is_named() {
    let mut bytes = write(&header(), &[]);
    bytes[8] = 3;
    let error = read(&bytes).err().unwrap().to_string();
    assert!(
        error.contains("version 3") && error.contains("the version of Sluicegate that wrote it"),
        "{error}"
    );
}

#[test]
fn shares_are_rounded_down_but_never_to_zero() {
    assert_eq!(format_share(1, 3), "33.33 %");
    assert_eq!(format_share(1, 1_000_000), "0.01 %");
    assert_eq!(format_share(999_999, 1_000_000), "99.99 %");
    assert_eq!(format_share(0, 0), "0.00 %");
}
