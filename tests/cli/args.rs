//! Tests of the command line, from the arguments to the parsed command or error.

use std::ffi::OsString;
use std::fs;

use sluicegate::cli::{self, CommandOutcome, Terminal};

fn run(line: &[&str], environment: &[(&str, &str)]) -> (CommandOutcome, String, String) {
    let argv = ["sluicegate"].iter().chain(line).map(OsString::from).collect();
    let environment: Vec<_> =
        environment.iter().map(|(name, text)| (name.into(), text.into())).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut terminal = Terminal { out: &mut out, err: &mut err };
    let outcome = cli::run(argv, environment, &mut terminal);
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// The line of one setting in `serve --print-config`, without its origin.
fn printed(line: &[&str], name: &str) -> String {
    let line = [&["serve", "--print-config"], line].concat();
    let (outcome, out, err) = run(&line, &[]);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""));
    let line =
        out.lines().find(|line| line.trim().starts_with(&format!("{name}:"))).expect("a line");
    line.split(" #").next().unwrap_or_default().trim().to_owned()
}

#[test]
fn boolean_flag_without_value_is_true() {
    assert_eq!(printed(&["--answers-metadata"], "metadata"), "metadata: true");
    assert_eq!(printed(&["--answers-metadata", "false"], "metadata"), "metadata: false");
    assert_eq!(
        printed(&["--answers-metadata=true", "--listen-grpc-port=1"], "metadata"),
        "metadata: true"
    );
}

/// If other TLS flags were accepted without `--tls`, the request would be sent unencrypted.
#[test]
fn other_tls_flags_require_the_flag_tls() {
    let command = ["ask", "--address", "127.0.0.1:1", "--domain", "d", "--descriptor", "k=v"];
    let pair = ["--tls-cert-file", "/c", "--tls-key-file", "/k"];
    for given in [&pair[..], &["--tls-ca-file", "/c"], &["--tls-server-name", "a"]] {
        let (outcome, _, err) = run(&[&command, given].concat(), &[]);
        assert_eq!(outcome, CommandOutcome::Failed);
        assert!(err.contains("--tls\n"), "{given:?}: {err}");
    }
}

#[test]
fn limits_flag_may_repeat() {
    assert_eq!(
        printed(&["--limits-paths", "a", "--limits-paths", "b"], "paths"),
        "paths: [\"a\", \"b\"]"
    );
}

#[test]
fn misspelt_flags_are_reported_with_other_errors() {
    let line = ["serve", "--grpc-prot", "1", "--http-prot=2", "--store-max-keys", "many"];
    let (outcome, out, err) = run(&line, &[("SLUICEGATE_TELEMETRY_LOG_LEVEL", "loud")]);
    assert_eq!((outcome, out.as_str()), (CommandOutcome::Failed, ""));
    let starts = [
        "error: SLUICEGATE_TELEMETRY_LOG_LEVEL:",
        "error: --store-max-keys:",
        "error: --grpc-prot:",
    ];
    for start in starts.iter().chain(&["error: --http-prot:"]) {
        assert!(err.lines().any(|line| line.starts_with(start)), "{start} in {err}");
    }
    assert_eq!(err.lines().count(), 4);
}

#[test]
fn check_refuses_a_misspelt_flag_with_a_suggestion() {
    let (outcome, _, err) = run(&["validate", "--formt", "json", "a.yaml"], &[]);
    assert_eq!(outcome, CommandOutcome::Failed);
    assert!(err.contains("--formt") && err.contains("--format"), "{err}");
}

#[test]
fn settings_file_errors_name_the_file() {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("mine.yaml");
    fs::write(&path, "listen:\n  grpc_port: 0\n  http_prot: 1\n").unwrap();
    let path = path.to_str().unwrap();
    let (outcome, _, err) = run(&["serve", "--print-config", "--settings", path], &[]);
    assert_eq!(outcome, CommandOutcome::Failed);
    assert_eq!(
        err,
        format!(
            "error: {path}:3:3: unknown setting `listen.http_prot`; did you mean `listen.http_port`?\n"
        )
    );
    let (outcome, _, err) = run(&["serve", "--settings", "/no/such/file.yaml"], &[]);
    assert_eq!(outcome, CommandOutcome::Failed);
    assert!(err.contains("/no/such/file.yaml"), "{err}");
}

#[test]
fn help_describes_the_program_in_one_line() {
    let (outcome, out, _) = run(&["--help"], &[]);
    assert_eq!(outcome, CommandOutcome::Success);
    let about = "A rate limiting and concurrency control service for Envoy and NGINX\n";
    assert!(out.starts_with(about), "{out}");
}

#[test]
fn serve_help_lists_every_setting() {
    let (outcome, out, _) = run(&["serve", "--help"], &[]);
    assert_eq!(outcome, CommandOutcome::Success);
    for row in sluicegate::config::settings::table() {
        assert!(out.contains(&format!("--{} ", row.flag)), "--{}", row.flag);
    }
    assert!(out.contains("[default: 8081]"));
}

#[test]
fn schema_command_prints_the_server_schema() {
    let (outcome, out, _) = run(&["schema", "server"], &[]);
    assert_eq!(outcome, CommandOutcome::Success);
    let parsed: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(parsed, sluicegate::config::settings::schema());
}
