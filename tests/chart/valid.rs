//! Tests of rendered objects against golden files and the schemas of Kubernetes and the Prometheus
//! operator.

use std::fs;
use std::path::Path;

use super::cases::CASES;
use super::{chart, root, template, tool};

/// The environment variable `BLESS` rewrites the golden files.
#[test]
fn every_test_case_renders_as_its_golden_file() {
    let bless = std::env::var_os("BLESS").is_some();
    for case in CASES {
        let text = template(&chart(), case.flags).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        // Dashboards are files of this repository, so golden files omit their copies.
        let kept = without_certificates(&without_dashboards(&text));
        let golden = root().join("tests/golden/chart").join(format!("{}.yaml", case.name));
        if bless {
            fs::create_dir_all(golden.parent().unwrap()).unwrap();
            fs::write(&golden, &kept).unwrap();
        }
        let wanted = fs::read_to_string(&golden).unwrap_or_default();
        let at = kept.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
        assert!(
            kept == wanted,
            "{} differs, first {at:?}: see `BLESS=1 cargo test golden_file` and git diff",
            case.name
        );
    }
}

fn without_dashboards(text: &str) -> String {
    let documents = text.split("---\n").filter(|one| !one.contains("-dashboard-"));
    documents.filter(|one| !one.contains("kind: PrometheusRule")).collect::<Vec<_>>().join("---\n")
}

/// Each rendering issues other certificates.
fn without_certificates(text: &str) -> String {
    let shorter = |line: &str| match line.split_once(": LS0tLS1CRUdJTi") {
        Some((name, _)) => format!("{name}: (issued)\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(shorter).collect()
}

#[test]
fn every_test_case_passes_kubernetes_validation() {
    let rendered = tempfile::tempdir().unwrap();
    for case in CASES {
        let text = template(&chart(), case.flags).unwrap();
        fs::write(rendered.path().join(format!("{}.yaml", case.name)), text).unwrap();
    }
    // The test searches for `OK`, which the random directory name may contain.
    let output = validate(rendered.path()).replace(rendered.path().to_str().unwrap(), "");
    assert_eq!(output.matches("OK").count(), CASES.len(), "{output}");
}

#[test]
fn the_kubernetes_validator_rejects_invalid_objects() {
    let broken = tempfile::tempdir().unwrap();
    let text = template(&chart(), CASES[0].flags).unwrap();
    for (number, (from, to)) in [
        ("containerPort: 8081", "containerPort: many"),
        ("readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"),
        ("maxUnavailable: 1\n", "maxUnavailable: 1\n  minimum: 2\n"),
    ]
    .into_iter()
    .enumerate()
    {
        assert!(text.contains(from), "{from}");
        fs::write(broken.path().join(format!("{number}.yaml")), text.replace(from, to)).unwrap();
    }
    let output = validate(broken.path());
    assert_eq!((output.matches("OK").count(), output.matches("ERROR").count()), (0, 3), "{output}");
}

/// Returns the output of the Kubernetes validator for the files of a directory.
pub fn validate(directory: &Path) -> String {
    let schemas = root().join(".tools/crds");
    assert!(schemas.is_dir(), "no .tools/crds: run scripts/chart.sh, which puts them there");
    let mut validator = tool("kubectl-validate");
    validator.args(["--version", "1.30", "--local-crds"]).arg(schemas).arg(directory);
    let out = validator.output().unwrap();
    [out.stdout, out.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat()
}

#[test]
fn helm_lint_accepts_the_chart() {
    let out = tool("helm")
        .args(["lint", "--strict", "--kube-version", "1.30.0"])
        .arg(chart())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
}
