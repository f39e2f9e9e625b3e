//! A real Prometheus process that scrapes one replica and stops when dropped.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use form_urlencoded::Serializer;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::http1;
use crate::support::ports;
use crate::support::waiting::{unix_seconds, until};

pub struct Prometheus {
    process: Child,
    home: TempDir,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts a Prometheus that scrapes `target` twice a second. A scrape may take half a second.
    pub fn of(target: SocketAddr) -> Self {
        let started = || {
            let mut prometheus = Self::spawn(target);
            prometheus.ready().map(|()| prometheus)
        };
        until("a Prometheus on a free port", started).unwrap()
    }

    fn spawn(target: SocketAddr) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\nscrape_configs:\n\
             - {{job_name: sluicegate, static_configs: [{{targets: ['{target}'],\n\
             \x20  labels: {{app_kubernetes_io_component: ratelimit}}}}]}}\n"
        );
        let file = home.path().join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let free = ports::free();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", home.path().join("data").display()));
        command.arg(format!("--web.listen-address={free}"));
        command.arg("--enable-feature=exemplar-storage");
        let log = File::create(home.path().join("log")).unwrap();
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let process = process.expect("no prometheus here: scripts/test.sh installs one");
        Self { process, home, address: free }
    }

    fn ready(&mut self) -> Result<(), String> {
        until("Prometheus", || {
            if let Ok(Some(status)) = self.process.try_wait() {
                let log = std::fs::read_to_string(self.home.path().join("log"));
                return Ok(Err(format!("it ended with {status}: {}", log.unwrap_or_default())));
            }
            let reply = http1::get(self.address, "/-/ready", &[]).map_err(|e| e.to_string())?;
            if reply.status == 200 { Ok(Ok(())) } else { Err(reply.text()) }
        })?
    }

    /// Returns the number of values of a query, without NaN.
    pub fn samples(&self, query: &str) -> Result<usize, String> {
        self.values(query).map(|values| values.len())
    }

    /// Returns the exemplars of the last hour, each with the labels of its series.
    pub fn exemplars(&self, query: &str) -> Result<Vec<(Value, Value)>, String> {
        let hour = [("start", unix_seconds() - 3_600), ("end", unix_seconds() + 3_600)];
        let data = self.query_api("query_exemplars", query, &hour)?;
        let each = data.as_array().cloned().unwrap_or_default().into_iter().flat_map(|series| {
            let (labels, own) = (series["seriesLabels"].clone(), series["exemplars"].clone());
            let own = own.as_array().cloned().unwrap_or_default();
            own.into_iter().map(move |one| (labels.clone(), one))
        });
        Ok(each.collect())
    }

    fn query_api(&self, path: &str, query: &str, more: &[(&str, u64)]) -> Result<Value, String> {
        let mut parameters = Serializer::new(String::new());
        parameters.append_pair("query", query);
        for (name, number) in more {
            parameters.append_pair(name, &number.to_string());
        }
        let url = format!("/api/v1/{path}?{}", parameters.finish());
        let reply = http1::get(self.address, &url, &[]).map_err(|error| error.to_string())?;
        let reply_body: Value = serde_json::from_slice(&reply.body).map_err(|e| e.to_string())?;
        if reply_body["status"] == "success" {
            Ok(reply_body["data"].clone())
        } else {
            Err(format!("{query}: {reply_body}"))
        }
    }

    /// Returns the current values of a query, without NaN.
    pub fn values(&self, query: &str) -> Result<Vec<f64>, String> {
        let data = self.query_api("query", query, &[])?;
        let samples = data["result"].as_array().into_iter().flatten();
        let values = samples.filter_map(|sample| sample["value"][1].as_str()?.parse().ok());
        Ok(values.filter(|value: &f64| !value.is_nan()).collect())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
