//! Drives the console's page of tables in a real browser.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{MARKUP, save_screenshots, show, sign_in};
use crate::support::browser::Browser;
use crate::support::service::Service;

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: customer\n  \
     rate_limit: {unit: minute, requests_per_unit: 60, from: customers.api}\n";

const TABLE: &str = "#/tables?table=customers";

/// A right-to-left override, which would reverse the text after it, and other control characters.
const CONTROLS: &str = "a\u{202e}live\tb\u{1b}[31m\u{200b}";

struct Shop {
    dir: TempDir,
    service: Service,
}

impl Shop {
    fn start(rows: &[Value]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("limits/shop.yaml", LIMITS);
        write("tokens/operate.alice", "alice-secret-token");
        write("tokens/view.grafana", "grafana-secret-token");
        let lines: Vec<_> = rows.iter().map(Value::to_string).collect();
        write("customers.jsonl", &(lines.join("\n") + "\n"));
        let tables = json!([{
            "name": "customers",
            "source": format!("file://{}", dir.path().join("customers.jsonl").display()),
            "refresh": "100ms",
            "plans": {"free": {"api": 60}, "gold": {"api": 5000}, MARKUP: {"api": 7}},
        }]);
        let tokens = dir.path().join("tokens").display().to_string();
        let flags = ["--store-url", "memory", "--admin-token-dir", &tokens, "--tables"];
        let flags: Vec<_> =
            flags.into_iter().map(str::to_owned).chain([tables.to_string()]).collect();
        let service = Service::start(&dir.path().join("limits"), &flags).unwrap();
        Self { dir, service }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("customers.jsonl")
    }

    fn browser(&self, token: &str) -> Browser {
        let browser = Browser::start();
        browser.resize(1280, 900);
        sign_in(&browser, &self.service, token);
        // The sign-in page asked without a token.
        browser.errors();
        browser
    }
}

fn customers() -> Vec<Value> {
    vec![
        json!({"id": "acme", "plan": "gold", "api": 9000, "until": "2100-01-01T00:00:00Z"}),
        json!({"id": "beta", "plan": "gold"}),
        json!({"id": "old", "plan": "free", "api": 8, "until": "2001-01-01T00:00:00Z"}),
        json!({"id": "plain"}),
        json!({"id": "worse", "plan": "silver"}),
    ]
}

fn is_wider_than_the_window(browser: &Browser) -> Value {
    browser.run("return innerWidth < document.documentElement.scrollWidth")
}

#[test]
fn an_operator_finds_an_id_and_sets_its_amount() {
    let shop = Shop::start(&customers());
    let browser = shop.browser("alice-secret-token");
    show(&browser, "#/tables");
    browser.wait_for_text("4 rows.");
    browser.wait_for_text("1 bad row");
    browser.wait_for_text("the table has no plan `silver`");
    save_screenshots(&browser, &[("table", TABLE, "acme")]);
    browser.type_into("#table-id", " acme ");
    browser.click("[data-test=table-form] button");
    browser.wait_for_text("from its row");
    browser.wait_for_text("2100-01-01");
    browser.wait_for_text("shop.yaml:3");
    browser.click("[data-test=action-set]");
    browser.type_into("[data-test=act-amount]", "100");
    browser.type_into("[data-test=act-duration]", "2d");
    browser.type_into("[data-test=act-reason]", "ticket 7");
    browser.wait_for_text("The amount api of acme in customers is 100 for 2 days");
    browser.click("[data-test=act-confirm]");
    browser.wait_for_text("`for` must be 1s to 24h.");
    assert_eq!(browser.errors().len(), 1, "the refused change");
    browser.type_into("[data-test=act-duration]", "1h");
    browser.click("[data-test=act-confirm]");
    browser.wait_for_text("The amount api of acme in customers is 100 until");
    browser.wait_for_text("set by alice until");
    save_screenshots(&browser, &[("row", &format!("{TABLE}&id=acme"), "acme")]);
    show(&browser, "#/overview");
    browser.wait_for_text("Set to 100");
    show(&browser, "#/audit");
    browser.wait_for_text("customers acme: api");
    browser.click("[data-test=audit] td a");
    browser.click("[data-test=action-unset]");
    browser.type_into("[data-test=act-reason]", "done");
    browser.click("[data-test=act-confirm]");
    browser.wait_for_text("The amount api of acme in customers is that of the table again");
    browser.wait_for_text("from its row");
    assert_eq!(browser.errors(), [""; 0]);
}

#[test]
fn each_id_without_an_own_amount_says_what_applies() {
    let shop = Shop::start(&customers());
    let browser = shop.browser("grafana-secret-token");
    for (id, texts) in [
        ("beta", ["5,000", "from its plan"]),
        ("old", ["60", "(ended)"]),
        ("plain", ["Neither the row nor its plan has an amount", "the rule's own number"]),
        ("nobody", ["The table has no row with this id", "the rule's own number"]),
    ] {
        show(&browser, &format!("{TABLE}&id={id}"));
        for text in texts {
            browser.wait_for_text(text);
        }
        browser.wait_for_text("the token `grafana` has the role view");
        assert_eq!(
            browser.run("return document.querySelector('[data-test=action-set]').disabled"),
            true
        );
    }
    assert_eq!(browser.errors(), [""; 0]);
    show(&browser, &format!("{TABLE}&plan=gold"));
    browser.wait_for_text("2 rows with the plan gold.");
    show(&browser, "#/tables?table=nothing");
    browser.wait_for_text("There is no table `nothing`.");
}

#[test]
fn hostile_ids_and_plans_are_shown_as_text() {
    let long = "x".repeat(256);
    let ids = [MARKUP, CONTROLS, &long, "a,b=\\c%&#?", "\u{5e9}\u{5dc}\u{5d5}\u{5dd}"];
    let rows = ids.map(|id| json!({"id": id, "plan": MARKUP, "api": 5}));
    let shop = Shop::start(&rows);
    let browser = shop.browser("alice-secret-token");
    let is_plain = |place: &str| {
        let page = browser.text();
        let is_raw = |character| "\u{202e}\u{1b}\u{200b}".contains(character);
        assert!(!page.contains(is_raw), "{place}: {page}");
        assert_eq!(browser.run("return window.injected === undefined"), true, "{place}");
        let elements = "return document.querySelectorAll('main img, dialog img').length";
        assert_eq!(browser.run(elements), 0, "{place}");
    };
    browser.resize(400, 860);
    show(&browser, TABLE);
    browser.wait_for_text("a\\u{202e}live\\u{9}b\\u{1b}[31m\\u{200b}");
    browser.wait_for_text(MARKUP);
    is_plain("the rows");
    assert_eq!(is_wider_than_the_window(&browser), false);
    for id in ids {
        show(&browser, TABLE);
        browser.wait_for_text("5 rows.");
        let link = "return [...document.querySelectorAll('[data-test=table-rows] a')].find(link => \
                    new URLSearchParams(link.hash.split('?')[1]).get('id') === ";
        let opened = browser.run(&format!("{link}{})?.click() === undefined", Value::from(id)));
        assert_eq!(opened, true, "{id}");
        browser.wait_for_text("from its row");
        assert_eq!(is_wider_than_the_window(&browser), false, "{id}");
        browser.click("[data-test=action-set]");
        browser.type_into("[data-test=act-amount]", "blocked");
        browser.type_into("[data-test=act-reason]", MARKUP);
        browser.wait_for_text("is blocked for 1 hour");
        is_plain("the dialog");
        browser.click("[data-test=act-confirm]");
        browser.wait_for_text("is blocked until");
        browser.wait_for_text("set by alice until");
        is_plain("the page after the change");
    }
    show(&browser, "#/audit");
    browser.wait_for_text("customers a,b=\\c%&#?: api");
    is_plain("the audit log");
    assert_eq!(browser.errors(), [""; 0]);
}

#[test]
fn the_page_shows_the_last_error_of_the_source() {
    let shop = Shop::start(&customers());
    let browser = shop.browser("alice-secret-token");
    show(&browser, TABLE);
    browser.wait_for_text("4 rows.");
    fs::remove_file(shop.file()).unwrap();
    browser.wait_for_text("the source fails");
    browser.wait_for_text("No such file or directory");
    browser.wait_for_text("The rows before stay.");
}

#[test]
fn the_page_tables_shows_how_to_configure_one() {
    let (limits, tokens) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(limits.path().join("shop.yaml"), "domain: shop\ndescriptors: []\n").unwrap();
    fs::write(tokens.path().join("view.grafana"), "grafana-secret-token").unwrap();
    let flags = ["--store-url", "memory", "--admin-token-dir", tokens.path().to_str().unwrap()];
    let service = Service::start(limits.path(), &flags.map(str::to_owned)).unwrap();
    let browser = Browser::start();
    sign_in(&browser, &service, "grafana-secret-token");
    browser.click("nav a[data-page=tables]");
    browser.wait_for_text("No table is configured.");
    browser.wait_for_text("source: file:///etc/sluicegate/customers.csv");
    browser.wait_for_text("docs/guides/limit-each-customer.md");
}
