//! Tests of the Kubernetes objects and Helm chart values in `docs/`.

use std::fs;

use super::valid::validate;
use super::{chart, template};
use crate::docs::blocks;

/// Emissary objects have no schema in these tests; the page about Emissary says so.
const UNKNOWN: &str = "apiVersion: getambassador.io/";

#[test]
fn documented_kubernetes_objects_are_valid() {
    let shown = tempfile::tempdir().unwrap();
    let mut objects = 0;
    for block in blocks("yaml") {
        if block.text.starts_with("apiVersion:") && !block.text.starts_with(UNKNOWN) {
            let name = format!("{}.yaml", block.place.replace(['/', ':'], "_"));
            fs::write(shown.path().join(name), block.text).unwrap();
            objects += 1;
        }
    }
    assert!(6 < objects, "{objects} objects");
    let output = validate(shown.path());
    assert_eq!(output.matches("OK").count(), objects, "{output}");
}

#[test]
fn documented_values_render() {
    let mut rendered = 0;
    for block in blocks("yaml").into_iter().filter(|b| b.text.starts_with("# values.yaml")) {
        let values = tempfile::NamedTempFile::new().unwrap();
        fs::write(values.path(), block.text).unwrap();
        let flag = format!("--values={}", values.path().display());
        template(&chart(), &[&flag]).unwrap_or_else(|output| panic!("{}: {output}", block.place));
        rendered += 1;
    }
    assert!(3 < rendered, "{rendered} blocks");
}
