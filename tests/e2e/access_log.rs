//! Imports the JSON access log of a real Envoy, and replays it with the shipped hooks.
//!
//! Guarantees:
//! - A replay of the log denies as many requests as Envoy denied.

use std::process::Output;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::{Limits, serve, statuses, upstream};
use crate::support::service::sluicegate;
use crate::support::waiting::for_a_day_with_a_minute_left;

const REQUESTS: usize = 12;

/// Fields that the shipped hook needs, as in `docs/guides/test-a-change.md`.
const HOOK_FIELDS: &str = r#"
                          authority: "%REQ(:AUTHORITY)%"
                          downstream_remote_address: "%DOWNSTREAM_REMOTE_ADDRESS%"
                          x_api_key: "%REQ(X-API-KEY)%"
                          response_flags: "%RESPONSE_FLAGS%""#;

fn run(arguments: &[&str]) -> Output {
    sluicegate().args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

#[test]
fn the_log_of_an_envoy_is_replayed_with_its_denials() {
    for_a_day_with_a_minute_left();
    let (limits, home) = (Limits::per_key(7), tempfile::tempdir().unwrap());
    let service = serve(limits.path(), &[]);
    let mut config = configured(Shipped::Rls, upstream::start(), &[service.grpc], WhenDown::Deny);
    replace_once(&mut config, "json_format:", &format!("json_format:{HOOK_FIELDS}"));
    let envoy = Envoy::start_with(config, 1);
    let denied = statuses(envoy.ingress, "ann", REQUESTS)[&429];
    let logged = envoy.access_log(REQUESTS);
    let log = home.path().join("access.log");
    std::fs::write(&log, &logged).unwrap();
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
    assert!(imported.status.success(), "{imported:?}\n{logged}");
    let old = limits.path().to_str().unwrap();
    let replayed = run(&["replay", "--from", recording, "--old", old]);
    let report = String::from_utf8(replayed.stdout).unwrap();
    assert!(report.contains(&format!("{REQUESTS} checks in")), "{report}");
    assert!(report.contains(&format!("old limits deny {denied} (")), "{report}");
}
