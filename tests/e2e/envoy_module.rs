//! Tests of Sluicegate's filter inside real Envoys of all supported versions.
//!
//! Guarantees:
//! - The module is built once, with panics that a variable plants in its hooks.
//! - The configuration is the shipped `config/envoy/module.yaml`.

mod certificates;
mod changes;
mod concurrency;
mod counts;
mod doctor;
mod fleet;
mod gateway;
mod library;
mod limits;
mod outage;
mod yardstick;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use super::envoy::{Envoy, Launch, Shipped, WhenDown, configured, replace_once};
use super::upstream;
use crate::support::http1;
use crate::support::waiting::until;

const VERSIONS: [&str; 3] = ["1.38", "1.39", "1.40"];

/// Hooks of streams that run before the response, so that the failure mode decides.
const HOOKS_BEFORE_THE_RESPONSE: [&str; 2] = ["filter_new", "request_headers"];

const OTHER_STREAM_HOOKS: [&str; 4] =
    ["response_headers", "response_body", "stream_complete", "destroy"];

const HOOKS_OF_ENDING_CONFIGS: [&str; 2] = ["config_destroy", "route_config_destroy"];

const HOOKS_OF_NEW_CONFIGS: [&str; 2] = ["config_new", "route_config_new"];

/// The directory of the module. That of the last release for `scripts/upgrade.sh`.
static MODULE: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(last) = std::env::var_os("LAST_RELEASE_MODULE") {
        return last.into();
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("envoy_module");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "-p", "sluicegate-envoy", "--features", "plant_panics"]);
    // `scripts/tiers.py` sets it for the times of tests. Cargo would build all dependencies again.
    cargo.env_remove("RUSTC_BOOTSTRAP");
    let built = cargo.arg("--target-dir").arg(target).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::create_dir_all(&directory).unwrap();
    let name = "libsluicegate_envoy.so";
    // A rename keeps the file that the Envoys of another test run have mapped.
    let copy = directory.join(std::process::id().to_string());
    std::fs::copy(target.join("debug").join(name), &copy).unwrap();
    std::fs::rename(copy, directory.join(name)).unwrap();
    directory
});

fn launch(version: &'static str) -> Launch {
    let environment = vec![("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", MODULE.clone())];
    Launch { version: Some(version), environment, flags: Vec::new() }
}

/// An Envoy whose module panics in a hook.
fn launch_with_panic(hook: &str) -> Launch {
    let mut launch = launch("1.40");
    launch.environment.push(("SLUICEGATE_PLANT_PANIC", hook.into()));
    launch
}

/// The shipped configuration. Nothing listens at the service's address.
fn configuration(when_down: WhenDown) -> String {
    configured(Shipped::Module, upstream::start(), &[([127, 0, 0, 1], 1).into()], when_down)
}

fn get(envoy: &Envoy, path: &str, headers: &[(&str, &str)]) -> u16 {
    http1::get(envoy.ingress, path, headers).unwrap().status
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sluicegate replied later than the filter waits, so the failure rule decided a request.
struct LateReply;

/// Repeats a test with new Envoys or keys until Sluicegate decides all its requests. On a busy
/// machine, replies may be late.
fn repeat_until_decided(mut test: impl FnMut() -> Result<(), LateReply>) {
    const MAX_ATTEMPTS: usize = 20;
    let is_decided = (0..MAX_ATTEMPTS).any(|_| test().is_ok());
    assert!(is_decided, "the failure rule decided a request of each attempt");
}

/// Waits until the counters include all earlier requests. `send` sends one that the filter counts.
fn settle_with<T>(envoy: &Envoy, send: impl FnOnce() -> T) {
    let counters = || envoy.statistics("^dynamicmodulescustom");
    let before = counters();
    send();
    // One addition has all events before it.
    let are_added = || if counters() == before { Err(before.clone()) } else { Ok(()) };
    until("an addition to the counters", are_added).unwrap();
}

/// As [`settle_with`], with a request that the shipped configuration counts.
fn settle(envoy: &Envoy) {
    settle_with(envoy, || get(envoy, "/login", &[("x-user", "settle")]));
}

/// The number of requests that the failure rule decided, without later ones. Sends a request.
fn fallbacks(envoy: &Envoy) -> u64 {
    settle(envoy);
    counted_fallbacks(envoy)
}

/// The number of requests that the failure rule decided, as Envoy counted them.
fn counted_fallbacks(envoy: &Envoy) -> u64 {
    let names = ["fallback_allowed", "fallback_denied"];
    names.iter().map(|name| envoy.counter(&format!("dynamicmodulescustom.{name}"))).sum()
}

/// Waits until these counters of the filter have these values.
fn wait_for_counts<const N: usize>(envoy: &Envoy, expected: [(&str, u64); N]) {
    let counter = |name: &str| envoy.counter(&format!("dynamicmodulescustom.{name}"));
    until("the counts", || match expected.map(|(name, _)| (name, counter(name))) {
        counts if counts == expected => Ok(()),
        counts => Err(format!("{counts:?} instead of {expected:?}\n{}", envoy.log())),
    })
    .unwrap();
}

#[test]
fn each_supported_envoy_runs_the_filter_with_its_route_configs() {
    for version in VERSIONS {
        let mut envoy = Envoy::launch(configuration(WhenDown::Allow), 0, &launch(version));
        // `/health` has no limits, and `/login` only one for each `x-user`.
        for (path, headers, checks) in [
            ("/", &[][..], 1),
            ("/health", &[("x-api-key", "ann")], 1),
            ("/login", &[("x-api-key", "ann")], 1),
            ("/login", &[("x-user", "ann")], 2),
        ] {
            assert_eq!(get(&envoy, path, headers), 200, "{version} {path}\n{}", envoy.log());
            // The last request is counted, so its addition has all earlier ones.
            wait_for_counts(&envoy, [("allowed.rule.none", 0), ("fallback_allowed", checks)]);
        }
        assert_eq!(envoy.counter("dynamicmodulescustom.panics"), 0, "{version}");
        assert!(envoy.stop().success(), "{version}: {}", envoy.log());
    }
}

#[test]
fn envoy_rejects_bad_configs_with_field_and_fix() {
    let text = configuration(WhenDown::Allow);
    for (from, to, message) in [
        ("deadline: 1s", "deadline: 2s", "`deadline` has an invalid duration; write 1ms to 1s"),
        ("domain: shop", "domian: shop", "`domian` is an unknown field; write one of `service`"),
        ("value: {enabled: false}", "value: {}", "`descriptors` is missing; write `descriptors`"),
        ("status: 429", "status: 200", "`status` is 200, which is no error; write a status from"),
    ] {
        let mut changed = text.clone();
        replace_once(&mut changed, from, to);
        for version in VERSIONS {
            let output = launch(version).validate(&changed);
            assert_eq!(output.status.code(), Some(1), "{version} {to}: {}", errors(&output));
            assert!(errors(&output).contains(message), "{version} {to}: {}", errors(&output));
        }
    }
    let output = launch("1.40").validate(&text);
    assert!(output.status.success(), "{}", errors(&output));
}

#[test]
fn a_panic_before_the_response_applies_the_failure_mode() {
    for hook in HOOKS_BEFORE_THE_RESPONSE {
        std::thread::scope(|scope| {
            for (when_down, status, counter) in [
                (WhenDown::Allow, 200, "fallback_allowed"),
                (WhenDown::Deny, 503, "fallback_denied"),
            ] {
                scope.spawn(move || check_panic(hook, when_down, status, counter));
            }
        });
    }
}

/// Checks an Envoy whose module panics in this hook, before the response.
fn check_panic(hook: &str, when_down: WhenDown, status: u16, counter: &str) {
    let envoy = Envoy::launch(configuration(when_down), 0, &launch_with_panic(hook));
    for _ in 0..3 {
        assert_eq!(get(&envoy, "/", &[]), status, "{hook}: {}", envoy.log());
    }
    assert_eq!(get(&envoy, "/health", &[]), 200, "{hook}: a route without limits");
    wait_for_counts(&envoy, [(counter, 3), ("panics", 4)]);
    assert_eq!(envoy.log().matches("planted in").count(), 1, "{}", envoy.log());
}

#[test]
fn a_panic_in_other_hooks_leaves_envoy_and_its_answers_alone() {
    for hook in OTHER_STREAM_HOOKS {
        let mut envoy = Envoy::launch(configuration(WhenDown::Allow), 0, &launch_with_panic(hook));
        for _ in 0..3 {
            assert_eq!(get(&envoy, "/", &[]), 200, "{hook}: {}", envoy.log());
        }
        wait_for_counts(&envoy, [("fallback_allowed", 3)]);
        let panics = envoy.counter("dynamicmodulescustom.panics");
        assert!(2 <= panics, "{hook}: {panics} panics\n{}", envoy.log());
        assert!(envoy.stop().success(), "{hook}: {}", envoy.log());
    }
    for hook in HOOKS_OF_ENDING_CONFIGS {
        let mut envoy = Envoy::launch(configuration(WhenDown::Allow), 0, &launch_with_panic(hook));
        assert!(envoy.stop().success(), "{hook}: {}", envoy.log());
        assert!(envoy.log().contains(&format!("planted in {hook}")), "{}", envoy.log());
    }
}

#[test]
fn a_panic_in_a_new_config_rejects_it() {
    for hook in HOOKS_OF_NEW_CONFIGS {
        let output = launch_with_panic(hook).validate(&configuration(WhenDown::Allow));
        assert_eq!(output.status.code(), Some(1), "{hook}: {}", errors(&output));
        assert!(errors(&output).contains(&format!("planted in {hook}")), "{}", errors(&output));
    }
}
