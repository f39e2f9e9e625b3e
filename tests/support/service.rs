//! Runs the real binary as a child process on free ports.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::Value;
use tonic::transport::Endpoint;

use crate::support::waiting::{PATIENCE, until};
use crate::support::{http1, signals};

pub struct Service {
    process: Child,
    /// Standard error of the process.
    log: tempfile::NamedTempFile,
    /// Bearer token for `/config`.
    token: Option<&'static str>,
    /// Standard output until the `ready` line.
    pub said: String,
    /// RLS and health.
    pub grpc: SocketAddr,
    /// `/json` and `/healthcheck`.
    pub http: SocketAddr,
    /// `/config`.
    pub admin: SocketAddr,
    /// `/metrics`.
    pub metrics: SocketAddr,
}

/// Load counters of `/config`.
pub struct Loads {
    pub loaded: u64,
    pub refused: u64,
    /// `null`, or the diagnostics of the last rejected file.
    pub last_error: Value,
}

impl Service {
    /// Starts `serve` and returns when it is ready.
    ///
    /// # Errors
    /// The output of a process that exits before it is ready.
    pub fn start(limits: &Path, flags: &[String]) -> Result<Self, String> {
        Self::start_under(limits, flags, &[])
    }

    /// [`Service::start`] with additional environment variables.
    pub fn start_under(
        limits: &Path,
        flags: &[String],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let mut command = sluicegate();
        command.arg("serve").arg("--limits-paths").arg(limits);
        for port in ["grpc", "http", "admin", "metrics", "peer"] {
            let flag = format!("--listen-{port}-port");
            if !flags.contains(&flag) {
                command.arg(flag).arg("0");
            }
        }
        command.envs(environment.iter().copied()).args(flags);
        Self::run(command, None)
    }

    /// Starts the binary under the name `ratelimit` and returns when it is ready. These variables
    /// are its only settings. Ports default to free ones.
    pub fn start_as_ratelimit(variables: &[(&str, &str)]) -> Result<Self, String> {
        let mut command = as_ratelimit();
        command.env("SLUICEGATE_ADMIN_TOKEN", TOKEN).envs(variables.iter().copied());
        Self::run(command, Some(TOKEN))
    }

    pub fn run(mut command: Command, token: Option<&'static str>) -> Result<Self, String> {
        let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let stderr = log.reopen().map_err(|error| error.to_string())?;
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| error.to_string())?;
        let lines = process.stdout.take().map(read_lines).ok_or("no standard output")?;
        let said = read_until_ready(&lines);
        let address = |name: &str| listening(&said.lines, name);
        let ports = (address("grpc"), address("http"), address("admin"), address("metrics"));
        // A Unix socket or a disabled listener has no port.
        let or_none = |address: Option<SocketAddr>| address.unwrap_or(NOWHERE);
        let (true, (grpc, Some(http), Some(admin), metrics)) = (said.ready, ports) else {
            let _ = process.kill();
            let status = process.wait();
            let err = std::fs::read_to_string(log.path()).unwrap_or_default();
            return Err(format!("did not get ready ({status:?}); it said:\n{}\n{err}", said.lines));
        };
        let (grpc, metrics) = (or_none(grpc), or_none(metrics));
        Ok(Self { process, log, token, said: said.lines, grpc, http, admin, metrics })
    }

    /// Address of the UDP listener for permit releases, if it is enabled.
    pub fn syslog(&self) -> Option<SocketAddr> {
        listening(&self.said, "syslog")
    }

    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn loads(&self) -> Result<Loads, String> {
        let shown = self.token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = shown.iter().map(|shown| ("authorization", &**shown)).collect();
        let reply =
            http1::get(self.admin, "/config", &headers).map_err(|error| error.to_string())?;
        let config: Value = serde_json::from_slice(&reply.body)
            .map_err(|error| format!("/config: {error}: {}", reply.text()))?;
        let count = |name: &str| {
            config[name].as_u64().ok_or_else(|| format!("/config has no `{name}`: {config}"))
        };
        Ok(Loads {
            loaded: count("loads")?,
            refused: count("rejected")?,
            last_error: config["last_error"].clone(),
        })
    }

    /// gRPC endpoint whose clients always have a timeout.
    pub fn door(&self) -> Endpoint {
        let to = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        to.connect_timeout(PATIENCE).timeout(6 * PATIENCE)
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal by its short name, for example `TERM`.
    pub fn signal(&self, name: &str) {
        signals::send(self.process.id(), name);
    }

    /// Waits until the process exits.
    pub fn ended(&mut self) -> Result<ExitStatus, String> {
        until("the end of the process", || match self.process.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        })
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Standard error so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap_or_default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Admin token of a service that runs as `ratelimit`.
pub const TOKEN: &str = "open-sesame-please";

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Command without `SLUICEGATE_*` variables of the test run. The binary would read them as
/// settings.
pub fn sluicegate() -> Command {
    let mut command = Command::new(next_program());
    let ours = std::env::vars_os().map(|(name, _)| name);
    ours.filter(|name| name.as_encoded_bytes().starts_with(b"SLUICEGATE_")).for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// The program of the next process. With the variable `LAST_RELEASE_PROGRAM`, every other process runs
/// that one (`scripts/upgrade.sh`).
fn next_program() -> OsString {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let last = std::env::var_os("LAST_RELEASE_PROGRAM");
    let is_other = STARTED.fetch_add(1, Relaxed) % 2 == 1;
    last.filter(|_| is_other).unwrap_or_else(|| env!("CARGO_BIN_EXE_sluicegate").into())
}

/// Command under the name `ratelimit`, with an empty environment and free ports.
pub fn as_ratelimit() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.arg0("/bin/ratelimit").env_clear();
    for port in ["PORT", "GRPC_PORT", "DEBUG_PORT"] {
        command.env(port, "0");
    }
    command.env("PROMETHEUS_ADDR", "127.0.0.1:0");
    command
}

/// Returns the exit code and standard error of a process that must fail to start.
///
/// # Panics
/// If the process keeps running. It is killed first.
pub fn refused(command: &mut Command) -> (Option<i32>, String) {
    let log = tempfile::NamedTempFile::new().unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.reopen().unwrap());
    let mut process = command.spawn().unwrap();
    let ended = until("the end of the process", || match process.try_wait() {
        Ok(Some(status)) => Ok(status),
        other => Err(format!("{other:?}")),
    });
    if ended.is_err() {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    (ended.unwrap().code(), std::fs::read_to_string(log.path()).unwrap())
}

/// Drains standard output, so that a full pipe never blocks the process.
pub fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (to_test, lines) = sync_channel(1024);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = to_test.try_send(line);
        }
    });
    lines
}

struct Startup {
    lines: String,
    ready: bool,
}

fn read_until_ready(lines: &Receiver<String>) -> Startup {
    let mut said = Startup { lines: String::new(), ready: false };
    while let Ok(line) = lines.recv_timeout(PATIENCE) {
        let _ = writeln!(said.lines, "{line}");
        if line.starts_with("ready") {
            said.ready = true;
            break;
        }
    }
    said
}

fn listening(said: &str, name: &str) -> Option<SocketAddr> {
    let prefix = format!("{name} listening on ");
    let address = said.lines().find_map(|line| line.strip_prefix(&prefix))?;
    let address: SocketAddr = address.split_whitespace().next()?.parse().ok()?;
    // A client cannot connect to the unspecified address.
    Some(if address.ip().is_unspecified() {
        SocketAddr::from(([127, 0, 0, 1], address.port()))
    } else {
        address
    })
}
