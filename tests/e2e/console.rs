//! Drives the console in a real browser, against two replicas with Redis under load.

mod bans;
mod budgets;
mod requesters;
mod tables;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde_json::Value;

use crate::support::browser::{Browser, Theme};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{Ends, until};

/// Ten hits a second for each API key. Each check of one of them has [`HITS`].
const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
     rate_limit: {unit: second, requests_per_unit: 10, name: per-key}\n- key: upstream\n  \
     value: checkout\n  concurrency: {limit: 64, max_duration: 15s}\n- key: path\n  value: /checkout*\n  \
     rate_limit: {unit: minute, requests_per_unit: 100000, strategy: gcra, mode: leased, max_overshoot: 2%}\n";

/// Hits of a check that the limit always denies. With the boosted limit of 200, about ten such
/// checks a second are allowed.
const HITS: u64 = 12;

/// A value that a page must show as text.
const MARKUP: &str = "<img src=x onerror=window.injected=1>";

struct Fleet {
    _store: Redis,
    files: tempfile::TempDir,
    replicas: [Service; 2],
    /// Checks of the limited key that were allowed since the last denied one.
    allowed_in_turn: AtomicU64,
}

impl Fleet {
    fn start() -> Self {
        let (store, files) = (Redis::start(), tempfile::tempdir().unwrap());
        let write = |path: &str, text: &str| {
            let path = files.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("limits/shop.yaml", LIMITS);
        write("tokens/operate.alice", "alice-secret-token");
        write("tokens/view.grafana", "grafana-secret-token");
        let replicas = ["gate-1", "gate-2"].map(|name| {
            let tokens = files.path().join("tokens").display().to_string();
            let flags = ["--store-url", &store.url(), "--fleet-replica-name", name];
            let more = ["--admin-token-dir", &tokens, "--store-timeout", "9s"];
            let flags: Vec<_> = flags.iter().chain(&more).map(|flag| (*flag).to_owned()).collect();
            Service::start(&files.path().join("limits"), &flags).unwrap()
        });
        Self { _store: store, files, replicas, allowed_in_turn: AtomicU64::new(0) }
    }

    /// Sends checks to both replicas until `stop` is set.
    fn send_load(&self, stop: &AtomicBool) {
        for turn in 0_u64.. {
            if stop.load(Relaxed) {
                return;
            }
            let replica = &self.replicas[usize::from((turn + turn / 6) % 2 == 1)];
            match turn % 6 {
                0 => self.check_limited_key(replica),
                1 => {
                    check(replica, "api_key", MARKUP, 1);
                }
                _ => {
                    check(replica, "api_key", &format!("client-{}", turn % 7), 1);
                }
            }
            check(replica, "path", "/checkout/cart", 1);
            std::thread::sleep(std::time::Duration::from_millis(15));
        }
    }

    fn check_limited_key(&self, replica: &Service) {
        match check(replica, "api_key", "partner", HITS) {
            200 => self.allowed_in_turn.fetch_add(1, Relaxed),
            _ => self.allowed_in_turn.swap(0, Relaxed),
        };
    }

    /// Waits until both replicas apply the boost: so many checks in turn are then allowed.
    fn wait_for_allowed(&self, checks: u64) {
        until("the end of the denials", || match self.allowed_in_turn.load(Relaxed) {
            few if few < checks => Err(few.to_string()),
            _ => Ok(()),
        })
        .unwrap();
    }
}

fn check(replica: &Service, key: &str, value: &str, hits: u64) -> u16 {
    let body = serde_json::json!({
        "domain": "shop",
        "hits_addend": hits,
        "descriptors": [{"entries": [{"key": key, "value": value}]}],
    });
    let reply = http1::call(replica.http, "POST", "/json", &[], Some(body.to_string().as_bytes()));
    reply.unwrap().status
}

/// Returns the denied hits of the rule, over the fleet.
fn denied(replica: &Service) -> u64 {
    let headers = [("authorization", "Bearer grafana-secret-token")];
    let page = http1::get(replica.admin, "/rule?domain=shop&path=shop.api_key", &headers).unwrap();
    let page: Value = serde_json::from_str(&page.text()).unwrap();
    page["counts"]["deny"].as_u64().unwrap()
}

fn sign_in(browser: &Browser, replica: &Service, token: &str) {
    browser.open(&format!("http://{}/console", replica.admin));
    browser.type_into("#token", token);
    browser.click("#sign-in button[type=submit]");
    browser.wait_for("the overview", "return document.querySelector('canvas') !== null");
}

fn show(browser: &Browser, hash: &str) {
    browser.run(&format!("location.hash = {}; return null", Value::from(hash)));
}

/// The folder for screenshots, if the variable names one.
fn screenshot_folder() -> Option<PathBuf> {
    std::env::var_os("CONSOLE_SCREENSHOTS").map(PathBuf::from)
}

const KEY_PAGE: &str = "#/key?domain=shop&descriptor=api_key%3Dpartner";

/// Each page, with a text that it shows once it has data.
const PAGES: [(&str, &str, &str); 7] = [
    ("overview", "#/overview", "gate-2"),
    ("rules", "#/rules", "api_key"),
    ("rule", "#/rule?domain=shop&path=shop.api_key", "api_key=partner"),
    ("key", KEY_PAGE, "api_key=partner"),
    ("concurrency", "#/concurrency", "Concurrency"),
    ("configuration", "#/configuration", "shop.yaml"),
    ("audit", "#/audit", "big sale"),
];

/// Saves screenshots of pages in both themes, wide and narrow, if a folder for them is set. Each page has
/// a file name, a hash, and a text that it shows once it has data.
fn save_screenshots(browser: &Browser, pages: &[(&str, &str, &str)]) {
    let Some(folder) = screenshot_folder() else { return };
    for (theme, name) in [(Theme::Light, "light"), (Theme::Dark, "dark")] {
        for (width, height) in [(1280, 900), (400, 860)] {
            browser.set_theme(theme);
            browser.resize(width, height);
            for (page, hash, text) in pages {
                show(browser, hash);
                browser.wait_for_text(text);
                std::thread::sleep(std::time::Duration::from_millis(2_500));
                browser.save_screenshot(&folder.join(format!("{page}_{name}_{width}.png")));
            }
        }
    }
    browser.resize(1280, 900);
}

#[test]
fn an_operator_finds_a_limited_key_and_boosts_it() {
    let fleet = Fleet::start();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| fleet.send_load(&stop));
        let [first, _] = &fleet.replicas;
        until("a denied hit", || if 0 < denied(first) { Ok(()) } else { Err("none".into()) })
            .unwrap();
        let browser = Browser::start();
        browser.resize(1280, 900);
        sign_in(&browser, first, "alice-secret-token");
        let is_expected = |error: &String| error.contains("401 (Unauthorized)");
        assert!(browser.errors().iter().all(is_expected), "before the token was typed");
        browser.wait_for_text("gate-2");
        show(&browser, "#/rules");
        browser.wait_for_text("api_key");
        show(&browser, "#/rule?domain=shop&path=shop.api_key");
        browser.wait_for_text("api_key=partner");
        browser.wait_for_text("shop.yaml:3");
        browser.wait_for_text(MARKUP);
        assert_eq!(browser.run("return window.injected === undefined"), true, "markup ran");
        assert_eq!(browser.run("return document.querySelectorAll('main img').length"), 0);
        show(&browser, KEY_PAGE);
        browser.click("[data-test=action-boost]");
        browser.type_into("[data-test=act-amount]", "20");
        browser.type_into("[data-test=act-reason]", "big sale");
        browser.click("[data-test=act-confirm]");
        browser.wait_for_text("The key api_key=partner is boosted");
        browser.wait_for_text("by alice: big sale");
        fleet.wait_for_allowed(30);
        show(&browser, "#/audit");
        browser.wait_for_text("big sale");
        browser.wait_for_text("alice");
        if screenshot_folder().is_some() {
            // A second change and a reload, so that every page has something to show.
            std::fs::write(
                fleet.files.path().join("limits/shop.yaml"),
                LIMITS.replace("100000", "90000"),
            )
            .unwrap();
            save_screenshots(&browser, &PAGES);
        }
        assert_eq!(browser.errors(), [""; 0]);
    });
}

#[test]
fn a_sign_in_link_signs_in_and_leaves_the_address() {
    let fleet = Fleet::start();
    let [first, _] = &fleet.replicas;
    let browser = Browser::start();
    let console = format!("http://{}/console", first.admin);
    browser.open(&format!("{console}#token=%"));
    browser.wait_for("the form", "return !document.querySelector('#sign-in').hidden");
    browser.open(&format!("{console}#token=alice-secret-token"));
    browser.wait_for_text("alice · operate");
    assert_eq!(browser.run("return location.href"), console);
    browser.click("#sign-out");
    browser.wait_for("the form", "return !document.querySelector('#sign-in').hidden");
}

#[test]
fn a_viewer_sees_data_but_no_buttons() {
    let fleet = Fleet::start();
    let [first, _] = &fleet.replicas;
    for _ in 0..30 {
        check(first, "api_key", "partner", 1);
    }
    let browser = Browser::start();
    sign_in(&browser, first, "grafana-secret-token");
    show(&browser, KEY_PAGE);
    browser.wait_for_text("the token `grafana` has the role view");
    let can_click = "return [...document.querySelectorAll('[data-test^=action-]')]\
                     .some(button => !button.disabled && button.offsetParent !== null)";
    assert_eq!(browser.run(can_click), false);
    browser.click("#sign-out");
    browser.wait_for("the form", "return !document.querySelector('#sign-in').hidden");
    browser.type_into("#token", "wrong");
    browser.click("#sign-in button[type=submit]");
    browser.wait_for("the form", "return !document.querySelector('#sign-in').hidden");
}

#[test]
fn the_first_page_is_small_and_shows_a_chart_soon() {
    let fleet = Fleet::start();
    let [first, _] = &fleet.replicas;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        scope.spawn(|| fleet.send_load(&stop));
        let browser = Browser::start();
        sign_in(&browser, first, "grafana-secret-token");
        let bytes = browser.run(
            "return performance.getEntriesByType('resource').concat(\
             performance.getEntriesByType('navigation')).filter(entry => \
             entry.name.includes('/console')).reduce((sum, entry) => sum + entry.decodedBodySize, 0)",
        );
        // The token stays in the tab, so the reload shows the page at once.
        browser.run("location.reload(); return null");
        browser.wait_for("a chart", "return document.querySelector('canvas') !== null");
        let chart_ms = browser.run("return performance.now()");
        println!(
            "first page: {bytes} bytes uncompressed; a chart within {chart_ms} ms of the reload"
        );
        assert!(bytes.as_f64().unwrap() < 200_000.0, "{bytes}");
        let foreign = browser.run(
            "return performance.getEntriesByType('resource').filter(entry => \
             !entry.name.startsWith(location.origin)).length",
        );
        assert_eq!(foreign, 0, "requests to other hosts");
    });
}
