//! The recorded scenarios, as they stand in `vectors/`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

/// One file of scenarios.
pub struct Group {
    /// The file's name without its ending.
    pub name: String,
    pub scenarios: Vec<Scenario>,
}

/// One start of the service and the calls that follow.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub id: String,
    pub name: String,
    pub env: BTreeMap<String, String>,
    pub files: BTreeMap<String, String>,
    #[serde(default)]
    pub files_base64: BTreeMap<String, String>,
    /// `"ok"`, or an object that describes the refusal.
    pub load: Value,
    pub steps: Vec<Step>,
    /// Counters to be there at the start.
    pub store_before: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub distinct_windows: Vec<String>,
    pub defect: Option<String>,
    pub note: Option<String>,
    #[serde(default)]
    pub process_dies: bool,
    /// Every counter after the last step.
    pub store: Option<BTreeMap<String, String>>,
    /// The seconds that counters have left then, at least and at most.
    pub store_ttl_between: Option<BTreeMap<String, [i64; 2]>>,
    // Recorded too, and not compared yet.
    pub metrics: Option<Value>,
    pub prometheus: Option<Value>,
}

/// One call and its answer. Which fields are there says what kind of call it is.
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
    /// What a gRPC or `/json` call answered, its headers apart.
    pub response: Option<Value>,
    pub headers: Option<Value>,
    /// An HTTP status, or `"connection_lost"`.
    pub status: Option<Value>,
    pub body: Option<String>,
    pub content_type: Option<String>,
    /// What a health check answered.
    pub answer: Option<Value>,
    /// How a reload went, as [`Scenario::load`].
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

/// Where the scenarios are: `COMPAT_VECTORS`, or those that come with the project.
pub fn directory() -> PathBuf {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/compat/vectors");
    std::env::var_os("COMPAT_VECTORS").map_or_else(|| here.into(), PathBuf::from)
}

/// Reads every group of a directory, in the order of their names.
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
