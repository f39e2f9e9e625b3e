//! Relays one connection to a Redis proxy, and answers the commands that the proxy would refuse.
//!
//! The client library sends `CLIENT ID` and `INFO` when it connects. twemproxy closes a connection
//! after an unknown command.
//!
//! Guarantees:
//! - Only this process can use the relay, once, within [`CONNECT_TIMEOUT`].
//! - Until `INFO`, a command has at most [`MAX_COMMAND_BYTES`]. Afterwards, bytes are copied.
//!
//! Not covered:
//! - TLS to the proxy.
//! - Operating systems other than Linux, which have no abstract sockets.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;
use tokio_util::either::Either;

use super::server_address::{CONNECT_TIMEOUT, ServerAddress};

/// The most bytes of a command before the relay copies bytes: `AUTH` with a long password.
const MAX_COMMAND_BYTES: u64 = 65_536;

/// A reply to `CLIENT ID`.
const NO_CLIENT_ID: &[u8] = b":0\r\n";

/// A reply to `INFO`: an empty text.
const NO_INFO: &[u8] = b"$0\r\n\r\n";

type Upstream = Either<TcpStream, UnixStream>;

/// Connects to the proxy, and returns the path of an abstract socket for one connection to it.
///
/// # Errors
/// The proxy is unreachable.
pub(super) async fn start(proxy: &ServerAddress) -> io::Result<PathBuf> {
    let upstream = timeout(CONNECT_TIMEOUT, connect(proxy)).await;
    let upstream = upstream.map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
    let path = random_path()?;
    let listener = UnixListener::bind(&path)?;
    tokio::spawn(async move {
        if let Ok(Ok(client)) = timeout(CONNECT_TIMEOUT, accept_own(listener)).await {
            // The client sees the end of the connection.
            relay(BufReader::new(client), BufReader::new(upstream)).await.ok();
        }
    });
    Ok(path)
}

async fn connect(proxy: &ServerAddress) -> io::Result<Upstream> {
    match proxy {
        ServerAddress::Tcp(address) => {
            let stream = TcpStream::connect((&*address.host, address.port)).await?;
            stream.set_nodelay(true)?;
            Ok(Upstream::Left(stream))
        }
        ServerAddress::Unix(path) => Ok(Upstream::Right(UnixStream::connect(path).await?)),
    }
}

/// Returns the path of an abstract socket, which starts with a zero byte.
fn random_path() -> io::Result<PathBuf> {
    let random = ring::rand::generate::<[u8; 16]>(&ring::rand::SystemRandom::new());
    let random = random.map_err(|_| io::Error::other("no random numbers"))?.expose();
    let name = format!("\0sluicegate-relay-{:032x}", u128::from_ne_bytes(random));
    Ok(OsString::from_vec(name.into_bytes()).into())
}

/// Accepts the connection of this process, and closes those of others.
async fn accept_own(listener: UnixListener) -> io::Result<UnixStream> {
    loop {
        let (client, _) = listener.accept().await?;
        let process = client.peer_cred()?.pid();
        if process.and_then(|id| u32::try_from(id).ok()) == Some(std::process::id()) {
            return Ok(client);
        }
    }
}

async fn relay(
    mut client: BufReader<UnixStream>,
    mut proxy: BufReader<Upstream>,
) -> io::Result<()> {
    loop {
        let (name, command) = read_command(&mut client).await?;
        match &*name {
            b"CLIENT" => client.write_all(NO_CLIENT_ID).await?,
            b"INFO" => {
                client.write_all(NO_INFO).await?;
                tokio::io::copy_bidirectional(&mut client, &mut proxy).await?;
                return Ok(());
            }
            _ => {
                proxy.write_all(&command).await?;
                let mut reply = Vec::new();
                (&mut proxy).take(MAX_COMMAND_BYTES).read_until(b'\n', &mut reply).await?;
                client.write_all(&reply).await?;
            }
        }
    }
}

/// Reads a command, an array of bulk strings. Returns its name in upper case, and its bytes.
async fn read_command(client: &mut BufReader<UnixStream>) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut input = client.take(MAX_COMMAND_BYTES);
    let (mut bytes, mut name) = (Vec::new(), Vec::new());
    let parts = read_number(&mut input, b'*', &mut bytes).await?;
    for part in 0..parts {
        let length = read_number(&mut input, b'$', &mut bytes).await?;
        let start = bytes.len();
        let end = length.checked_add(2).filter(|end| *end <= MAX_COMMAND_BYTES);
        let end = end.ok_or(ErrorKind::InvalidData)?;
        (&mut input).take(end).read_to_end(&mut bytes).await?;
        if part == 0 {
            name = bytes[start..].trim_ascii_end().to_ascii_uppercase();
        }
    }
    Ok((name, bytes))
}

/// Reads a line such as `*2`, and appends it to `bytes`.
async fn read_number(
    input: &mut (impl AsyncBufRead + Unpin),
    kind: u8,
    bytes: &mut Vec<u8>,
) -> io::Result<u64> {
    let start = bytes.len();
    input.read_until(b'\n', bytes).await?;
    let line = bytes[start..].strip_prefix(&[kind]).map(<[u8]>::trim_ascii_end);
    let number = line.and_then(|line| std::str::from_utf8(line).ok()?.parse().ok());
    number.ok_or_else(|| ErrorKind::InvalidData.into())
}
