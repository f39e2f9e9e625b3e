//! Every object and every block of values that the docs show is what Kubernetes, the mesh and the chart take.

use std::fs;

use super::valid::validate;
use super::{chart, template};
use crate::docs::blocks;

/// Whose schemas cannot be had where the tests run; their page says so.
const UNKNOWN: &str = "apiVersion: getambassador.io/";

#[test]
fn every_object_in_the_docs_is_valid_to_who_reads_it() {
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
    let said = validate(shown.path());
    assert_eq!(said.matches("OK").count(), objects, "{said}");
}

#[test]
fn every_block_of_values_renders() {
    let mut rendered = 0;
    for block in blocks("yaml").into_iter().filter(|b| b.text.starts_with("# values.yaml")) {
        let values = tempfile::NamedTempFile::new().unwrap();
        fs::write(values.path(), block.text).unwrap();
        let flag = format!("--values={}", values.path().display());
        template(&chart(), &[&flag]).unwrap_or_else(|said| panic!("{}: {said}", block.place));
        rendered += 1;
    }
    assert!(3 < rendered, "{rendered} blocks");
}
