//! Drives the console's page of concurrency limits with classes and customers.

use serde_json::{Value, json};

use super::{MARKUP, save_screenshots, show, sign_in};
use crate::support::browser::Browser;
use crate::support::service::{Service, sluicegate};

const LIMITS: &str = "domain: shop
descriptors:
- key: upstream
  concurrency:
    limit: 4
    max_duration: 1h
    classes: {by: tier, up_to: {critical: 100%, batch: 50%}}
    queue: {size: 9, timeout: 1h}
    fair: {by: customer}
";

/// Acquires a permit. Returns `true` if it was allowed.
fn acquire(service: &Service, customer: &str, tier: &str, number: u32) -> bool {
    let upstream = format!("upstream=gpu,sluicegate.acquire=request-{number:020}");
    let mut ask = sluicegate();
    ask.args(["ask", "--address", &service.grpc.to_string(), "--domain", "shop"]);
    for descriptor in [&upstream, &format!("customer={customer}"), &format!("tier={tier}")] {
        ask.args(["--descriptor", descriptor]);
    }
    match ask.output().unwrap() {
        output if output.status.code() == Some(0) => true,
        output if output.status.code() == Some(1) => false,
        output => panic!("{output:?}"),
    }
}

fn cells(browser: &Browser, table: &str) -> Value {
    browser.run(&format!(
        "return [...document.querySelectorAll('[data-test={table}] tbody tr')].map(row => \
         [...row.children].map(cell => cell.innerText))"
    ))
}

#[test]
fn an_operator_sees_who_uses_a_concurrency_limit() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("tokens")).unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    std::fs::write(dir.path().join("tokens/view.grafana"), "grafana-secret-token").unwrap();
    let tokens = dir.path().join("tokens").display().to_string();
    let flags = ["--store-url", "memory", "--admin-token-dir", &tokens].map(str::to_owned);
    let service = Service::start(&dir.path().join("shop.yaml"), &flags).unwrap();
    let requests =
        [("acme", "critical"), ("acme", "batch"), (MARKUP, "critical"), ("acme", "critical")];
    for (number, (customer, tier)) in (0..).zip(requests) {
        assert!(acquire(&service, customer, tier, number), "{}", service.log());
    }
    let browser = Browser::start();
    browser.resize(1280, 900);
    sign_in(&browser, &service, "grafana-secret-token");
    browser.errors();
    show(&browser, "#/concurrency");
    browser.wait_for_text(MARKUP);
    let classes = json!([["critical", "4", "3", "0", "0"], ["batch", "2", "1", "0", "0"]]);
    assert_eq!(cells(&browser, "classes"), classes);
    let customers = json!([["acme", "1", "3", "0"], [MARKUP, "1", "1", "0"]]);
    assert_eq!(cells(&browser, "customers"), customers);
    save_screenshots(&browser, &[("requesters", "#/concurrency", "acme")]);
    let top = |more: &[&str]| {
        let mut command = sluicegate();
        command.args(["top", "--server", &format!("http://{}", service.admin), "--by", "class"]);
        let ended =
            command.args(more).env("SLUICEGATE_ADMIN_TOKEN", "grafana-secret-token").output();
        let ended = ended.unwrap();
        let [out, err] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        (ended.status.code(), out + &err)
    };
    let table = "\
this replica: rejected since its start; the rest of the busiest bucket now
  REJECTED   WAITING IN FLIGHT   PART  LIMIT          CLASS
         0         0         3      4  shop.upstream  critical
         0         0         1      2  shop.upstream  batch
";
    assert_eq!(top(&[]), (Some(0), table.to_owned()));
    let none = "no limit with classes and this --rule is in use at this replica\n";
    assert_eq!(top(&["--rule", "shop.other"]), (Some(0), none.to_owned()));
    let (code, error) = top(&["--window", "hour"]);
    assert!(code == Some(2) && error.contains("--window works only with --by key"), "{error}");
    assert_eq!(browser.run("return window.injected ?? 0"), 0);
    assert_eq!(browser.errors(), [""; 0]);
}
