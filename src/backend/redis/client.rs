//! One client of one Redis process.
//!
//! Guarantees: it is connected and knows who we are, or there is none; its connection is closed when
//! it is dropped; it never reconnects, and a command is sent at most once; what it could not do is said
//! without what it was told ([`in_words`], [`without_arguments`]). The client's own
//! reconnecting holds back what it could not send and sends it later, when its caller has long had
//! another answer.
//! Leaves out: making a new one ([`super::connection`]), and which process ([`super::sentinel`],
//! [`super::cluster`]).

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

/// How long a connection may take to be made, and a command that charges nothing to be answered.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How often a file with a password is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Calls that the client holds before it refuses more.
const MOST_CALLS: usize = 16_384;

/// Where one process listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    Tcp(Address),
    Unix(PathBuf),
}

impl At {
    /// Its host; empty for a socket, which has none.
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

/// Why it cannot be had, for a person. The client shows what the operating system said as a structure
/// of this language: of that only the sentence is kept.
pub(super) fn in_words(error: &Error) -> String {
    let details = without_arguments(error);
    // What the system said itself, or what the library put around it.
    let after = |mark| details.split_once(mark).and_then(|(_, rest)| rest.split('"').next());
    let sentence = after("message: \"").or_else(|| after("error: \""));
    sentence.filter(|_| *error.kind() == ErrorKind::IO).unwrap_or(details).to_owned()
}

/// What was said, without what it was said of: one that does not know a command repeats what it was given with it,
/// and what AUTH is given is a password.
pub(super) fn without_arguments(error: &Error) -> &str {
    let details = error.details();
    details.split_once(", with args beginning with:").map_or(details, |(said, _)| said)
}

/// As whom one process is spoken to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Login<'a> {
    user: Option<&'a str>,
    password: Option<&'a Password>,
    database: u8,
    tls: Option<&'a Tls>,
}

impl Options {
    /// To those that hold the counters.
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
    /// To the sentinels themselves.
    pub(super) fn login<'a>(&'a self, tls: Option<&'a Tls>) -> Login<'a> {
        let (user, password) = (self.user.as_deref(), self.password.as_ref());
        Login { user, password, database: 0, tls }
    }
}

/// A client that is connected.
#[derive(Debug)]
pub(super) struct Opened {
    client: Client,
    driver: ConnectHandle,
    /// The password that it was told last.
    told: Option<Password>,
}

impl Opened {
    /// Connects.
    ///
    /// # Errors
    /// Why not, after [`PATIENCE`] at the latest.
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

    /// What to send commands with; it fails them once this is dropped.
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Tells Redis the password again whenever its file holds another one; never ends.
    pub(super) fn telling<'a>(
        &self,
        login: Login<'a>,
        at: &'a At,
    ) -> impl Future<Output = ()> + use<'a> {
        tell_passwords(self.client.clone(), self.told.clone(), login, at)
    }

    /// Returns when the connection is closed.
    pub(super) async fn closed(&mut self) {
        // How it ended is in its answers, and nothing that could be mended.
        let _ended = (&mut self.driver).await;
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Who gave the old password stays who it is: one that is refused is told again, and nothing is lost.
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
/// Why it failed, after [`PATIENCE`] at the latest.
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
        // The waiting first: what it waits for is said once.
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
        // A charge that may have been made is not made again.
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
    fn of_what_the_system_said_the_sentence_alone_is_shown() {
        let shown = |error: &dyn std::fmt::Debug| {
            in_words(&Error::new(ErrorKind::IO, format!("{error:?}")))
        };
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(shown(&refused), "Connection refused");
        // A name that nobody knows: the library has a kind of its own for it.
        let unknown = io::Error::other("failed to lookup address information");
        assert_eq!(shown(&unknown), "failed to lookup address information");
        let other = Error::new(ErrorKind::Auth, "error: \"kept\" as it is");
        assert_eq!(in_words(&other), "error: \"kept\" as it is");
    }

    #[test]
    fn of_a_command_that_is_not_known_no_argument_is_shown() {
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
