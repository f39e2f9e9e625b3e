//! Drives the console's page of budgets in a real browser.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MARKUP, save_screenshots, show, sign_in};
use crate::support::browser::Browser;
use crate::support::http1;
use crate::support::service::Service;

const LIMITS: &str = "domain: llm\nusage: {prices: models}\ndescriptors:\n- key: org\n  \
     budget: {amount: 1k tokens, unit: year}\n- key: customer\n  budget: {prepaid: true, of: usd}\n";

/// A token costs 0.002 usd.
const PRICES: &str = "id,input,output\n*,1000000,2000000\n";

struct Gateway {
    _dir: TempDir,
    service: Service,
}

impl Gateway {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("limits/llm.yaml", LIMITS);
        write("models.csv", PRICES);
        write("tokens/operate.alice", "alice-secret-token");
        write("tokens/view.grafana", "grafana-secret-token");
        let source = format!("file://{}", dir.path().join("models.csv").display());
        let tables = json!([{"name": "models", "source": source}]).to_string();
        let tokens = dir.path().join("tokens").display().to_string();
        let flags = ["--store-url", "memory", "--admin-token-dir", &tokens, "--tables", &tables];
        let service =
            Service::start(&dir.path().join("limits"), &flags.map(str::to_owned)).unwrap();
        Self { _dir: dir, service }
    }

    fn browser(&self, token: &str) -> Browser {
        let browser = Browser::start();
        browser.resize(1280, 900);
        sign_in(&browser, &self.service, token);
        // The sign-in page asked without a token.
        browser.errors();
        browser
    }

    /// Charges hits. With the entry `reserve`, it holds them.
    fn charge(&self, entries: &[(&str, &str)], hits: u32) -> u16 {
        let entry = |(key, value): &(&str, &str)| json!({"key": key, "value": value});
        let entries: Vec<_> = entries.iter().map(entry).collect();
        let descriptors = json!([{"entries": entries, "hitsAddend": hits.to_string()}]);
        let body = json!({"domain": "llm", "descriptors": descriptors}).to_string();
        let reply = http1::call(self.service.http, "POST", "/json", &[], Some(body.as_bytes()));
        reply.unwrap().status
    }

    fn charge_some(&self) {
        assert_eq!(self.charge(&[("org", "acme")], 300), 200);
        let reserve = ("sluicegate.reserve", "0123456789abcdef");
        assert_eq!(self.charge(&[("org", "acme"), reserve], 250), 200);
        assert_eq!(self.charge(&[("org", "big")], 900), 200);
        assert_eq!(self.charge(&[("org", "spent")], 1_100), 200);
        assert_eq!(self.charge(&[("org", "small")], 20), 200);
        assert_eq!(self.charge(&[("customer", "acme")], 0), 429, "nothing is paid");
    }
}

/// Returns the cells of a column, from top to bottom.
fn column(browser: &Browser, number: usize) -> Value {
    browser.run(&format!(
        "return [...document.querySelectorAll('[data-test=budgets] tbody tr')].map(row => \
         row.children[{number}].innerText.split('\\n')[0])"
    ))
}

#[test]
fn an_operator_finds_a_budget_and_tops_it_up() {
    let gateway = Gateway::start();
    let browser = gateway.browser("alice-secret-token");
    browser.click("nav a[data-page=budgets]");
    browser.wait_for_text("No request of this replica met a budget since its start.");
    browser.wait_for_text("docs/guides/budgets-for-llm-gateways.md");
    gateway.charge_some();
    show(&browser, "#/overview");
    show(&browser, "#/budgets");
    browser.wait_for_text("5 budgets that requests of this replica met");
    let names = ["org=spent", "org=big", "org=acme", "org=small", "customer=acme"];
    assert_eq!(column(&browser, 0), json!(names));
    let used = ["110 %", "90 %", "55 %", "2 %", "–"];
    assert_eq!(column(&browser, 4), json!(used));
    let acme =
        "document.querySelectorAll('[data-test=budgets] tbody tr')[2].querySelectorAll('progress')";
    let bars = browser.run(&format!("return [...{acme}].map(bar => bar.value)"));
    assert_eq!(bars, json!([0.55, 0.3]), "used, and settled");
    browser.wait_for_text("250 tokens by 1 request");
    browser.wait_for_text("not in this period");
    let buttons = "return document.querySelectorAll('[data-test=budgets] button').length";
    assert_eq!(browser.run(buttons), 1, "only a prepaid budget can be topped up");
    save_screenshots(&browser, &[("budgets", "#/budgets", "acme")]);
    browser.type_into("[data-test=budgets-filter]", "CUSTOMER");
    assert_eq!(column(&browser, 0), json!(["customer=acme"]));
    browser.click("[data-test=action-top_up]");
    browser.type_into("[data-test=act-amount]", "20 usd");
    browser.type_into("[data-test=act-reason]", "invoice 7");
    browser.wait_for_text("The amount of customer=acme in llm grows by 20 usd.");
    let id = browser.run("return document.querySelector('[data-test=act-id]').value");
    browser.click("[data-test=act-confirm]");
    browser.wait_for_text("20 usd added to customer=acme in llm, by alice.");
    browser.wait_for("the amount", "return document.body.innerText.includes('0 %')");
    assert_eq!(gateway.charge(&[("customer", "acme")], 5_000), 200);
    browser.click("[data-test=budgets] th a");
    browser.wait_for_text("10 usd");
    browser.wait_for_text("50 %");
    browser.click("[data-test=action-top_up]");
    let take = format!("document.querySelector('[data-test=act-id]').value = {id}; return null");
    browser.run(&take);
    browser.type_into("[data-test=act-amount]", "20 usd");
    browser.type_into("[data-test=act-reason]", "invoice 7");
    browser.click("[data-test=act-confirm]");
    browser.wait_for_text("was made before, so nothing changed, by alice.");
    show(&browser, "#/audit");
    browser.wait_for_text("invoice 7");
    assert_eq!(browser.errors(), [""; 0]);
}

#[test]
fn a_viewer_reads_a_budget_by_its_name() {
    let gateway = Gateway::start();
    gateway.charge_some();
    assert_eq!(gateway.charge(&[("org", MARKUP)], 10), 200);
    let browser = gateway.browser("grafana-secret-token");
    show(&browser, "#/budgets");
    browser.wait_for_text(MARKUP);
    browser.wait_for_text("the token `grafana` has the role view");
    assert_eq!(browser.run("return window.injected === undefined"), true, "markup ran");
    let is_disabled = "return document.querySelector('[data-test=action-top_up]').disabled";
    assert_eq!(browser.run(is_disabled), true);
    browser.resize(400, 860);
    let is_wider = "return innerWidth < document.documentElement.scrollWidth";
    assert_eq!(browser.run(is_wider), false);
    browser.type_into("[data-test=budget-descriptor]", "customer=other");
    browser.click("[data-test=budget-form] button");
    browser.wait_for_text("0 usd");
    assert_eq!(browser.errors(), [""; 0]);
    show(&browser, "#/budgets?descriptor=team%3Da");
    browser.wait_for_text("No budget matches");
}
