//! Drives Chromium without a window, by the protocol of `chromedriver`.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::support::http1;
use crate::support::waiting::until;

/// The key of an element's id in messages (<https://www.w3.org/TR/webdriver2/#elements>).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with an empty profile. Drop ends it.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: tempfile::TempDir,
}

/// The appearance of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    Light,
    Dark,
}

impl Browser {
    pub fn start() -> Self {
        // A driver ends if another process takes its port first.
        let (driver, address) = until("chromedriver", start_driver).unwrap();
        let profile = tempfile::tempdir().unwrap();
        let flags = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let mut browser = Self { driver, address, session: String::new(), _profile: profile };
        let session = browser.send("POST", "/session", Some(&capabilities));
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        browser
    }

    fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.try_send(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn try_send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let body = body.map(Value::to_string);
        let headers = [("content-type", "application/json")];
        let reply =
            http1::call(self.address, method, path, &headers, body.as_deref().map(str::as_bytes));
        let reply = reply.map_err(|error| error.to_string())?;
        let text = reply.text();
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        if reply.status == 200 { Ok(value["value"].clone()) } else { Err(text) }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("/session/{}{path}", self.session), Some(body))
    }

    pub fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    pub fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    pub fn set_theme(&self, theme: Theme) {
        let value = if theme == Theme::Dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        self.devtools("Emulation.setEmulatedMedia", &features);
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// Runs the body of a JavaScript function, and returns its result.
    pub fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Clicks the first visible element that the CSS selector matches, once there is one.
    pub fn click(&self, selector: &str) {
        self.act_on(selector, "click", &json!({}));
    }

    /// Replaces the text of an input.
    pub fn type_into(&self, selector: &str, text: &str) {
        self.act_on(selector, "clear", &json!({}));
        self.act_on(selector, "value", &json!({"text": text}));
    }

    fn act_on(&self, selector: &str, action: &str, body: &Value) {
        let query = json!({"using": "css selector", "value": selector});
        let session = format!("/session/{}", self.session);
        until(selector, || {
            let found = self.try_send("POST", &format!("{session}/element"), Some(&query))?;
            let id = found[ELEMENT].as_str().ok_or("no element")?.to_owned();
            self.try_send("POST", &format!("{session}/element/{id}/{action}"), Some(body))
        })
        .unwrap();
    }

    /// Returns the visible text of the page.
    pub fn text(&self) -> String {
        self.run("return document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the script returns `true`.
    pub fn wait_for(&self, what: &str, script: &str) {
        let is_true = || match self.run(script) {
            Value::Bool(true) => Ok(()),
            other => Err(format!("{other}: {}", self.text())),
        };
        until(what, is_true).unwrap();
    }

    /// Waits until the page shows a text.
    pub fn wait_for_text(&self, text: &str) {
        let shown = || match self.text() {
            page if page.contains(text) => Ok(()),
            page => Err(page),
        };
        until(text, shown).unwrap();
    }

    /// Returns the errors that the browser logged, such as violations of the content security policy.
    pub fn errors(&self) -> Vec<String> {
        let entries = self.post("/se/log", &json!({"type": "browser"}));
        let severe = entries.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }

    /// Writes the visible part of the page as a PNG.
    pub fn save_screenshot(&self, file: &Path) {
        let picture = self.send("GET", &format!("/session/{}/screenshot", self.session), None);
        std::fs::write(file, STANDARD.decode(picture.as_str().unwrap()).unwrap()).unwrap();
    }
}

/// Starts the driver on a free port.
fn start_driver() -> Result<(Child, SocketAddr), String> {
    let driver = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).spawn();
    let mut driver = driver.expect("CHROMEDRIVER IS MISSING: install chromium-driver");
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let port = lines.find_map(|line| {
        let line = line.ok()?;
        line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
    });
    let Some(port) = port else {
        return Err(format!("it ended: {:?}", driver.wait()));
    };
    // The driver blocks if nobody reads its output.
    std::thread::spawn(move || lines.for_each(drop));
    Ok((driver, SocketAddr::from(([127, 0, 0, 1], port))))
}

impl Drop for Browser {
    fn drop(&mut self) {
        let ended = self.try_send("DELETE", &format!("/session/{}", self.session), None);
        let killed = self.driver.kill().and_then(|()| self.driver.wait());
        if !std::thread::panicking() {
            assert!(ended.is_ok() && killed.is_ok(), "{ended:?} {killed:?}");
        }
    }
}
