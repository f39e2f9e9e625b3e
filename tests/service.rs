//! The real binary, as a process: started on free ports, found by what it prints, gone when dropped.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::Value;
use tonic::transport::Endpoint;

use crate::waiting::{PATIENCE, until};
use crate::{http1, signals};

/// A running `sluicegate serve`.
pub struct Service {
    process: Child,
    /// Keeps what the process wrote to standard error.
    log: tempfile::NamedTempFile,
    /// What `/config` wants to be shown.
    token: Option<&'static str>,
    /// What it printed until it was ready.
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

/// What `/config` says of the loads so far.
pub struct Loads {
    pub loaded: u64,
    pub refused: u64,
    /// `null`, or the diagnostics of the last file refused.
    pub last_error: Value,
}

impl Service {
    /// Starts it with these limits and further flags and returns once it serves.
    ///
    /// # Errors
    /// With everything the process said, when it did not get that far.
    pub fn start(limits: &Path, flags: &[String]) -> Result<Self, String> {
        Self::start_under(limits, flags, &[])
    }

    /// The same with further variables in its environment.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub fn start_under(
        limits: &Path,
        flags: &[String],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let mut command = sluicegate();
        command.arg("serve").arg("--limits").arg(limits);
        for port in ["grpc", "http", "admin", "metrics", "peer"] {
            let flag = format!("--{port}-port");
            if !flags.contains(&flag) {
                command.arg(flag).arg("0");
            }
        }
        command.envs(environment.iter().copied()).args(flags);
        Self::run(command, None)
    }

    /// Starts it under the name `ratelimit` with these variables and no others, on free ports unless they say
    /// otherwise, and returns once it serves.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub fn start_as_ratelimit(variables: &[(&str, &str)]) -> Result<Self, String> {
        let mut command = as_ratelimit();
        command.env("SLUICEGATE_ADMIN_TOKEN", TOKEN).envs(variables.iter().copied());
        Self::run(command, Some(TOKEN))
    }

    fn run(mut command: Command, token: Option<&'static str>) -> Result<Self, String> {
        let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let stderr = log.reopen().map_err(|error| error.to_string())?;
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .map_err(|error| error.to_string())?;
        let lines = process.stdout.take().map(read_lines).ok_or("no standard output")?;
        let said = said_until_ready(&lines);
        let address = |name: &str| listening(&said.lines, name);
        let ports = (address("grpc"), address("http"), address("admin"), address("metrics"));
        // At a socket or switched off there is no port, and nobody may call it.
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

    /// Where releases by datagrams are received, if anywhere.
    pub fn syslog(&self) -> Option<SocketAddr> {
        listening(&self.said, "syslog")
    }

    /// Kills it, without a chance to say anything.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Asks `/config` what was loaded.
    ///
    /// # Errors
    /// When the answer is not what `/config` promises.
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
            refused: count("refused")?,
            last_error: config["last_error"].clone(),
        })
    }

    /// Its gRPC port, for clients of which none waits for ever.
    pub fn door(&self) -> Endpoint {
        let to = Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap();
        to.connect_timeout(PATIENCE).timeout(6 * PATIENCE)
    }

    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM and returns at once.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends a signal, `TERM` for SIGTERM, and returns at once.
    pub fn signal(&self, name: &str) {
        signals::send(self.process.id(), name);
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// When it does not.
    pub fn ended(&mut self) -> Result<ExitStatus, String> {
        until("the end of the process", || match self.process.try_wait() {
            Ok(Some(status)) => Ok(status),
            other => Err(format!("{other:?}")),
        })
    }

    /// Whether the process has not ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// What the process wrote to standard error so far.
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

/// What admin wants to be shown of a service started as `ratelimit`.
const TOKEN: &str = "open-sesame";

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The program, without the variables that tell tests where Envoy is and the like: it would take them for settings.
pub fn sluicegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let ours = std::env::vars_os().map(|(name, _)| name);
    ours.filter(|name| name.as_encoded_bytes().starts_with(b"SLUICEGATE_")).for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// The program under the name `ratelimit`, without a variable of ours, on free ports.
pub fn as_ratelimit() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.arg0("/bin/ratelimit").env_clear();
    for port in ["PORT", "GRPC_PORT", "DEBUG_PORT"] {
        command.env(port, "0");
    }
    command.env("PROMETHEUS_ADDR", "127.0.0.1:0");
    command
}

/// How a process that cannot start ended, and what it wrote to standard error.
///
/// # Panics
/// Where it starts after all; it is killed then.
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

/// Reads to the end, so that the process never stands before a full pipe.
pub fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (to_test, lines) = sync_channel(1024);
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = to_test.try_send(line);
        }
    });
    lines
}

struct Said {
    lines: String,
    ready: bool,
}

fn said_until_ready(lines: &Receiver<String>) -> Said {
    let mut said = Said { lines: String::new(), ready: false };
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
    // An address of all interfaces can be listened on, not called.
    Some(if address.ip().is_unspecified() {
        SocketAddr::from(([127, 0, 0, 1], address.port()))
    } else {
        address
    })
}
