//! Configures TLS, the maximum age and the maximum number of connections, and updates readiness from
//! the store's availability.

use std::hash::BuildHasher as _;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::token_file;
use crate::config::settings::Settings;
use crate::edge::grpc;
use crate::edge::grpc::tls::{self, ServerTls};
use crate::edge::health::Health;
use crate::edge::http::admin::AdminAccess;
use crate::engine::Engine;
use crate::kernel::units::Nanos;

/// Loads the tokens of the admin port.
///
/// # Errors
/// The problem with the directory or a file in it.
pub(super) fn admin_access(settings: &Settings) -> Result<AdminAccess, String> {
    let admin = &settings.admin;
    let file = admin.token_file.as_deref().filter(|_| admin.token.is_none());
    let (from_file, has_new_token) = file.map(token_file::read_or_create).transpose()?.unzip();
    let access = AdminAccess {
        token: admin.token.clone().or(from_file),
        has_new_token: has_new_token == Some(true),
        directory: None,
        trusted_header: Some(admin.trusted_header.clone()),
        debug_pages: settings.compat.listen.like_ratelimit,
        wrong_tokens: Arc::default(),
    };
    match &admin.token_dir {
        Some(directory) => access.with_directory(directory),
        None => Ok(access),
    }
}

/// Returns a line with the address of the console, for operators. A person who starts the process
/// gets a link that signs in; the log of a service gets it only for a token that is new.
pub(super) fn console_line(
    settings: &Settings,
    access: &AdminAccess,
    address: Option<SocketAddr>,
) -> Option<String> {
    let file = settings.admin.token_file.as_ref().filter(|_| settings.admin.token.is_none());
    let (path, token) = file.zip(access.token.as_ref())?;
    let address = address?;
    let is_local = address.ip().is_unspecified() || address.ip().is_loopback();
    let local = format!("localhost:{}", address.port());
    let host = if is_local { local } else { address.to_string() };
    let console = format!("http://{host}/console");
    Some(if access.has_new_token || std::io::stdout().is_terminal() {
        format!("console: {console}#token={}", token.reveal())
    } else {
        format!("console: {console}, with the token in {}", path.display())
    })
}

/// Loads the certificates of the gRPC port. Returns `None` if TLS is off.
///
/// # Errors
/// The problem with the certificate files.
pub(super) fn load_tls(settings: &Settings) -> Result<Option<Arc<ServerTls>>, String> {
    let files = settings.listen.tls.cert_file.as_ref().zip(settings.listen.tls.key_file.as_ref());
    let Some((certificate, key)) = files else { return Ok(None) };
    let name = settings.listen.tls.client_name.as_ref();
    let files = tls::TlsFiles {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: settings.listen.tls.client_ca_file.clone(),
        client_name: name.map(|name| name.as_str().to_owned()),
    };
    let tls = ServerTls::new(files).map_err(|error| error.to_string())?;
    Ok(Some(Arc::new(tls)))
}

/// Returns the maximum age of a gRPC connection, varied by up to 10 % in each process, so that
/// clients do not reconnect to all replicas at once.
pub(super) fn connection_age(settings: &Settings) -> Option<grpc::ConnectionAge> {
    let Nanos(max_age) = settings.listen.max_connection_age.get()?;
    let jitter = std::hash::RandomState::new().hash_one(2_u8) % (max_age / 5 + 1);
    let grace = settings.compat.listen.max_connection_age_grace.get();
    let varied_max_age = Nanos(max_age - max_age / 10 + jitter).into();
    Some(grpc::ConnectionAge { max_age: varied_max_age, grace: grace.map(Duration::from) })
}

/// The number of open files that are reserved for the store, the other ports and other files.
const RESERVED_FILES: u64 = 512;

/// The largest default of `listen.max_connections`. It bounds the memory of connections.
const MAX_DEFAULT_CONNECTIONS: u64 = 65_536;

/// Returns the largest number of open connections of the gRPC port, and of the HTTP port. Warns if
/// the limit on open files is too low for the setting.
pub(super) fn max_connections(settings: &Settings) -> usize {
    let fitting = raise_open_file_limit().map_or(u64::MAX, connections_within);
    let configured = settings.listen.max_connections.get();
    if let Some(configured) = configured.filter(|configured| fitting < *configured) {
        tracing::warn!(
            max_connections = configured,
            fitting,
            "listen.max_connections is larger than the limit on open files allows: \
             raise the limit on open files (ulimit -n; LimitNOFILE= in a systemd unit), or lower \
             listen.max_connections"
        );
    }
    let default = fitting.min(MAX_DEFAULT_CONNECTIONS);
    usize::try_from(configured.unwrap_or(default)).unwrap_or(usize::MAX)
}

/// Returns the number of connections that `open_files` allow on the gRPC port, and as many on the
/// HTTP port. At least 1.
const fn connections_within(open_files: u64) -> u64 {
    let halved = open_files.saturating_sub(RESERVED_FILES) / 2;
    if halved == 0 { 1 } else { halved }
}

/// Raises the limit on open files to its hard limit, as Go programs do. Returns the limit. `None`
/// if there is no limit, or on a system other than Linux.
#[cfg(target_os = "linux")]
fn raise_open_file_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, the limit is unchanged.
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).ok();
    getrlimit(Resource::Nofile).current
}

#[cfg(not(target_os = "linux"))]
const fn raise_open_file_limit() -> Option<u64> {
    None
}

/// The interval at which readiness is updated from the store's availability.
const READINESS_INTERVAL: Duration = Duration::from_millis(250);

pub(super) async fn follow_store(health: Health, engine: Arc<Engine>) {
    let mut ticks = tokio::time::interval(READINESS_INTERVAL);
    loop {
        ticks.tick().await;
        health.set_store_available(engine.store_failure().is_none());
    }
}
