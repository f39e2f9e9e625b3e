//! Tests of the two directory layouts of envoyproxy/ratelimit, selected by `RUNTIME_WATCH_ROOT`.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::service::Service;
use crate::support::waiting::until;

fn put(root: &Path, name: &str, domain: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("domain: {domain}\n")).unwrap();
}

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
fn watched_runtime_root_loads_files_by_app_directory_prefix() {
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
fn watched_runtime_root_may_be_missing_until_its_symlink_is_created() {
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
fn unwatched_runtime_root_loads_every_file_in_the_app_directory() {
    let root = tempfile::tempdir().unwrap();
    let tree = root.path().join("current/ratelimit");
    put(&tree, "config/a.yaml", "a");
    put(&tree, "config/sub/b", "b");
    put(&tree, "configx/no.yaml", "sibling");
    let service = start(&root, &[("RUNTIME_WATCH_ROOT", "false")]);
    assert_eq!(domains(&service), ["a", "b"]);
}
