//! One connection to one Redis process, through the client library.
//!
//! Guarantees:
//! - A new [`OpenedClient`] is connected and authenticated.
//! - An [`OpenedClient`] never reconnects; dropping it closes the connection.
//! - After that, each pending or later command fails at once.
//! - Each command is sent at most once.
//! - Error texts contain no command arguments ([`describe_error`], [`without_arguments`]).
//!
//! The client library's own reconnect is off: it would send queued commands after the caller
//! received a failure and used the fallback.

use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{AuthInterface as _, ClientLike as _};
use fred::types::config::{Config, ConnectionConfig, Server, ServerConfig, TcpConfig};
use fred::types::{ClusterHash, ConnectHandle, CustomCommand, Value};
use tokio::time::{sleep, timeout};

use super::options::{Address, Password, RedisOptions, RedisTls, SentinelOptions};
pub(super) use super::server_address::{CONNECT_TIMEOUT, ServerAddress};
use super::{files, relay, tls};

const PASSWORD_FILE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of commands that the client library buffers before it refuses more.
const MAX_BUFFERED_COMMANDS: usize = 16_384;

/// Returns the error text for logs and users. The client library writes an operating system error
/// in Rust's debug format, of which only the message is kept.
pub(super) fn describe_error(error: &Error) -> String {
    let details = without_arguments(error);
    // The message of the operating system, or else the error text of the client library.
    let after = |mark| details.split_once(mark).and_then(|(_, rest)| rest.split('"').next());
    let sentence = after("message: \"").or_else(|| after("error: \""));
    sentence.filter(|_| *error.kind() == ErrorKind::IO).unwrap_or(details).to_owned()
}

/// Returns the error text without command arguments: Redis repeats those of an unknown command, and
/// the argument of `AUTH` is a password.
pub(super) fn without_arguments(error: &Error) -> &str {
    let details = error.details();
    details.split_once(", with args beginning with:").map_or(details, |(text, _)| text)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Login<'a> {
    user: Option<&'a str>,
    password: Option<&'a Password>,
    database: u8,
    tls: Option<&'a RedisTls>,
}

impl RedisOptions {
    pub(super) fn login(&self) -> Login<'_> {
        Login {
            user: self.user.as_deref(),
            password: self.password.as_ref(),
            database: self.database,
            tls: self.tls.as_ref(),
        }
    }
}

impl SentinelOptions {
    pub(super) fn login<'a>(&'a self, tls: Option<&'a RedisTls>) -> Login<'a> {
        let (user, password) = (self.user.as_deref(), self.password.as_ref());
        Login { user, password, database: 0, tls }
    }
}

#[derive(Debug)]
pub(super) struct OpenedClient {
    client: Client,
    driver: ConnectHandle,
    sent_password: Option<Password>,
}

impl OpenedClient {
    /// Connects and authenticates. Fails after [`CONNECT_TIMEOUT`].
    pub(super) async fn new(address: &ServerAddress, login: Login<'_>) -> Result<Self, Error> {
        let opening = async {
            let config = config(address, login).await?;
            let configured_password = config.password.clone().map(Password::Plain);
            let client = Client::new(config, None, Some(connection_config()), None);
            let mut opened = connect(client).await?;
            opened.sent_password = configured_password;
            Ok(opened)
        };
        let opened =
            timeout(CONNECT_TIMEOUT, opening).await.unwrap_or_else(|_| Err(timeout_error()));
        opened.map_err(|error| tls::explain_handshake_error(error, login.tls))
    }

    /// Connects to a proxy that may close the connection after a command that it does not know.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(super) async fn behind_proxy(
        address: &ServerAddress,
        login: Login<'_>,
    ) -> Result<Self, Error> {
        if login.tls.is_some() || !cfg!(target_os = "linux") {
            return Self::new(address, login).await;
        }
        let path = relay::start(address).await;
        let path = path.map_err(|error| Error::new(ErrorKind::IO, error.to_string()))?;
        Self::new(&ServerAddress::Unix(path), login).await
    }

    /// Returns the client, whose commands fail after this [`OpenedClient`] is dropped.
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Re-authenticates whenever the password file changes; never returns.
    pub(super) fn reauthenticate<'a>(
        &self,
        login: Login<'a>,
        address: &'a ServerAddress,
    ) -> impl Future<Output = ()> + use<'a> {
        watch_password_file(self.client.clone(), self.sent_password.clone(), login, address)
    }

    pub(super) async fn wait_closed(&mut self) {
        // Ignore this error: the pending commands report why the connection closed.
        let _ended = (&mut self.driver).await;
    }
}

impl Drop for OpenedClient {
    fn drop(&mut self) {
        self.driver.abort();
        // The client library keeps the queue for a reconnect. A command in it would wait for its
        // timeout, so drop the queue.
        drop(self.client.inner().take_command_rx());
    }
}

/// Re-authenticates the open connection when the password file changes. A refused
/// attempt is repeated, and the connection stays authenticated with the old password.
async fn watch_password_file(
    client: Client,
    mut sent_password: Option<Password>,
    login: Login<'_>,
    address: &ServerAddress,
) {
    let Some(file @ Password::File(_)) = login.password else { return pending().await };
    let mut last_error = String::new();
    loop {
        sleep(PASSWORD_FILE_INTERVAL).await;
        let Ok(text) = files::read_password(file).await else { continue };
        let current = Some(Password::Plain(text.clone()));
        if current == sent_password {
            continue;
        }
        let reply =
            timeout(CONNECT_TIMEOUT, client.auth(login.user.map(str::to_owned), text)).await;
        match reply.unwrap_or_else(|_| Err(timeout_error())) {
            Ok(()) => {
                tracing::info!(addr = %address, "redis accepted the new password");
                (sent_password, last_error) = (current, String::new());
            }
            Err(error) => {
                let message = describe_error(&error);
                if message != last_error {
                    tracing::warn!(addr = %address, error = %message, "redis rejected the new password, retrying");
                    last_error = message;
                }
            }
        }
    }
}

/// Runs a command that charges nothing. Fails if Redis refuses it or does not reply within
/// [`CONNECT_TIMEOUT`].
pub(super) async fn run_command(client: &Client, command: &[&str]) -> Result<Value, Error> {
    let (name, args) = command.split_first().unwrap_or((&"PING", &[]));
    let command = CustomCommand::new(*name, ClusterHash::FirstKey, false);
    let args = args.iter().map(|&arg| Value::from(arg)).collect();
    let reply = timeout(CONNECT_TIMEOUT, client.custom(command, args)).await;
    reply.unwrap_or_else(|_| Err(timeout_error()))
}

fn timeout_error() -> Error {
    Error::new(ErrorKind::Timeout, "timed out: no reply within 1s")
}

async fn connect(client: Client) -> Result<OpenedClient, Error> {
    let mut driver = None;
    let connected = {
        let mut waiting = pin!(client.wait_for_connect());
        let begin = async {
            let client = client.clone();
            driver = Some(OpenedClient { driver: client.connect(), client, sent_password: None });
            std::future::pending::<()>().await;
        };
        // Poll the wait first: the client announces the connect event only once.
        tokio::select! {
            biased;
            connected = &mut waiting => connected,
            () = begin => Err(not_started_error()),
        }
    };
    connected?;
    driver.ok_or_else(not_started_error)
}

fn not_started_error() -> Error {
    Error::new(ErrorKind::Canceled, "stopped before connecting")
}

async fn config(address: &ServerAddress, login: Login<'_>) -> Result<Config, Error> {
    let server = match address {
        ServerAddress::Tcp(address) => {
            ServerConfig::Centralized { server: server(address, login.tls) }
        }
        ServerAddress::Unix(path) => ServerConfig::Unix { path: path.clone() },
    };
    let password = match login.password {
        Some(password) => Some(files::read_password(password).await?),
        None => None,
    };
    let tls = match (login.tls, address) {
        (Some(tls), ServerAddress::Tcp(_)) => Some(tls::load_config(tls).await?),
        _ => None,
    };
    Ok(Config {
        server,
        username: login.user.map(str::to_owned),
        password,
        database: Some(login.database).filter(|number| *number != 0),
        tls,
        ..Config::default()
    })
}

fn server(address: &Address, tls: Option<&RedisTls>) -> Server {
    let mut server = Server::new(address.host.clone(), address.port);
    server.tls_server_name = tls.and_then(|tls| tls.server_name.clone()).map(Into::into);
    server
}

fn connection_config() -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: CONNECT_TIMEOUT,
        internal_command_timeout: CONNECT_TIMEOUT,
        // Redis may have executed a charge without a reply, so no command is repeated.
        max_command_attempts: 1,
        max_command_buffer_len: MAX_BUFFERED_COMMANDS,
        tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
        ..ConnectionConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use fred::interfaces::ClientLike as _;
    use fred::types::Value;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::{Client, Error, ErrorKind, OpenedClient, describe_error};
    use crate::redis::StoreFailure;
    use crate::redis::call_error::classify_error;
    use crate::redis::options::{Address, RedisOptions, RedisTopology};
    use crate::redis::server_address::ServerAddress;

    /// A command that waits for so long waits for its timeout.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Accepts one connection, and answers each command as if it were `PING`.
    async fn serve_pings(listener: TcpListener) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut received = [0; 512];
        loop {
            let length = stream.read(&mut received).await.unwrap();
            let commands = received[..length].split(|byte| *byte == b'*').skip(1).count();
            stream.write_all("+PONG\r\n".repeat(commands).as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn commands_on_a_closed_connection_fail_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = Address { host: "127.0.0.1".to_owned(), port };
        let server = tokio::spawn(serve_pings(listener));
        let options = RedisOptions::new(RedisTopology::Tcp(address.clone()));
        let mut opened =
            OpenedClient::new(&ServerAddress::Tcp(address), options.login()).await.unwrap();
        let client = opened.client().clone();
        client.ping::<Value>(None).await.unwrap();
        server.abort();
        opened.wait_closed().await;
        let ping = async |client: Client| {
            let reply = tokio::time::timeout(PATIENCE, client.ping::<Value>(None)).await;
            let reply = reply.expect("no command waits for a closed connection");
            classify_error(&reply.unwrap_err())
        };
        let queued = tokio::spawn(ping(client.clone()));
        tokio::task::yield_now().await;
        drop(opened);
        assert_eq!(queued.await.unwrap(), StoreFailure::ConnectionLost);
        assert_eq!(ping(client).await, StoreFailure::Unreachable);
    }

    #[test]
    fn io_errors_show_only_their_message() {
        let shown = |error: &dyn std::fmt::Debug| {
            describe_error(&Error::new(ErrorKind::IO, format!("{error:?}")))
        };
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(shown(&refused), "Connection refused");
        // The client library has its own error kind for a host name that does not resolve.
        let unknown = io::Error::other("failed to lookup address information");
        assert_eq!(shown(&unknown), "failed to lookup address information");
        let other = Error::new(ErrorKind::Auth, "error: \"kept\" as it is");
        assert_eq!(describe_error(&other), "error: \"kept\" as it is");
    }

    #[test]
    fn unknown_command_errors_omit_the_arguments() {
        let shown = |text: &'static str| describe_error(&Error::new(ErrorKind::Unknown, text));
        let redis_7 = "ERR unknown command 'AUTH', with args beginning with: 'gate' 's3cret' ";
        assert_eq!(shown(redis_7), "ERR unknown command 'AUTH'");
        let redis_6 = "ERR unknown command `AUTH`, with args beginning with: `s3cret`, ";
        assert_eq!(shown(redis_6), "ERR unknown command `AUTH`");
        let sentinel = "sentinel host:1: ERR unknown command 'AUTH', with args beginning with: 'a, with args' ";
        assert_eq!(shown(sentinel), "sentinel host:1: ERR unknown command 'AUTH'");
        assert_eq!(shown("ERR syntax error"), "ERR syntax error");
    }
}
