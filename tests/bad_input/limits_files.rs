//! Tests of limits that become invalid while the service runs.
//!
//! Guarantees:
//! - The last valid limits stay in force.
//! - The admin page `/config` shows why the new limits were refused.
//! - Corrected files are loaded.

use std::fmt::Write as _;

use super::{Fixture, LIMITS, k, put};
use crate::support::waiting::until;

/// YAML with 20 levels of nine aliases each, which would expand to 9^20 nodes.
fn bomb() -> Vec<u8> {
    let mut text = "domain: d\nmetadata:\n  a0: &a0 [x]\n".to_owned();
    for level in 1..=20 {
        let below = vec![format!("*a{}", level - 1); 9].join(", ");
        writeln!(text, "  a{level}: &a{level} [{below}]").unwrap();
    }
    text.into_bytes()
}

fn bad_files() -> Vec<(&'static str, Vec<u8>)> {
    let brackets = format!("domain: d\nmetadata: {}", "[".repeat(1_000_000));
    vec![
        ("invalid UTF-8", b"domain: d\ndescriptors:\n- key: \"\xff\xfe\"\n".to_vec()),
        ("a YAML bomb", bomb()),
        ("a million brackets", brackets.into_bytes()),
        ("an unknown word", b"domain: d\ndescriptorz: []\n".to_vec()),
        ("nothing", Vec::new()),
        ("zeroes", vec![0; 4_096]),
        ("too much", vec![b'#'; 64 * 1024 * 1024 + 1]),
    ]
}

#[test]
fn invalid_file_keeps_the_last_valid_limits_until_corrected() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    for (label, content) in bad_files() {
        let before = fixture.service.loads().unwrap();
        fixture.assert_unaffected(label, |fixture| {
            put(fixture.limits.path(), "limits.yaml", &content);
            let why = wait_for_refusal(fixture, label, before.refused);
            assert!(why.contains("limits.yaml"), "{label}: /config does not name the file: {why}");
        });
        fixture.assert_unaffected(label, |fixture| {
            put(fixture.limits.path(), "limits.yaml", LIMITS.as_bytes());
            wait_for_load(fixture, label, before.loaded);
        });
    }
}

#[test]
fn removed_directory_keeps_its_limits_until_restored() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    let home = fixture.limits.path().to_owned();
    let away = tempfile::tempdir_in(home.parent().unwrap()).unwrap();
    let aside = away.path().join("aside");
    let before = fixture.service.loads().unwrap();
    fixture.assert_unaffected("a directory that vanishes", |fixture| {
        std::fs::rename(&home, &aside).unwrap();
        let why = wait_for_refusal(fixture, "a directory that vanishes", before.refused);
        assert!(why.contains(home.to_str().unwrap()), "/config does not name it: {why}");
    });
    fixture.assert_unaffected("a directory that comes back", |fixture| {
        std::fs::rename(&aside, &home).unwrap();
        wait_for_load(fixture, "a directory that comes back", before.loaded);
    });
    let after = fixture.service.loads().unwrap();
    put(&home, "limits.yaml", LIMITS.replace("100", "1000").as_bytes());
    wait_for_load(&fixture, "a change after it is back", after.loaded);
    // The counter keeps its hits when the limit changes.
    let used = 4;
    assert_eq!(fixture.remaining("good"), 1000 - used);
}

#[test]
fn config_page_and_log_count_omitted_errors() {
    let mut fixture = Fixture::with(LIMITS, &[]);
    let before = fixture.service.loads().unwrap();
    fixture.assert_unaffected("three hundred errors", |fixture| {
        let faults = format!("domain: d\ndescriptors:\n{}", "- {bogus: 1}\n".repeat(300));
        put(fixture.limits.path(), "limits.yaml", faults.as_bytes());
        wait_for_refusal(fixture, "three hundred errors", before.refused);
        let shown = fixture.service.loads().unwrap().last_error;
        assert_eq!(shown["diagnostics"].as_array().unwrap().len(), 200);
        assert_eq!(shown["more"]["errors"], 100, "{}", shown["more"]);
        let log = fixture.service.log();
        assert!(log.contains("findings=300"), "{log}");
        // The log shows the first 50 of 300 findings.
        assert!(log.contains("validation found 250 more errors"), "{log}");
    });
}

/// Waits until a load of the limits is refused, and returns the error that `/config` shows.
fn wait_for_refusal(fixture: &Fixture, label: &str, before: u64) -> String {
    let one_more = || {
        let loads = fixture.service.loads()?;
        let is_reported = before < loads.refused && !loads.last_error.is_null();
        if is_reported { Ok(loads.last_error.to_string()) } else { Err("not refused".to_owned()) }
    };
    until(label, one_more).unwrap()
}

fn wait_for_load(fixture: &Fixture, label: &str, before: u64) {
    let one_more = || {
        let loads = fixture.service.loads()?;
        let is_mended = before < loads.loaded && loads.last_error.is_null();
        if is_mended { Ok(()) } else { Err(loads.last_error.to_string()) }
    };
    until(label, one_more).unwrap();
}

#[test]
fn checks_fail_until_the_first_valid_limits_load() {
    let flags = ["--limits-required-at-start", "false"];
    let fixture = Fixture::with("domain: [\n", &flags);
    let refusal = fixture.try_check(&super::check_request(vec![k("good")])).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::Unknown);
    assert!(refusal.message().contains("/config"), "{refusal}");
    let loads = fixture.service.loads().unwrap();
    assert_eq!((loads.loaded, loads.refused), (0, 1));
    put(fixture.limits.path(), "limits.yaml", LIMITS.as_bytes());
    wait_for_load(&fixture, "limits at last", 0);
    assert_eq!(fixture.remaining("good"), 100);
}
