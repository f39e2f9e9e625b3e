//! A service whose limit reads a table.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::http1;
use super::service::Service;
use super::waiting::until;

/// A service with a limit that reads the table `customers`.
pub struct Shop {
    dir: TempDir,
    pub service: Service,
}

impl Shop {
    /// Starts the service. `table` has the source and its fields.
    pub fn start(table: &Value) -> Self {
        let text = "domain: shop\ndescriptors:\n- {key: customer, rate_limit: {unit: hour, strategy: \
                    gcra, requests_per_unit: 2, from: customers.api}}\n";
        let dir = tempfile::tempdir().unwrap();
        let mut whole = json!({
            "name": "customers", "copy": dir.path().join("copy"),
            "plans": {"free": {"api": 1}, "gold": {"api": 5}},
        });
        whole.as_object_mut().unwrap().extend(table.as_object().unwrap().clone());
        Self::start_in(dir, text, &["--tables", &json!([whole]).to_string()])
    }

    /// Starts the service with this limits file and these flags, with its files in `dir`.
    pub fn start_in(dir: TempDir, limits_file: &str, flags: &[&str]) -> Self {
        let limits = dir.path().join("limits");
        std::fs::create_dir(&limits).unwrap();
        std::fs::write(limits.join("shop.yaml"), limits_file).unwrap();
        let flags = [&["--store-url", "memory"], flags].concat();
        let flags: Vec<_> = flags.into_iter().map(str::to_owned).collect();
        let service = Service::start(&limits, &flags).unwrap();
        Self { dir, service }
    }

    pub fn copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    pub fn state(&self) -> Value {
        let reply = http1::get(self.service.admin, "/tables", &[]).unwrap();
        let page: Value = serde_json::from_slice(&reply.body).unwrap();
        page["tables"][0].clone()
    }

    pub fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        until(what, || {
            let state = self.state();
            if is_it(&state) { Ok(state) } else { Err(state.to_string()) }
        })
        .unwrap()
    }

    /// Waits until the row of a customer has this amount.
    pub fn wait_for_amount(&self, customer: &str, amount: &Value) {
        let path = format!("/tables?table=customers&id={customer}");
        until(&format!("{customer}: {amount}"), || {
            let reply = http1::get(self.service.admin, &path, &[]).unwrap();
            let row: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
            if row["api"] == *amount { Ok(()) } else { Err(reply.text().clone()) }
        })
        .unwrap();
    }
}
