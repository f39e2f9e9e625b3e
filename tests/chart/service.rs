//! Tests of a real Sluicegate process with the settings and limits that the chart renders.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use super::rendered;
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::until;

const PRESET: &str = "--values=charts/sluicegate/values/standalone.yaml";

/// Starts the service with the chart's rendered settings, but with free ports and these limits.
fn serve(settings: &str, limits: &Path, home: &Path) -> Service {
    let file = home.join("server.yaml");
    // The mounted volume.
    let volume = format!("file://{}", home.join("counters").display());
    fs::write(&file, settings.replace("file:///var/lib/sluicegate/counters", &volume)).unwrap();
    Service::start(limits, &["--settings".to_owned(), file.display().to_string()]).unwrap()
}

#[test]
fn standalone_preset_answers_probes_and_enforces_limits() {
    let objects = rendered(&[PRESET]);
    let (home, limits) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (name, text) in objects.limits() {
        fs::write(limits.path().join(name), text).unwrap();
    }
    let service = serve(objects.server_yaml(), limits.path(), home.path());
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        let get = &objects.container()[probe]["httpGet"];
        assert_eq!(get["port"], "http");
        let reply = http1::get(service.http, get["path"].as_str().unwrap(), &[]).unwrap();
        assert_eq!(reply.status, 200, "{probe}");
    }
    let check = |hits: u32| {
        let body = format!(
            r#"{{"domain": "shop", "descriptors": [{{"entries": [{{"key": "api_key", "value": "me"}}], "hitsAddend": "{hits}"}}]}}"#
        );
        http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap().status
    };
    assert_eq!((check(11), check(10), check(1)), (429, 200, 429), "a burst of 10");
    assert!(home.path().join("counters/counters.redb").exists(), "the volume is empty");
}

#[test]
fn the_check_that_helm_test_sends_is_allowed() {
    let objects = rendered(&[PRESET]);
    let script = objects.one("Pod", "-test")["spec"]["containers"][0]["args"][0].as_str().unwrap();
    let body = script.split('\'').find(|part| part.starts_with("{\"domain\"")).unwrap();
    let (home, limits) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let service = serve(objects.server_yaml(), limits.path(), home.path());
    let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// git-sync publishes a revision as a new directory and the replacement of one symlink.
#[test]
fn one_git_sync_update_causes_one_reload() {
    let objects = rendered(&["--values=tests/chart/values/git.yaml"]);
    let settings: Value = serde_saphyr::from_str(objects.server_yaml()).unwrap();
    let named = settings["limits"]["paths"][0].as_str().unwrap().strip_prefix("/limits/").unwrap();
    assert_eq!(named, "current/edge/limits");
    let volume = tempfile::tempdir().unwrap();
    let publish = |revision: &str, requests: u32| {
        let tree = volume.path().join(".worktrees").join(revision).join("edge/limits");
        fs::create_dir_all(&tree).unwrap();
        for name in ["a", "b"] {
            let text = format!(
                "domain: {name}\ndescriptors:\n- {{key: k, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}\n"
            );
            fs::write(tree.join(format!("{name}.yaml")), text).unwrap();
        }
        let link = volume.path().join("next");
        symlink(Path::new(".worktrees").join(revision), &link).unwrap();
        fs::rename(link, volume.path().join("current")).unwrap();
    };
    publish("one", 1);
    let service = Service::start(&volume.path().join(named), &[]).unwrap();
    assert_eq!(service.loads().unwrap().loaded, 1);
    publish("two", 2);
    until("the next revision", || match service.loads()?.loaded {
        2 => Ok(()),
        few => Err(few.to_string()),
    })
    .unwrap();
    let shown = http1::get(service.admin, "/rlconfig", &[]).unwrap().text();
    assert_eq!(shown.matches("requests_per_unit=2").count(), 2, "{shown}");
    assert_eq!(service.loads().unwrap().refused, 0);
}
