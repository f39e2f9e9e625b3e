//! A real process with budgets, and the command `sluicegate budget`.

use std::fs;
use std::process::Output;

use crate::support::http1;
use crate::support::service::{Service, TOKEN, sluicegate};
use crate::support::waiting::for_a_day_with_a_minute_left;

const LIMITS: &str = "
domain: llm
usage: {prices: models}
descriptors:
- key: org
  budget: {amount: 1k tokens, unit: day}
- key: customer
  budget: {prepaid: true, of: usd}
";

const PRICES: &str = "id,input,output\n*,1000000,2000000\n";

const TOP_UP: [&str; 6] =
    ["--amount", "20 usd", "--id", "invoice-2026-11-0001", "--reason", "paid"];

fn start(dir: &tempfile::TempDir) -> Service {
    let (limits, prices) = (dir.path().join("limits"), dir.path().join("models.csv"));
    fs::create_dir(&limits).unwrap();
    fs::write(limits.join("llm.yaml"), LIMITS).unwrap();
    fs::write(&prices, PRICES).unwrap();
    let tables = format!("[{{\"name\": \"models\", \"source\": \"file://{}\"}}]", prices.display());
    let flags = ["--tables", &tables, "--store-url", "memory"].map(str::to_owned);
    Service::start_under(&limits, &flags, &[("SLUICEGATE_ADMIN_TOKEN", TOKEN)]).unwrap()
}

fn budget(service: &Service, arguments: &[&str]) -> Output {
    let mut command = sluicegate();
    command.arg("budget").args(arguments).arg("--server").arg(format!("http://{}", service.admin));
    command.env("SLUICEGATE_ADMIN_TOKEN", TOKEN).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Charges hits, and returns the status.
fn charge(service: &Service, (key, value): (&str, &str), hits: u32) -> u16 {
    let body = format!(
        r#"{{"domain":"llm","descriptors":[{{"entries":[{{"key":"{key}","value":"{value}"}}],"hitsAddend":"{hits}"}}]}}"#
    );
    http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap().status
}

#[test]
fn budget_show_and_export_print_what_requests_cost() {
    for_a_day_with_a_minute_left();
    let dir = tempfile::tempdir().unwrap();
    let service = start(&dir);
    let unused = said(&budget(&service, &["show", "org=acme"]));
    assert!(unused.contains("  amount              1k tokens\n"), "{unused}");
    assert_eq!(charge(&service, ("org", "acme"), 400), 200);
    assert_eq!(charge(&service, ("org", "acme"), 700), 200);
    assert_eq!(charge(&service, ("org", "acme"), 1), 429);
    let shown = said(&budget(&service, &["show", "org=acme"]));
    assert!(shown.starts_with("llm_org_acme (llm.org)\n"), "{shown}");
    for line in ["settled             1101 tokens", "held                0 tokens by 0 requests"] {
        assert!(shown.contains(line), "{shown}");
    }
    let csv = said(&budget(&service, &["export", "org=acme", "--domain", "llm"]));
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines[0], "budget,path,unit,period_start,settled,requests,expired");
    assert!(lines[1].starts_with("llm_org_acme,llm.org,tokens,20"), "{csv}");
    assert!(lines[1].ends_with("T00:00:00Z,1101,3,0"), "{csv}");
    let json = said(&budget(&service, &["export", "org=acme", "--format", "json"]));
    let page: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(page["budgets"][0]["periods"][0]["settled_number"], 1101);
    let missing = refused(&budget(&service, &["show", "team=acme"]));
    assert!(missing.contains("no budget matches"), "{missing}");
}

#[test]
fn budgets_are_listed_and_exported_without_a_name() {
    for_a_day_with_a_minute_left();
    let dir = tempfile::tempdir().unwrap();
    let service = start(&dir);
    let none = said(&budget(&service, &["list"]));
    assert_eq!(none, "no request of this replica met a budget since its start\n");
    assert_eq!(charge(&service, ("org", "small"), 120), 200);
    assert_eq!(charge(&service, ("org", "acme"), 1_250), 200);
    assert_eq!(charge(&service, ("customer", "unpaid"), 1), 429);
    let list = said(&budget(&service, &["list", "--domain", "llm"]));
    let lines: Vec<_> = list.lines().map(|it| it.split("  ").filter(|it| !it.is_empty())).collect();
    let cells: Vec<Vec<_>> = lines.into_iter().map(|it| it.map(str::trim).collect()).collect();
    let head = ["DOMAIN", "BUDGET", "AMOUNT", "SETTLED", "HELD", "USED", "SPENT AT THIS RATE"];
    assert_eq!(cells[0], head);
    let unpaid = ["llm", "customer=unpaid", "0 usd", "0.002 usd", "0 usd", "-", "-"];
    assert_eq!(cells[1], unpaid, "a denied charge counts, so this budget is overdrawn");
    let spent = ["llm", "org=acme", "1k tokens", "1250 tokens", "0 tokens", "125%", "now"];
    assert_eq!(cells[2], spent);
    assert_eq!(cells[3][..6], ["llm", "org=small", "1k tokens", "120 tokens", "0 tokens", "12%"]);
    assert_eq!(said(&budget(&service, &["list", "--domain", "other"])), none);
    let csv = said(&budget(&service, &["export"]));
    let charged: Vec<_> = csv.lines().skip(1).map(|it| it.split(',').nth(4).unwrap()).collect();
    assert_eq!(charged, ["0.002000", "1250", "120"], "{csv}");
}

#[test]
fn json_checks_reserve_and_settle() {
    for_a_day_with_a_minute_left();
    let dir = tempfile::tempdir().unwrap();
    let service = start(&dir);
    let ask = |key: &str, hits: u32| {
        let entry = |key: &str, value: &str| format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        let entries = [entry("org", "acme"), entry(key, "0123456789abcdef")].join(",");
        let body = format!(
            r#"{{"domain":"llm","descriptors":[{{"entries":[{entries}],"hitsAddend":"{hits}"}}]}}"#
        );
        http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap().status
    };
    let shown = |line: &str| {
        let shown = said(&budget(&service, &["show", "org=acme"]));
        assert!(shown.contains(line), "{shown}");
    };
    assert_eq!(ask("sluicegate.reserve", 400), 200);
    shown("held                400 tokens by 1 request\n");
    let address = service.grpc.to_string();
    let peek = ["ask", "--domain", "llm", "--descriptor", "org=acme", "--peek", "--address"];
    let peek = said(&sluicegate().args(peek).arg(&address).output().unwrap());
    assert!(peek.contains("llm.org: 0 tokens of 1k tokens settled, 400 tokens held\n"), "{peek}");
    assert_eq!(ask("sluicegate.reserve", 400), 429, "an id is for one request");
    assert_eq!(ask("sluicegate.settle", 120), 200);
    shown("settled             120 tokens\n");
    shown("held                0 tokens by 0 requests\n");
}

#[test]
fn a_top_up_pays_for_requests_once() {
    let dir = tempfile::tempdir().unwrap();
    let service = start(&dir);
    let top_up = |more: &[&str]| budget(&service, &[&["top-up"], more, &TOP_UP].concat());
    assert_eq!(charge(&service, ("customer", "acme"), 0), 429, "nothing is paid");
    let added = said(&top_up(&["customer=acme"]));
    assert!(added.starts_with("added 20 usd\n"), "{added}");
    let again = said(&top_up(&["customer=acme"]));
    assert!(again.contains("was made before"), "{again}");
    assert!(again.contains("  amount              20 usd\n"), "{again}");
    let mut other = [&["top-up", "customer=acme"], &TOP_UP[..]].concat();
    other[3] = "30 usd";
    let other = refused(&budget(&service, &other));
    assert!(other.contains("was used for a top-up of 20 usd, so nothing changed"), "{other}");
    let both = refused(&top_up(&["customer=acme", "customer=big"]));
    assert!(both.contains("a top-up is for one `descriptor`"), "{both}");
    // 5,000 tokens at 0.002 usd.
    assert_eq!(charge(&service, ("customer", "acme"), 5_000), 200);
    let shown = said(&budget(&service, &["show", "customer=acme"]));
    for line in
        ["settled             10 usd", "free                10 usd", "new period          never"]
    {
        assert!(shown.contains(line), "{shown}");
    }
    let csv = said(&budget(&service, &["export", "customer=acme"]));
    assert!(csv.ends_with("\nllm_customer_acme,llm.customer,usd,,10.000000,1,0\n"), "{csv}");
    let tokens = refused(&top_up(&["org=acme"]));
    assert!(tokens.contains("no prepaid budget in `usd` matches"), "{tokens}");
    let wrong = ["top-up", "customer=acme", "--amount", "20", "--id", "x", "--reason", "r"];
    let wrong = refused(&budget(&service, &wrong));
    assert!(wrong.contains("an id is 16 to 128"), "{wrong}");
}
