//! A real NGINX with the shipped `config/nginx/rate_limit.conf`: only addresses are replaced, each exactly once.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::envoy::{WhenDown, replace_once};
use crate::http1;
use crate::waiting::until;

const SHIPPED: &str = include_str!("../../config/nginx/rate_limit.conf");

/// A running NGINX; gone when dropped.
pub struct Nginx {
    master: Child,
    home: TempDir,
    /// Where clients send their requests.
    pub ingress: SocketAddr,
}

impl Nginx {
    /// Starts NGINX before an upstream, with this replica's HTTP port to ask, and returns once it takes requests.
    pub fn start(upstream: SocketAddr, replica: SocketAddr, when_down: WhenDown) -> Self {
        let home = tempfile::tempdir().unwrap();
        // It cannot be told to take a free port and say which; another process may be quicker.
        for _ in 0..5 {
            let ingress = free_port();
            let config = configured(ingress, upstream, replica, when_down);
            std::fs::write(home.path().join("nginx.conf"), config).unwrap();
            let mut master = spawn(home.path());
            if answers(ingress, &mut master).is_ok() {
                return Self { master, home, ingress };
            }
            stop(&mut master);
        }
        panic!("NGINX did not start:\n{}", log(home.path()));
    }

    /// What NGINX logged so far.
    pub fn log(&self) -> String {
        log(self.home.path())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        stop(&mut self.master);
    }
}

/// SIGTERM, for a killed master leaves its workers behind.
fn stop(master: &mut Child) {
    let _ = Command::new("kill").arg("-TERM").arg(master.id().to_string()).status();
    let _ = master.wait();
}

fn log(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap_or_default()
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The shipped configuration with this test's addresses, and with files of its own.
fn configured(
    ingress: SocketAddr,
    upstream: SocketAddr,
    replica: SocketAddr,
    when_down: WhenDown,
) -> String {
    let mut text = SHIPPED.to_owned();
    replace_once(&mut text, "listen 8000;", &format!("listen {ingress};"));
    replace_once(&mut text, "server 127.0.0.1:8080;", &format!("server {replica};"));
    replace_once(&mut text, "server 127.0.0.1:9000;", &format!("server {upstream};"));
    let files = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {kind};"))
        .join(" ");
    replace_once(&mut text, "http {", &format!("http {{ access_log off; {files}"));
    if let WhenDown::Deny = when_down {
        replace_once(&mut text, "return 204;", "return 500;");
    }
    text
}

fn spawn(home: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(home.join("log")).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(home).arg("-c").arg(home.join("nginx.conf"));
    command.args(["-g", "daemon off; pid nginx.pid; error_log stderr warn;"]);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
    spawned.unwrap_or_else(|error| panic!("no nginx on PATH: run scripts/test.sh: {error}"))
}

fn answers(ingress: SocketAddr, master: &mut Child) -> Result<(), String> {
    let asked = until("NGINX", || match master.try_wait() {
        Ok(None) => http1::get(ingress, "/_sluicegate", &[]).map_err(|error| error.to_string()),
        ended => {
            Ok(http1::Reply { status: 0, headers: Vec::new(), body: format!("{ended:?}").into() })
        }
    })?;
    // The place to ask is nobody's to ask from outside.
    if asked.status == 404 { Ok(()) } else { Err(asked.text()) }
}
