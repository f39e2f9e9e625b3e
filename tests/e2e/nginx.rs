//! Runs a real NGINX with a shipped configuration or the ingress-nginx snippets.
//!
//! Guarantees:
//! - Only addresses and timeouts are replaced, each exactly once.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::envoy::{WhenDown, replace_once};
use crate::docs::blocks;
use crate::support::http1::{self, Reply};
use crate::support::ports;
use crate::support::signals;
use crate::support::waiting::until;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shipped {
    RateLimit,
    /// The shipped concurrency configuration, with the address of the syslog listener.
    Concurrency(SocketAddr),
    Lua,
    /// The ingress-nginx snippets of `docs/with/ingress-nginx.md`.
    Ingress,
}

impl Shipped {
    fn text(self) -> String {
        match self {
            Self::RateLimit => include_str!("../../config/nginx/rate_limit.conf").to_owned(),
            Self::Concurrency(_) => include_str!("../../config/nginx/concurrency.conf").to_owned(),
            Self::Lua => include_str!("../../config/nginx/concurrency_lua.conf").to_owned(),
            Self::Ingress => ingress(),
        }
    }
}

/// Inserts the documented snippets where the ingress-nginx template puts them.
fn ingress() -> String {
    let shown =
        blocks("yaml").into_iter().find(|b| b.place.starts_with("docs/with/ingress-nginx.md"));
    let ingress: Value = serde_saphyr::from_str(&shown.unwrap().text).unwrap();
    let annotation = |name: &str| {
        let name = format!("nginx.ingress.kubernetes.io/{name}");
        ingress["metadata"]["annotations"][&name].as_str().unwrap().to_owned()
    };
    let [url, asks, denies, places] =
        ["auth-url", "auth-snippet", "configuration-snippet", "server-snippet"].map(annotation);
    format!(
        "events {{}}
        http {{
            upstream app {{ server 127.0.0.1:9000; }}
            server {{
                listen 8000;
                {places}
                location = /_external-auth {{
                    internal;
                    proxy_pass_request_body off;
                    proxy_set_header Content-Length \"\";
                    proxy_set_header X-Original-Method $request_method;
                    proxy_set_header X-Real-IP $remote_addr;
                    proxy_http_version 1.1;
                    {asks}
                    set $target {url};
                    proxy_pass $target;
                }}
                location / {{
                    auth_request /_external-auth;
                    {denies}
                    proxy_pass http://app;
                }}
            }}
        }}"
    )
}

pub struct Nginx {
    master: Child,
    home: TempDir,
    pub ingress: SocketAddr,
}

impl Nginx {
    /// Starts NGINX with rate limits. `replica` is the HTTP address of the service.
    pub fn start(upstream: SocketAddr, replica: SocketAddr, when_down: WhenDown) -> Self {
        Self::start_as(Shipped::RateLimit, upstream, replica, when_down)
    }

    /// Starts NGINX and returns when it accepts requests.
    pub fn start_as(
        shipped: Shipped,
        upstream: SocketAddr,
        replica: SocketAddr,
        when_down: WhenDown,
    ) -> Self {
        Self::start_changed(shipped, upstream, replica, when_down, |_| {})
    }

    /// As [`Nginx::start_as`], with an edited configuration.
    pub fn start_changed(
        shipped: Shipped,
        upstream: SocketAddr,
        replica: SocketAddr,
        when_down: WhenDown,
        change: impl Fn(&mut String),
    ) -> Self {
        let home = tempfile::tempdir().unwrap();
        // Tries again, because another process may take the free port before NGINX listens on it.
        for _ in 0..5 {
            let ingress = ports::free();
            let own = home.path().display().to_string();
            let mut config = configured(shipped, upstream, replica, when_down);
            change(&mut config);
            // Identifies this NGINX by a location that makes no check.
            let begins = format!("listen {ingress}; location = /own {{ return 404 {own}; }}");
            replace_once(&mut config, "listen 8000;", &begins);
            std::fs::write(home.path().join("nginx.conf"), config).unwrap();
            let mut master = spawn(home.path());
            let answered = first_response(home.path(), ingress, &mut master);
            if answered.is_ok_and(|it| it.status == 404 && it.text() == own) {
                return Self { master, home, ingress };
            }
            stop(&mut master);
        }
        panic!("NGINX did not start:\n{}", log(home.path()));
    }

    pub fn processes(&self) -> Processes {
        let master = self.master.id();
        let workers = Command::new("pgrep").args(["-P", &master.to_string()]).output().unwrap();
        let workers = String::from_utf8(workers.stdout).unwrap();
        let workers = workers.split_whitespace().map(|worker| worker.parse().unwrap());
        Processes(std::iter::once(master).chain(workers).collect())
    }

    pub fn signal(&self, name: &str) {
        self.processes().signal(name);
    }

    /// Reloads the configuration. New workers accept requests, and old workers finish theirs.
    pub fn reload(&self) {
        signals::send(self.master.id(), "HUP");
    }

    pub fn log(&self) -> String {
        log(self.home.path())
    }
}

pub struct Processes(Vec<u32>);

impl Processes {
    pub fn signal(&self, name: &str) {
        for &process in &self.0 {
            // Ignores errors: a worker may have exited with its master process.
            let _ = signals::try_send(process, name);
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        stop(&mut self.master);
    }
}

/// Uses SIGTERM, because workers survive a master process that is killed.
fn stop(master: &mut Child) {
    if !matches!(master.try_wait(), Ok(None)) {
        return;
    }
    // A stopped process handles SIGTERM only after SIGCONT.
    for name in ["TERM", "CONT"] {
        let _ = signals::try_send(master.id(), name);
    }
    let ended = until("the end of NGINX", || match master.try_wait() {
        Ok(None) => Err("it goes on".to_owned()),
        _ => Ok(()),
    });
    if ended.is_err() {
        let _ = master.kill();
        let _ = master.wait();
    }
}

fn log(home: &Path) -> String {
    std::fs::read_to_string(home.join("log")).unwrap_or_default()
}

/// The shipped configuration with the addresses and directories of this test.
fn configured(
    shipped: Shipped,
    upstream: SocketAddr,
    replica: SocketAddr,
    when_down: WhenDown,
) -> String {
    let mut text = shipped.text();
    let mut replace = |from: &str, to: &str| replace_once(&mut text, from, to);
    replace("server 127.0.0.1:9000;", &format!("server {upstream};"));
    let files = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {kind};"))
        .join(" ");
    // Long timeouts make the tests independent of machine load.
    match shipped {
        Shipped::RateLimit => {
            replace("http {", &format!("http {{ access_log off; {files}"));
            replace("server 127.0.0.1:8080;", &format!("server {replica};"));
            replace("proxy_connect_timeout 100ms;", "proxy_connect_timeout 600s;");
            replace("proxy_read_timeout 250ms;", "proxy_read_timeout 600s;");
        }
        Shipped::Concurrency(syslog) => {
            replace("http {", &format!("http {{ {files}"));
            replace("server=127.0.0.1:5140", &format!("server={syslog}"));
            replace("server 127.0.0.1:8080;", &format!("server {replica};"));
            replace("proxy_connect_timeout 100ms;", "proxy_connect_timeout 600s;");
            replace("proxy_read_timeout 5s;", "proxy_read_timeout 600s;");
        }
        Shipped::Lua => {
            replace("http {", &format!("http {{ access_log off; {files}"));
            let connect = format!("connect(\"{}\", {})", replica.ip(), replica.port());
            replace("connect(\"127.0.0.1\", 8080)", &connect);
            replace("settimeouts(100, 250, 5000)", "settimeouts(600000, 600000, 600000)");
        }
        Shipped::Ingress => {
            replace("http {", &format!("http {{ access_log off; {files}"));
            replace(
                "http://sluicegate.gate.svc.cluster.local:8080/",
                &format!("http://{replica}/"),
            );
            replace("proxy_connect_timeout 100ms;", "proxy_connect_timeout 600s;");
            replace("proxy_read_timeout 250ms;", "proxy_read_timeout 600s;");
        }
    }
    if let WhenDown::Deny = when_down {
        match shipped {
            Shipped::Lua => replace("return nil", "return ngx.exit(500)"),
            _ => replace("return 204;", "return 500;"),
        }
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

/// Waits for the pid file, which NGINX writes after it listens. Before, a connection to the free
/// port could connect to itself.
fn first_response(home: &Path, ingress: SocketAddr, master: &mut Child) -> Result<Reply, String> {
    until("NGINX", || match master.try_wait() {
        Ok(None) if home.join("nginx.pid").exists() => Ok(()),
        Ok(None) => Err("no nginx.pid yet".to_owned()),
        _ => Ok(()),
    })?;
    http1::get(ingress, "/own", &[]).map_err(|error| error.to_string())
}
