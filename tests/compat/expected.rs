//! Compares a response with the recording, which has placeholders for clock-dependent numbers.

use std::ops::RangeInclusive;

use serde_json::{Value, json};

/// Returns the first difference from the recording. `when` has the Unix seconds in which the call
/// ran.
///
/// There is none if some second of `when` explains every number of the response.
pub fn difference(recorded: &Value, received: &Value, when: RangeInclusive<u64>) -> Option<String> {
    let came = with_single_blanks(received.clone());
    let mut first = None;
    for now in when {
        let recorded = with_single_blanks(filled_at(recorded, now));
        let differs = differs(&recorded, &came, "")?;
        first.get_or_insert(differs);
    }
    first
}

/// Replaces clock-dependent placeholders of the recording by their values at this Unix second.
fn filled_at(recorded: &Value, now: u64) -> Value {
    match recorded {
        Value::Array(items) => items.iter().map(|item| filled_at(item, now)).collect(),
        Value::Object(fields) if fields.contains_key("seconds_until_window_end") => {
            json!(until_window_end(&fields["unit"], now).to_string())
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| {
                let is_reset = value.get("seconds_until_window_end").is_some();
                let unit = &recorded["currentLimit"]["unit"];
                let value = match key.as_str() {
                    "durationUntilReset" if is_reset => {
                        json!(format!("{}s", until_window_end(unit, now)))
                    }
                    _ => filled_at(value, now),
                };
                (key.clone(), value)
            })
            .collect(),
        other => other.clone(),
    }
}

fn until_window_end(unit: &Value, now: u64) -> u64 {
    let length = unit.as_str().map_or(1, unit_seconds);
    length - now % length
}

/// Length in seconds of a limit unit of envoyproxy/ratelimit, such as `HOUR`.
pub fn unit_seconds(name: &str) -> u64 {
    match name {
        "SECOND" => 1,
        "MINUTE" => 60,
        "HOUR" => 3_600,
        "DAY" => 86_400,
        "WEEK" => 604_800,
        "MONTH" => 2_592_000,
        "YEAR" => 31_536_000,
        other => panic!("the scenarios name a unit {other}"),
    }
}

/// Collapses spaces: Go prints the `limit` texts of dynamic metadata with one or two spaces at
/// random.
fn with_single_blanks(mut answer: Value) -> Value {
    let descriptors = answer.pointer_mut("/dynamicMetadata/descriptors");
    for descriptor in descriptors.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(Value::String(limit)) = descriptor.get_mut("limit") {
            *limit = limit.split_whitespace().collect::<Vec<_>>().join(" ");
        }
    }
    answer
}

fn differs(recorded: &Value, received: &Value, path: &str) -> Option<String> {
    match (recorded, received) {
        (Value::Object(left), Value::Object(right)) => {
            let absent = right.keys().filter(|key| !left.contains_key(*key));
            left.keys().chain(absent).find_map(|key| {
                let path = format!("{path}.{key}");
                differs(field(recorded, key), field(received, key), &path)
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find_map(|(at, (left, right))| differs(left, right, &format!("{path}[{at}]"))),
        (Value::Number(left), Value::Number(right)) if left.as_f64() == right.as_f64() => None,
        (left, right) if left == right => None,
        (left, right) => Some(format!("{path} is {} instead of {}", shown(right), shown(left))),
    }
}

/// A field of an object. An absent field differs from a null field, which metadata may contain.
fn field<'a>(object: &'a Value, key: &str) -> &'a Value {
    static ABSENT: std::sync::LazyLock<Value> = std::sync::LazyLock::new(|| json!("(absent)"));
    object.get(key).unwrap_or(&ABSENT)
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[test]
fn reset_time_may_match_any_second_of_the_call() {
    let recorded = json!({"statuses": [{"currentLimit": {"unit": "MINUTE"},
        "durationUntilReset": {"seconds_until_window_end": true}}]});
    let came = |reset: &str| json!({"statuses": [{"currentLimit": {"unit": "MINUTE"}, "durationUntilReset": reset}]});
    assert_eq!(difference(&recorded, &came("50s"), 69..=71), None);
    assert_eq!(difference(&recorded, &came("60s"), 60..=60), None);
    assert!(difference(&recorded, &came("48s"), 69..=71).is_some());
}

#[test]
fn header_placeholders_become_seconds_as_text() {
    let recorded =
        json!([{"key": "R", "value": {"seconds_until_window_end": true, "unit": "HOUR"}}]);
    assert_eq!(difference(&recorded, &json!([{"key": "R", "value": "3599"}]), 1..=1), None);
    assert!(difference(&recorded, &json!([{"key": "R", "value": 3599}]), 1..=1).is_some());
}

#[test]
fn integer_or_float_and_limit_spacing_are_ignored() {
    let recorded = json!({"dynamicMetadata": {"n": 7, "descriptors": [{"limit": "a:1 unit:2"}]}});
    let came = json!({"dynamicMetadata": {"n": 7.0, "descriptors": [{"limit": "a:1   unit:2"}]}});
    assert_eq!(difference(&recorded, &came, 0..=0), None);
}

#[test]
fn missing_and_extra_fields_are_differences() {
    let (less, more) = (json!({"a": 1}), json!({"a": 1, "b": null}));
    assert!(difference(&less, &more, 0..=0).is_some());
    assert!(difference(&more, &less, 0..=0).is_some());
    assert!(difference(&json!([1, 2]), &json!([2, 1]), 0..=0).is_some());
    assert!(difference(&json!([1]), &json!([1, 2]), 0..=0).is_some());
}
