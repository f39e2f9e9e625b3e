//! Tests of the inputs of `validate` and `explain`: standard input and Kubernetes manifests.

use std::io::Write as _;
use std::process::Stdio;

use crate::support::service::sluicegate;

const CONFIG_MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: ratelimit-config}
data:
  config.yaml: |
    domain: shop
    descriptors:
      - key: PATH
        value: /pay
        rate_limit: {unit: minute, requests_per_unit: 3}
";

/// The exit code and output of a command with this standard input.
fn run_with_input(line: &[&str], input: &str) -> (Option<i32>, String, String) {
    let piped = Stdio::piped;
    let mut command = sluicegate();
    command.args(line).stdin(piped()).stdout(piped()).stderr(piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn standard_input_is_validated() {
    let file = "domain: shop\ndescriptors:\n- {kye: a}\n";
    let (code, out, _) = run_with_input(&["validate", "-"], file);
    assert_eq!(code, Some(1));
    assert!(out.starts_with("<stdin>:3:4 error[E09] unknown field `kye`\n"), "{out}");
}

#[test]
fn limits_in_a_config_map_are_validated_with_its_lines() {
    let (code, out, _) = run_with_input(&["validate", "-"], CONFIG_MAP);
    assert_eq!((code, out.as_str()), (Some(0), "0 findings in 1 file: 0 errors, 0 warnings\n"));
    let wrong = CONFIG_MAP.replace("unit: minute", "unit: minit");
    let (code, out, _) = run_with_input(&["validate", "-"], &wrong);
    assert_eq!(code, Some(1));
    assert!(out.starts_with("<stdin>:10:28 error[E24] "), "{out}");
    assert!(out.contains("   10 |         rate_limit: {unit: minit, "), "{out}");
}

#[test]
fn limits_in_a_config_map_are_explained() {
    let line = ["explain", "--limits", "-", "--domain", "shop", "--descriptor", "PATH=/pay"];
    let (code, out, err) = run_with_input(&line, CONFIG_MAP);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("limited by `shop.PATH_/pay` (<stdin>:8)"), "{out}");
}

#[test]
fn input_without_limits_files_is_refused() {
    let manifest = "apiVersion: v1\nkind: Secret\n";
    let (code, out, err) = run_with_input(&["validate", "-"], manifest);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.starts_with("error: there are no limits files in these paths"), "{err}");
}
