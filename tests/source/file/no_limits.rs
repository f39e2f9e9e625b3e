//! Tests of the warning about paths without limits.

use std::fs;

use crate::support::service::Service;

#[test]
fn missing_directory_is_logged_with_its_path() {
    // The file should be in `ratelimit/config`.
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("config")).unwrap();
    fs::write(root.path().join("config/config.yaml"), "domain: shop\n").unwrap();
    let path = root.path().display().to_string();
    let variables = [("RUNTIME_ROOT", &*path), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
    let service =
        Service::start_as_ratelimit(&[&variables[..], &[("USE_STATSD", "false")]].concat())
            .unwrap();
    let wanted = format!(
        "no limits are loaded, so every check is allowed: looked for files whose names begin \
         with `config.` in {path}/ratelimit, which does not exist"
    );
    let log = service.log();
    assert_eq!(log.matches(&wanted).count(), 1, "{log}");
}

#[test]
fn domain_without_descriptors_is_logged_as_no_limits() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a.yaml"), "domain: shop\n").unwrap();
    let service = Service::start(root.path(), &[]).unwrap();
    let wanted = format!("looked for files in {}", root.path().display());
    assert!(service.log().contains(&wanted), "{}", service.log());
    let limit = "domain: d\ndescriptors:\n- {key: k, concurrency: {limit: 1}}\n";
    fs::write(root.path().join("a.yaml"), limit).unwrap();
    let service = Service::start(root.path(), &[]).unwrap();
    assert!(!service.log().contains("no limits are loaded"), "{}", service.log());
}
