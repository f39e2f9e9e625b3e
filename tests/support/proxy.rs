//! TCP proxy between the service and its store that injects network faults.
//!
//! Guarantees:
//! - Faults apply to open and to new connections.
//! - The proxy runs on its own thread.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::waiting::now;

#[derive(Clone, Debug)]
pub enum Upstream {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToStore,
    FromStore,
}

/// What the proxy does with the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    #[default]
    Pass,
    /// Each byte arrives this much later. Throughput is not limited.
    Delay(Duration),
    /// Bytes are delayed until the flow changes, as in a network partition.
    Hold,
    Lose,
}

/// Byte sequence sent to the store and its replacement of equal length.
type Rewrite = (&'static [u8], &'static [u8]);

/// A running proxy. Drop closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

/// Fault settings and counters, shared with the connections.
#[derive(Debug)]
struct State {
    upstream: watch::Sender<Upstream>,
    rewrite: Option<Rewrite>,
    flows: [watch::Sender<Flow>; 2],
    halves: [watch::Sender<u64>; 2],
    cut: watch::Sender<u64>,
    refuses: watch::Sender<bool>,
    accepted: AtomicUsize,
    open: AtomicUsize,
    bytes: [AtomicU64; 2],
}

impl Proxy {
    pub fn before(upstream: Upstream) -> Self {
        Self::start(State::new(upstream))
    }

    /// Starts a proxy that replaces `text` by `other` in bytes to the store. Both must have the
    /// same length, so that RESP length prefixes stay valid.
    pub fn rewriting(upstream: Upstream, text: &'static [u8], other: &'static [u8]) -> Self {
        assert_eq!(text.len(), other.len());
        Self::start(State { rewrite: Some((text, other)), ..State::new(upstream) })
    }

    fn start(state: State) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(state);
        runtime.spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, runtime: Some(runtime) }
    }

    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn set(&self, direction: Way, flow: Flow) {
        self.state.flows[direction as usize].send_replace(flow);
    }

    pub fn pass(&self) {
        self.both(Flow::Pass);
    }

    /// Stops delivery in both directions and keeps all sockets open, as in a network partition.
    pub fn go_silent(&self) {
        self.both(Flow::Hold);
    }

    pub fn both(&self, flow: Flow) {
        self.set(Way::ToStore, flow);
        self.set(Way::FromStore, flow);
    }

    /// Closes all open connections. New ones are accepted.
    pub fn cut(&self) {
        self.state.cut.send_modify(|times| *times += 1);
    }

    /// Closes one direction of all open connections. The other direction keeps working.
    pub fn half_close(&self, direction: Way) {
        self.state.halves[direction as usize].send_modify(|times| *times += 1);
    }

    /// If `refuses` is set, closes each new connection immediately.
    pub fn refuse(&self, refuses: bool) {
        self.state.refuses.send_replace(refuses);
    }

    /// Sets the upstream of new connections.
    pub fn set_upstream(&self, upstream: Upstream) {
        self.state.upstream.send_replace(upstream);
    }

    pub fn accepted(&self) -> usize {
        self.state.accepted.load(SeqCst)
    }

    pub fn open(&self) -> usize {
        self.state.open.load(SeqCst)
    }

    /// Number of bytes that the proxy has read in one direction, including those that it dropped.
    pub fn bytes(&self, direction: Way) -> u64 {
        self.state.bytes[direction as usize].load(SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Dropping a tokio runtime blocks, which panics in an async test.
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl State {
    fn new(upstream: Upstream) -> Self {
        Self {
            upstream: watch::Sender::new(upstream),
            rewrite: None,
            flows: Default::default(),
            halves: Default::default(),
            cut: watch::Sender::default(),
            refuses: watch::Sender::default(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            bytes: Default::default(),
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        state.accepted.fetch_add(1, SeqCst);
        if *state.refuses.borrow() {
            continue;
        }
        connections.spawn(connect(client, Arc::clone(&state)));
    }
}

async fn connect(client: TcpStream, state: Arc<State>) {
    let _ = client.set_nodelay(true);
    let _open = Open::count(&state);
    let mut cut = state.cut.subscribe();
    let upstream = state.upstream.borrow().clone();
    let joined = async {
        match upstream {
            Upstream::Tcp(address) => {
                let store = TcpStream::connect(address).await?;
                store.set_nodelay(true)?;
                join(client, store, &state).await;
            }
            Upstream::Unix(path) => join(client, UnixStream::connect(path).await?, &state).await,
        }
        std::io::Result::Ok(())
    };
    tokio::select! {
        _ended = joined => {}
        _ = cut.changed() => {}
    }
}

async fn join<C, S>(client: C, store: S, state: &State)
where
    C: AsyncRead + AsyncWrite,
    S: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = tokio::io::split(client);
    let (from_store, to_store) = tokio::io::split(store);
    tokio::join!(
        carry(from_client, to_store, state, Way::ToStore),
        carry(from_store, to_client, state, Way::FromStore),
    );
}

async fn carry(from: impl AsyncRead + Unpin, to: impl AsyncWrite + Unpin, state: &State, way: Way) {
    let (late, arrivals) = mpsc::channel(1024);
    let mut half = state.halves[way as usize].subscribe();
    let reading = async move {
        tokio::select! {
            () = read(from, state, way, late) => {}
            _ = half.changed() => {}
        }
    };
    tokio::join!(reading, write(to, arrivals, state.flows[way as usize].subscribe()));
}

async fn read(
    mut from: impl AsyncRead + Unpin,
    state: &State,
    way: Way,
    late: mpsc::Sender<(Instant, Vec<u8>)>,
) {
    let mut buffer = vec![0; 16 * 1024];
    let rewrite = state.rewrite.filter(|_| way == Way::ToStore);
    let mut begun = Vec::new();
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        state.bytes[way as usize].fetch_add(count as u64, SeqCst);
        let flow = *state.flows[way as usize].borrow();
        let delay = match flow {
            Flow::Lose => continue,
            Flow::Delay(delay) => delay,
            Flow::Pass | Flow::Hold => Duration::ZERO,
        };
        let mut bytes = std::mem::take(&mut begun);
        bytes.extend(&buffer[..count]);
        if let Some(rewrite) = rewrite {
            begun = rewritten(&mut bytes, rewrite);
        }
        if late.send((Instant::from(now()) + delay, bytes)).await.is_err() {
            return;
        }
    }
}

/// Rewrites complete matches. Removes and returns the end of `bytes` if it may be the start of
/// another match.
fn rewritten(bytes: &mut Vec<u8>, (text, other): Rewrite) -> Vec<u8> {
    let places: Vec<_> =
        bytes.windows(text.len()).enumerate().filter(|(_, its)| *its == text).collect();
    let places: Vec<usize> = places.into_iter().map(|(at, _)| at).collect();
    for at in places {
        bytes[at..at + text.len()].copy_from_slice(other);
    }
    let longest = (1..text.len().min(bytes.len() + 1)).rev();
    let begun = longest.into_iter().find(|&length| bytes.ends_with(&text[..length]));
    bytes.split_off(bytes.len() - begun.unwrap_or(0))
}

async fn write(
    mut to: impl AsyncWrite + Unpin,
    mut arrivals: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut flow: watch::Receiver<Flow>,
) {
    while let Some((at, bytes)) = arrivals.recv().await {
        tokio::time::sleep_until(at).await;
        if flow.wait_for(|flow| *flow != Flow::Hold).await.is_err()
            || to.write_all(&bytes).await.is_err()
        {
            break;
        }
    }
    let _ = to.shutdown().await;
}

struct Open<'a>(&'a State);

impl<'a> Open<'a> {
    fn count(state: &'a State) -> Self {
        state.open.fetch_add(1, SeqCst);
        Self(state)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::{Flow, Proxy, Upstream, Way};
    use crate::support::redis::Redis;
    use crate::support::waiting::{now, until};

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const PONG: &[u8] = b"+PONG\r\n";
    const LONG: Duration = Duration::from_millis(300);

    fn through() -> (Redis, Proxy) {
        let redis = Redis::start();
        let proxy = Proxy::before(Upstream::Unix(redis.socket()));
        (redis, proxy)
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(crate::support::waiting::PATIENCE)).unwrap();
        stream
    }

    /// Sends `PING` and reads until the reply is complete or the connection closes.
    fn ping(mut stream: &TcpStream) -> std::io::Result<Vec<u8>> {
        stream.write_all(PING)?;
        let mut answer = Vec::new();
        while answer.len() < PONG.len() {
            let mut byte = [0];
            match stream.read(&mut byte)? {
                0 => break,
                _ => answer.push(byte[0]),
            }
        }
        Ok(answer)
    }

    #[test]
    fn proxy_passes_and_counts_bytes_in_both_directions() {
        let (_redis, proxy) = through();
        let stream = connect(&proxy);
        assert_eq!(ping(&stream).unwrap(), PONG);
        assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
        assert_eq!(proxy.bytes(Way::ToStore), PING.len() as u64);
        assert_eq!(proxy.bytes(Way::FromStore), PONG.len() as u64);
    }

    #[test]
    fn delays_of_several_bytes_overlap() {
        let (_redis, proxy) = through();
        let mut stream = connect(&proxy);
        proxy.set(Way::FromStore, Flow::Delay(LONG));
        let began = now();
        for sent in 1..=3 {
            stream.write_all(PING).unwrap();
            let read = || match proxy.bytes(Way::FromStore) {
                bytes if bytes == PONG.len() as u64 * sent => Ok(()),
                bytes => Err(bytes.to_string()),
            };
            until("the store answers", read).unwrap();
        }
        let all_asked = began.elapsed();
        let mut answers = [0; PONG.len() * 3];
        stream.read_exact(&mut answers).unwrap();
        assert!(LONG <= began.elapsed());
        assert!(began.elapsed() < all_asked + LONG * 2, "delays of one direction overlap");
    }

    #[test]
    fn silent_proxy_closes_no_connection_and_loses_no_bytes() {
        let (_redis, proxy) = through();
        let mut stream = connect(&proxy);
        assert_eq!(ping(&stream).unwrap(), PONG);
        proxy.go_silent();
        stream.write_all(PING).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let silent = stream.read(&mut [0]).unwrap_err();
        assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock);
        proxy.pass();
        stream.set_read_timeout(Some(crate::support::waiting::PATIENCE)).unwrap();
        let mut answer = [0; PONG.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, PONG);
    }

    #[test]
    fn proxy_cut_closes_open_connections_and_refuse_closes_new_ones() {
        let (_redis, proxy) = through();
        let streams = [connect(&proxy), connect(&proxy)];
        for stream in &streams {
            assert_eq!(ping(stream).unwrap(), PONG);
        }
        proxy.cut();
        for stream in &streams {
            assert!(!matches!(ping(stream), Ok(answer) if !answer.is_empty()));
        }
        assert_eq!(ping(&connect(&proxy)).unwrap(), PONG);
        proxy.refuse(true);
        assert!(!matches!(ping(&connect(&proxy)), Ok(answer) if !answer.is_empty()));
    }

    #[test]
    fn half_close_toward_client_keeps_store_direction_open() {
        let (_redis, proxy) = through();
        let mut stream = connect(&proxy);
        assert_eq!(ping(&stream).unwrap(), PONG);
        proxy.half_close(Way::FromStore);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the client sees the end");
        stream.write_all(PING).unwrap();
        let heard = || match proxy.bytes(Way::ToStore) {
            bytes if bytes == 2 * PING.len() as u64 => Ok(()),
            bytes => Err(bytes.to_string()),
        };
        until("the other direction flows", heard).unwrap();
        assert_eq!(proxy.open(), 1);
    }

    #[test]
    fn new_upstream_of_the_proxy_applies_only_to_new_connections() {
        let (_redis, proxy) = through();
        let old = connect(&proxy);
        assert_eq!(ping(&old).unwrap(), PONG);
        let (_other, second) = through();
        proxy.set_upstream(Upstream::Tcp(second.address()));
        assert_eq!(ping(&connect(&proxy)).unwrap(), PONG);
        assert_eq!(ping(&old).unwrap(), PONG);
        assert_eq!((proxy.accepted(), second.accepted()), (2, 1));
    }

    #[test]
    fn proxy_rewrites_text_that_is_split_across_writes() {
        let redis = Redis::start();
        let proxy = Proxy::rewriting(Upstream::Unix(redis.socket()), b"before", b"after!");
        let mut stream = connect(&proxy);
        for part in [&b"*2\r\n$4\r\nECHO\r\n$9\r\nbebef"[..], b"or", b"e.\r\n"] {
            stream.write_all(part).unwrap();
            stream.flush().unwrap();
        }
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"$9\r\nbeafter!.\r\n");
    }

    #[test]
    fn bytes_dropped_by_the_proxy_never_arrive_later() {
        let (_redis, proxy) = through();
        let mut stream = connect(&proxy);
        proxy.set(Way::FromStore, Flow::Lose);
        stream.write_all(PING).unwrap();
        let lost = || match proxy.bytes(Way::FromStore) {
            0 => Err("no answer yet".to_owned()),
            _ => Ok(()),
        };
        until("the store answers", lost).unwrap();
        proxy.pass();
        stream.write_all(b"*2\r\n$4\r\nECHO\r\n$4\r\nnext\r\n").unwrap();
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"$4\r\nnext\r\n");
    }
}
