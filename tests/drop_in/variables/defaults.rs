//! Defaults, parsing and the migration page.

use std::collections::BTreeSet;

use sluicegate::cli::ratelimit::parse::{VariableKind, VariableValue, parse_variable};
use sluicegate::cli::ratelimit::read_environment;
use sluicegate::cli::ratelimit::table::{TABLE, VariableEffect, VariableRow};
use sluicegate::config::settings::OtlpExport;

use super::{environment, settled};

#[test]
fn defaults_match_envoyproxy_ratelimit_and_log_no_notes() {
    let environment = environment("UNKNOWN_VARIABLE", "anything", &[]);
    let read = read_environment(environment, &BTreeSet::new())
        .unwrap_or_else(|sentences| panic!("{sentences:?}"));
    assert_eq!(read.notes, []);
    let settings = settled(&read).unwrap().settings;
    assert_eq!(
        (settings.listen.http_port, settings.listen.grpc_port, settings.listen.admin_port),
        (8080, 8081, 6070)
    );
    assert_eq!(settings.store.call_timeout().0, 10_000_000_000);
    assert_eq!(settings.listen.max_connection_age.get().unwrap().0, 24 * 3_600_000_000_000);
    assert!(
        settings.telemetry.otlp.export == OtlpExport::None
            && settings.listen.metrics_port.is_none()
            && settings.compat.limits.dot_files
            && !settings.limits.required_at_start
    );
}

#[test]
fn all_startup_errors_are_reported_together() {
    let environment = environment("PORT", "", &[("CONFIG_TYPE", "x"), ("LOG_LEVEL", "y")]);
    let Err(sentences) = read_environment(environment, &BTreeSet::new()) else {
        panic!("it starts")
    };
    assert_eq!(sentences.len(), 3, "{sentences:?}");
}

#[test]
fn variable_values_parse_as_in_envoyproxy_ratelimit() {
    let int = |text| parse_variable(VariableKind::Int, text);
    assert_eq!(int("010"), Some(VariableValue::Int(8)));
    assert_eq!(int("0b11"), Some(VariableValue::Int(3)));
    assert_eq!(int("0x_1_0"), Some(VariableValue::Int(16)));
    assert_eq!(int("-5"), Some(VariableValue::Int(-5)));
    assert_eq!(int("1_048_576"), Some(VariableValue::Int(1_048_576)));
    assert_eq!(int("-1_0"), Some(VariableValue::Int(-10)));
    assert_eq!(int("0_7"), Some(VariableValue::Int(7)));
    let parted = ["_1", "1_", "1__0", "-_1", "_", "0_", "0_8", "0x1_", "0x__1", "0b_"];
    for text in ["", " 1", "0x", "1.0", "--1", "0x-1", "09"].into_iter().chain(parted) {
        assert_eq!(int(text), None, "{text}");
    }
    let float = |text| parse_variable(VariableKind::Float, text);
    for (text, value) in [("0.5", 0.5), ("0.2_5", 0.25), ("-1_0.2_5", -10.25), ("1e0_1", 10.0)] {
        assert_eq!(float(text), Some(VariableValue::Float(value)), "{text}");
    }
    for text in ["", "_1", "1_", "1__0", "1_.5", "0._5", "1_e1", "in_f"] {
        assert_eq!(float(text), None, "{text}");
    }
    let nanos = |text| parse_variable(VariableKind::Duration, text);
    for (text, value) in [
        ("0", 0),
        ("150us", 150_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5s", 1_500_000_000),
        (".5ms", 500_000),
        ("-2ns", -2),
    ] {
        assert_eq!(nanos(text), Some(VariableValue::Duration(value)), "{text}");
    }
    for text in ["", "10", "s", "1d", "1 s", ".s", "1s2"] {
        assert_eq!(nanos(text), None, "{text}");
    }
    let words = ["1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False"];
    assert!(words.iter().all(|word| parse_variable(VariableKind::Bool, word).is_some()));
    assert!(
        ["", "yes", "tRUE"].iter().all(|word| parse_variable(VariableKind::Bool, word).is_none())
    );
    assert_eq!(parse_variable(VariableKind::List, " "), Some(VariableValue::List(Vec::new())));
    assert_eq!(
        parse_variable(VariableKind::List, "a, b"),
        Some(VariableValue::List(vec!["a".into(), " b".into()]))
    );
    assert!(
        ["a", "a:b:c", "a:b,"].iter().all(|map| parse_variable(VariableKind::Map, map).is_none())
    );
}

const PAGE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/docs/migrate-from-envoyproxy-ratelimit.md");

const OPENING: &str = "<!-- variables -->\n";

const END: &str = "<!-- end -->";

#[test]
fn migration_page_lists_every_variable_and_default() {
    let wanted = format!(
        "| variable | default | effect |\n|---|---|---|\n{}\n\
         | without effect | reason |\n|---|---|\n{}",
        rows_of_settings(),
        rows_without_effect()
    );
    let text = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = text.split_once(OPENING).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, format!("{before}{OPENING}{wanted}{END}{after}")).unwrap();
    } else {
        assert_eq!(found, wanted, "stale: write it with `BLESS=1 cargo test drop_in`");
    }
}

/// One row for each variable that determines settings.
fn rows_of_settings() -> String {
    let row = |row: &VariableRow| {
        let VariableEffect::Settings(names) = row.effect else { return String::new() };
        let default =
            if row.default.is_empty() { String::new() } else { format!("`{}`", row.default) };
        let settings: Vec<_> = names.split(", ").map(|name| format!("`{name}`")).collect();
        format!("| `{}` | {default} | {} |\n", row.name, settings.join(", "))
    };
    TABLE.iter().map(row).collect()
}

/// One row for each reason why variables have no effect.
fn rows_without_effect() -> String {
    let mut reasons = Vec::<(&str, Vec<String>)>::new();
    for row in TABLE {
        let VariableEffect::NoEffect(line) = row.effect else { continue };
        let reason = line.trim_start_matches("no effect").trim_start_matches([':', ',']).trim();
        let name = format!("`{}`", row.name);
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => reasons.push((reason, vec![name])),
        }
    }
    let row =
        |(reason, names): &(&str, Vec<String>)| format!("| {} | {reason} |\n", names.join(", "));
    reasons.iter().map(row).collect()
}
