//! The JSON Schema of a limits file, against the reader of limits files.

use std::path::PathBuf;

use regex::Regex;
use serde_json::{Value, json};
use sluicegate::config::schema::limits;

use super::{load, said};

#[test]
fn the_shipped_schema_is_the_one_of_the_types() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("config/schema/sluicegate-limits.schema.json");
    let wanted = format!("{:#}\n", limits());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, wanted, "stale: write it with UPDATE=1");
}

/// As much of JSON Schema as this schema uses.
fn fits(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let known = [
        "$defs",
        "$ref",
        "$schema",
        "additionalProperties",
        "anyOf",
        "default",
        "description",
        "enum",
        "examples",
        "format",
        "items",
        "maximum",
        "minimum",
        "not",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
    ];
    for (word, said) in schema.as_object().unwrap() {
        assert!(
            known.contains(&word.as_str()),
            "the schema says {word}, which this test cannot check"
        );
        one_word(root, schema, word, said, value)?;
    }
    Ok(())
}

fn one_word(
    root: &Value,
    schema: &Value,
    word: &str,
    said: &Value,
    value: &Value,
) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{value} {what}"));
    let object = value.as_object();
    match word {
        "$ref" => {
            fits(root, root.pointer(said.as_str().unwrap().trim_start_matches('#')).unwrap(), value)
        }
        "enum" if !said.as_array().unwrap().contains(value) => wrong(format!("is none of {said}")),
        "type" if !types(said).contains(&kind(value)) => wrong(format!("is not {said}")),
        "minimum" if value.as_i64().is_some_and(|it| it < said.as_i64().unwrap()) => {
            wrong("is too small".into())
        }
        "maximum" if value.as_i64().is_some_and(|it| said.as_i64().unwrap() < it) => {
            wrong("is too large".into())
        }
        "pattern" => {
            let pattern = said.as_str().unwrap();
            assert!(pattern.starts_with('^') && pattern.ends_with('$'), "{pattern}");
            let fits = value.as_str().is_none_or(|it| Regex::new(pattern).unwrap().is_match(it));
            if fits { Ok(()) } else { wrong(format!("does not match {pattern}")) }
        }
        "anyOf" if !said.as_array().unwrap().iter().any(|one| fits(root, one, value).is_ok()) => {
            wrong(format!("fits none of {said}"))
        }
        "not" if fits(root, said, value).is_ok() => {
            wrong("has words that exclude each other".into())
        }
        "required"
            if object.is_some_and(|it| {
                said.as_array().unwrap().iter().any(|key| !it.contains_key(key.as_str().unwrap()))
            }) =>
        {
            wrong(format!("lacks one of {said}"))
        }
        "items" => {
            value.as_array().into_iter().flatten().try_for_each(|item| fits(root, said, item))
        }
        "properties" => {
            object.into_iter().flatten().try_for_each(|(key, value)| match said.get(key) {
                Some(property) => fits(root, property, value),
                None if schema["additionalProperties"] == json!(false) => {
                    Err(format!("`{key}` is not known here"))
                }
                None => Ok(()),
            })
        }
        _ => Ok(()),
    }
}

fn types(said: &Value) -> Vec<&str> {
    said.as_array().map_or_else(
        || vec![said.as_str().unwrap()],
        |list| list.iter().filter_map(Value::as_str).collect(),
    )
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn judge(text: &str) -> Result<(), String> {
    let schema = limits();
    fits(&schema, &schema, &serde_saphyr::from_str(text).unwrap())
}

#[test]
fn the_shipped_examples_fit() {
    for folder in ["config/limits", "tests/golden/limits/sound"] {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(
                judge(&std::fs::read_to_string(&path).unwrap()),
                Ok(()),
                "{}",
                path.display()
            );
        }
    }
}

#[test]
fn what_check_would_refuse_or_find_ignored_does_not_fit() {
    let limit =
        |words: &str| format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {{{words}}}\n");
    assert_eq!(judge(&limit("unit: day, requests_per_unit: 1")), Ok(()));
    for words in [
        "unit: days, burst: 0",
        "requests_per_unit: 1",
        "unit: day, per: 5s",
        "per: , requests_per_unit: 1",
        "unit: , requests_per_unit: 1",
        "per: 5 s",
        "unit: week, calendar: {time_zone: UTC, starts_on: funday}",
        "unit: day, strategy: grca",
        "unit: day, mode: lased",
        "unit: day, max_overshoot: -1",
        "unit: day, shadow_mode: true",
        "unit: day, requests_per_unit: -1",
        "unit: day, requests_per_unit: 4294967296",
        "unit: day, calendar: {starts_on: 1}",
        "unit: day, replaces: [x]",
    ] {
        assert!(judge(&limit(words)).is_err(), "{words}");
    }
    assert!(judge("descriptors: []\n").is_err());
    assert!(judge("domain: d\ndescriptors: [{value: v}]\n").is_err());
    assert!(judge("domain: d\ndescriptor: []\n").is_err());
}

#[test]
fn what_check_takes_without_a_word_fits() {
    let parked = "domain: d\nmetadata:\n  day: &day {unit: day, requests_per_unit: 1}\n\
                  descriptors:\n- {key: k, rate_limit: *day}\n";
    let domain = |head: &str| format!("domain: d\n{head}\ndescriptors: [{{key: k}}]\n");
    let limit = |words: &str| {
        format!(
            "domain: d\ndescriptors:\n- {{key: k, rate_limit: {{unit: day, requests_per_unit: 1, {words}}}}}\n"
        )
    };
    let ceiling = |words: &str| {
        let words = format!("limit: 64, max_duration: 5s, {words}");
        format!("domain: d\ndescriptors:\n- {{key: k, concurrency: {{{words}}}}}\n")
    };
    let bare =
        |words: &str| format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{words}}}}}]\n");
    let mut files = vec![parked.to_owned()];
    files.extend(["unit: , per: 90s, requests_per_unit: 5", "unit: , unlimited: true"].map(bare));
    files.extend(["metadata:", "metadata: [1.5]", "charge:", "defaults:"].map(domain));
    let defaults = ["strategy", "on_backend_failure", "mode", "max_overshoot"];
    files.extend(defaults.map(|word| domain(&format!("defaults: {{{word}: }}"))));
    let words = ["per", "strategy", "burst", "mode", "max_overshoot", "lease_hits"];
    files.extend(words.map(|word| limit(&format!("{word}: "))));
    files.extend(["on_backend_failure: ", "calendar: {time_zone: UTC, starts_on: }"].map(limit));
    files
        .extend(["mode: ", "on_backend_failure: ", "queue: ", "adaptive: {policy: }"].map(ceiling));
    files.extend(
        ["adaptive: {min: , max: }", "reject: {status: , retry_after: , body: }"].map(ceiling),
    );
    for file in files {
        let (_, said) = load(&[("a.yaml", &file)], false).unwrap();
        assert!(said.is_empty(), "{file}: {said:?}");
        assert_eq!(judge(&file), Ok(()), "{file}");
    }
}

#[test]
fn the_name_of_a_unit_or_a_day_fits_in_every_case_as_it_is_read() {
    for (unit, day) in [("week", "monday"), ("Week", "Monday"), ("WEEK", "SUNDAY"), ("week", "7")] {
        let words = format!("unit: {unit}, calendar: {{time_zone: UTC, starts_on: {day}}}");
        let descriptor = format!("- {{key: k, rate_limit: {{requests_per_unit: 1, {words}}}}}\n");
        assert_eq!(judge(&format!("domain: d\ndescriptors:\n{descriptor}")), Ok(()), "{words}");
        assert_eq!(said(&descriptor), [""; 0], "{words}");
    }
}

#[test]
fn every_word_that_the_schema_proposes_has_its_place_in_a_file() {
    let schema = limits();
    let words = |pointer: &str| {
        schema.pointer(pointer).unwrap()["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let places = [
        ("/$defs/Descriptor", "- {key: k, WORD: }\n"),
        ("/$defs/RateLimit", "- {key: k, rate_limit: {unit: day, WORD: }}\n"),
        (
            "/$defs/Calendar",
            "- {key: k, rate_limit: {unit: day, calendar: {time_zone: UTC, WORD: }}}\n",
        ),
    ];
    for (block, file) in places {
        for word in words(block) {
            let said = said(&file.replace("WORD", &word));
            let misplaced =
                ["E09", "E10", "W01"].iter().any(|code| said.iter().any(|one| one.contains(code)));
            assert!(!misplaced, "{block} {word}: {said:?}");
        }
    }
}
