//! Starts a real Redis on a Unix socket in a temporary directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::resp::Client;
use crate::support::waiting::until;

#[derive(Debug)]
pub struct Redis {
    child: Child,
    dir: TempDir,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts Redis with additional flags.
    pub fn start_with(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(socket(dir.path()))
            .args(flags)
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("REDIS IS MISSING: no redis-server here; scripts/test.sh installs it");
        let redis = Self { child, dir };
        until("redis answers", || redis.ping()).unwrap();
        redis
    }

    pub fn socket(&self) -> PathBuf {
        socket(self.dir.path())
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.socket()).unwrap()
    }

    fn ping(&self) -> Result<(), String> {
        let mut client = Client::connect(&self.socket()).map_err(|error| error.to_string())?;
        match client.call(&["PING"]) {
            super::resp::Value::Text(_) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("redis.sock")
}
