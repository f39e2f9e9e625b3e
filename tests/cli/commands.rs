//! Golden tests of the commands `validate` and `explain`; `UPDATE=1` rewrites the expected output.

use std::ffi::OsString;
use std::path::PathBuf;

use proptest::prelude::*;
use sluicegate::cli::args::{Command, parse};
use sluicegate::cli::{self, CommandOutcome, Terminal, explain};
use sluicegate::clock::Clock;
use sluicegate::config::descriptor_text::{format_entries, parse_entries};
use sluicegate::kernel::units::Nanos;

/// The time of the commands: 2025-11-20T09:52:25Z.
const NOW: Nanos = Nanos::from_secs(1_763_632_345);

fn run(line: &[&str]) -> (CommandOutcome, String, String) {
    let argv: Vec<OsString> = ["sluicegate"].iter().chain(line).map(OsString::from).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut terminal = Terminal { out: &mut out, err: &mut err };
    // The output of `explain` depends on the time, so the command gets a manual clock.
    let outcome = match parse(argv.clone()) {
        Ok(cli) => match cli.command {
            Command::Explain(options) => {
                explain::explain(&options, &Clock::manual(NOW), &mut terminal).unwrap()
            }
            _ => cli::run(argv, Vec::new(), &mut terminal),
        },
        Err(error) => panic!("{error}"),
    };
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn assert_golden(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, kept, "{name}: if it is right now, write it with UPDATE=1");
}

const SOUND: &str = "tests/golden/limits/sound";
const BROKEN: &str = "tests/golden/limits/broken";

#[test]
fn check_reports_every_finding_of_every_file() {
    let (outcome, out, err) = run(&["validate", BROKEN]);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Negative, ""));
    assert_golden("check.txt", &out);
}

#[test]
fn check_writes_json_and_sarif() {
    let (outcome, out, _) = run(&["validate", "--format", "json", BROKEN]);
    assert_eq!(outcome, CommandOutcome::Negative);
    assert_golden("check.json.txt", &out);
    let (outcome, out, _) = run(&["validate", "--format", "sarif", SOUND]);
    assert_eq!(outcome, CommandOutcome::Success);
    assert_golden("check.sarif.txt", &out);
}

#[test]
fn warnings_fail_only_with_warnings_as_errors() {
    let (outcome, out, _) = run(&["validate", SOUND]);
    assert_eq!(outcome, CommandOutcome::Success);
    assert_golden("check_warnings.txt", &out);
    assert_eq!(run(&["validate", SOUND, "--warnings-as-errors"]).0, CommandOutcome::Negative);
}

/// A directory with a limits file that has 7 warnings and then 300 errors.
fn faulty() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let warnings =
        (0..7).map(|n| format!("- {{key: a, key: b{n}}}\n")).collect::<Vec<_>>().concat();
    let errors = "- {bogus: 1}\n".repeat(300);
    let text = format!("domain: d\ndescriptors:\n{warnings}{errors}");
    std::fs::write(directory.path().join("a.yaml"), text).unwrap();
    directory
}

#[test]
fn text_output_counts_findings_that_it_omits() {
    let directory = faulty();
    let path = directory.path().to_str().unwrap();
    let (outcome, out, _) = run(&["validate", path]);
    assert_eq!(outcome, CommandOutcome::Negative);
    let end = "\nand 100 more errors, 7 more warnings, not shown\n\
               307 findings in 1 file: 300 errors, 7 warnings\n";
    assert!(out.ends_with(end), "{}", &out[out.len() - 300..]);
    assert_eq!(out.matches(" error[E09] ").count(), 200);
}

#[test]
fn json_and_sarif_count_findings_that_they_omit() {
    let directory = faulty();
    let path = directory.path().to_str().unwrap();
    let read = |format: &str| -> serde_json::Value {
        serde_json::from_str(&run(&["validate", "--format", format, path]).1).unwrap()
    };
    let json = read("json");
    assert_eq!((&json["errors"], &json["warnings"]), (&300.into(), &7.into()));
    let more = serde_json::json!({"errors": 100, "warnings": 7, "notes": 0});
    assert_eq!(json["more"], more);
    assert_eq!(json["findings"].as_array().unwrap().len(), 200);
    let notification = &read("sarif")["runs"][0]["invocations"][0]["toolExecutionNotifications"][0];
    let text = "and 100 more errors, 7 more warnings, not shown";
    assert_eq!(notification["message"]["text"], text);
}

#[test]
fn validate_explains_the_failure_modes_of_an_envoy_configuration() {
    let file = "config/envoy/ext_proc.yaml";
    let (outcome, out, err) = run(&["validate", "--envoy-filter", file]);
    assert_eq!((outcome, &*err), (CommandOutcome::Success, ""));
    assert!(out.contains("note[N42] this ext_proc filter fails open"), "{out}");
    assert!(out.ends_with("0 findings in 1 file: 0 errors, 0 warnings; 1 note\n"), "{out}");
    let (_, out, _) = run(&["validate", "config/limits", "--envoy-filter", file]);
    assert!(out.contains("note[N42]"), "{out}");
    let (outcome, _, err) = run(&["validate", "--envoy-filter", "nowhere.yaml"]);
    assert!(outcome == CommandOutcome::Failed && err.contains("nowhere.yaml"), "{err}");
    let (outcome, _, err) = run(&["validate", "--envoy-filter", "config/limits"]);
    let expected = "error: no rate limit, ext_authz, ext_proc or Sluicegate filter in config/limits; \
                    pass a file with Envoy's filters\n";
    assert_eq!((outcome, &*err), (CommandOutcome::Failed, expected));
}

#[test]
fn check_prints_one_line_for_valid_files() {
    let (outcome, out, err) = run(&["validate", "config/limits"]);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""));
    assert_eq!(out, "0 findings in 1 file: 0 errors, 0 warnings\n");
}

#[test]
fn check_and_explain_report_a_missing_path() {
    let (outcome, out, err) = run(&["validate", "tests/golden/limits/nowhere"]);
    assert_eq!((outcome, out.as_str()), (CommandOutcome::Failed, ""));
    let why = "error: tests/golden/limits/nowhere: cannot be read: No such file or directory (os error 2)\n";
    assert_eq!(err, why);
    let explain = ["explain", "--limits", "tests/golden/limits/nowhere", "--domain", "d"];
    let (outcome, _, err) = run(&[&explain[..], &["--descriptor", "k=v"]].concat());
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Failed, why));
}

const EXPLAIN_ARGS: [&str; 18] = [
    "explain",
    "--limits",
    SOUND,
    "--domain",
    "shop",
    "--hits",
    "3",
    "--descriptor",
    "api_key=x",
    "--descriptor",
    "path=/cart/add/7",
    "--descriptor",
    "path_/cart/x=y",
    "--descriptor",
    "plan=free",
    "--descriptor",
    "plan=staff",
    "--merge-domains",
];

#[test]
fn explain_shows_matched_and_rejected_rules() {
    let (outcome, out, err) = run(&EXPLAIN_ARGS);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""));
    assert_golden("explain.txt", &out);
}

#[test]
fn explain_shows_why_nothing_matches() {
    let line = ["explain", "--limits", SOUND, "--domain", "shop"];
    let none =
        ["plan=free,api_key=internal", "plan=gold", "plan=staff,x=y", "plan=free,api_key=x,more=z"];
    let descriptors = none.iter().flat_map(|one| ["--descriptor", one]);
    let (outcome, out, _) = run(&line.into_iter().chain(descriptors).collect::<Vec<_>>());
    assert_eq!(outcome, CommandOutcome::Negative);
    assert_golden("explain_nothing.txt", &out);
    let (outcome, out, _) =
        run(&["explain", "--limits", SOUND, "--domain", "shopp", "--descriptor", "a=b"]);
    assert_eq!(outcome, CommandOutcome::Negative);
    let nearest = "  nearest: the domain `shop` is similar\n";
    let expected = format!("shopp: a=b\n  no limit: no file has the domain `shopp`\n{nearest}");
    assert_eq!(out, expected);
}

#[test]
fn explain_rounds_times_above_one_second_up_to_seconds() {
    let directory = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors:\n\
                - key: k\n  rate_limit: {per: 10s, requests_per_unit: 7, strategy: gcra}\n";
    std::fs::write(directory.path().join("a.yaml"), text).unwrap();
    let limits = directory.path().to_str().unwrap();
    // Seven hits per 10 s restore one hit in 10/7 s = 1.428571… s.
    let line = ["explain", "--limits", limits, "--domain", "d", "--descriptor", "k=v"];
    let (outcome, out, err) = run(&line);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""));
    assert!(out.ends_with(", 6 remaining, empty again after 2s\n"), "{out}");
}

#[test]
fn explain_writes_json() {
    let line = ["explain", "--limits", SOUND, "--domain", "shop", "--format", "json"];
    let more = ["--descriptor", "plan=free,api_key=x", "--descriptor", "api_key=x"];
    let (outcome, out, _) = run(&[&line[..], &more[..]].concat());
    assert_eq!(outcome, CommandOutcome::Success);
    assert_golden("explain.json.txt", &out);
}

const BUDGETS: [&str; 11] = [
    "explain",
    "--limits",
    "tests/golden/limits/budgets",
    "--domain",
    "llm",
    "--descriptor",
    "org=acme,model=large",
    "--descriptor",
    "org=beta,model=free-1",
    "--descriptor",
    "org=beta,team=search",
];

#[test]
fn explain_shows_budgets_with_the_amounts_of_a_table() {
    let (outcome, out, err) = run(&["validate", BUDGETS[2]]);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""), "{out}");
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let customers = write("customers.csv", "id,llm_budget\nacme,900\n");
    let models = write("models.csv", "id,input,output\n*,2500,10000\n");
    let table = |name: &str, path: &str| format!("- {{name: {name}, source: 'file://{path}'}}\n");
    let customers = table("customers", &customers);
    let both = write("both.yaml", &format!("tables:\n{customers}{}", table("models", &models)));
    let (outcome, out, err) = run(&[&BUDGETS[..], &["--tables", &both]].concat());
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""));
    assert_golden("explain_budgets.txt", &out);
    let without = write("without.yaml", &format!("tables:\n{customers}"));
    let (outcome, _, err) = run(&[&BUDGETS[..], &["--tables", &without]].concat());
    let problem = "error: tests/golden/limits/budgets/llm.yaml:7: `prices: models`: the setting \
                   `tables` has no `models`; add the table to the settings, or correct its name\n";
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Failed, problem));
}

#[test]
fn explain_refuses_broken_files_and_descriptors() {
    let (outcome, out, err) =
        run(&["explain", "--limits", BROKEN, "--domain", "shop", "--descriptor", "a=b"]);
    assert_eq!((outcome, out.as_str()), (CommandOutcome::Failed, ""));
    assert!(err.contains("error["), "{err}");
    let (outcome, _, err) =
        run(&["explain", "--limits", SOUND, "--domain", "shop", "--descriptor", "a"]);
    assert_eq!(outcome, CommandOutcome::Failed);
    let message = "`a` is not an entry; write entries as key=value (a comma in it as `\\,`)";
    assert_eq!(err, format!("error: --descriptor a: {message}\n"));
}

#[test]
fn descriptor_text_parses_escapes_and_refuses_incomplete_entries() {
    let read = |text: &str| parse_entries(text).unwrap();
    let of = |entries: &[(&str, &str)]| -> Vec<(String, String)> {
        entries.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    assert_eq!(read("a=b,c="), of(&[("a", "b"), ("c", "")]));
    assert_eq!(
        read(r"agent=Mozilla\, like Gecko,path=/?a=b"),
        of(&[("agent", "Mozilla, like Gecko"), ("path", "/?a=b")])
    );
    assert_eq!(read(r"a\=b=c"), of(&[("a=b", "c")]));
    assert_eq!(read(r"dir=C:\temp\\,n=1"), of(&[("dir", r"C:\temp\"), ("n", "1")]));
    assert_eq!(read("=b"), of(&[("", "b")]));
    for none in ["", "a", "a=b,", r"a\=b", "a=b,c"] {
        assert!(parse_entries(none).is_err(), "{none}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn printed_descriptors_parse_to_the_same_descriptors(
        wanted in prop::collection::vec(("[a,=\\\\]{0,4}", "[a,=\\\\]{0,4}"), 1..4),
    ) {
        let text = format_entries(wanted.iter().map(|(key, value)| (&**key, &**value)));
        prop_assert_eq!(parse_entries(&text), Ok(wanted), "{}", text);
    }
}
