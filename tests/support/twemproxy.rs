//! A twemproxy (nutcracker) before several Redis servers, on a Unix socket.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::ports;
use super::redis::Redis;
use super::waiting::until;

#[derive(Debug)]
pub struct Twemproxy {
    dir: TempDir,
    process: Child,
}

impl Twemproxy {
    pub fn start(servers: &[Redis]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("proxy.sock");
        // `fnv1a_64` gives nearly equal hashes to names that differ in their last characters, so all of
        // them could be on one server.
        let mut configuration = format!(
            "rl:\n  listen: {} 0700\n  hash: md5\n  distribution: ketama\n  redis: true\n  servers:\n",
            socket.display()
        );
        for server in servers {
            let _ = writeln!(configuration, "   - {}:1", server.socket().display());
        }
        let file = dir.path().join("nutcracker.yml");
        std::fs::write(&file, configuration).unwrap();
        let process = Command::new("nutcracker")
            .args(["-a", "127.0.0.1", "-s", &ports::free().port().to_string(), "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = process.expect("no nutcracker on this machine; scripts/test.sh installs it");
        let is_open = || socket.exists().then_some(()).ok_or_else(|| "no socket".to_owned());
        until("nutcracker listens", is_open).unwrap();
        Self { dir, process }
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket())
    }

    pub fn socket(&self) -> String {
        self.dir.path().join("proxy.sock").display().to_string()
    }
}

impl Drop for Twemproxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
