//! A real Redis on a Unix socket in a temporary directory, which a test can kill and restart.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::resp::{Client, Value};
use super::signals;
use super::waiting::until;

#[derive(Debug)]
pub struct Redis {
    dir: TempDir,
    process: Option<Child>,
}

impl Redis {
    /// A Redis that is not running yet.
    pub fn absent() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), process: None }
    }

    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts Redis with additional flags.
    pub fn start_with(flags: &[&str]) -> Self {
        let mut redis = Self::absent();
        redis.launch(&[&["--port", "0"], flags].concat());
        redis
    }

    /// Starts the process, and returns once Redis answers.
    pub fn launch(&mut self, flags: &[&str]) {
        let child = Command::new("redis-server")
            .args(["--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .args(flags)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process =
            Some(child.expect("no redis-server on this machine; scripts/test.sh installs it"));
        until("redis accepts connections", || {
            Client::connect(&self.socket()).map_err(|error| error.to_string())
        })
        .unwrap();
    }

    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    pub fn signal(&self, name: &str) {
        signals::send(self.process.as_ref().unwrap().id(), name);
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    pub fn command(&self, parts: &[&str]) -> Value {
        self.connect().call(parts)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
