//! Tests of the limits files that are found in Kubernetes manifests.

use sluicegate::config::manifest::{EmbeddedFile, embedded_files};

/// The names and texts of the limits files in a manifest.
fn files(manifest: &str) -> Option<Vec<(String, String)>> {
    let found = embedded_files("a.yaml", manifest.as_bytes())?;
    Some(found.into_iter().map(|EmbeddedFile { name, text }| (name, text)).collect())
}

fn placed(above: usize, text: &str) -> (String, String) {
    ("a.yaml".to_owned(), format!("{}{text}", "\n".repeat(above)))
}

#[test]
fn limits_file_is_no_manifest() {
    assert_eq!(files("domain: d\ndescriptors:\n- key: apiVersion\n"), None);
    assert_eq!(files(""), None);
}

#[test]
fn each_literal_text_keeps_its_lines() {
    let manifest = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: |\n    domain: a\n\n    \
                    descriptors: []\n  b.yaml: |-\n      domain: b\n  LOG_LEVEL: debug\n";
    let first = placed(4, "    domain: a\n\n    descriptors: []\n");
    assert_eq!(files(manifest), Some(vec![first, placed(8, "      domain: b\n")]));
}

#[test]
fn quoted_and_folded_texts_have_their_own_lines() {
    let manifest = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: \"domain: a\\n\"\n  \
                    b.yaml: >\n    {domain: b,\n    descriptors: []}\n";
    let name = |key: &str| format!("a.yaml (data.{key})");
    let wanted = [("a.yaml", "domain: a\n"), ("b.yaml", "{domain: b, descriptors: []}\n")];
    let wanted = wanted.map(|(key, text)| (name(key), text.to_owned()));
    assert_eq!(files(manifest), Some(wanted.to_vec()));
}

#[test]
fn all_documents_and_list_items_are_read() {
    let map = |text: &str| format!("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    {text}\n");
    let other = "apiVersion: apps/v1\nkind: Deployment\nspec: {domain: x}\n";
    let list = "apiVersion: v1\nkind: List\nitems:\n- kind: ConfigMap\n  data:\n    c: |\n      domain: c\n";
    let manifest = format!("{}---\n{other}--- # two\n{list}---\ndomain: plain\n", map("domain: a"));
    let wanted = [
        placed(4, "    domain: a\n"),
        placed(16, "      domain: c\n"),
        placed(17, "---\ndomain: plain\n"),
    ];
    assert_eq!(files(&manifest), Some(wanted.to_vec()));
    assert_eq!(files(other), Some(Vec::new()));
}

#[test]
fn document_with_a_syntax_error_is_kept() {
    let manifest = "apiVersion: v1\nkind: ConfigMap\n---\ndomain: 'd\n";
    assert_eq!(files(manifest), Some(vec![placed(2, "---\ndomain: 'd\n")]));
    let broken = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    descriptors: [\n";
    assert_eq!(files(broken), Some(vec![placed(4, "    descriptors: [\n")]));
}

#[test]
fn indented_document_marker_starts_its_line() {
    let manifest = "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    ---\n    domain: a\n";
    assert_eq!(files(manifest), Some(vec![placed(4, "---    \n    domain: a\n")]));
}
