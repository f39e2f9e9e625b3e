//! Runs the examples of `sluicegate.v1.Budgets` in Python, Go and Rust against a real service.
//!
//! Each of them loses the reply to its first reserve, because the service does not run meanwhile.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::http1;
use crate::support::service::{Service, TOKEN};

const LIMITS: &str = "\
domain: llm
colocate: org
descriptors:
  - key: org
    budget: {amount: 1M tokens, unit: year}
    descriptors:
      - {key: model, budget: {amount: 2k tokens, unit: year}}
";

const LOST: &str = "no reply to the reserve: canceling its id";

const LINES: [&str; 3] = [
    "llm.org: 120 of 1000000 tokens settled, 0 held",
    "llm.org.model: 120 of 2000 tokens settled, 0 held",
    "canceled",
];

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a program, and continues the stopped service after its first line. Returns its lines.
fn run(program: &mut Command, service: &Service) -> Vec<String> {
    program.arg(service.grpc.to_string()).stdout(Stdio::piped()).stderr(Stdio::piped());
    service.signal("STOP");
    let mut process = program.spawn().unwrap();
    let stdout = BufReader::new(process.stdout.take().unwrap());
    let mut lines = Vec::new();
    for line in stdout.lines() {
        service.signal("CONT");
        lines.push(line.unwrap());
    }
    service.signal("CONT");
    let mut errors = String::new();
    process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert!(process.wait().unwrap().success(), "{lines:?}\n{errors}");
    lines
}

/// Returns the settled amount and the number of open holds of each budget.
fn settled_and_held(service: &Service) -> Vec<(u64, u64)> {
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let page = http1::get(service.admin, "/budgets", &headers).unwrap().text();
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    let number = |budget: &serde_json::Value, name: &str| budget[name].as_u64().unwrap();
    let amounts = |it| (number(it, "settled_number"), number(it, "open_holds"));
    page["budgets"].as_array().unwrap().iter().map(amounts).collect()
}

/// Spends the budget of the organization.
fn spend(service: &Service) {
    let body = r#"{"domain":"llm","descriptors":[{"entries":[{"key":"org","value":"acme"}],"hitsAddend":"2000000"}]}"#;
    let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes()));
    assert_eq!(reply.unwrap().status, 200);
}

fn assert_reserves_and_settles(program: impl Fn() -> Command) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("llm.yaml"), LIMITS).unwrap();
    let flags = ["--store-url", "memory"].map(str::to_owned);
    let token = [("SLUICEGATE_ADMIN_TOKEN", TOKEN)];
    let service = Service::start_under(dir.path(), &flags, &token).unwrap();
    let lines = run(&mut program(), &service);
    assert_eq!(lines[0], LOST);
    let others: Vec<_> = lines.iter().filter(|line| *line != LOST).collect();
    assert_eq!(others, LINES);
    assert_eq!(settled_and_held(&service), [(120, 0), (120, 0)], "the lost reserve, too");
    spend(&service);
    let denied = program().arg(service.grpc.to_string()).output().unwrap();
    let why = String::from_utf8_lossy(&denied.stderr);
    assert!(denied.status.code() == Some(1) && why.contains("denied: budget_spent"), "{denied:?}");
}

pub fn assert_prepared(path: &Path) {
    assert!(path.exists(), "{} is missing: run scripts/examples.sh", path.display());
}

/// Compiles the package of `examples/go` in `folder`.
pub fn compile_go(folder: &str, program: &Path) {
    let (home, tools) = (root().join("examples/go"), root().join(".tools/go"));
    assert_prepared(&home.join("sluicegatev1"));
    let mut compile = Command::new("go");
    compile.args(["build", "-o"]).arg(program).arg(folder).current_dir(home);
    compile.env("GOMODCACHE", tools.join("mod")).env("GOCACHE", tools.join("build"));
    let built = compile.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

#[test]
fn the_python_example_reserves_and_settles() {
    let python = root().join(".tools/examples/bin/python");
    assert_prepared(&python);
    assert_reserves_and_settles(|| {
        let mut command = Command::new(&python);
        command.arg(root().join("examples/python/budgets.py"));
        command
    });
}

#[test]
fn the_go_example_reserves_and_settles() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("budgets");
    compile_go(".", &program);
    assert_reserves_and_settles(|| Command::new(&program));
}

#[test]
fn the_rust_example_reserves_and_settles() {
    // With the features of the other crates, as the tests, so that nothing else compiles anew.
    let mut compile = Command::new(env!("CARGO"));
    compile.args(["build", "--quiet", "--locked", "--workspace", "--example", "budgets"]);
    // Set by scripts/tiers.py. Build scripts would run again.
    compile.env_remove("RUSTC_BOOTSTRAP");
    let built = compile.current_dir(root()).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let folder = std::env::current_exe().unwrap();
    let program = folder.ancestors().nth(2).unwrap().join("examples/budgets");
    assert_reserves_and_settles(|| Command::new(&program));
}
