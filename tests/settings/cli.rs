//! The command line, from arguments to an outcome.

use std::ffi::OsString;
use std::fs;

use sluicegate::cli::{self, Outcome, Terminal};

/// The outcome, standard output and standard error of one command.
fn run(line: &[&str], environment: &[(&str, &str)]) -> (Outcome, String, String) {
    let argv = ["sluicegate"].iter().chain(line).map(OsString::from).collect();
    let environment: Vec<_> =
        environment.iter().map(|(name, text)| (name.into(), text.into())).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut terminal = Terminal { out: &mut out, err: &mut err };
    let outcome = cli::run(argv, environment, &mut terminal);
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// What `serve --print-config` shows for one setting, without the place.
fn printed(line: &[&str], name: &str) -> String {
    let line = [&["serve", "--print-config"], line].concat();
    let (outcome, out, err) = run(&line, &[]);
    assert_eq!((outcome, err.as_str()), (Outcome::Yes, ""));
    let line = out.lines().find(|line| line.starts_with(&format!("{name}:"))).expect("a line");
    line.split(" #").next().unwrap_or_default().trim().to_owned()
}

#[test]
fn a_switch_is_on_when_bare_and_takes_true_or_false() {
    assert_eq!(printed(&["--dynamic-metadata"], "dynamic_metadata"), "dynamic_metadata: true");
    assert_eq!(
        printed(&["--dynamic-metadata", "false"], "dynamic_metadata"),
        "dynamic_metadata: false"
    );
    assert_eq!(
        printed(&["--dynamic-metadata=true", "--grpc-port=1"], "dynamic_metadata"),
        "dynamic_metadata: true"
    );
}

/// Else the question would go in plain text, and nobody would be told.
#[test]
fn who_shows_a_certificate_or_names_one_speaks_tls() {
    let question = ["ask", "--address", "127.0.0.1:1", "--domain", "d", "--descriptor", "k=v"];
    let pair = ["--tls-cert-file", "/c", "--tls-key-file", "/k"];
    for given in [&pair[..], &["--tls-ca-file", "/c"], &["--tls-server-name", "a"]] {
        let (outcome, _, err) = run(&[&question, given].concat(), &[]);
        assert_eq!(outcome, Outcome::CouldNotSay);
        assert!(err.contains("--tls\n"), "{given:?}: {err}");
    }
}

#[test]
fn paths_may_be_given_again_and_again() {
    assert_eq!(printed(&["--limits", "a", "--limits", "b"], "limits"), "limits: [\"a\", \"b\"]");
}

#[test]
fn misspelt_flags_are_told_together_with_everything_else() {
    let line = ["serve", "--grpc-prot", "1", "--http-prot=2", "--threads", "many"];
    let (outcome, out, err) = run(&line, &[("SLUICEGATE_LOG_LEVEL", "loud")]);
    assert_eq!((outcome, out.as_str()), (Outcome::CouldNotSay, ""));
    let starts = ["error: SLUICEGATE_LOG_LEVEL:", "error: --threads:", "error: --grpc-prot:"];
    for start in starts.iter().chain(&["error: --http-prot:"]) {
        assert!(err.lines().any(|line| line.starts_with(start)), "{start} in {err}");
    }
    assert_eq!(err.lines().count(), 4);
}

#[test]
fn a_misspelt_flag_of_another_command_is_refused_by_its_name() {
    let (outcome, _, err) = run(&["check", "--formt", "json", "a.yaml"], &[]);
    assert_eq!(outcome, Outcome::CouldNotSay);
    assert!(err.contains("--formt") && err.contains("--format"), "{err}");
}

#[test]
fn the_file_of_settings_is_read_and_named_in_places() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("mine.yaml");
    fs::write(&path, "grpc_port: 0\nhttp_prot: 1\n").unwrap();
    let path = path.to_str().unwrap();
    let (outcome, _, err) = run(&["serve", "--print-config", "--settings", path], &[]);
    assert_eq!(outcome, Outcome::CouldNotSay);
    assert_eq!(
        err,
        format!("error: {path}:2:1: there is no such setting; did you mean `http_port`?\n")
    );
    let (outcome, _, err) = run(&["serve", "--settings", "/no/such/file.yaml"], &[]);
    assert_eq!(outcome, Outcome::CouldNotSay);
    assert!(err.contains("/no/such/file.yaml"), "{err}");
}

#[test]
fn help_names_every_setting_with_its_default() {
    let (outcome, out, _) = run(&["serve", "--help"], &[]);
    assert_eq!(outcome, Outcome::Yes);
    for row in sluicegate::config::settings::table() {
        assert!(out.contains(&format!("--{} ", row.flag)), "--{}", row.flag);
    }
    assert!(out.contains("[default: 8081]"));
}

#[test]
fn the_schema_is_printed_as_it_is_shipped() {
    let (outcome, out, _) = run(&["schema", "server"], &[]);
    assert_eq!(outcome, Outcome::Yes);
    let parsed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(parsed, sluicegate::config::settings::schema());
}
