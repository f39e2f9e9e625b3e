//! Reads the recorded scenarios of `spec/conformance/vectors`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

pub struct Group {
    /// Name of the scenario group: the file name without extension.
    pub name: String,
    pub scenarios: Vec<Scenario>,
}

/// One start of the service and the calls after it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub id: String,
    pub name: String,
    pub env: BTreeMap<String, String>,
    pub files: BTreeMap<String, String>,
    #[serde(default)]
    pub files_base64: BTreeMap<String, String>,
    /// Result of loading the first configuration: `"ok"`, or an object that describes the error.
    pub load: Value,
    pub steps: Vec<Step>,
    /// Counters in the store before the first step.
    pub store_before: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub distinct_windows: Vec<String>,
    pub defect: Option<String>,
    pub note: Option<String>,
    #[serde(default)]
    pub process_dies: bool,
    /// All counters after the last step.
    pub store: Option<BTreeMap<String, String>>,
    /// Minimum and maximum TTL of the counters after the last step, in seconds.
    pub store_ttl_between: Option<BTreeMap<String, [i64; 2]>>,
    // StatsD counters and Prometheus series after the last step; compared only in the replay with
    // Redis.
    pub metrics: Option<Value>,
    pub prometheus: Option<Value>,
}

/// One call and its recorded response. The fields that are present determine the kind of call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    pub request: Option<Value>,
    pub request_base64: Option<String>,
    pub grpc_method: Option<String>,
    pub http: Option<Http>,
    pub health: Option<String>,
    pub debug: Option<String>,
    pub reload: Option<Reload>,
    /// Response of a gRPC or `/json` call without its headers.
    pub response: Option<Value>,
    pub headers: Option<Value>,
    /// HTTP status, or `"connection_lost"` if envoyproxy/ratelimit crashed.
    pub status: Option<Value>,
    pub body: Option<String>,
    pub content_type: Option<String>,
    /// Health status that a health check returned.
    pub answer: Option<Value>,
    /// Result of a reload, as in [`Scenario::load`].
    pub load: Option<Value>,
    pub lines: Option<Value>,
    pub commands: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    pub method: String,
    pub path: String,
    pub body: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reload {
    #[serde(default)]
    pub write: BTreeMap<String, String>,
    #[serde(default)]
    pub delete: Vec<String>,
}

/// Directory of the scenarios: `COMPAT_VECTORS`, by default `spec/conformance/vectors` of this repository.
pub fn directory() -> PathBuf {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/spec/conformance/vectors");
    std::env::var_os("COMPAT_VECTORS").map_or_else(|| here.into(), PathBuf::from)
}

pub fn read(directory: &Path) -> Vec<Group> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    files.sort();
    files.iter().map(|path| read_group(path)).collect()
}

fn read_group(path: &Path) -> Group {
    let text = std::fs::read_to_string(path).unwrap();
    let scenarios =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Group { name: path.file_stem().unwrap().to_string_lossy().into_owned(), scenarios }
}

#[test]
fn every_rule_of_the_readme_names_recorded_scenarios() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/spec/conformance/README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let (_, rules) = readme.split_once("\n## The rules").unwrap();
    let groups = read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/spec/conformance/vectors")));
    let ids: Vec<_> = groups.iter().flat_map(|group| &group.scenarios).map(|it| &*it.id).collect();
    let cells = rules
        .lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|row| row.rsplit('|').nth(1));
    let cells: Vec<_> = cells.map(str::trim).filter(|cell| *cell != "scenarios").collect();
    for id in cells.iter().flat_map(|cell| cell.split(", ")) {
        assert!(ids.contains(&id), "no scenario `{id}`");
    }
    assert!(60 <= cells.len(), "{} rules", cells.len());
}
