//! Opens connections to PostgreSQL.
//!
//! Guarantees:
//! - The password file and the certificates are read again for each connection.
//! - No error contains the password.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::PostgresOptions;
use crate::redis::files::{read_password, run_blocking};
use crate::redis::tls::rustls_config;
use crate::telemetry::with_causes;

/// The timeout for all of: connection, login, and the preparation of statements.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);

/// The timeout of a TCP connection to one host, unless `store.url` has `connect_timeout`. A host that
/// vanished must leave time for the next one.
const HOST_TIMEOUT: Duration = Duration::from_millis(500);

/// The task that moves bytes between the socket and the client. It ends when this guard is dropped.
#[derive(Debug)]
pub(super) struct ConnectionTask(JoinHandle<()>);

impl ConnectionTask {
    /// Waits until the connection is closed.
    pub(super) async fn wait_closed(&mut self) {
        drop((&mut self.0).await);
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The reason for which no connection was opened, without a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The server did not accept the connection or a statement.
    #[error("{0}")]
    Refused(String),
    /// The schema has another version than this program. The text names the command to run.
    #[error("{0}")]
    WrongSchema(String),
}

impl ConnectError {
    /// Returns the problem without its fix, which names settings of the store.
    #[must_use]
    pub fn problem(&self) -> &str {
        let (Self::Refused(text) | Self::WrongSchema(text)) = self;
        text.split("; ").next().unwrap_or(text)
    }
}

/// Connects to the first host of `store.url` that has the attribute `target`.
pub(super) async fn connect(
    options: &PostgresOptions,
    target: TargetSessionAttrs,
) -> Result<(Client, ConnectionTask), ConnectError> {
    connect_with(options, target, None).await
}

/// As [`connect`]; also passes each notification on.
pub(super) async fn connect_with(
    options: &PostgresOptions,
    target: TargetSessionAttrs,
    notifications: Option<mpsc::Sender<()>>,
) -> Result<(Client, ConnectionTask), ConnectError> {
    let mut config = options.server.clone();
    if let Some(password) = &options.password {
        let password = read_password(password).await.map_err(|error| own_error(&error))?;
        config.password(password);
    }
    if config.get_application_name().is_none() {
        config.application_name("sluicegate");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(HOST_TIMEOUT);
    }
    config.target_session_attrs(target);
    let Some(tls) = options.tls.clone() else {
        config.ssl_mode(SslMode::Disable);
        return within_timeout(open(&config, NoTls, notifications)).await;
    };
    let server_name = tls.server_name.clone();
    let rustls = run_blocking(move || rustls_config(&tls)).await;
    let connector = MakeRustlsConnect::new(rustls.map_err(|error| own_error(&error))?);
    config.ssl_mode(SslMode::Require);
    let tls = NamedTls { connector, server_name };
    within_timeout(open(&config, tls, notifications)).await
}

async fn open<T>(
    config: &Config,
    tls: T,
    notifications: Option<mpsc::Sender<()>>,
) -> Result<(Client, ConnectionTask), ConnectError>
where
    T: MakeTlsConnect<Socket> + Send,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, connection) = config.connect(tls).await.map_err(|error| refused(&error))?;
    // The client's calls report the error that ends the connection.
    let task = tokio::spawn(drive(connection, notifications));
    Ok((client, ConnectionTask(task)))
}

/// Polls a connection until it closes. Passes each notification on, if somebody listens.
async fn drive<S, T>(mut connection: Connection<S, T>, notifications: Option<mpsc::Sender<()>>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let messages = stream::poll_fn(|context| connection.poll_message(context));
    let mut messages = std::pin::pin!(messages);
    while let Some(Ok(message)) = messages.next().await {
        if let (AsyncMessage::Notification(_), Some(listener)) = (message, &notifications) {
            // A full queue already has the news.
            listener.try_send(()).ok();
        }
    }
}

pub(super) async fn within_timeout<T>(
    work: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let timed_out = |_| ConnectError::Refused("no reply from postgres within 4s".to_owned());
    timeout(CONNECT_TIMEOUT, work).await.unwrap_or_else(|elapsed| Err(timed_out(elapsed)))
}

/// TLS whose certificate must contain `server_name` instead of the host.
struct NamedTls {
    connector: MakeRustlsConnect,
    server_name: Option<String>,
}

impl MakeTlsConnect<Socket> for NamedTls {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        let name = self.server_name.as_deref().unwrap_or(host);
        <MakeRustlsConnect as MakeTlsConnect<Socket>>::make_tls_connect(&mut self.connector, name)
    }
}

pub(super) fn refused(error: &tokio_postgres::Error) -> ConnectError {
    ConnectError::Refused(describe_error(error))
}

fn own_error(error: &fred::error::Error) -> ConnectError {
    ConnectError::Refused(error.details().to_owned())
}

/// Describes an error with its causes, and with a fix if one is known.
pub(super) fn describe_error(error: &tokio_postgres::Error) -> String {
    let text = match error.as_db_error() {
        Some(refusal) => refusal.message().to_owned(),
        None => with_causes(error),
    };
    match help_for(error.code().map(tokio_postgres::error::SqlState::code), &text) {
        Some(help) => format!("{text}; {help}"),
        None => text,
    }
}

fn help_for(code: Option<&str>, text: &str) -> Option<&'static str> {
    match code {
        Some("28P01") => Some("correct the password in store.url or store.password_file"),
        Some("28000") if text.contains("no encryption") => {
            Some("the server requires TLS: add ?sslmode=require to store.url")
        }
        Some("28000") => Some("allow this user and host in pg_hba.conf"),
        Some("3D000") => Some("create the database, or correct its name in store.url"),
        Some("42501") => Some(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON sluicegate_state, sluicegate_schema to this user; \
             `migrate` needs the owner of the tables, and CREATE on their schema",
        ),
        Some("42P05" | "26000") => Some(
            "a connection pooler lost a prepared statement: set store.postgres.prepare to auto",
        ),
        Some("53200") => Some("raise max_locks_per_transaction, if shared memory is full"),
        Some("53300") => Some("raise max_connections, or lower store.postgres.connections"),
        Some("08P01") if text.contains("startup parameter") => {
            Some("remove this parameter from store.url")
        }
        None if text.contains("does not support TLS") => {
            Some("remove sslmode from store.url, or turn TLS on in the server")
        }
        None if text.contains("invalid peer certificate: UnknownIssuer") => {
            Some("set store.tls.ca_file to the CA of the server's certificate")
        }
        None if text.contains("invalid peer certificate: certificate not valid for name") => {
            Some("set store.tls.server_name to the name in the server's certificate")
        }
        None if text.contains("Connection refused") => Some("is PostgreSQL running?"),
        None if text.contains("password missing") => {
            Some("set the password in store.url, or store.password_file")
        }
        _ => None,
    }
}
