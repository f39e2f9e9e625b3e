//! Tests of replays with tables, with the real binary.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a report shows restored ids | `another_table_denies_exactly_the_customers_that_it_lowers` |
//! | ids are not restored | the same |
//! | the new table is loaded without the old one | `a_bad_row_keeps_the_row_of_the_old_table` |
//! | a copy is not read | `a_table_in_a_database_needs_its_copy_or_a_file` |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use sluicegate::config::load;
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::recording::RecordingHeader;
use sluicegate::recording::hashed_values::ValueHasher;
use tempfile::TempDir;

use crate::recording::{OwnedCheck, header, write};
use crate::support::dice::{Dice, seed};
use crate::support::service::sluicegate;

/// A Sunday at 12:00:00 UTC.
const START: Nanos = Nanos::from_secs(1_763_899_200);

const SALT: [u8; 16] = [9; 16];

/// Ids that match the bare key, the pattern and the exact value.
const LIMITS: &str = "domain: d
descriptors:
  - {key: k, rate_limit: {unit: minute, requests_per_unit: 3, from: customers.api}}
  - {key: k, value: 'acct-*', rate_limit: {unit: minute, requests_per_unit: 3, from: customers.api}}
  - {key: k, value: partner, rate_limit: {unit: minute, requests_per_unit: 3, from: customers.api}}
";

const PLANS: &str = "    plans: {free: {api: 5}, gold: {api: 50}}\n";

/// The files of one test.
struct Desk(TempDir);

impl Desk {
    fn new(today: &str) -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        desk.write("limits.yaml", LIMITS);
        desk.write("today.csv", today);
        desk.write_settings(&format!("file://{}", desk.path("today.csv")));
        desk
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn write_settings(&self, source: &str) {
        let table = format!("tables:\n  - name: customers\n    source: {source}\n{PLANS}");
        self.write("server.yaml", table);
    }

    fn record_clear(&self, checks: &[OwnedCheck]) {
        let header = RecordingHeader { started_at: START, ..header() };
        self.write("traffic.rec", write(&header, checks));
    }

    /// Records the checks with hashed values, as the recorder of a replica does.
    fn record_hashed(&self, checks: &[OwnedCheck]) {
        let (config, _) = load([("l", LIMITS.as_bytes())], Revision(1), false).unwrap();
        let mut checks = checks.to_vec();
        for one in &mut checks {
            let values = ValueHasher::new(SALT).hash_values(&config, &one.check()).unwrap();
            one.descriptors[0].0[0].1.clone_from(&values[0][0]);
        }
        let header = RecordingHeader { salt: Some(SALT), started_at: START, ..header() };
        self.write("traffic.rec", write(&header, &checks));
    }

    fn command(&self) -> Command {
        let mut command = sluicegate();
        command.current_dir(self.0.path());
        command.args([
            "replay",
            "--from",
            "traffic.rec",
            "--old",
            "limits.yaml",
            "--format",
            "json",
        ]);
        command
    }

    fn run(&self, flags: &[&str]) -> Output {
        self.command().args(flags).output().unwrap()
    }

    fn replay(&self, flags: &[&str]) -> Value {
        let output = self.run(flags);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Replays with the settings of the old table, and with the file `tomorrow.csv` as the new one.
    fn compare(&self, tomorrow: &str) -> Value {
        self.write("tomorrow.csv", tomorrow);
        self.replay(&TOMORROW)
    }

    fn refused(&self, flags: &[&str]) -> String {
        let output = self.run(flags);
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]));
        text(&output.stderr)
    }
}

const TOMORROW: [&str; 4] =
    ["--old-tables", "server.yaml", "--new-tables", "customers=tomorrow.csv"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// `count` checks of each id in the first minute.
fn checks(ids: &[String], count: u64) -> Vec<OwnedCheck> {
    let at = |n| START.plus(Nanos(n * Nanos::MILLI.0));
    let of_id = |n| ids.iter().map(move |id| OwnedCheck::of_entry(at(n), ("k", id), 1));
    (0..count).flat_map(of_id).collect()
}

/// The newly denied checks of each key.
fn newly_denied(report: &Value) -> BTreeMap<String, u64> {
    let keys = report["keys"].as_array().map_or(&[][..], Vec::as_slice);
    let keys = keys.iter().map(|one| {
        (one["key"].as_str().unwrap().to_owned(), one["newly_denied"].as_u64().unwrap())
    });
    keys.collect()
}

fn hash(id: &str) -> String {
    format!("d: k={}", ValueHasher::new(SALT).hash(id))
}

fn ids(count: u32) -> Vec<String> {
    (0..count).map(|n| format!("customer-{n}")).collect()
}

fn rows(ids: &[String], amount: impl Fn(&str) -> &'static str) -> String {
    let mut text = "id,plan,api\n".to_owned();
    for id in ids {
        writeln!(text, "{id},gold,{}", amount(id)).unwrap();
    }
    text
}

#[test]
fn another_table_denies_exactly_the_customers_that_it_lowers() {
    let ids = ids(40);
    let today = rows(&ids, |_| "10");
    let desk = Desk::new(&today);
    desk.record_hashed(&checks(&ids, 10));
    let lowered = |id: &str| match id {
        "customer-7" => "4",
        "customer-13" => "9",
        "customer-20" => "blocked",
        "customer-21" => "unlimited",
        _ => "10",
    };
    let report = desk.compare(&rows(&ids, lowered));
    let expected = [("customer-7", 6), ("customer-13", 1), ("customer-20", 10)];
    let expected: BTreeMap<_, _> = expected.map(|(id, denied)| (hash(id), denied)).into();
    assert_eq!(newly_denied(&report), expected);
    assert_eq!(report["rules"][0]["rule"], "d.k");
    assert_eq!((&report["newly_allowed"], &report["old_denied"]), (&0.into(), &0.into()));
    let fail_over = desk.run(&[&TOMORROW[..], &["--fail-over", "4%"]].concat());
    assert_eq!(fail_over.status.code(), Some(1), "17 of 400 checks are 4.25 %");
    assert!(!text(&fail_over.stdout).contains("customer-"), "the recording hides the ids");
    // The same table denies nobody.
    assert_eq!(desk.compare(&today)["newly_denied"], 0);
}

/// The law: hashing changes the names of keys, and nothing else.
#[test]
fn hashed_and_clear_recordings_have_the_same_changes() {
    let mut dice = Dice::new(seed());
    let mut ids: Vec<_> = (0..6).map(|n| format!("customer-{n}")).collect();
    ids.extend((0..4).map(|n| format!("acct-{n}")));
    ids.extend(["partner".to_owned(), "~0123456789abcdef".to_owned()]);
    for _ in 0..8 {
        let mut table = || {
            let mut text = "id,plan,api,until\n".to_owned();
            for id in &ids {
                let plan = dice.pick(&["free", "gold", ""]);
                let amount = dice.pick(&["", "1", "4", "9", "unlimited", "blocked"]);
                let until = dice.pick(&["", "2025-11-23T12:00:00.005Z", "2024-01-01T00:00:00Z"]);
                if !dice.once_in(4) {
                    writeln!(text, "{id},{plan},{amount},{until}").unwrap();
                }
            }
            text
        };
        let (today, tomorrow) = (table(), table());
        let desk = Desk::new(&today);
        desk.write("tomorrow.csv", &tomorrow);
        // Another `max_shrink` is another table, so that all ids may go.
        let whole =
            fs::read_to_string(desk.path("server.yaml")).unwrap() + "    max_shrink: 100%\n";
        desk.write("server.yaml", whole);
        let checks = checks(&ids, 12);
        desk.record_clear(&checks);
        let clear = desk.replay(&TOMORROW);
        desk.record_hashed(&checks);
        let hashed = desk.replay(&TOMORROW);
        for field in ["old_denied", "new_denied", "newly_denied", "newly_allowed", "rules"] {
            assert_eq!(clear[field], hashed[field], "{field}\n{today}{tomorrow}");
        }
        let renamed = newly_denied(&clear).into_iter().map(|(key, denied)| {
            let id = key.strip_prefix("d: k=").unwrap();
            // The limits name it, so the recording does not hide it.
            (if id == "partner" { key } else { hash(id) }, denied)
        });
        assert_eq!(renamed.collect::<BTreeMap<_, _>>(), newly_denied(&hashed));
    }
}

#[test]
fn an_own_amount_ends_at_its_recorded_instant() {
    let ids = ids(1);
    let desk = Desk::new("id,plan,api,until\ncustomer-0,gold,,\n");
    desk.record_hashed(&checks(&ids, 20));
    // The last 15 checks are at or after the end, and `gold` allows them.
    let report =
        desk.compare("id,plan,api,until\ncustomer-0,gold,blocked,2025-11-23T12:00:00.005Z\n");
    assert_eq!(newly_denied(&report), [(hash("customer-0"), 5)].into());
}

#[test]
fn a_bad_row_keeps_the_row_of_the_old_table() {
    let ids = ids(30);
    let desk = Desk::new(&rows(&ids, |_| "10"));
    desk.record_hashed(&checks(&ids, 10));
    let tomorrow = rows(&ids, |id| if id == "customer-3" { "-1" } else { "10" });
    let report = desk.compare(&tomorrow);
    assert_eq!(report["newly_denied"], 0);
    assert_eq!(report["warnings"][0], "table `customers` (--new-tables) has bad rows: 1");
    let shown = text(&desk.run(&TOMORROW).stderr);
    assert!(shown.contains("has bad rows: 1, such as customer-3: `api`: `-1` is no"), "{shown}");
    desk.write("tomorrow.csv", rows(&ids, |_| "-1"));
    let shown = text(&desk.run(&TOMORROW).stderr);
    assert_eq!((shown.lines().count(), shown.matches("`-1`").count()), (1, 5), "{shown}");
    assert!(shown.contains("has bad rows: 30"), "{shown}");
}

#[test]
fn a_file_that_a_replica_would_refuse_is_refused() {
    let ids = ids(30);
    let desk = Desk::new(&rows(&ids, |_| "10"));
    desk.record_hashed(&checks(&ids, 10));
    let whole = rows(&ids, |_| "10");
    for (tomorrow, problem) in [
        (rows(&ids[..20], |_| "10"), "10 of 30 ids would be removed, more than `max_shrink` (10%)"),
        (whole.trim_end().to_owned(), "the last line has no end"),
        (String::new(), "the file is empty"),
        ("name,api\na,1\n".to_owned(), "the first line has no column `id`"),
        (format!("id\n{}\n", "x".repeat(70_000)), "a line is longer than 65536 bytes"),
    ] {
        desk.write("tomorrow.csv", &tomorrow);
        let message = desk.refused(&TOMORROW);
        assert!(message.contains(problem), "{message}");
        assert!(message.contains("error: table `customers`: "), "{message}");
    }
    let pipe =
        desk.refused(&["--old-tables", "server.yaml", "--new-tables", "customers=/dev/zero"]);
    assert!(pipe.contains("/dev/zero: not a file"), "{pipe}");
}

#[test]
fn a_table_in_a_database_needs_its_copy_or_a_file() {
    let ids = ids(3);
    let desk = Desk::new(&rows(&ids, |_| "10"));
    desk.record_hashed(&checks(&ids, 10));
    let database = "postgres://reader:secret@db.example/app\n    rows: SELECT id FROM customers";
    desk.write_settings(database);
    let message = desk.refused(&["--old-tables", "server.yaml"]);
    let fix = "is not a file, and the table has no `copy`; to read a file, add \
               --old-tables customers=FILE";
    assert!(message.contains("postgres://db.example") && message.contains(fix), "{message}");
    assert!(!message.contains("secret"), "{message}");
    let file = ["--old-tables", "server.yaml", "--old-tables", "customers=today.csv"];
    assert_eq!(desk.replay(&file)["old_denied"], 0);
    // The rule's own number is 3.
    desk.write_settings(&format!("{database}\n    copy: {}", desk.path("copy")));
    let copy = "{\"id\":\"customer-0\",\"api\":10}\n{\"id\":\"customer-1\",\"plan\":\"free\"}\n\
                {\"copy_of\":\"customers\",\"rows\":2,\"checksum\":1}\n";
    desk.write("copy", copy);
    let report = desk.replay(&["--old-tables", "server.yaml"]);
    assert_eq!(report["old_denied"], 5 + 7);
    assert_eq!(report["warnings"], serde_json::json!([]));
}

#[test]
fn a_table_that_is_not_given_is_reported() {
    let ids = ids(1);
    let desk = Desk::new("id,other\ncustomer-0,1\n");
    desk.record_hashed(&checks(&ids, 10));
    let report = desk.replay(&[]);
    let remark = "table `customers` is not given (--old-tables), so the limit's own number applies";
    assert_eq!((&report["warnings"][0], &report["old_denied"]), (&remark.into(), &7.into()));
    desk.write("server.yaml", "tables: [{name: customers, source: file:///x}]\n");
    let given = ["--old-tables", "server.yaml", "--old-tables", "customers=today.csv"];
    let column = "table `customers` has no column `api`, so the limit's own number applies";
    assert_eq!(desk.replay(&given)["warnings"][0], column);
}

#[test]
fn wrong_flags_get_an_error_with_the_fix() {
    let desk = Desk::new("id,api\ncustomer-0,1\n");
    desk.record_hashed(&checks(&ids(1), 1));
    desk.write("empty.yaml", "store: {url: memory}\n");
    desk.write("other.yaml", "tables: [{name: partners, source: file:///x}]\n");
    desk.write("typo.yaml", "tables: [{name: customers, sauce: file:///x}]\n");
    for (flags, problem) in [
        (&["--new-tables", "customers=today.csv"][..], "add --old-tables server.yaml"),
        (&["--old-tables", "server.yaml", "--new-tables", "typo=today.csv"], "table `typo`"),
        (&["--old-tables", "missing.yaml"], "missing.yaml: cannot read"),
        (&["--old-tables", "empty.yaml"], "the setting `tables` is empty"),
        (&["--old-tables", "other.yaml"], "the setting `tables` has no `customers`"),
        (&["--old-tables", "typo.yaml"], "sauce"),
        (
            &["--old-tables", "server.yaml", "--old-tables", "other.yaml"],
            "takes one file of settings",
        ),
        (&["--old-tables", "server.yaml", "--old-tables", "customers=no.csv"], "no.csv: No such"),
        (&["--fail-over", "1%"], "--new-tables"),
    ] {
        let message = desk.refused(flags);
        assert!(message.contains(problem) && message.starts_with("error: "), "{message}");
    }
}

/// Two tables of a million rows fit into a bounded address space.
#[test]
fn a_million_rows_are_bounded() {
    let ids = ids(1_000_000);
    let desk = Desk::new(&rows(&ids, |_| "10"));
    desk.record_hashed(&checks(&ids[..1_000], 10));
    desk.write("tomorrow.csv", rows(&ids, |id| if id.ends_with("77") { "4" } else { "10" }));
    let command = desk.command();
    let report = Command::new("sh")
        .args(["-c", &format!("ulimit -v {MAX_ADDRESS_KIB}; exec \"$0\" \"$@\"")])
        .arg(command.get_program())
        .args(command.get_args())
        .args(TOMORROW)
        .current_dir(desk.0.path())
        .output()
        .unwrap();
    assert!(report.status.success(), "{}", text(&report.stderr));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["newly_denied"], 10 * 6);
    assert_eq!(newly_denied(&report).len(), 10);
}

/// 600 bytes for each row of two tables: the rows, their load, and the restored ids.
const MAX_ADDRESS_KIB: u64 = 600 * 1_000_000 / 1024;

#[test]
fn explain_shows_the_row_of_an_id_without_a_replica() {
    let desk = Desk::new("id,plan,api\nacme,gold,\n");
    let explain = |tables: &[&str]| {
        let arguments = ["explain", "--limits", "limits.yaml", "--domain", "d"];
        let output = sluicegate()
            .current_dir(desk.0.path())
            .args(arguments)
            .args(["--descriptor", "k=acme"])
            .args(tables)
            .output();
        text(&output.unwrap().stdout)
    };
    let shown = explain(&["--tables", "server.yaml"]);
    assert!(
        shown.contains("table `customers`, row `acme` with plan `gold`: `api` is 50"),
        "{shown}"
    );
    assert!(shown.contains("49 remaining"), "{shown}");
    assert!(Path::new(&desk.path("today.csv")).exists() && explain(&[]).contains("2 remaining"));
}
