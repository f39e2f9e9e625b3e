//! One client of one Redis process.
//!
//! Guarantees:
//! - An [`Opened`] client is connected and authenticated.
//! - Dropping it closes the connection.
//! - It never reconnects, and sends each command at most once.
//! - Error texts contain no command arguments ([`in_words`], [`without_arguments`]).
//!
//! Not covered:
//! - Replacing a lost connection ([`super::keep`]).
//! - Choosing the process ([`super::sentinel`], [`super::cluster`]).
//!
//! The reconnect of the client library is off. It would queue unsent
//! commands, and send them after their caller had received another outcome.

use std::fmt;
use std::future::pending;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{AuthInterface as _, ClientLike as _};
use fred::types::config::{Config, ConnectionConfig, Server, ServerConfig, TcpConfig};
use fred::types::{ClusterHash, ConnectHandle, CustomCommand, Value};
use tokio::time::{sleep, timeout};

use super::options::{Address, Options, Password, Sentinels, Tls};
use super::{files, tls};

/// The timeout for connecting, and for a command that charges nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

const LOOK: Duration = Duration::from_secs(1);

/// Commands that the client buffers before it refuses more.
const MOST_CALLS: usize = 16_384;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    Tcp(Address),
    Unix(PathBuf),
}

impl At {
    /// The host; empty for a Unix socket.
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Tcp(address) => &address.host,
            Self::Unix(_) => "",
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// The error text for a person. The client library wraps an operating
/// system error in Rust's debug format; only its message is kept.
pub(super) fn in_words(error: &Error) -> String {
    let details = without_arguments(error);
    // The message of the operating system, or the text that the library put around it.
    let after = |mark| details.split_once(mark).and_then(|(_, rest)| rest.split('"').next());
    let sentence = after("message: \"").or_else(|| after("error: \""));
    sentence.filter(|_| *error.kind() == ErrorKind::IO).unwrap_or(details).to_owned()
}

/// The error text without command arguments. Redis repeats the arguments
/// of an unknown command, and the argument of `AUTH` is a password.
pub(super) fn without_arguments(error: &Error) -> &str {
    let details = error.details();
    details.split_once(", with args beginning with:").map_or(details, |(said, _)| said)
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Login<'a> {
    user: Option<&'a str>,
    password: Option<&'a Password>,
    database: u8,
    tls: Option<&'a Tls>,
}

impl Options {
    pub(super) fn login(&self) -> Login<'_> {
        Login {
            user: self.user.as_deref(),
            password: self.password.as_ref(),
            database: self.database,
            tls: self.tls.as_ref(),
        }
    }
}

impl Sentinels {
    pub(super) fn login<'a>(&'a self, tls: Option<&'a Tls>) -> Login<'a> {
        let (user, password) = (self.user.as_deref(), self.password.as_ref());
        Login { user, password, database: 0, tls }
    }
}

#[derive(Debug)]
pub(super) struct Opened {
    client: Client,
    driver: ConnectHandle,
    told: Option<Password>,
}

impl Opened {
    /// Connects and authenticates.
    ///
    /// # Errors
    /// The reason for the failure, within [`PATIENCE`].
    pub(super) async fn new(at: &At, login: Login<'_>) -> Result<Self, Error> {
        let opening = async {
            let config = config(at, login).await?;
            let told = config.password.clone().map(Password::Plain);
            let client = Client::new(config, None, Some(tuning()), None);
            let mut opened = connect(client).await?;
            opened.told = told;
            Ok(opened)
        };
        let opened = timeout(PATIENCE, opening).await.unwrap_or_else(|_| Err(silent()));
        opened.map_err(|error| tls::in_words(error, login.tls))
    }

    /// The client for sending commands. Its commands fail after this value is dropped.
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Re-authenticates whenever the password file changes; never returns.
    pub(super) fn telling<'a>(
        &self,
        login: Login<'a>,
        at: &'a At,
    ) -> impl Future<Output = ()> + use<'a> {
        tell_passwords(self.client.clone(), self.told.clone(), login, at)
    }

    pub(super) async fn closed(&mut self) {
        // The pending commands report why it closed.
        let _ended = (&mut self.driver).await;
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Re-authenticates the open connection when the password file changes. A refused
/// attempt is repeated, and the connection stays authenticated with the old password.
async fn tell_passwords(client: Client, mut told: Option<Password>, login: Login<'_>, at: &At) {
    let Some(file @ Password::File(_)) = login.password else { return pending().await };
    let mut said = String::new();
    loop {
        sleep(LOOK).await;
        let Ok(text) = files::password(file).await else { continue };
        let now = Some(Password::Plain(text.clone()));
        if now == told {
            continue;
        }
        let answer = timeout(PATIENCE, client.auth(login.user.map(str::to_owned), text)).await;
        match answer.unwrap_or_else(|_| Err(silent())) {
            Ok(()) => {
                tracing::info!(%at, "redis was told the new password");
                (told, said) = (now, String::new());
            }
            Err(error) => {
                let why = in_words(&error);
                if why != said {
                    tracing::warn!(%at, error = %why, "redis does not take the new password");
                    said = why;
                }
            }
        }
    }
}

/// Runs a command that charges nothing.
///
/// # Errors
/// The reason for the failure, within [`PATIENCE`].
pub(super) async fn run(client: &Client, command: &[&str]) -> Result<Value, Error> {
    let (name, args) = command.split_first().unwrap_or((&"PING", &[]));
    let command = CustomCommand::new(*name, ClusterHash::FirstKey, false);
    let args = args.iter().map(|&arg| Value::from(arg)).collect();
    let answer = timeout(PATIENCE, client.custom(command, args)).await;
    answer.unwrap_or_else(|_| Err(silent()))
}

fn silent() -> Error {
    Error::new(ErrorKind::Timeout, "no answer within a second")
}

async fn connect(client: Client) -> Result<Opened, Error> {
    let mut driver = None;
    let connected = {
        let mut waiting = pin!(client.wait_for_connect());
        let begin = async {
            let (its, told) = (client.clone(), None);
            driver = Some(Opened { driver: its.connect(), client: its, told });
            std::future::pending::<()>().await;
        };
        // Poll the wait first: the client announces the connect event only once.
        tokio::select! {
            biased;
            connected = &mut waiting => connected,
            () = begin => Err(not_begun()),
        }
    };
    connected?;
    driver.ok_or_else(not_begun)
}

fn not_begun() -> Error {
    Error::new(ErrorKind::Canceled, "not begun")
}

async fn config(at: &At, login: Login<'_>) -> Result<Config, Error> {
    let server = match at {
        At::Tcp(address) => ServerConfig::Centralized { server: server(address, login.tls) },
        At::Unix(path) => ServerConfig::Unix { path: path.clone() },
    };
    let password = match login.password {
        Some(password) => Some(files::password(password).await?),
        None => None,
    };
    let tls = match (login.tls, at) {
        (Some(tls), At::Tcp(_)) => Some(tls::config(tls).await?),
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

fn server(address: &Address, tls: Option<&Tls>) -> Server {
    let mut server = Server::new(address.host.clone(), address.port);
    server.tls_server_name = tls.and_then(|tls| tls.server_name.clone()).map(Into::into);
    server
}

fn tuning() -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: PATIENCE,
        internal_command_timeout: PATIENCE,
        // A charge that Redis may have executed is not repeated.
        max_command_attempts: 1,
        max_command_buffer_len: MOST_CALLS,
        tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
        ..ConnectionConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{Error, ErrorKind, in_words};

    #[test]
    fn io_errors_show_only_their_message() {
        let shown = |error: &dyn std::fmt::Debug| {
            in_words(&Error::new(ErrorKind::IO, format!("{error:?}")))
        };
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(shown(&refused), "Connection refused");
        // The library has its own error kind for a name that does not resolve.
        let unknown = io::Error::other("failed to lookup address information");
        assert_eq!(shown(&unknown), "failed to lookup address information");
        let other = Error::new(ErrorKind::Auth, "error: \"kept\" as it is");
        assert_eq!(in_words(&other), "error: \"kept\" as it is");
    }

    #[test]
    fn unknown_command_errors_omit_the_arguments() {
        let shown = |said: &'static str| in_words(&Error::new(ErrorKind::Unknown, said));
        let of_7 = "ERR unknown command 'AUTH', with args beginning with: 'gate' 's3cret' ";
        assert_eq!(shown(of_7), "ERR unknown command 'AUTH'");
        let of_6 = "ERR unknown command `AUTH`, with args beginning with: `s3cret`, ";
        assert_eq!(shown(of_6), "ERR unknown command `AUTH`");
        let sentinel = "sentinel host:1: ERR unknown command 'AUTH', with args beginning with: 'a, with args' ";
        assert_eq!(shown(sentinel), "sentinel host:1: ERR unknown command 'AUTH'");
        assert_eq!(shown("ERR syntax error"), "ERR syntax error");
    }
}
