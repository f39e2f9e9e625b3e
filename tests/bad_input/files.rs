//! Limits that go bad while serving: the last good ones stay, `/config` says why, and what is mended is taken up.

use std::fmt::Write as _;

use super::{LIMITS, Stage, k, put};
use crate::waiting::until;

const FLAGS: [&str; 2] = ["--reload-debounce", "20ms"];

/// Each level is nine of the one below: 9^20 nodes to whoever follows them all.
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
fn a_file_that_goes_bad_leaves_the_last_good_one_in_force_until_it_is_mended() {
    let mut stage = Stage::with(LIMITS, &FLAGS);
    for (what, content) in bad_files() {
        let before = stage.service.loads().unwrap();
        stage.stands(what, |stage| {
            put(stage.limits.path(), "limits.yaml", &content);
            let why = refused(stage, what, before.refused);
            assert!(why.contains("limits.yaml"), "{what}: /config does not name the file: {why}");
        });
        stage.stands(what, |stage| {
            put(stage.limits.path(), "limits.yaml", LIMITS.as_bytes());
            accepted(stage, what, before.loaded);
        });
    }
}

#[test]
fn a_directory_that_vanishes_leaves_its_limits_in_force_until_it_is_back() {
    let mut stage = Stage::with(LIMITS, &FLAGS);
    let home = stage.limits.path().to_owned();
    let away = tempfile::tempdir_in(home.parent().unwrap()).unwrap();
    let aside = away.path().join("aside");
    let before = stage.service.loads().unwrap();
    stage.stands("a directory that vanishes", |stage| {
        std::fs::rename(&home, &aside).unwrap();
        let why = refused(stage, "a directory that vanishes", before.refused);
        assert!(why.contains(home.to_str().unwrap()), "/config does not name it: {why}");
    });
    stage.stands("a directory that comes back", |stage| {
        std::fs::rename(&aside, &home).unwrap();
        accepted(stage, "a directory that comes back", before.loaded);
    });
    let after = stage.service.loads().unwrap();
    put(&home, "limits.yaml", LIMITS.replace("100", "1000").as_bytes());
    accepted(&stage, "a change after it is back", after.loaded);
    // Hits carry over a changed limit.
    let used = 4;
    assert_eq!(stage.remaining("good"), 1000 - used);
}

#[test]
fn a_file_with_more_faults_than_are_shown_is_told_of_with_their_number() {
    let mut stage = Stage::with(LIMITS, &FLAGS);
    let before = stage.service.loads().unwrap();
    stage.stands("three hundred errors", |stage| {
        let faults = format!("domain: d\ndescriptors:\n{}", "- {bogus: 1}\n".repeat(300));
        put(stage.limits.path(), "limits.yaml", faults.as_bytes());
        refused(stage, "three hundred errors", before.refused);
        let shown = stage.service.loads().unwrap().last_error;
        assert_eq!(shown["diagnostics"].as_array().unwrap().len(), 200);
        assert_eq!(shown["more"]["errors"], 100, "{}", shown["more"]);
        let log = stage.service.log();
        assert!(log.contains("findings=300"), "{log}");
        // The log has fifty of them.
        assert!(log.contains("and 250 more errors"), "{log}");
    });
}

/// Waits for a refusal; what `/config` says of it.
fn refused(stage: &Stage, what: &str, before: u64) -> String {
    let one_more = || {
        let loads = stage.service.loads()?;
        let is_told = before < loads.refused && !loads.last_error.is_null();
        if is_told { Ok(loads.last_error.to_string()) } else { Err("not refused".to_owned()) }
    };
    until(what, one_more).unwrap()
}

/// Waits for a load, after which nothing is wrong.
fn accepted(stage: &Stage, what: &str, before: u64) {
    let one_more = || {
        let loads = stage.service.loads()?;
        let is_mended = before < loads.loaded && loads.last_error.is_null();
        if is_mended { Ok(()) } else { Err(loads.last_error.to_string()) }
    };
    until(what, one_more).unwrap();
}

#[test]
fn without_limits_from_the_start_questions_are_refused_and_then_answered() {
    let flags = [&FLAGS[..], &["--start-without-config", "true"]].concat();
    let stage = Stage::with("domain: [\n", &flags);
    let refusal = stage.ask(&super::about(vec![k("good")])).unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::Unknown);
    assert!(refusal.message().contains("/config"), "{refusal}");
    let loads = stage.service.loads().unwrap();
    assert_eq!((loads.loaded, loads.refused), (0, 1));
    put(stage.limits.path(), "limits.yaml", LIMITS.as_bytes());
    accepted(&stage, "limits at last", 0);
    assert_eq!(stage.remaining("good"), 100);
}
