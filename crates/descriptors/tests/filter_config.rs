//! Tests of the filter config: each field, its default, and the errors.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use sluicegate_descriptors::filter_config::{
    FailureMode, FilterConfig, HeaderStyle, RouteFilterConfig, ServiceAddress,
};

const VALID: &str = r#""service": {"address": "limits:8081"}, "domain": "shop",
    "descriptors": [[{"remote_address": {}}]]"#;

fn with(field: &str) -> String {
    format!("{{{VALID}, {field}}}")
}

fn error(json: &str) -> String {
    FilterConfig::parse(json).unwrap_err().to_string()
}

#[test]
fn fields_have_the_documented_defaults() {
    let config = FilterConfig::parse(&format!("{{{VALID}}}")).unwrap();
    assert_eq!((config.deadline.as_millis(), config.status), (20, 429));
    assert_eq!((config.failure, config.headers), (FailureMode::Allow, HeaderStyle::None));
    assert!(config.name.is_none() && config.service.tls.is_none());
    assert_eq!(config.memory, 67_108_864);
}

#[test]
fn fields_have_the_written_values() {
    let text = with(
        r#""deadline": "1s", "failure": "deny", "status": 503, "headers": "all", "name": "edge-1",
           "path": "normalized", "memory": "1GiB""#,
    );
    let config = FilterConfig::parse(&text).unwrap();
    assert_eq!((config.deadline.as_millis(), config.status), (1000, 503));
    assert_eq!((config.failure, config.headers), (FailureMode::Deny, HeaderStyle::All));
    assert_eq!((config.name.as_deref(), config.memory), (Some("edge-1"), 1_073_741_824));
}

#[test]
fn addresses_have_a_host_and_a_port() {
    let parts = |text: &str| {
        let address: ServiceAddress = text.parse().ok()?;
        Some((address.host, address.port, address.has_tls))
    };
    assert_eq!(parts("limits:8081"), Some(("limits".into(), 8081, false)));
    assert_eq!(parts("https://192.0.2.1:443"), Some(("192.0.2.1".into(), 443, true)));
    assert_eq!(parts("[2001:db8::1]:8081"), Some(("2001:db8::1".into(), 8081, false)));
    for text in
        ["", "limits", "limits:", "limits:0", "limits:65536", ":1", "http://limits:1", "a b:1"]
    {
        assert_eq!(parts(text), None, "{text}");
    }
}

#[test]
fn every_error_names_the_field_and_the_fix() {
    for (json, message) in [
        (
            "{".to_owned(),
            "`filter_config` is no JSON: EOF while parsing an object; write a `google.protobuf.Struct`",
        ),
        (
            format!("{{{VALID}}} x"),
            "`filter_config` is no JSON: trailing characters; write a `google.protobuf.Struct`",
        ),
        ("{}".to_owned(), "`service` is missing; add it"),
        (
            r#"{"service": {"address": "limits"}}"#.to_owned(),
            "`service.address` has an invalid address; write `host:port` or `https://host:port`",
        ),
        (r#"{"service": {}}"#.to_owned(), "`service.address` is missing; add it"),
        (
            with(r#""deadline": "2s""#),
            "`deadline` has an invalid duration; write 1ms to 1s, such as 20ms",
        ),
        (
            with(r#""deadline": "999us""#),
            "`deadline` has an invalid duration; write 1ms to 1s, such as 20ms",
        ),
        (
            with(r#""deadline": 20"#),
            "`deadline` has an invalid duration; write 1ms to 1s, such as 20ms",
        ),
        (with(r#""failure": "open""#), "`failure` is `open`; write `allow` or `deny`"),
        (
            with(r#""status": 200"#),
            "`status` is 200, which is no error; write a status from 400 to 599",
        ),
        (with(r#""status": "429""#), "`status` is the text \"429\"; write a whole number"),
        (
            with(r#""memory": "1MiB""#),
            "`memory` has an invalid size; write 4MiB to 64GiB, such as 64MiB",
        ),
        (
            with(r#""memory": 67108864"#),
            "`memory` has an invalid size; write 4MiB to 64GiB, such as 64MiB",
        ),
        (with(r#""status": {}"#), "`status` is a block of fields; write a whole number"),
        (with(r#""name": """#), "`name` has the wrong length; write 1 to 128 bytes, or remove it"),
    ] {
        assert_eq!(error(&json), message, "{json}");
    }
}

#[test]
fn unknown_fields_are_found_at_any_depth() {
    let found = error(&with(r#""deadlin": "5ms""#));
    assert!(found.starts_with("`deadlin` is an unknown field; write one of `service`"), "{found}");
    let action = r#"{"service": {"address": "a:1"}, "domain": "d",
        "descriptors": [[{"request_headers": {"header": "x"}}]]}"#;
    let found = error(action);
    assert!(
        found.starts_with("`descriptors[0][0].request_headers.header` is an unknown"),
        "{found}"
    );
    let kind =
        r#"{"service": {"address": "a:1"}, "domain": "d", "descriptors": [[{"headers": {}}]]}"#;
    let found = error(kind);
    assert!(found.contains("write one of `generic_key`, `request_headers`"), "{found}");
    assert!(found.starts_with("`descriptors[0][0]"), "{found}");
}

#[test]
fn fields_without_an_effect_are_errors() {
    let tls = |tls: &str, scheme: &str| {
        format!(
            r#"{{"service": {{"address": "{scheme}a:1", "tls": {tls}}}, "domain": "d",
                "descriptors": [[{{"remote_address": {{}}}}]]}}"#
        )
    };
    assert!(error(&tls("{}", "")).starts_with("`service.tls` has no effect without TLS"));
    let half = error(&tls(r#"{"key_file": "k"}"#, "https://"));
    assert!(half.starts_with("`service.tls.certificate_file` is missing"), "{half}");
    let nested = r#"{"service": {"address": "a:1"}, "domain": "d", "descriptors": [[
        {"metadata": {"descriptor_key": "k", "metadata_key": {"key": "n", "path": [{"key": "a"}, {"key": "b"}]}}}]]}"#;
    assert!(error(nested).starts_with("`descriptors[0][0].metadata.metadata_key.path` has 2"));
    let empty = r#"{"service": {"address": "a:1"}, "domain": "d", "descriptors": [[]]}"#;
    assert!(error(empty).starts_with("`descriptors[0]` has no action"));
    let none = r#"{"service": {"address": "a:1"}, "domain": "d", "descriptors": []}"#;
    assert!(error(none).starts_with("`descriptors` is empty"));
}

#[test]
fn routes_replace_the_descriptors_or_turn_checks_off() {
    let parse = |json: &str| RouteFilterConfig::parse(json).map_err(|error| error.to_string());
    assert!(!parse(r#"{"enabled": false}"#).unwrap().enabled);
    let other =
        parse(r#"{"descriptors": [[{"generic_key": {"descriptor_value": "v"}}]]}"#).unwrap();
    assert!(other.enabled && other.descriptors.is_some_and(|descriptors| descriptors.len() == 1));
    let both = r#"{"enabled": false, "descriptors": [[{"remote_address": {}}]]}"#;
    assert!(parse(both).unwrap_err().starts_with("`descriptors` has no effect"));
    assert!(parse("{}").unwrap_err().starts_with("`descriptors` is missing"));
    assert!(parse(r#"{"descriptors": []}"#).unwrap_err().starts_with("`descriptors` is empty"));
    assert!(parse(r#"{"domain": "d"}"#).unwrap_err().starts_with("`domain` is an unknown field"));
}

proptest! {
    /// Cuts one part out of a valid config and inserts another text there.
    #[test]
    fn any_text_is_a_config_or_an_error_with_a_fix(
        start in 0..400_usize, length in 0..40_usize, inserted in "[\\[\\]{}\":,a-z0-9 \\\\é]{0,12}",
    ) {
        let text = with(r#""deadline": "20ms", "failure": "allow", "status": 429, "headers": "all""#);
        let start = start.min(text.len());
        let end = (start + length).min(text.len());
        let changed = format!("{}{inserted}{}", &text[..start], &text[end..]);
        if let Err(error) = FilterConfig::parse(&changed) {
            prop_assert!(!error.field.is_empty() && !error.fix.is_empty(), "{error}");
        }
    }
}
