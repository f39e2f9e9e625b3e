//! A real process with a table, and the command `sluicegate table`.

mod rows;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::dice::{Dice, seed};
use crate::support::http1;
use crate::support::service::{Service, TOKEN, sluicegate};
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const LIMITS: &str = "domain: shop\ndescriptors:\n- {key: customer, rate_limit: {unit: day, \
                      requests_per_unit: 2, from: customers.api}}\n";

const ROWS: &str = "id,plan,api\nacme,gold,\nbeta,free,3\nshut,free,blocked\n";

struct Shop {
    dir: TempDir,
    file: PathBuf,
}

impl Shop {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("limits")).unwrap();
        fs::write(dir.path().join("limits/shop.yaml"), LIMITS).unwrap();
        let file = dir.path().join("customers.csv");
        Self { dir, file }
    }

    fn copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    fn limits(&self) -> PathBuf {
        self.dir.path().join("limits")
    }

    fn flags(&self) -> Vec<String> {
        let tables = json!([{
            "name": "customers",
            "source": format!("file://{}", self.file.display()),
            "refresh": "100ms",
            "copy": self.copy(),
            "plans": {"free": {"api": 1}, "gold": {"api": 5}},
        }]);
        let flags = ["--tables".to_owned(), tables.to_string()];
        flags.into_iter().chain(["--store-url", "memory"].map(str::to_owned)).collect()
    }

    fn start(&self) -> Service {
        self.start_with(&[]).unwrap()
    }

    fn start_with(&self, flags: &[&str]) -> Result<Service, String> {
        let flags: Vec<_> =
            self.flags().into_iter().chain(flags.iter().map(|flag| (*flag).to_owned())).collect();
        Service::start_under(&self.limits(), &flags, &[("SLUICEGATE_ADMIN_TOKEN", TOKEN)])
    }

    /// Replaces the file, as an editor does.
    fn write(&self, rows: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, rows).unwrap();
        fs::rename(new, &self.file).unwrap();
    }
}

fn check(service: &Service, customer: &str) -> u16 {
    let body = format!(
        r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"customer","value":"{customer}"}}]}}]}}"#
    );
    http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap().status
}

/// The checks that are allowed before the first denial.
fn allowed(service: &Service, customer: &str) -> usize {
    (0..20).take_while(|_| check(service, customer) == 200).count()
}

fn table(service: &Service, arguments: &[&str]) -> Output {
    let mut command = sluicegate();
    command.arg("table").args(arguments).arg("--server").arg(format!("http://{}", service.admin));
    command.env("SLUICEGATE_ADMIN_TOKEN", TOKEN).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn state(service: &Service) -> Value {
    let token = format!("Bearer {TOKEN}");
    let reply = http1::get(service.admin, "/tables", &[("authorization", &token)]).unwrap();
    let page: Value = serde_json::from_slice(&reply.body).unwrap();
    page["tables"][0].clone()
}

fn wait_for(service: &Service, what: &str, is_it: impl Fn(&Value) -> bool) {
    until(what, || {
        let state = state(service);
        if is_it(&state) { Ok(()) } else { Err(state.to_string()) }
    })
    .unwrap();
}

#[test]
fn each_customer_has_the_number_of_its_row_or_plan() {
    let shop = Shop::new();
    for_a_day_with_a_minute_left();
    shop.write(ROWS);
    let service = shop.start();
    assert_eq!(allowed(&service, "acme"), 5, "the plan gold");
    assert_eq!(allowed(&service, "beta"), 3, "its own number");
    assert_eq!(allowed(&service, "shut"), 0, "blocked");
    assert_eq!(allowed(&service, "new"), 2, "the number of the rule");
    shop.write("id,plan,api\nacme,gold,7\nbeta,free,3\nshut,free,\n");
    wait_for(&service, "the new rows", |state| {
        state["digest"] != Value::Null && allowed(&service, "shut") == 1
    });
    // `fixed_window` counted the denied hit of acme.
    assert_eq!(allowed(&service, "acme"), 1);
    let metrics = http1::get(service.metrics, "/metrics", &[]).unwrap().text().clone();
    assert!(metrics.contains("sluicegate_table_rows{table=\"customers\"} 3"), "{metrics}");
    assert!(metrics.contains("sluicegate_table_unknown_ids_total 3"), "{metrics}");
}

#[test]
fn an_operator_sets_the_amount_of_a_row_for_a_while() {
    let shop = Shop::new();
    shop.write(ROWS);
    let service = shop.start();
    for_a_day_with_a_minute_left();
    let reason = ["--reason", "ticket 7"];
    let set = |arguments: &[&str]| table(&service, &[arguments, &reason].concat());
    let done = said(&set(&["set", "customers", "shut", "api=2", "--for", "1h"]));
    assert_eq!(done, "customers shut: api is 2 for 1h\n");
    let row = said(&table(&service, &["get", "customers", "shut"]));
    assert!(row.contains(r#""api":"blocked""#) && row.contains(r#""set":{"api":"2"}"#), "{row}");
    assert_eq!(allowed(&service, "shut"), 2);
    said(&set(&["set", "customers", "new", "api=unlimited", "--for", "1h"]));
    assert_eq!(allowed(&service, "new"), 20);
    said(&set(&["unset", "customers", "new", "api"]));
    assert_eq!(allowed(&service, "new"), 2);
    for (arguments, problem) in [
        (&["set", "customers", "a", "api=many", "--for", "1h"][..], "`amount`: `many` is not"),
        (&["set", "customers", "a", "ap=1", "--for", "1h"], "no limit reads `customers.ap`"),
        (&["set", "shops", "a", "api=1", "--for", "1h"], "no limit reads `shops.api`"),
        (&["set", "customers", "a", "api=1", "--for", "2d"], "1s to 24h"),
        (&["set", "customers", &"a".repeat(257), "api=1", "--for", "1h"], "longer than 256 bytes"),
        (&["unset", "customers", "a", "api"], "no action of this kind"),
    ] {
        let output = set(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(problem), "{arguments:?}: {text}");
    }
    let boost = sluicegate()
        .args(["ask", "--domain", "shop", "--descriptor", "customer=acme", "--boost", "x2"])
        .args([
            "--for",
            "1h",
            "--reason",
            "ticket",
            "--server",
            &format!("http://{}", service.admin),
        ])
        .env("SLUICEGATE_ADMIN_TOKEN", TOKEN)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&boost.stderr).into_owned();
    assert!(text.contains("sluicegate table set"), "{text}");
}

#[test]
fn tables_and_rows_are_listed() {
    let shop = Shop::new();
    shop.write(&format!("{ROWS}bad,free,-1\n"));
    let service = shop.start();
    let listed = said(&table(&service, &["list"]));
    assert!(listed.starts_with("customers: 3 rows, confirmed "), "{listed}");
    assert!(listed.contains("1 bad rows") && listed.contains("bad: `api`: `-1`"), "{listed}");
    let rows = said(&table(&service, &["list", "customers", "--plan", "free", "--rows", "1"]));
    assert_eq!(rows, "{\"api\":3,\"id\":\"beta\",\"plan\":\"free\"}\n… and 1 more rows\n");
    let row = said(&table(&service, &["get", "customers", "acme"]));
    assert_eq!(row, "{\"id\":\"acme\",\"plan\":\"gold\"}\n");
    assert_eq!(table(&service, &["get", "customers", "zeta"]).status.code(), Some(1));
    let url = "/explain?domain=shop&descriptor=customer=acme";
    let token = format!("Bearer {TOKEN}");
    let reply = http1::get(service.admin, url, &[("authorization", &token)]).unwrap();
    let text = reply.text().clone();
    assert!(text.contains("table `customers`, row `acme` with plan `gold`: `api` is 5"), "{text}");
    assert!(text.contains("5 per day"), "{text}");
}

#[test]
fn a_replica_without_rows_or_a_copy_is_not_ready() {
    let shop = Shop::new();
    shop.write(ROWS);
    let mut service = shop.start();
    until("the copy", || if shop.copy().exists() { Ok(()) } else { Err("none".to_owned()) })
        .unwrap();
    service.kill();
    fs::remove_file(&shop.file).unwrap();
    let mut restarted = shop.start();
    assert_eq!(allowed(&restarted, "acme"), 5);
    assert_eq!(state(&restarted)["from_copy"], true);
    restarted.kill();
    fs::remove_file(shop.copy()).unwrap();
    let waiting = std::thread::spawn({
        let (limits, flags) = (shop.limits(), shop.flags());
        move || Service::start_under(&limits, &flags, &[("SLUICEGATE_ADMIN_TOKEN", TOKEN)])
    });
    // The process becomes ready only once the file is there.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    shop.write(ROWS);
    assert_eq!(allowed(&waiting.join().unwrap().unwrap(), "acme"), 5);
}

/// The process is killed while it reads files and writes its copy. Each copy is whole.
#[test]
fn a_killed_replica_starts_again_with_whole_rows() {
    const ROWS: u32 = 2_000;
    let shop = Shop::new();
    let version = |number: u32| {
        let rows = (0..ROWS).map(|id| format!("c{id},free,{}\n", number * ROWS + id));
        format!("id,plan,api\n{}", rows.collect::<String>())
    };
    shop.write(&version(1));
    let first = shop.start();
    until("the copy", || if shop.copy().exists() { Ok(()) } else { Err("none".to_owned()) })
        .unwrap();
    drop(first);
    let mut dice = Dice::new(seed());
    for number in 2..8 {
        let mut service = shop.start();
        shop.write(&version(number));
        // Any moment around the next read.
        std::thread::sleep(Duration::from_millis(dice.up_to(300)));
        service.kill();
        fs::remove_file(&shop.file).unwrap();
        let mut restarted = shop.start();
        let shown = state(&restarted);
        assert_eq!((&shown["rows"], &shown["from_copy"]), (&json!(ROWS), &json!(true)), "{shown}");
        let amount = |id: &str| {
            let row = said(&table(&restarted, &["get", "customers", id]));
            serde_json::from_str::<Value>(&row).unwrap()["api"].as_u64().unwrap()
        };
        let (first, last) = (amount("c0"), amount(&format!("c{}", ROWS - 1)));
        assert_eq!(first + u64::from(ROWS) - 1, last, "rows of two versions");
        restarted.kill();
        shop.write(&version(number));
    }
}

#[test]
fn a_limit_that_reads_an_unknown_table_is_refused_with_its_line() {
    let shop = Shop::new();
    shop.write(ROWS);
    fs::write(shop.limits().join("shop.yaml"), LIMITS.replace("customers.api", "custmers.api"))
        .unwrap();
    let error = shop.start_with(&[]).map(drop).unwrap_err();
    assert!(error.contains("shop.yaml:3") && error.contains("no `custmers`"), "{error}");
    fs::write(shop.limits().join("shop.yaml"), LIMITS.replace("customers.api", "customers"))
        .unwrap();
    let error = shop.start_with(&[]).map(drop).unwrap_err();
    assert!(error.contains("E40") && error.contains("from: customers.api"), "{error}");
}

#[test]
fn a_column_that_no_row_has_is_a_warning() {
    let shop = Shop::new();
    shop.write(ROWS);
    let limits = LIMITS.replace("customers.api", "customers.apj");
    fs::write(shop.limits().join("shop.yaml"), limits).unwrap();
    let log = shop.start().log();
    let lines = log.lines().filter(|line| line.contains("no plan and no row has this column"));
    let lines: Vec<_> = lines.collect();
    assert!(
        lines.len() == 1 && lines[0].contains("apj") && lines[0].contains("shop.yaml:3"),
        "{log}"
    );
}

/// A budget of money, whose prices are in the table `customers`.
const MONEY: &str = "domain: d
colocate: org
usage: {prices: customers}
descriptors:
- {key: org, budget: {amount: 500 usd, unit: day}}
- {key: c, rate_limit: {unit: day, requests_per_unit: 5}}
";

#[test]
fn prices_of_an_unknown_table_are_refused_with_their_line() {
    let shop = Shop::new();
    shop.write(ROWS);
    let limits = MONEY.replace("customers", "models");
    fs::write(shop.limits().join("shop.yaml"), limits).unwrap();
    let error = shop.start_with(&[]).map(drop).unwrap_err();
    assert!(error.contains("shop.yaml:5") && error.contains("E40"), "{error}");
    assert!(error.contains("`prices: models`: the setting `tables` has no `models`"), "{error}");
}

/// A concurrency limit whose weights are in the table `customers`.
const WEIGHTS: &str = "domain: d
descriptors:
- key: c
  concurrency:
    {limit: 5, mode: local, queue: {size: 9, timeout: 1s}, fair: {by: c, weight: customers.heavy}}
";

#[test]
fn errors_and_warnings_about_weights_name_their_effect() {
    let shop = Shop::new();
    shop.write(ROWS);
    fs::write(shop.limits().join("shop.yaml"), WEIGHTS.replace("customers", "clients")).unwrap();
    let error = shop.start_with(&[]).map(drop).unwrap_err();
    let expected = "`weight: clients.heavy`: the setting `tables` has no `clients`";
    assert!(error.contains(expected), "{error}");
    fs::write(shop.limits().join("shop.yaml"), WEIGHTS).unwrap();
    let log = shop.start_with(&[]).unwrap().log();
    let expected = "no plan and no row has this column, so all customers are one";
    assert!(log.contains(expected), "{log}");
}

#[test]
fn missing_columns_of_prices_are_warnings() {
    let shop = Shop::new();
    shop.write("id,input\nlarge,2500\n");
    fs::write(shop.limits().join("shop.yaml"), MONEY).unwrap();
    let log = shop.start().log();
    let lines = log.lines().filter(|line| line.contains("so no model has a price"));
    let lines: Vec<_> = lines.collect();
    let is_right = |line: &str| line.contains("output") && line.contains("shop.yaml:5");
    assert!(lines.len() == 1 && is_right(lines[0]), "{log}");
}

#[test]
fn invalid_settings_of_a_table_are_named() {
    let limits = Path::new("config/limits");
    for (tables, problem) in [
        (r#"[{"name": "a b", "source": "file:///x.csv"}]"#, "`a b` is not a name"),
        (r#"[{"name": "a", "source": "ftp://x"}]"#, "`source` must be a URL"),
        (
            r#"[{"name": "a", "source": "file:///x.csv", "token_file": "/t"}]"#,
            "`token_file` has no effect on a file",
        ),
        (
            r#"[{"name": "a", "source": "https://h/x", "rows": "SELECT 1"}]"#,
            "`rows` has no effect on HTTP",
        ),
        (r#"[{"name": "a", "source": "https://u:p@h/x"}]"#, "`source` must be a URL"),
        (r#"[{"name": "a", "source": "redis://h"}]"#, "`rows` is missing: the key of the hash"),
        (
            r#"[{"name": "a", "source": "redis://u:p@h", "rows": "k", "password_file": "/p"}]"#,
            "both `source` and `password_file`",
        ),
        (r#"[{"name": "a", "source": "file:///x.csv", "refresh": "1ms"}]"#, "`refresh` must be"),
        (
            r#"[{"name": "a", "source": "file:///x.csv", "max_shrink": "10"}]"#,
            "`max_shrink` must be",
        ),
        (
            r#"[{"name": "a", "source": "file:///x.csv", "plans": {"p": {"api": "x"}}}]"#,
            "`plans.p.api`: `x`",
        ),
        (
            r#"[{"name": "a", "source": "file:///x.csv", "plans": {"p": {"id": 1}}}]"#,
            "`id` is a field",
        ),
        (
            r#"[{"name": "a", "source": "file:///x.csv", "copy": "/c"},
                {"name": "b", "source": "file:///x.csv", "copy": "/c"}]"#,
            "has the `copy` of another table",
        ),
        (
            r#"[{"name": "a", "source": "file:///x.csv", "copy": "/x.csv"}]"#,
            "`copy` is the file of a `source`",
        ),
        (
            r#"[{"name": "a", "source": "postgres://u@h/d", "rows": "delete from x"}]"#,
            "must begin with SELECT or WITH",
        ),
        (r#"[{"name": "a", "source": "file:///x.csv", "row": 1}]"#, "unknown field `row`"),
    ] {
        let flags = ["--tables".to_owned(), tables.to_owned()];
        let error = Service::start(limits, &flags).map(drop).unwrap_err();
        assert!(error.contains(problem), "{tables}: {error}");
    }
}
