//! Imports the JSON access log of a real Envoy, and replays it with the shipped hooks.
//!
//! Guarantees:
//! - A replay of the log denies as many requests as Envoy denied.

use std::path::Path;
use std::process::Output;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::{Limits, serve, statuses, upstream};
use crate::support::service::sluicegate;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const REQUESTS: usize = 12;

/// Envoy's access log as in `docs/guides/test-a-change.md`.
fn access_log(path: &Path) -> String {
    format!(
        r#"stat_prefix: ingress
                access_log:
                  - name: envoy.access_loggers.file
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
                      path: {}
                      log_format:
                        json_format:
                          start_time: "%START_TIME%"
                          method: "%REQ(:METHOD)%"
                          path: "%REQ(:PATH)%"
                          authority: "%REQ(:AUTHORITY)%"
                          downstream_remote_address: "%DOWNSTREAM_REMOTE_ADDRESS%"
                          x_api_key: "%REQ(X-API-KEY)%"
                          response_flags: "%RESPONSE_FLAGS%""#,
        path.display()
    )
}

fn run(arguments: &[&str]) -> Output {
    sluicegate().args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

#[test]
fn the_log_of_an_envoy_is_replayed_with_its_denials() {
    for_a_day_with_a_minute_left();
    let (limits, home) = (Limits::per_key(7), tempfile::tempdir().unwrap());
    let service = serve(limits.path(), &[]);
    let log = home.path().join("access.log");
    let mut config = configured(Shipped::Rls, upstream::start(), &[service.grpc], WhenDown::Deny);
    replace_once(&mut config, "stat_prefix: ingress", &access_log(&log));
    let envoy = Envoy::start_with(config, 1);
    let denied = statuses(envoy.ingress, "ann", REQUESTS)[&429];
    let logged = || std::fs::read_to_string(&log).unwrap_or_default();
    until("the access log", || {
        // Otherwise Envoy writes its buffer every ten seconds.
        envoy.post("/reopen_logs");
        (logged().lines().count() == REQUESTS).then_some(()).ok_or_else(logged)
    })
    .unwrap();
    let recording = home.path().join("recording");
    let [log, recording] = [&log, &recording].map(|path| path.to_str().unwrap());
    let imported = run(&[
        "record",
        "--access-log",
        log,
        "--settings",
        "config/start.yaml",
        "--out",
        recording,
    ]);
    assert!(imported.status.success(), "{imported:?}\n{}", logged());
    let old = limits.path().to_str().unwrap();
    let replayed = run(&["replay", "--from", recording, "--old", old]);
    let report = String::from_utf8(replayed.stdout).unwrap();
    assert!(report.contains(&format!("{REQUESTS} checks in")), "{report}");
    assert!(report.contains(&format!("old limits deny {denied} (")), "{report}");
}
