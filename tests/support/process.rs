//! Real Redis processes over TCP, on ports that are free, in directories that go with them.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::ports;
use super::resp::{Client, Value};
use crate::signals;
use crate::waiting::{PATIENCE, until};

/// A Redis or a sentinel; dropped, it is killed and nothing of it stays.
#[derive(Debug)]
pub struct Process {
    child: Option<Child>,
    dir: TempDir,
    pub port: u16,
    flags: Vec<String>,
    sentinel: bool,
}

impl Process {
    /// A Redis with further flags, once it listens.
    pub fn redis(flags: &[&str]) -> Self {
        let keeps_nothing = ["--save", "", "--appendonly", "no"];
        Self::start(&[&keeps_nothing, flags].concat(), None)
    }

    /// A sentinel with this configuration and further flags, once it listens.
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
            process.listens().map(|()| process)
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
        // A bus of its own port: the default one is the port and ten thousand, which may be taken.
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

    /// Whether it answers; an error without waiting where it ended, because its port was taken.
    fn listens(&mut self) -> Result<(), String> {
        let mut ended = false;
        let answered = until("redis listens", || {
            let child = self.child.as_mut().unwrap();
            if let Ok(Some(_)) = child.try_wait() {
                ended = true;
                return Ok(());
            }
            // It listens before it is sure of all its ports; it answers after.
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

    /// The port of its cluster bus.
    pub fn bus(&self) -> &str {
        let at = self.flags.iter().position(|flag| flag == "--cluster-port").unwrap();
        &self.flags[at + 1]
    }

    /// One command over its socket, which needs no TLS.
    pub fn tell(&self, parts: &[impl AsRef<[u8]>]) -> Value {
        Client::connect(&self.socket()).unwrap().call(parts)
    }

    /// As [`Process::tell`], of one that may drop its clients just then, as a new primary does.
    pub fn try_tell(&self, parts: &[impl AsRef<[u8]>]) -> Result<Value, String> {
        let answer = Client::connect(&self.socket()).and_then(|mut client| client.try_call(parts));
        answer.map_err(|error| error.to_string())
    }

    /// As [`Process::tell`], and it must be done.
    pub fn order(&self, parts: &[impl AsRef<[u8]>]) {
        let shown: Vec<_> = parts.iter().map(|part| part.as_ref().escape_ascii()).collect();
        assert_eq!(self.tell(parts), Value::Text(b"OK".to_vec()), "{shown:?}");
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again, where it was, with what it kept.
    pub fn start_again(&mut self) {
        self.spawn();
        self.listens().unwrap();
    }

    /// Sends a signal: `STOP`, `CONT`.
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
