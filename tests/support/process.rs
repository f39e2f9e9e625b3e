//! Starts real Redis and Sentinel processes over TCP on free ports.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::ports;
use super::resp::{Client, Value};
use crate::support::signals;
use crate::support::waiting::{PATIENCE, until};

/// A Redis server or a sentinel. Drop kills it and removes its directory.
#[derive(Debug)]
pub struct Process {
    child: Option<Child>,
    dir: TempDir,
    pub port: u16,
    flags: Vec<String>,
    sentinel: bool,
}

impl Process {
    /// Starts Redis and returns when it answers.
    pub fn redis(flags: &[&str]) -> Self {
        let keeps_nothing = ["--save", "", "--appendonly", "no"];
        Self::start(&[&keeps_nothing, flags].concat(), None)
    }

    /// Starts a sentinel and returns when it answers.
    pub fn sentinel(configuration: &str, flags: &[&str]) -> Self {
        Self::start(flags, Some(configuration))
    }

    fn start(flags: &[&str], sentinel: Option<&str>) -> Self {
        let flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let started = || {
            let dir = tempfile::tempdir().unwrap();
            if let Some(text) = sentinel {
                std::fs::write(configuration(dir.path()), text).unwrap();
            }
            let (port, flags) = (ports::free().port(), flags.clone());
            let mut process = Self { child: None, dir, port, flags, sentinel: sentinel.is_some() };
            process.spawn();
            process.wait_until_ready().map(|()| process)
        };
        until("a redis on a free port", started).unwrap()
    }

    fn spawn(&mut self) {
        let mut command = Command::new("redis-server");
        if self.sentinel {
            command.arg(configuration(self.dir.path())).arg("--sentinel");
        }
        let flags = self.flags.clone();
        let has = |name: &str| flags.iter().any(|flag| flag == name);
        let (open, closed) = (self.port.to_string(), "0".to_owned());
        let ports = if has("--tls-cert-file") { [closed, open] } else { [open, closed] };
        // The default bus port is the port plus 10,000, which may be taken.
        if has("--cluster-enabled") && !has("--cluster-port") {
            self.flags.extend(["--cluster-port".to_owned(), ports::free().port().to_string()]);
        }
        command
            .args(["--port", &ports[0], "--tls-port", &ports[1]])
            .args(["--bind", "127.0.0.1", "--unixsocket"])
            .arg(self.socket())
            .args(&self.flags)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().expect("REDIS IS MISSING: no redis-server here"));
    }

    /// Waits until the process answers `PING`. Fails immediately if the process exits, for example
    /// because its port was taken.
    fn wait_until_ready(&mut self) -> Result<(), String> {
        let mut ended = false;
        let answered = until("redis listens", || {
            let child = self.child.as_mut().unwrap();
            if let Ok(Some(_)) = child.try_wait() {
                ended = true;
                return Ok(());
            }
            // A connection alone proves nothing: Redis listens on one port before it has bound all
            // its ports.
            pong(&self.socket()).map_err(|error| error.to_string())
        });
        if ended { Err("it ended".to_owned()) } else { answered }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Port of the Redis Cluster bus.
    pub fn bus(&self) -> &str {
        let at = self.flags.iter().position(|flag| flag == "--cluster-port").unwrap();
        &self.flags[at + 1]
    }

    /// Sends one command over the Unix socket, which needs no TLS.
    pub fn call(&self, parts: &[impl AsRef<[u8]>]) -> Value {
        Client::connect(&self.socket()).unwrap().call(parts)
    }

    /// As [`Process::call`], for a server that may close the connection, for example during a
    /// failover.
    pub fn try_call(&self, parts: &[impl AsRef<[u8]>]) -> Result<Value, String> {
        let answer = Client::connect(&self.socket()).and_then(|mut client| client.try_call(parts));
        answer.map_err(|error| error.to_string())
    }

    /// As [`Process::call`], and requires the reply `OK`.
    pub fn call_ok(&self, parts: &[impl AsRef<[u8]>]) {
        let shown: Vec<_> = parts.iter().map(|part| part.as_ref().escape_ascii()).collect();
        assert_eq!(self.call(parts), Value::Text(b"OK".to_vec()), "{shown:?}");
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Restarts the process with the same port and directory.
    pub fn start_again(&mut self) {
        self.spawn();
        self.wait_until_ready().unwrap();
    }

    pub fn signal(&self, name: &str) {
        signals::send(self.child.as_ref().unwrap().id(), name);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pong(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"PING\r\n")?;
    stream.read_exact(&mut [0])
}

fn configuration(dir: &Path) -> std::path::PathBuf {
    dir.join("sentinel.conf")
}
