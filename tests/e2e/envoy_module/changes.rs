//! Tests of changes under load: of the limits, of Envoy's configuration, and of Envoy itself.
//!
//! Guarantees:
//! - No request fails during a change.
//! - Counts continue after a change.
//!
//! An attempt with a failure does not count if Sluicegate's other replies were late, too.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tempfile::TempDir;

use super::super::envoy::{Envoy, Launch, Shipped, WhenDown, configured, replace_once};
use super::super::{Traffic, ask, serve, upstream};
use super::yardstick::{LateMachine, Replies, Yardstick, repeat_while_late};
use super::{VERSIONS, launch, settle};
use crate::support::http1::{Connection, Reply};
use crate::support::ports;
use crate::support::service::Service;
use crate::support::waiting::{Ends, for_a_day_with_a_minute_left, now, until};

/// Marks the filter in a configuration.
const FILTER: &str = "                  - name: sluicegate\n";
const ROUTER: &str = "                  - name: envoy.filters.http.router\n";

/// Limits for each `x-api-key`, which a test can replace.
struct LeasedLimits(TempDir);

impl LeasedLimits {
    fn new(requests: u64) -> Self {
        let limits = Self(tempfile::tempdir().unwrap());
        limits.replace(requests);
        limits
    }

    /// Replaces the file by an atomic rename. A tenth of the hits may be outstanding.
    fn replace(&self, requests: u64) {
        let text = format!(
            "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {{unit: day, \
             requests_per_unit: {requests}, strategy: fixed_window, mode: leased, \
             max_overshoot: 10%}}\n"
        );
        replace_file(&self.0.path().join("shop.yaml"), &text);
    }
}

fn replace_file(path: &Path, text: &str) {
    let prepared = path.with_file_name(".prepared");
    std::fs::write(&prepared, text).unwrap();
    std::fs::rename(prepared, path).unwrap();
}

fn configuration(service: &Service) -> String {
    configured(Shipped::Module, upstream::start(), &[service.grpc], WhenDown::Deny)
}

/// Waits until the limit decides a request.
fn wait_until_limited(ingress: SocketAddr) {
    let is_limited = || match ask(ingress, "first") {
        reply if reply.header("ratelimit-policy").is_some() => Ok(()),
        reply => Err(format!("{reply:?}")),
    };
    until("the first limited request", is_limited).unwrap();
}

/// Runs `work` while three clients send requests, and requires that none fails. Also returns the
/// replies beside them.
fn run_under_load<T>(
    traffic: &Traffic,
    service: &Service,
    ingress: SocketAddr,
    work: impl FnOnce() -> T,
) -> Result<(T, Replies), LateMachine> {
    let yardstick = Yardstick::start(service);
    let result = std::thread::scope(|scope| {
        let _ends = Ends(&traffic.stop);
        for _ in 0..3 {
            scope.spawn(|| traffic.run(ingress, "busy"));
        }
        work()
    });
    let replies = yardstick.stop();
    replies.judge(&traffic.failures.lock().unwrap())?;
    Ok((result, replies))
}

#[test]
fn changed_limits_reach_envoy_within_a_second_and_fail_no_request() {
    repeat_while_late(|| {
        for_a_day_with_a_minute_left();
        let limits = LeasedLimits::new(1_000_000);
        let service = serve(limits.0.path(), &[]);
        let envoy = Envoy::launch(configuration(&service), 0, &launch("1.40"));
        wait_until_limited(envoy.ingress);
        let traffic = Traffic::new();
        let (times, replies) = run_under_load(&traffic, &service, envoy.ingress, || {
            Traffic::wait_for(&traffic.admitted, 100);
            assert_eq!(traffic.denied.load(Relaxed), 0);
            let changes = [(10, 2, &traffic.denied), (1_000_000, 3, &traffic.admitted)];
            changes.map(|(requests, loads, count)| {
                limits.replace(requests);
                wait_for_loads(&service, loads);
                let loaded_at = now();
                Traffic::wait_for(count, 1);
                (loaded_at, now())
            })
        })?;
        for (loaded_at, applied_at) in times {
            let time = applied_at.duration_since(loaded_at);
            // A change needs fewer than twenty messages and wake-ups in turn.
            let slowest = replies.slowest((loaded_at, applied_at));
            let details = format!("{time:?}, with replies of {slowest:?}\n{}", envoy.log());
            assert!(time <= Duration::from_secs(1) + 20 * slowest, "{details}");
        }
        Ok(())
    });
}

fn wait_for_loads(service: &Service, loads: u64) {
    let is_loaded = || match service.loads()?.loaded {
        loaded if loaded < loads => Err(loaded.to_string()),
        _ => Ok(()),
    };
    until("the load of the limits", is_loaded).unwrap();
}

/// An Envoy whose listener is in a file that Envoy watches.
pub(super) struct WatchedListener {
    directory: TempDir,
    pub(super) listener: String,
}

impl WatchedListener {
    /// Splits a configuration, and returns the rest.
    pub(super) fn new(text: &str) -> (Self, String) {
        let directory = tempfile::tempdir().unwrap();
        let (head, rest) = text.split_once("static_resources:\n  listeners:\n").unwrap();
        let (listener, clusters) = rest.split_once("  clusters:\n").unwrap();
        let resource = "resources:\n    - \"@type\": \
                        type.googleapis.com/envoy.config.listener.v3.Listener\n      name: ingress\n";
        let mut listener = listener.to_owned();
        replace_once(&mut listener, "    - name: ingress\n", resource);
        let watched = Self { directory, listener };
        watched.replace(&watched.listener);
        let path = watched.path();
        let rest = format!(
            "node: {{id: edge, cluster: test}}\n{head}dynamic_resources:\n  lds_config: \
             {{path_config_source: {{path: {}}}}}\nstatic_resources:\n  clusters:\n{clusters}",
            path.display()
        );
        (watched, rest)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("listeners.yaml")
    }

    pub(super) fn replace(&self, listener: &str) {
        replace_file(&self.path(), listener);
    }

    fn without_filter(&self) -> String {
        let (head, rest) = self.listener.split_once(FILTER).unwrap();
        let (_, tail) = rest.split_once(ROUTER).unwrap();
        [head, ROUTER, tail].concat()
    }

    pub(super) fn with_all_headers(&self) -> String {
        let mut listener = self.listener.clone();
        replace_once(&mut listener, "headers: draft", "headers: all");
        listener
    }
}

/// Waits until an allowed request shows the new configuration. Each one has a new key, so that no
/// limit denies it.
fn wait_for_config(ingress: SocketAddr, is_new: impl Fn(&Reply) -> bool) {
    let mut keys = 0..;
    let reply = || match ask(ingress, &format!("probe-{}", keys.next().unwrap_or(0))) {
        reply if reply.status == 200 && is_new(&reply) => Ok(()),
        reply => Err(format!("{reply:?}")),
    };
    until("the new configuration", reply).unwrap();
}

/// Sends requests of one client, and counts the allowed ones. A failure is one of `traffic`.
fn count_allowed(ingress: SocketAddr, traffic: &Traffic, requests: usize) -> usize {
    let mut allowed = 0;
    for _ in 0..requests {
        let asked_at = now();
        match ask(ingress, "counted").status {
            200 => allowed += 1,
            429 => {}
            _ => traffic.failures.lock().unwrap().push((asked_at, now())),
        }
    }
    allowed
}

/// Counts allowed requests before, during and after two changes of the listener's file.
fn counts_around_changes(
    changes: impl Fn(&WatchedListener) -> [String; 2],
    is_changed: impl Fn(&Reply) -> bool,
) -> Result<[usize; 3], LateMachine> {
    for_a_day_with_a_minute_left();
    let limits = LeasedLimits::new(500);
    let service = serve(limits.0.path(), &[]);
    let (listener, text) = WatchedListener::new(&configuration(&service));
    let mut envoy = Envoy::launch(text, 0, &launch("1.40"));
    let ingress = envoy.ingress;
    wait_until_limited(ingress);
    let traffic = Traffic::new();
    let (counts, _) = run_under_load(&traffic, &service, ingress, || {
        let before = count_allowed(ingress, &traffic, 300);
        let [first, second] = changes(&listener);
        listener.replace(&first);
        wait_for_config(ingress, &is_changed);
        let during = count_allowed(ingress, &traffic, 100);
        listener.replace(&second);
        wait_for_config(ingress, |reply| !is_changed(reply));
        [before, during, count_allowed(ingress, &traffic, 300)]
    })?;
    settle(&envoy);
    assert_eq!(envoy.counter("dynamicmodulescustom.panics"), 0);
    assert!(envoy.stop().success(), "{}", envoy.log());
    Ok(counts)
}

#[test]
fn counts_continue_after_envoy_reloads_its_config() {
    repeat_while_late(|| {
        let counts = counts_around_changes(
            |listener| [listener.with_all_headers(), listener.listener.clone()],
            |reply| reply.header("ratelimit-limit").is_some(),
        )?;
        assert_eq!(counts, [300, 100, 100], "of 500 requests a day");
        Ok(())
    });
}

#[test]
fn a_filter_that_is_removed_and_added_again_continues_its_counts() {
    repeat_while_late(|| {
        let counts = counts_around_changes(
            |listener| [listener.without_filter(), listener.listener.clone()],
            |reply| reply.header("ratelimit").is_none(),
        )?;
        assert_eq!(counts, [300, 100, 200], "of 500 requests a day, without those in between");
        Ok(())
    });
}

/// Waits until Envoy has dropped the filters of replaced listeners.
pub(super) fn wait_for_drained(envoy: &Envoy) {
    until("the end of old listeners", || {
        match envoy.counter("listener_manager.total_listeners_draining")
            + envoy.counter("listener_manager.total_filter_chains_draining")
        {
            0 => Ok(()),
            draining => Err(draining.to_string()),
        }
    })
    .unwrap();
}

/// Without `do_not_close`, Envoy closes the module with its last filter. Then it stays loaded,
/// because its thread keeps running.
#[test]
fn envoy_without_do_not_close_survives_ten_reloads() {
    // An Envoy waits for its drain time after each reload, so all versions wait at once.
    std::thread::scope(|scope| {
        for version in VERSIONS {
            scope.spawn(move || reload_ten_times(version));
        }
    });
}

fn reload_ten_times(version: &'static str) {
    let limits = LeasedLimits::new(1_000_000);
    let service = serve(limits.0.path(), &[]);
    let text = configuration(&service).replace(", do_not_close: true", "");
    let (listener, text) = WatchedListener::new(&text);
    let flags = ["--drain-time-s", "1"].map(str::to_owned).to_vec();
    let mut envoy = Envoy::launch(text, 0, &Launch { flags, ..launch(version) });
    let ingress = envoy.ingress;
    wait_until_limited(ingress);
    for _ in 0..10 {
        listener.replace(&listener.without_filter());
        wait_for_config(ingress, |reply| reply.header("ratelimit").is_none());
        wait_for_drained(&envoy);
        listener.replace(&listener.listener);
        wait_for_config(ingress, |reply| reply.header("ratelimit").is_some());
    }
    assert_eq!(envoy.counter("dynamicmodulescustom.panics"), 0, "{version}");
    assert!(envoy.stop().success(), "{version}: {}", envoy.log());
}

#[test]
fn draining_envoy_fails_no_request() {
    repeat_while_late(|| {
        let limits = LeasedLimits::new(1_000_000);
        let service = serve(limits.0.path(), &[]);
        let flags = ["--drain-time-s", "600"].map(str::to_owned).to_vec();
        let launch = Launch { flags, ..launch("1.40") };
        let mut envoy = Envoy::launch(configuration(&service), 0, &launch);
        wait_until_limited(envoy.ingress);
        let traffic = Traffic::new();
        run_under_load(&traffic, &service, envoy.ingress, || {
            Traffic::wait_for(&traffic.admitted, 100);
            assert_eq!(envoy.post("/healthcheck/fail"), 200);
            assert_eq!(envoy.post("/drain_listeners?graceful&skip_exit"), 200);
            Traffic::wait_for(&traffic.admitted, 300);
        })?;
        assert!(envoy.stop().success(), "{}", envoy.log());
        Ok(())
    });
}

/// Sends requests on one connection until 100 are denied. Returns the number of allowed ones.
fn spend_rest(ingress: SocketAddr, limit: u64) -> u64 {
    let mut connection = Connection::open(ingress).unwrap();
    let (mut allowed, mut denied) = (0, 0);
    for _ in 0..20 * limit {
        match connection.get(&[("x-api-key", "busy")]).unwrap() {
            200 => allowed += 1,
            429 => denied += 1,
            // A late reply: the failure rule decides, and no hit is spent.
            _ => {}
        }
        if denied == 100 {
            return allowed;
        }
    }
    panic!("{allowed} allowed and {denied} denied of {}", 20 * limit);
}

/// Starts the Envoy that replaces `parent`, and waits for the end of `parent`.
fn replace(parent: &mut Envoy, text: String, base_id: &Path) -> Envoy {
    let base_id = std::fs::read_to_string(base_id).unwrap();
    let second = hot_restart_launch(2, &["--base-id", base_id.trim(), "--restart-epoch", "1"]);
    let child = Envoy::launch(text, 0, &second);
    assert_eq!(child.ingress, parent.ingress);
    let status = parent.ended();
    assert!(status.success(), "{status}\n{}", parent.log());
    child
}

#[test]
fn hot_restart_fails_no_request_and_keeps_the_bound() {
    const LIMIT: u64 = 3_000;
    // With this pause, the clients cannot spend the limit before the hot restart ends.
    const PAUSE: Duration = Duration::from_millis(10);
    repeat_while_late(|| {
        for_a_day_with_a_minute_left();
        let limits = LeasedLimits::new(LIMIT);
        let service = serve(limits.0.path(), &[]);
        let home = tempfile::tempdir().unwrap();
        let base_id = home.path().join("base_id");
        let mut text = configuration(&service);
        // Only a fixed port is handed to the next epoch.
        let listen = |port: u16| {
            format!("{{address: 127.0.0.1, port_value: {port}}}}}\n      filter_chains")
        };
        replace_once(&mut text, &listen(0), &listen(ports::free().port()));
        let first = hot_restart_launch(2, &["--base-id-path", base_id.to_str().unwrap()]);
        let mut parent = Envoy::launch(text.clone(), 0, &first);
        wait_until_limited(parent.ingress);
        let fallbacks = |envoy: &Envoy| envoy.counter("dynamicmodulescustom.fallback_denied");
        settle(&parent);
        let (before, traffic) = (fallbacks(&parent), Traffic::with_pauses(PAUSE));
        let ((spent, child), _) = run_under_load(&traffic, &service, parent.ingress, || {
            Traffic::wait_for(&traffic.admitted, 100);
            let child = replace(&mut parent, text, &base_id);
            let failed = traffic.failed.load(Relaxed);
            assert!(fallbacks(&child) <= before + failed, "no connection yet\n{}", child.log());
            // All hits that the parent left are spent.
            (spend_rest(child.ingress, LIMIT), child)
        })?;
        let allowed = traffic.admitted.load(Relaxed) + spent;
        assert!(allowed <= LIMIT + LIMIT / 10, "{allowed}");
        settle(&child);
        let decided = ["allowed", "denied"].map(|verdict| {
            child.counter(&format!("dynamicmodulescustom.{verdict}.rule.shop.api_key"))
        });
        assert!(0 < decided[0] + decided[1], "{}", child.log());
        assert_eq!(child.counter("dynamicmodulescustom.panics"), 0);
        Ok(())
    });
}

/// Flags of an Envoy whose parent ends this many seconds after its start.
pub(super) fn hot_restart_launch(parent_seconds: u32, flags: &[&str]) -> Launch {
    let parent_seconds = parent_seconds.to_string();
    let times = ["--drain-time-s", "1", "--parent-shutdown-time-s", &parent_seconds];
    let flags = times.iter().chain(flags).map(|&flag| flag.to_owned()).collect();
    Launch { flags, ..launch("1.40") }
}
