//! Drives the console's page of bans in a real browser.

use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::{MARKUP, show, sign_in};
use crate::support::browser::Browser;
use crate::support::http1;
use crate::support::service::Service;

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
     rate_limit: {unit: day, requests_per_unit: 0, penalty: {after: 1, within: 1m, for: 1d}}\n";

struct Shop {
    _dir: TempDir,
    service: Service,
}

impl Shop {
    fn start(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("limits/shop.yaml", LIMITS);
        write("tokens/operate.alice", "alice-secret-token");
        write("tokens/view.grafana", "grafana-secret-token");
        let tokens = dir.path().join("tokens").display().to_string();
        let own = ["--store-url", "memory", "--admin-token-dir", &tokens];
        let flags: Vec<_> = own.iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        let service = Service::start(&dir.path().join("limits"), &flags).unwrap();
        Self { _dir: dir, service }
    }

    fn ban(&self, value: &str) {
        let entries = json!([{"key": "api_key", "value": value}]);
        let body = json!({"domain": "shop", "descriptors": [{"entries": entries}]}).to_string();
        let reply = http1::call(self.service.http, "POST", "/json", &[], Some(body.as_bytes()));
        assert_eq!(reply.unwrap().status, 429);
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

#[test]
fn an_operator_finds_a_ban_and_lifts_it() {
    let shop = Shop::start(&[]);
    let browser = shop.browser("alice-secret-token");
    browser.click("nav a[data-page=bans]");
    browser.wait_for_text("No key is banned. A limit with a penalty, in a limits file:");
    shop.ban("partner");
    shop.ban(MARKUP);
    show(&browser, "#/overview");
    show(&browser, "#/bans");
    browser.wait_for_text("2 banned keys.");
    browser.wait_for_text(&format!("api_key={MARKUP}"));
    browser.wait_for_text("shop.api_key");
    browser.click("[data-test=bans] tr:last-child [data-test=action-lift]");
    browser.type_into("[data-test=act-reason]", "ticket 7");
    browser.wait_for_text("is not banned any more, in all replicas.");
    browser.click("[data-test=act-confirm]");
    browser.wait_for_text("is lifted, by alice.");
    browser.wait_for_text("1 banned key.");
    assert_eq!(browser.run("return window.injected ?? null"), json!(null));
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_viewer_cannot_lift_and_hidden_values_stay_hidden() {
    let shop = Shop::start(&["--telemetry-descriptor-values", "hidden"]);
    shop.ban("partner");
    let browser = shop.browser("grafana-secret-token");
    show(&browser, "#/bans");
    browser.wait_for_text("1 banned key. Values are not shown");
    browser.wait_for_text("api_key=*");
    browser.wait_for_text("The buttons are disabled");
    let buttons = "return document.querySelectorAll('[data-test=action-lift]').length";
    assert_eq!(browser.run(buttons), json!(0));
}
