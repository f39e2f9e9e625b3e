//! Tests of the Helm chart, rendered by the real Helm and validated with the Kubernetes schemas.
//!
//! Guarantees:
//! - Every preset and test case renders valid objects.
//! - The service accepts the rendered settings and limits.
//! - Contradictory chart values are refused with a reason.
//! - An upgrade changes only the objects that depend on the changed values.
//!
//! Not covered:
//! - Installation in a cluster.

mod cases;
mod certificates;
mod docs;
mod field;
mod fleet_start;
mod meaning;
mod notes;
mod schema;
mod secrets;
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

/// A command for a tool that `scripts/chart.sh` installs, such as `helm`.
fn tool(name: &str) -> Command {
    let path = root().join(".tools/bin").join(name);
    assert!(path.exists(), "no {name} in .tools/bin: run scripts/chart.sh, which installs it");
    Command::new(path)
}

/// Runs `helm template`. The error is Helm's stderr. Random values are replaced by the base64 form of
/// `random`.
fn template(chart: &Path, flags: &[&str]) -> Result<String, String> {
    let mut helm = tool("helm");
    helm.args(["template", "edge", "--namespace", "gate", "--kube-version", "1.30.0"]);
    let out = helm.arg(chart).args(flags).current_dir(root()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let random = regex::Regex::new(r": \S+ # random").unwrap();
    let masked = |text: String| random.replace_all(&text, ": cmFuZG9t").into_owned();
    if out.status.success() { Ok(masked(text(out.stdout))) } else { Err(text(out.stderr)) }
}

fn rendered(flags: &[&str]) -> Objects {
    Objects::read(&template(&chart(), flags).unwrap_or_else(|error| panic!("{flags:?}: {error}")))
}

/// Rendered Kubernetes objects.
struct Objects(Vec<Value>);

impl Objects {
    fn read(text: &str) -> Self {
        Self(serde_saphyr::from_multiple(text).unwrap())
    }

    /// The names of all objects as `Kind/name`, in the order of rendering.
    fn names(&self) -> Vec<String> {
        self.0.iter().map(name_of).collect()
    }

    /// The object of this kind with the name `edge-sluicegate` plus `ending`.
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

    fn container(&self) -> &Value {
        &self.pod()["containers"][0]
    }

    fn server_yaml(&self) -> &str {
        self.one("ConfigMap", "-settings")["data"]["server.yaml"].as_str().unwrap()
    }

    /// Names and texts of the limits files in the chart's `ConfigMap`; empty without one.
    fn limits(&self) -> Vec<(&str, &str)> {
        let maps = self.0.iter().filter(|o| name_of(o) == "ConfigMap/edge-sluicegate-limits");
        let files = maps.filter_map(|map| map["data"].as_object()).flatten();
        files.map(|(name, text)| (name.as_str(), text.as_str().unwrap())).collect()
    }
}

/// A rendered pod, for tests that run its service as a local process.
pub struct Installed {
    /// The rendered settings file `server.yaml`.
    pub settings: NamedTempFile,
    pub readiness_path: String,
    /// `terminationGracePeriodSeconds` of the pod.
    pub grace_seconds: u64,
}

impl Installed {
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
