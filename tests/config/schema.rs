//! Tests that the JSON Schema of limits files agrees with the loader.

use std::path::PathBuf;

use regex::Regex;
use serde_json::{Value, json};
use sluicegate::config::schema::limits_schema;

use super::{findings, load};

#[test]
fn shipped_limits_schema_matches_the_rust_types() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("config/schema/sluicegate-limits.schema.json");
    let wanted = format!("{:#}\n", limits_schema());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, wanted, "stale: write it with UPDATE=1");
}

/// Validates `value` with the subset of JSON Schema that the schema of limits files uses.
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
    for (keyword, expected) in schema.as_object().unwrap() {
        assert!(
            known.contains(&keyword.as_str()),
            "the schema says {keyword}, which this test cannot check"
        );
        check_keyword(root, schema, keyword, expected, value)?;
    }
    Ok(())
}

fn check_keyword(
    root: &Value,
    schema: &Value,
    keyword: &str,
    expected: &Value,
    value: &Value,
) -> Result<(), String> {
    let wrong = |what: String| Err(format!("{value} {what}"));
    let object = value.as_object();
    match keyword {
        "$ref" => fits(
            root,
            root.pointer(expected.as_str().unwrap().trim_start_matches('#')).unwrap(),
            value,
        ),
        "enum" if !expected.as_array().unwrap().contains(value) => {
            wrong(format!("is none of {expected}"))
        }
        "type" if !types(expected).contains(&kind(value)) => wrong(format!("is not {expected}")),
        "minimum" if value.as_i64().is_some_and(|it| it < expected.as_i64().unwrap()) => {
            wrong("is too small".into())
        }
        "maximum" if value.as_i64().is_some_and(|it| expected.as_i64().unwrap() < it) => {
            wrong("is too large".into())
        }
        "pattern" => {
            let pattern = expected.as_str().unwrap();
            assert!(pattern.starts_with('^') && pattern.ends_with('$'), "{pattern}");
            let fits = value.as_str().is_none_or(|it| Regex::new(pattern).unwrap().is_match(it));
            if fits { Ok(()) } else { wrong(format!("does not match {pattern}")) }
        }
        "anyOf"
            if !expected.as_array().unwrap().iter().any(|one| fits(root, one, value).is_ok()) =>
        {
            wrong(format!("fits none of {expected}"))
        }
        "not" if fits(root, expected, value).is_ok() => {
            wrong("has fields that exclude each other".into())
        }
        "required"
            if object.is_some_and(|it| {
                expected
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|key| !it.contains_key(key.as_str().unwrap()))
            }) =>
        {
            wrong(format!("lacks one of {expected}"))
        }
        "items" => {
            value.as_array().into_iter().flatten().try_for_each(|item| fits(root, expected, item))
        }
        "properties" => {
            object.into_iter().flatten().try_for_each(|(key, value)| match expected.get(key) {
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

fn types(expected: &Value) -> Vec<&str> {
    expected.as_array().map_or_else(
        || vec![expected.as_str().unwrap()],
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

fn validate(text: &str) -> Result<(), String> {
    let schema = limits_schema();
    fits(&schema, &schema, &serde_saphyr::from_str(text).unwrap())
}

#[test]
fn shipped_limits_files_match_the_schema() {
    for folder in ["config/limits", "tests/golden/limits/sound"] {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(
                validate(&std::fs::read_to_string(&path).unwrap()),
                Ok(()),
                "{}",
                path.display()
            );
        }
    }
}

/// Invalid fields of a file, or invalid budgets.
const BUDGETS: [(&str, &str); 15] = [
    ("", "{amount: 500$, unit: day}"),
    ("", "{amount: 5000, unit: day}"),
    ("", "{amount: 2m tokens, unit: day}"),
    ("", "{amount: '1,000 usd', unit: day}"),
    ("", "{amount: 5 usd}"),
    ("", "{unit: day}"),
    ("", "{amount: 5 usd, unit: day, per: 5h}"),
    ("", "{prepaid: true}"),
    ("", "{prepaid: true, of: dollars}"),
    ("", "{amount: 5 usd, unit: day, warn_at: [80]}"),
    ("", "{amount: 5 usd, unit: day, warn_at: [0%]}"),
    ("", "{amount: 5 usd, unit: day, on_store_failure: local}"),
    ("usage: {estimate: 4000}", "{amount: 5 usd, unit: day}"),
    ("usage: {at_most: 5 usd}", "{amount: 5 usd, unit: day}"),
    ("usage: {prices: a.yaml}", "{amount: 5 usd, unit: day}"),
];

#[test]
fn schema_refuses_invalid_or_ineffective_fields() {
    let limit =
        |fields: &str| format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {{{fields}}}\n");
    assert_eq!(validate(&limit("unit: day, requests_per_unit: 1")), Ok(()));
    for fields in [
        "unit: days, burst: 0",
        "requests_per_unit: 1",
        "unit: day, per: 5s",
        "per: , requests_per_unit: 1",
        "unit: , requests_per_unit: 1",
        "per: 5 s",
        "unit: week, calendar: {time_zone: UTC, starts_on: funday}",
        "unit: week, calendar: {time_zone: UTC, starts_at: 24:00}",
        "unit: day, strategy: grca",
        "unit: day, mode: lased",
        "unit: day, max_overshoot: -1",
        "unit: day, shadow_mode: true",
        "unit: day, requests_per_unit: -1",
        "unit: day, requests_per_unit: 4294967296",
        "unit: day, calendar: {starts_on: 1}",
        "unit: day, replaces: [x]",
    ] {
        assert!(validate(&limit(fields)).is_err(), "{fields}");
    }
    for (head, budget) in BUDGETS {
        let text = |budget: &str| {
            format!("domain: d\n{head}\ndescriptors: [{{key: k, budget: {budget}}}]\n")
        };
        assert!(validate(&text(budget)).is_err(), "{head} {budget}");
    }
    assert!(validate("descriptors: []\n").is_err());
    assert!(validate("domain: d\ndescriptors: [{value: v}]\n").is_err());
    assert!(validate("domain: d\ndescriptor: []\n").is_err());
}

#[test]
fn schema_accepts_files_without_findings() {
    let parked = "domain: d\nmetadata:\n  day: &day {unit: day, requests_per_unit: 1}\n\
                  descriptors:\n- {key: k, rate_limit: *day}\n";
    let domain = |head: &str| format!("domain: d\n{head}\ndescriptors: [{{key: k}}]\n");
    let limit = |fields: &str| {
        format!(
            "domain: d\ndescriptors:\n- {{key: k, rate_limit: {{unit: day, requests_per_unit: 1, {fields}}}}}\n"
        )
    };
    let ceiling = |fields: &str| {
        let fields = format!("limit: 64, max_duration: 5s, {fields}");
        format!("domain: d\ndescriptors:\n- {{key: k, concurrency: {{{fields}}}}}\n")
    };
    let bare =
        |fields: &str| format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{fields}}}}}]\n");
    let mut files = vec![parked.to_owned()];
    files.extend(["unit: , per: 90s, requests_per_unit: 5", "unit: , unlimited: true"].map(bare));
    files.extend(["metadata:", "metadata: [1.5]", "charge:", "defaults:"].map(domain));
    let defaults = ["strategy", "on_excess", "on_store_failure", "mode", "max_overshoot"];
    files.extend(defaults.map(|field| domain(&format!("defaults: {{{field}: }}"))));
    let fields = ["per", "strategy", "burst", "on_excess", "mode", "max_overshoot", "lease_hits"];
    files.extend(fields.map(|field| limit(&format!("{field}: "))));
    files.extend(
        ["on_store_failure: ", "calendar: {time_zone: UTC, starts_on: , starts_at: }"].map(limit),
    );
    files.extend(
        ["mode: ", "on_store_failure: ", "queue: ", "adaptive: {algorithm: }"].map(ceiling),
    );
    files.extend(
        [
            "adaptive: {min: , max: , target: , tolerance: , increase: , decrease: , window: }",
            "adaptive: {smoothing: , probe_interval: , probe_depth: , aggregate: }",
            "reject: {status: , retry_after: , body: }",
        ]
        .map(ceiling),
    );
    let budget = |fields: &str| {
        let usage = "estimate: , at_most: , time_limit: , on_expiry: , prices: , model: ";
        format!(
            "domain: d\ncolocate: k\nusage: {{{usage}}}\ndescriptors: [{{key: k, budget: {{{fields}}}}}]\n"
        )
    };
    files.extend(
        [
            "amount: 50k tokens, unit: Day, per: , calendar: , prepaid: false, of: , warn_at: ",
            "amount: 1.5M input_tokens, per: 1h30m, on_store_failure: , from: , by: ",
            "prepaid: true, of: output_tokens, amount: , unit: , warn_at: [1%, 99%, 100%]",
        ]
        .map(budget),
    );
    for file in files {
        let (_, findings) = load(&[("a.yaml", &file)], false).unwrap();
        assert!(findings.is_empty(), "{file}: {findings:?}");
        assert_eq!(validate(&file), Ok(()), "{file}");
    }
}

#[test]
fn unit_and_day_names_match_in_any_case() {
    for (unit, day) in [("week", "monday"), ("Week", "Monday"), ("WEEK", "SUNDAY"), ("week", "7")] {
        let fields = format!("unit: {unit}, calendar: {{time_zone: UTC, starts_on: {day}}}");
        let descriptor = format!("- {{key: k, rate_limit: {{requests_per_unit: 1, {fields}}}}}\n");
        assert_eq!(validate(&format!("domain: d\ndescriptors:\n{descriptor}")), Ok(()), "{fields}");
        assert_eq!(findings(&descriptor), [""; 0], "{fields}");
    }
}

#[test]
fn loader_accepts_every_field_of_the_schema() {
    let schema = limits_schema();
    let fields = |pointer: &str| {
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
        for field in fields(block) {
            let findings = findings(&file.replace("WORD", &field));
            let misplaced = ["E09", "E10", "W01"]
                .iter()
                .any(|code| findings.iter().any(|one| one.contains(code)));
            assert!(!misplaced, "{block} {field}: {findings:?}");
        }
    }
}
