//! A real PostgreSQL on a Unix socket in a temporary directory, which a test can kill and restart.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sluicegate::store::postgres::{Durability, PostgresOptions, migrate};
use tempfile::TempDir;

use super::signals;
use super::waiting::until;

/// The directories of the server's programs, newest version first.
const PROGRAM_DIRS: [&str; 6] = [
    "/usr/lib/postgresql/18/bin",
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
    "/usr/lib/postgresql/13/bin",
];

#[derive(Debug)]
pub struct Postgres {
    dir: TempDir,
    process: Option<Child>,
}

/// Returns a command that runs a server program, not as root: PostgreSQL refuses that.
fn program(name: &str) -> Command {
    let found = PROGRAM_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists());
    let path = found.expect("no postgresql on this machine; scripts/test.sh installs it");
    if !rustix::process::geteuid().is_root() {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(path);
    command
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Postgres {
    /// Starts a server with an empty database, without the tables of Sluicegate.
    pub fn start_empty() -> Self {
        let mut postgres = Self { dir: tempfile::tempdir().unwrap(), process: None };
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(postgres.dir.path(), mode).unwrap();
        run(program("initdb")
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", "-D"])
            .arg(postgres.data_dir()));
        postgres.launch();
        postgres
    }

    /// Starts a server with the tables.
    pub async fn start() -> Self {
        let postgres = tokio::task::spawn_blocking(Self::start_empty).await.unwrap();
        migrate(&postgres.options(), Some(Durability::Full)).await.unwrap();
        postgres
    }

    /// Starts the process, and returns once it accepts connections.
    pub fn launch(&mut self) {
        let child = program("postgres")
            .arg("-D")
            .arg(self.data_dir())
            .arg("-k")
            .arg(self.dir.path())
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=400"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(child.unwrap());
        until("postgres accepts connections", || {
            let ready = program("pg_isready").arg("-h").arg(self.dir.path()).output().unwrap();
            ready.status.success().then_some(()).ok_or_else(|| "not ready".to_owned())
        })
        .unwrap();
    }

    /// Kills all processes of the server, as a crash of the machine would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A server without its first process ends by itself; wait until the socket is free.
            signals::send(process.id(), "QUIT");
            process.wait().unwrap();
        }
    }

    pub fn signal(&self, name: &str) {
        signals::send(self.process.as_ref().unwrap().id(), name);
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn url(&self) -> String {
        let host = self.dir.path().display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{host}/postgres")
    }

    pub fn options(&self) -> PostgresOptions {
        PostgresOptions::new(self.url().parse().unwrap())
    }

    /// Runs SQL with `psql`, and returns its output.
    pub fn sql(&self, text: &str) -> String {
        let output = Command::new("psql")
            .args(["-h"])
            .arg(self.dir.path())
            .args([
                "-U",
                "postgres",
                "-d",
                "postgres",
                "-AtqX",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                text,
            ])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The server of the running tests.
static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());

/// Concurrent tests share a server, because it starts slowly. Each uses a key prefix of its own.
pub fn shared() -> Arc<Postgres> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = Postgres::start_empty();
        runtime.block_on(migrate(&server.options(), Some(Durability::Unlogged))).unwrap();
        let server = Arc::new(server);
        *shared = Arc::downgrade(&server);
        server
    })
}

/// The call timeout of tests that must not fail on a slow machine.
pub const PATIENT: Duration = Duration::from_secs(20);
