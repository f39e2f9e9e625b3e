//! A real PostgreSQL on a Unix socket in a temporary directory, which a test can kill and restart.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use sluicegate::store::postgres::{Durability, PostgresOptions, migrate};
use tempfile::TempDir;

use super::namespace::Namespace;
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
    /// The number in the name of the socket; also the TCP port, if the server listens on one.
    port: u16,
    process: Option<Child>,
}

/// The data directory of an empty server, which all tests copy: `initdb` takes seconds. It stays for
/// the next run.
static TEMPLATE: LazyLock<PathBuf> = LazyLock::new(|| {
    let (programs, user) = (find("initdb"), rustix::process::geteuid().as_raw());
    let version = programs.iter().rev().nth(2).unwrap().display().to_string();
    let name = format!("postgres-{version}-of-{user}");
    let template = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !template.exists() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let data = dir.path().join("data");
        let flags = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", "-D"];
        run(program("initdb").args(flags).arg(&data));
        let prepared = template.with_extension(std::process::id().to_string());
        copy(&data, &prepared);
        // Another process may have been faster.
        if std::fs::rename(&prepared, &template).is_err() {
            std::fs::remove_dir_all(&prepared).unwrap();
        }
    }
    template
});

/// Copies a directory with its owners and permissions.
fn copy(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to));
}

fn find(name: &str) -> PathBuf {
    let mut paths = PROGRAM_DIRS.iter().map(|dir| Path::new(dir).join(name));
    let found = paths.find(|path| path.exists());
    found.expect("no postgresql on this machine; scripts/test.sh installs it")
}

/// Returns a command that runs a server program, not as root: PostgreSQL refuses that.
fn program(name: &str) -> Command {
    unprivileged(&find(name))
}

/// Returns a command that does not run as root.
fn unprivileged(path: &Path) -> Command {
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
        let mut postgres = Self { dir: tempfile::tempdir().unwrap(), port: 5432, process: None };
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(postgres.dir.path(), mode).unwrap();
        copy(&TEMPLATE, &postgres.data_dir());
        postgres.launch();
        postgres
    }

    /// Starts a server with the tables.
    pub fn start() -> Self {
        let postgres = Self::start_empty();
        postgres.migrate(Durability::Full);
        postgres
    }

    /// Starts a server with the tables, whose TCP port is inside a network namespace.
    pub fn start_in(network: &Namespace) -> Self {
        let mut postgres = Self::start();
        postgres.set_authentication("local all all trust\nhost all all all trust\n");
        postgres.kill();
        let outside = program("postgres");
        let mut command = network.command(outside.get_program());
        command.args(outside.get_args());
        postgres.launch_by(command, &["listen_addresses=*"]);
        postgres
    }

    pub fn migrate(&self, durability: Durability) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(migrate(&self.options(), Some(durability))).unwrap();
    }

    /// A standby of this server, which replicates synchronously from now on.
    pub fn start_standby(&self) -> Self {
        let mut standby = Self { dir: tempfile::tempdir().unwrap(), port: 5432, process: None };
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(standby.dir.path(), mode).unwrap();
        run(program("pg_basebackup")
            .args(["-U", "postgres", "--write-recovery-conf", "--checkpoint=fast", "-h"])
            .arg(self.dir.path())
            .arg("-D")
            .arg(standby.data_dir()));
        standby.launch();
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("SELECT pg_reload_conf()");
        until("the standby replicates synchronously", || {
            let state = self.sql("SELECT sync_state FROM pg_stat_replication");
            if state == "sync" { Ok(()) } else { Err(state) }
        })
        .unwrap();
        standby
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        // The setting came with the copy; the new primary has no standby.
        self.sql("ALTER SYSTEM RESET synchronous_standby_names");
        run(program("pg_ctl").args(["promote", "-w", "-D"]).arg(self.data_dir()));
        self.sql("SELECT pg_reload_conf()");
    }

    /// Starts the process, and returns once it accepts connections.
    pub fn launch(&mut self) {
        self.launch_with(&["listen_addresses="]);
    }

    /// [`Postgres::launch`] with these settings of the server.
    pub fn launch_with(&mut self, settings: &[&str]) {
        self.launch_by(program("postgres"), settings);
    }

    fn launch_by(&mut self, mut command: Command, settings: &[&str]) {
        let port = format!("port={}", self.port);
        let own = ["fsync=off", "max_connections=400", &port];
        let all = own.into_iter().chain(settings.iter().copied());
        let child = command
            .arg("-D")
            .arg(self.data_dir())
            .arg("-k")
            .arg(self.dir.path())
            .args(all.flat_map(|setting| ["-c", setting]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.process = Some(child.unwrap());
        until("postgres accepts connections", || {
            let mut command = program("pg_isready");
            let host = command.arg("-p").arg(self.port.to_string()).arg("-h").arg(self.dir.path());
            let ready = host.output().unwrap();
            ready.status.success().then_some(()).ok_or_else(|| "not ready".to_owned())
        })
        .unwrap();
    }

    /// Restarts the server on this TCP port of 127.0.0.1, with these settings.
    pub fn restart_on(&mut self, port: u16, settings: &[&str]) {
        self.kill();
        self.port = port;
        self.launch_with(&[&["listen_addresses=127.0.0.1"], settings].concat());
    }

    /// Writes a file that only the server can read, and returns its path.
    pub fn private_file(&self, name: &str, content: &[u8]) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        if rustix::process::geteuid().is_root() {
            let owner = std::fs::metadata(self.data_dir()).unwrap();
            std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        path.display().to_string()
    }

    /// Replaces `pg_hba.conf`, and reloads it.
    pub fn set_authentication(&self, lines: &str) {
        std::fs::write(self.data_dir().join("pg_hba.conf"), lines).unwrap();
        self.sql("SELECT pg_reload_conf()");
    }

    /// Kills all processes of the server, as a crash of the machine would.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A server without its first process ends by itself; wait until the socket is free.
            signals::send(process.id(), "QUIT");
            process.wait().unwrap();
        }
    }

    /// Sends a signal to all processes of the server, the first one first: it starts the others.
    pub fn signal_all(&self, name: &str) {
        for process in self.processes() {
            // The process may have ended since.
            let _ = signals::try_send(process, name);
        }
    }

    /// The processes of the server, the first one first.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        let first = self.process.as_ref().unwrap().id();
        std::iter::once(first).chain(std::iter::once_with(move || children_of(first)).flatten())
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The directory of the Unix socket.
    pub fn socket_dir(&self) -> &Path {
        self.dir.path()
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(format!(".s.PGSQL.{}", self.port))
    }

    /// The directory of the socket, as the host in a URL.
    pub fn host(&self) -> String {
        self.dir.path().display().to_string().replace('/', "%2F")
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@{}/postgres", self.host())
    }

    pub fn options(&self) -> PostgresOptions {
        PostgresOptions::new(self.url().parse().unwrap())
    }

    /// Opens a session that stays open.
    pub fn session(&self) -> Session {
        let mut process = self.psql().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Session { process, lines }
    }

    fn psql(&self) -> Command {
        let mut command = Command::new("psql");
        command.arg("-h").arg(self.dir.path()).arg("-p").arg(self.port.to_string());
        command.args(["-U", "postgres", "-d", "postgres", "-AtqX", "-v", "ON_ERROR_STOP=1"]);
        command
    }

    /// Runs SQL, and returns its output.
    pub fn sql(&self, text: &str) -> String {
        let output = self.psql().args(["-c", text]).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A `psql` that keeps one session open.
#[derive(Debug)]
pub struct Session {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Session {
    /// Runs statements whose only output is one line, and returns when it arrived.
    pub fn run(&mut self, text: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{text}").unwrap();
        self.lines.next().unwrap().unwrap();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the processes whose parent is `parent`.
fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent_of = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    ids.filter(|id| parent_of(id) == Some(parent)).collect()
}

/// A `PgBouncer` in transaction mode before a server.
#[derive(Debug)]
pub struct PgBouncer {
    dir: TempDir,
    process: Child,
}

impl PgBouncer {
    pub fn start(server: &Postgres) -> Self {
        Self::start_with_pool(server, 3)
    }

    /// Starts a pooler with `size` server connections.
    pub fn start_with_pool(server: &Postgres, size: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let (server, own) = (server.socket_dir().display(), dir.path().display());
        let configuration = format!(
            "[databases]\npostgres = host={server} user=postgres\n[pgbouncer]\n\
             pool_mode = transaction\nauth_type = any\nunix_socket_dir = {own}\nlisten_port = 5432\n\
             default_pool_size = {size}\nlogfile =\npidfile = {own}/pid\n"
        );
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, configuration).unwrap();
        let process = unprivileged(Path::new("/usr/sbin/pgbouncer"))
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let socket = dir.path().join(".s.PGSQL.5432");
        let process = process.expect("no pgbouncer on this machine; scripts/test.sh installs it");
        let is_open = || socket.exists().then_some(()).ok_or_else(|| "no socket".to_owned());
        until("pgbouncer listens", is_open).unwrap();
        Self { dir, process }
    }

    pub fn url(&self) -> String {
        let host = self.dir.path().display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{host}/postgres")
    }

    /// Runs SQL of another program in the same pool, and returns its output.
    pub fn sql(&self, text: &str) -> String {
        let mut command = Command::new("psql");
        command.arg("-h").arg(self.dir.path()).args(["-p", "5432", "-U", "postgres", "-AtqX"]);
        let output = command.args(["-d", "postgres", "-c", text]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The server of the running tests.
static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());

/// Concurrent tests share a server, because it starts slowly. Each uses a key prefix of its own.
pub fn shared() -> Arc<Postgres> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let server = Arc::new(Postgres::start_empty());
        server.migrate(Durability::Unlogged);
        *shared = Arc::downgrade(&server);
        server
    })
}

/// The call timeout of tests that must not fail on a slow machine.
pub const PATIENT: Duration = Duration::from_secs(20);
