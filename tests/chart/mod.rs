//! The chart, rendered by the real Helm and judged by the schemas of Kubernetes.
//!
//! Guarantees: every preset and every case of the matrix renders, is valid, and holds settings and limits that the service
//! itself accepts; what cannot be meant is refused in words; an upgrade changes what it should.
//! Leaves out: a cluster. Nothing here was installed.

mod cases;
mod docs;
mod meaning;
mod notes;
mod schema;
mod service;
mod upgrade;
mod valid;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::NamedTempFile;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn chart() -> PathBuf {
    root().join("charts/sluicegate")
}

/// A tool that `scripts/chart.sh` puts here.
fn tool(name: &str) -> Command {
    let path = root().join(".tools/bin").join(name);
    assert!(path.exists(), "no {name} in .tools/bin: run scripts/chart.sh, which installs it");
    Command::new(path)
}

/// What Helm makes of the chart with these flags, or what it says.
fn template(chart: &Path, flags: &[&str]) -> Result<String, String> {
    let mut helm = tool("helm");
    helm.args(["template", "edge", "--namespace", "gate", "--kube-version", "1.30.0"]);
    let out = helm.arg(chart).args(flags).current_dir(root()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if out.status.success() { Ok(text(out.stdout)) } else { Err(text(out.stderr)) }
}

fn rendered(flags: &[&str]) -> Objects {
    Objects::read(&template(&chart(), flags).unwrap_or_else(|said| panic!("{flags:?}: {said}")))
}

/// The objects of a render.
struct Objects(Vec<Value>);

impl Objects {
    fn read(text: &str) -> Self {
        Self(serde_saphyr::from_multiple(text).unwrap())
    }

    /// `Kind/name`, in order.
    fn names(&self) -> Vec<String> {
        self.0.iter().map(name_of).collect()
    }

    /// The one of this kind whose name ends so.
    fn one(&self, kind: &str, ending: &str) -> &Value {
        let name = format!("{kind}/edge-sluicegate{ending}");
        let found = self.0.iter().find(|object| name_of(object) == name);
        found.unwrap_or_else(|| panic!("no {name} among {:?}", self.names()))
    }

    fn deployment(&self) -> &Value {
        self.one("Deployment", "")
    }

    fn pod(&self) -> &Value {
        &self.deployment()["spec"]["template"]["spec"]
    }

    /// The container of the service.
    fn container(&self) -> &Value {
        &self.pod()["containers"][0]
    }

    fn server_yaml(&self) -> &str {
        self.one("ConfigMap", "-settings")["data"]["server.yaml"].as_str().unwrap()
    }

    /// The files of limits, where they are in a `ConfigMap` of the chart's own.
    fn limits(&self) -> Vec<(&str, &str)> {
        let maps = self.0.iter().filter(|o| name_of(o) == "ConfigMap/edge-sluicegate-limits");
        let files = maps.filter_map(|map| map["data"].as_object()).flatten();
        files.map(|(name, text)| (name.as_str(), text.as_str().unwrap())).collect()
    }
}

/// What a pod of the chart runs with, for tests that drive processes.
pub struct Installed {
    /// `server.yaml`.
    pub settings: NamedTempFile,
    pub readiness_path: String,
    /// How long Kubernetes waits before it kills.
    pub grace_seconds: u64,
}

impl Installed {
    /// By the values' defaults.
    pub fn with_defaults() -> Self {
        let objects = rendered(&[]);
        let settings = NamedTempFile::new().unwrap();
        std::fs::write(settings.path(), objects.server_yaml()).unwrap();
        let path = &objects.container()["readinessProbe"]["httpGet"]["path"];
        let grace = &objects.pod()["terminationGracePeriodSeconds"];
        Self {
            settings,
            readiness_path: path.as_str().unwrap().to_owned(),
            grace_seconds: grace.as_u64().unwrap(),
        }
    }
}

fn name_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}
