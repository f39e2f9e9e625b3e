//! Tests of the import of Envoy's access log.

use std::io::BufReader;

use sluicegate::config::hooks::{Hook, Hooks};
use sluicegate::kernel::units::Nanos;
use sluicegate::recording::access_log::{ImportOptions, ImportSummary, LineError, import};
use sluicegate::recording::{CheckOrder, CheckOutcome, RecordedPlanning, RecordingEnd};

use super::{ReadRecording, read};

fn hook() -> Hook {
    let hooks = r#"[{"name": "edge", "domain": "shop", "descriptors": [
        [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "api_key"}}],
        [{"remote_address": {}}],
        [{"request_headers": {"header_name": ":path", "descriptor_key": "path"}},
         {"request_headers": {"header_name": ":method", "descriptor_key": "method"}}]
    ]}]"#;
    serde_json::from_str::<Hooks>(hooks).unwrap().0.remove(0)
}

fn imported(log: &str) -> (ImportSummary, Option<ReadRecording>) {
    let hook = hook();
    let options =
        ImportOptions { hook: &hook, hashed: None, planning: RecordedPlanning::default() };
    let mut bytes = Vec::new();
    let summary = import(BufReader::new(log.as_bytes()), &mut bytes, &options).unwrap();
    let recording = summary.end.map(|_| read(&bytes).unwrap());
    (summary, recording)
}

fn descriptors(recording: &ReadRecording) -> Vec<Vec<String>> {
    let entries = |entries: &Vec<(String, String)>| {
        entries.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
    };
    let checks = recording.checks.iter();
    checks.map(|one| one.descriptors.iter().map(|(all, ..)| entries(all)).collect()).collect()
}

#[test]
fn fields_become_the_attributes_of_the_hook() {
    let (summary, recording) = imported(
        r#"{"start_time": "2025-11-20T09:52:25.250Z", "method": "GET", "path": "/pay?a=1",
            "authority": "shop.example", "x_api_key": "ann", "response_code": 200,
            "downstream_remote_address": "[2001:db8::1]:4711", "x_forwarded_for": "192.0.2.9"}"#
            .replace('\n', " ")
            .as_str(),
    );
    let recording = recording.unwrap();
    assert_eq!(
        descriptors(&recording),
        [["api_key=ann", "remote_address=2001:db8::1", "path=/pay?a=1,method=GET"]]
    );
    assert_eq!((summary.lines, summary.unusable.len()), (1, 0));
    let one = &recording.checks[0];
    assert_eq!((&*one.domain, one.outcome), ("shop", CheckOutcome::Unknown));
    assert_eq!(one.time, Nanos::from_secs(1_763_632_345).plus(Nanos(250_000_000)));
    assert_eq!(recording.header.order, CheckOrder::Requests);
}

#[test]
fn header_names_with_dashes_and_underscores_are_the_same() {
    for name in ["x_api_key", "x-api-key", "X-Api-Key"] {
        let line = format!(r#"{{"start_time": "1763632345.5", "{name}": "ann"}}"#);
        let recording = imported(&line).1.unwrap();
        assert_eq!(descriptors(&recording), [["api_key=ann"]]);
        assert_eq!(recording.checks[0].time, Nanos(1_763_632_345_500_000_000));
    }
}

#[test]
fn the_last_forwarded_address_replaces_a_missing_downstream_address() {
    let line = r#"{"start_time": 1763632345, "x_forwarded_for": "192.0.2.1, 192.0.2.2",
        "downstream_remote_address": "-"}"#;
    let recording = imported(&line.replace('\n', " ")).1.unwrap();
    assert_eq!(descriptors(&recording), [["remote_address=192.0.2.2"]]);
}

#[test]
fn unusable_lines_are_counted_with_their_first_number() {
    let oversized = format!(r#"{{"start_time": 1, "x_api_key": "{}"}}"#, "x".repeat(1 << 20));
    let log = [
        "plain text",
        r#"{"x_api_key": "ann"}"#,
        "",
        r#"{"start_time": "yesterday", "x_api_key": "ann"}"#,
        r#"{"start_time": 2, "user_agent": "curl"}"#,
        &oversized,
        r#"{"start_time": 3, "x_api_key": "ann"}"#,
    ];
    let (summary, recording) = imported(&log.join("\n"));
    assert_eq!(recording.unwrap().checks.len(), 1);
    assert_eq!(summary.end, Some(RecordingEnd { recorded: 1, dropped: 0 }));
    let unusable: Vec<_> = summary.unusable.into_iter().collect();
    let expected = [
        (LineError::TooLong, (1, 6)),
        (LineError::NotJson, (1, 1)),
        (LineError::NoTime, (2, 2)),
        (LineError::NoDescriptors, (1, 5)),
    ];
    assert_eq!((summary.lines, &*unusable), (6, &expected[..]));
}

#[test]
fn a_log_without_usable_lines_writes_nothing() {
    let (summary, recording) = imported("no JSON\n");
    assert!(recording.is_none() && summary.end.is_none());
}

#[test]
fn lines_are_sorted_by_start_time() {
    let line = |second: u32| format!(r#"{{"start_time": {second}, "x_api_key": "{second}"}}"#);
    let log: Vec<_> = [7, 3, 5, 3, 1].map(line).into();
    let recording = imported(&log.join("\n")).1.unwrap();
    let times: Vec<_> = recording.checks.iter().map(|one| one.time.0 / 1_000_000_000).collect();
    assert_eq!(times, [1, 3, 3, 5, 7]);
}
