//! The reference's two layouts of files.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::service::Service;
use crate::waiting::until;

fn put(root: &Path, name: &str, domain: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("domain: {domain}\n")).unwrap();
}

/// The domains that are loaded from `root`.
fn domains(service: &Service) -> Vec<String> {
    let mut domains: Vec<_> =
        service.said.lines().filter_map(|line| line.strip_prefix("domain ")).collect();
    domains.sort_unstable();
    domains.iter().map(|line| line.split(':').next().unwrap().to_owned()).collect()
}

fn start(root: &TempDir, more: &[(&str, &str)]) -> Service {
    let root = root.path().join("current").display().to_string();
    let variables =
        [("RUNTIME_ROOT", &*root), ("RUNTIME_SUBDIRECTORY", "ratelimit"), ("USE_STATSD", "false")];
    Service::start_as_ratelimit(&[&variables, more].concat()).unwrap()
}

#[test]
fn with_the_root_watched_the_names_below_the_subdirectory_begin_with_the_applications() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("v1/ratelimit");
    put(&tree, "config/a.yaml", "a");
    put(&tree, "config/deep/b.txt", "b");
    put(&tree, "config.c.yaml", "c");
    put(&tree, "config/.dot", "dot");
    put(&tree, "configx/no.yaml", "sibling");
    put(&tree, "above.yaml", "above");
    std::os::unix::fs::symlink("v1", root.path().join("current")).unwrap();
    assert_eq!(domains(&start(&root, &[])), ["a", "b", "c", "dot"]);
    assert_eq!(domains(&start(&root, &[("RUNTIME_IGNOREDOTFILES", "true")])), ["a", "b", "c"]);
    assert_eq!(domains(&start(&root, &[("RUNTIME_APPDIRECTORY", "configx")])), ["sibling"]);
}

#[test]
fn with_the_root_watched_a_new_link_is_followed_at_once_and_a_missing_tree_is_empty() {
    let root = tempfile::tempdir().unwrap();
    let service = start(&root, &[]);
    assert_eq!(domains(&service), Vec::<String>::new());
    put(&root.path().join("v2/ratelimit"), "config/a.yaml", "a");
    let prepared = root.path().join("prepared");
    std::os::unix::fs::symlink("v2", &prepared).unwrap();
    fs::rename(prepared, root.path().join("current")).unwrap();
    until("the new tree", || match service.loads()?.loaded {
        0 | 1 => Err("not loaded".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
}

#[test]
fn without_it_every_file_below_the_application_directory_counts() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("current/ratelimit");
    put(&tree, "config/a.yaml", "a");
    put(&tree, "config/sub/b", "b");
    put(&tree, "configx/no.yaml", "sibling");
    let service = start(&root, &[("RUNTIME_WATCH_ROOT", "false")]);
    assert_eq!(domains(&service), ["a", "b"]);
}
