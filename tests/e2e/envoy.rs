//! Runs a real Envoy with a shipped configuration.
//!
//! Guarantees:
//! - [`as_shipped`] replaces only addresses and ports, each exactly once.
//! - [`configured`] also replaces short timeouts, so that a busy machine fails no test.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::waiting::until;
use crate::support::{http1, signals};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shipped {
    Rls,
    ExtAuthz,
    ExtAuthzConcurrency,
    ExtProc,
    RlsConcurrency,
    Budgets,
    BudgetsExtProc,
    Module,
}

impl Shipped {
    pub const fn text(self) -> &'static str {
        match self {
            Self::Rls => include_str!("../../config/envoy/rls.yaml"),
            Self::ExtAuthz => include_str!("../../config/envoy/ext_authz.yaml"),
            Self::ExtAuthzConcurrency => {
                include_str!("../../config/envoy/ext_authz_concurrency.yaml")
            }
            Self::ExtProc => include_str!("../../config/envoy/ext_proc.yaml"),
            Self::RlsConcurrency => include_str!("../../config/envoy/rls_concurrency.yaml"),
            Self::Budgets => include_str!("../../config/envoy/budgets.yaml"),
            Self::BudgetsExtProc => include_str!("../../config/envoy/budgets_ext_proc.yaml"),
            Self::Module => include_str!("../../config/envoy/module.yaml"),
        }
    }

    /// The shipped failure mode and its denying counterpart.
    const fn failure_modes(self) -> (&'static str, &'static str) {
        match self {
            Self::Rls | Self::RlsConcurrency => {
                ("failure_mode_deny: false", "failure_mode_deny: true")
            }
            Self::ExtAuthz | Self::ExtAuthzConcurrency | Self::ExtProc => {
                ("failure_mode_allow: true", "failure_mode_allow: false")
            }
            // Shipped with the denying mode.
            Self::Budgets => ("failure_mode_deny: true", "failure_mode_deny: true"),
            Self::BudgetsExtProc => ("failure_mode_allow: false", "failure_mode_allow: false"),
            Self::Module => ("failure: allow", "failure: deny"),
        }
    }
}

#[test]
fn fail_closed_file_differs_only_in_the_failure_mode() {
    let settings = |text: &str| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.collect::<Vec<_>>().join("\n")
    };
    let (open, closed) = Shipped::ExtProc.failure_modes();
    let fail_closed = include_str!("../../config/envoy/ext_proc_fail_closed.yaml");
    let mut expected = settings(Shipped::ExtProc.text());
    replace_once(&mut expected, open, closed);
    assert_eq!(settings(fail_closed), expected);
}

/// Timeouts that a busy machine may exceed, and their replacements. Without a timeout of the route,
/// a request can wait for the test.
const SHORT_TIMEOUTS: [(&str, &str); 10] = [
    ("connect_timeout: 0.25s", "connect_timeout: 20s"),
    ("connect_timeout: 1s", "connect_timeout: 20s"),
    ("{interval: 5s, timeout: 1s}", "{interval: 5s, timeout: 20s}"),
    ("- timeout: 0.5s", "- timeout: 20s"),
    (" timeout: 0.25s", " timeout: 20s"),
    (" timeout: 10s", " timeout: 600s"),
    ("message_timeout: 0.2s", "message_timeout: 9s"),
    ("max_message_timeout: 10s", "max_message_timeout: 600s"),
    ("deadline: 20ms", "deadline: 1s"),
    ("{cluster: upstream}", "{cluster: upstream, timeout: 0s}"),
];

/// Failure mode when no replica answers.
#[derive(Clone, Copy)]
pub enum WhenDown {
    Allow,
    Deny,
}

/// The program and the environment of an Envoy.
#[derive(Clone, Debug, Default)]
pub struct Launch {
    /// The version under `.tools/bin`, or `None` for the default.
    pub version: Option<&'static str>,
    pub environment: Vec<(&'static str, PathBuf)>,
    /// More flags. With `--base-id`, the Envoy is a later epoch of a running one.
    pub flags: Vec<String>,
}

pub struct Envoy {
    process: Child,
    home: TempDir,
    admin: SocketAddr,
    /// Address on which Envoy accepts clients.
    pub ingress: SocketAddr,
}

impl Envoy {
    /// Starts Envoy and waits until it accepts requests and all replicas are healthy.
    pub fn start(upstream: SocketAddr, replicas: &[SocketAddr], when_down: WhenDown) -> Self {
        Self::start_with(configured(Shipped::Rls, upstream, replicas, when_down), replicas.len())
    }

    /// As [`Envoy::start`], with an edited configuration from [`configured`].
    pub fn start_with(text: String, replicas: usize) -> Self {
        Self::launch(text, replicas, &Launch::default())
    }

    /// As [`Envoy::start_with`], with another program or environment.
    pub fn launch(text: String, replicas: usize, launch: &Launch) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("envoy.yaml");
        std::fs::write(&config, text).unwrap();
        let mut process = launch.spawn(&config, home.path());
        let started = admin_of(home.path(), &mut process)
            .and_then(|admin| Ok((admin, ingress_of(admin)?)))
            .and_then(|found| wait_until_healthy(found.0, replicas).map(|()| found));
        match started {
            Ok((admin, ingress)) => Self { process, home, admin, ingress },
            Err(why) => {
                let _ = process.kill();
                let _ = process.wait();
                panic!("Envoy did not start: {why}\n{}", log(home.path()));
            }
        }
    }

    /// URL of Envoy's admin port.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// Number of checks that Envoy sent to this replica.
    pub fn checks_sent_to(&self, replica: SocketAddr) -> u64 {
        let clusters = http1::get(self.admin, "/clusters", &[]).unwrap().text();
        let prefix = format!("sluicegate::{replica}::rq_total::");
        let count = clusters.lines().find_map(|line| line.strip_prefix(&prefix));
        count.and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Number of checks that exceeded the timeout of Envoy's filter.
    pub fn timeouts(&self) -> u64 {
        self.statistic("upstream_rq_timeout")
    }

    /// Number of open checks and streams from Envoy to all replicas.
    pub fn active_requests(&self) -> u64 {
        self.statistic("upstream_rq_active")
    }

    /// Value of a statistic of Envoy's cluster of replicas.
    fn statistic(&self, stat: &str) -> u64 {
        let stats = format!("/stats?filter=cluster.sluicegate.{stat}$");
        let page = http1::get(self.admin, &stats, &[]).unwrap().text();
        page.trim().rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap()
    }

    /// The lines of Envoy's statistics whose names match this regular expression.
    pub fn statistics(&self, filter: &str) -> String {
        http1::get(self.admin, &format!("/stats?filter={filter}"), &[]).unwrap().text()
    }

    /// Value of a counter of Envoy, 0 if it does not exist.
    pub fn counter(&self, name: &str) -> u64 {
        let page = self.statistics(&format!("^{name}$"));
        page.trim().rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or_default()
    }

    /// Resident memory of Envoy in bytes (proc(5)).
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix(" kB"));
        rss.unwrap().trim().parse::<u64>().unwrap() * 1_024
    }

    /// Stops Envoy with SIGTERM, and returns its exit status.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.ended()
    }

    /// Waits until Envoy exits, and returns its exit status.
    pub fn ended(&mut self) -> ExitStatus {
        let exited = || match self.process.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err("it runs".to_owned()),
        };
        until("the end of Envoy", exited).unwrap()
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        signals::send(self.process.id(), name);
    }

    /// Sends a POST to Envoy's admin interface and returns the status.
    pub fn post(&self, path: &str) -> u16 {
        http1::call(self.admin, "POST", path, &[], Some(b"")).unwrap().status
    }

    pub fn log(&self) -> String {
        log(self.home.path())
    }

    /// The access log so far. Its last line may be incomplete.
    pub fn written_access_log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("access_log")).unwrap()
    }

    /// Waits until the access log has `count` lines, and returns it.
    pub fn access_log(&self, count: usize) -> String {
        until("the access log", || {
            let text = self.written_access_log();
            if text.lines().count() == count && text.ends_with('\n') { Ok(text) } else { Err(text) }
        })
        .unwrap()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn log(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap_or_default()
}

/// The shipped configuration with the addresses of this test, and with long timeouts.
pub fn configured(
    shipped_file: Shipped,
    upstream: SocketAddr,
    replicas: &[SocketAddr],
    when_down: WhenDown,
) -> String {
    with_long_timeouts(&as_shipped(shipped_file, upstream, replicas, when_down))
}

/// Replaces the short timeouts of a shipped configuration.
pub fn with_long_timeouts(text: &str) -> String {
    let replace = |text: String, (short, long): &(&str, &str)| text.replace(short, long);
    let replaced = SHORT_TIMEOUTS.iter().fold(text.to_owned(), replace);
    let left = ["0.2s", "0.25s", "20ms"].into_iter().find(|short| replaced.contains(short));
    assert_eq!(left, None, "a short timeout in another form");
    replaced
}

/// The shipped configuration with the addresses of this test.
pub fn as_shipped(
    shipped_file: Shipped,
    upstream: SocketAddr,
    replicas: &[SocketAddr],
    when_down: WhenDown,
) -> String {
    let mut endpoints = String::new();
    for (at, replica) in replicas.iter().enumerate() {
        let indent = if at == 0 { "" } else { "\n              " };
        let _ = write!(endpoints, "{indent}- endpoint: {}", address(*replica));
    }
    let shipped = |ip: &str, port: u16| format!("{{address: {ip}, port_value: {port}}}");
    let free = shipped("127.0.0.1", 0);
    let loopback = |port: u16| format!("- endpoint: {}", address(([127, 0, 0, 1], port).into()));
    let mut text = shipped_file.text().to_owned();
    replace_once(&mut text, &shipped("127.0.0.1", 9901), &free);
    replace_once(&mut text, &shipped("0.0.0.0", 10_000), &free);
    match (shipped_file, replicas) {
        (Shipped::Module, [replica, ..]) => {
            replace_once(&mut text, "127.0.0.1:8081", &replica.to_string());
        }
        _ => replace_once(&mut text, &loopback(8081), &endpoints),
    }
    replace_once(&mut text, &loopback(9000), &format!("- endpoint: {}", address(upstream)));
    if let WhenDown::Deny = when_down {
        let (allow, deny) = shipped_file.failure_modes();
        replace_once(&mut text, allow, deny);
    }
    text
}

fn address(it: SocketAddr) -> String {
    format!("{{address: {{socket_address: {{address: {}, port_value: {}}}}}}}", it.ip(), it.port())
}

/// Replaces the only occurrence of `from`, and panics if there is not exactly one.
pub fn replace_once(text: &mut String, from: &str, to: &str) {
    assert_eq!(text.matches(from).count(), 1, "{from} in a shipped configuration");
    *text = text.replace(from, to);
}

/// Path of the Envoy binary: `SLUICEGATE_ENVOY`, or the one that `scripts/test.sh` installs.
fn binary() -> PathBuf {
    let default = || installed("envoy");
    let path = std::env::var_os("SLUICEGATE_ENVOY").map_or_else(default, PathBuf::from);
    assert!(
        path.exists(),
        "no Envoy at {}: run scripts/test.sh, which installs one, or set SLUICEGATE_ENVOY",
        path.display()
    );
    path
}

fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin").join(name)
}

impl Launch {
    /// Envoy's report on a configuration that it only validates.
    pub fn validate(&self, text: &str) -> Output {
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("envoy.yaml");
        std::fs::write(&config, text).unwrap();
        let mut command = self.command();
        command.args(["--mode", "validate", "--config-path"]).arg(config).output().unwrap()
    }

    fn command(&self) -> Command {
        let versioned = self.version.map(|version| installed(&format!("envoy-{version}")));
        let mut command = Command::new(versioned.unwrap_or_else(binary));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.args(["--concurrency", "2", "--log-level", "warning"]).args(&self.flags);
        if !self.flags.iter().any(|flag| flag == "--base-id") {
            command.arg("--use-dynamic-base-id");
        }
        command
    }

    fn spawn(&self, config: &Path, home: &Path) -> Child {
        let [log, access_log] =
            ["log", "access_log"].map(|name| std::fs::File::create(home.join(name)).unwrap());
        let mut command = self.command();
        command.arg("--config-path").arg(config);
        command.arg("--admin-address-path").arg(home.join("admin"));
        command.args(["--file-flush-interval-msec", "50"]);
        command.stdin(Stdio::null()).stdout(access_log).stderr(log).spawn().unwrap()
    }
}

fn admin_of(home: &Path, process: &mut Child) -> Result<SocketAddr, String> {
    until("Envoy's admin", || {
        if let Ok(Some(status)) = process.try_wait() {
            return Err(format!("it ended with {status}"));
        }
        let text = std::fs::read_to_string(home.join("admin")).map_err(|e| e.to_string())?;
        text.trim().parse().map_err(|error| format!("{text}: {error}"))
    })
}

fn ingress_of(admin: SocketAddr) -> Result<SocketAddr, String> {
    until("Envoy's listener", || {
        let ready = http1::get(admin, "/ready", &[]).map_err(|error| error.to_string())?;
        if ready.status != 200 {
            return Err(ready.text());
        }
        let reply = http1::get(admin, "/listeners?format=json", &[]).map_err(|e| e.to_string())?;
        let listeners: Value = serde_json::from_slice(&reply.body).map_err(|e| e.to_string())?;
        let port = listeners
            .pointer("/listener_statuses/0/local_address/socket_address/port_value")
            .and_then(Value::as_u64)
            .and_then(|port| u16::try_from(port).ok());
        port.map(|port| ([127, 0, 0, 1], port).into()).ok_or_else(|| listeners.to_string())
    })
}

fn wait_until_healthy(admin: SocketAddr, replicas: usize) -> Result<(), String> {
    until("healthy replicas", || {
        let clusters = http1::get(admin, "/clusters", &[]).map_err(|error| error.to_string())?;
        let clusters = clusters.text();
        let is_healthy = |line: &&str| {
            line.starts_with("sluicegate::") && line.ends_with("::health_flags::healthy")
        };
        let found = clusters.lines().filter(is_healthy).count();
        if found == replicas { Ok(()) } else { Err(clusters) }
    })
}
