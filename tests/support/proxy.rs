//! TCP proxy between the service and its store that injects network faults.
//!
//! Guarantees:
//! - Faults apply to open and to new connections.
//! - The proxy runs on its own thread.

mod tests;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
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

/// The command of a script call. A client writes it at once, so no read splits it.
const SCRIPT_CALL: &[u8] = b"EVALSHA";

/// Byte sequence sent to the store and its replacement of equal length.
type Rewrite = (&'static [u8], &'static [u8]);

/// A running proxy. Drop closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
    runtime: Option<Runtime>,
}

/// Fault settings and counters, shared with the connections.
#[derive(Debug)]
struct ProxyState {
    upstream: watch::Sender<Upstream>,
    rewrite: Option<Rewrite>,
    flows: [watch::Sender<Flow>; 2],
    halves: [watch::Sender<u64>; 2],
    cut: watch::Sender<u64>,
    refuses: watch::Sender<bool>,
    accepted: AtomicUsize,
    open: AtomicUsize,
    bytes: [AtomicU64; 2],
    /// The number of script calls that still get a reply; `None` means all.
    calls_with_reply: Mutex<Option<usize>>,
}

impl Proxy {
    pub fn before(upstream: Upstream) -> Self {
        Self::start(ProxyState::new(upstream))
    }

    /// Starts a proxy that replaces `text` by `other` in bytes to the store. Both must have the
    /// same length, so that RESP length prefixes stay valid.
    pub fn rewriting(upstream: Upstream, text: &'static [u8], other: &'static [u8]) -> Self {
        assert_eq!(text.len(), other.len());
        Self::start(ProxyState { rewrite: Some((text, other)), ..ProxyState::new(upstream) })
    }

    fn start(state: ProxyState) -> Self {
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

    /// Delivers the replies to the next `calls` script calls, and holds all later ones.
    pub fn hold_after(&self, calls: usize) {
        *self.state.calls_with_reply.lock() = Some(calls);
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

impl ProxyState {
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
            calls_with_reply: Mutex::default(),
        }
    }

    /// Holds the replies of the store before the first script call without a reply is sent to it.
    fn count_calls(&self, sent: &[u8]) {
        let mut calls_with_reply = self.calls_with_reply.lock();
        let Some(left) = &mut *calls_with_reply else { return };
        let calls = sent.windows(SCRIPT_CALL.len()).filter(|its| *its == SCRIPT_CALL).count();
        if *left < calls {
            self.flows[Way::FromStore as usize].send_replace(Flow::Hold);
        }
        *left = left.saturating_sub(calls);
    }
}

async fn accept(listener: TcpListener, state: Arc<ProxyState>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        state.accepted.fetch_add(1, SeqCst);
        if *state.refuses.borrow() {
            continue;
        }
        connections.spawn(connect(client, Arc::clone(&state)));
    }
}

async fn connect(client: TcpStream, state: Arc<ProxyState>) {
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

async fn join<C, S>(client: C, store: S, state: &ProxyState)
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

async fn carry(
    from: impl AsyncRead + Unpin,
    to: impl AsyncWrite + Unpin,
    state: &ProxyState,
    way: Way,
) {
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
    state: &ProxyState,
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
        if way == Way::ToStore {
            state.count_calls(&buffer[..count]);
        }
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

struct Open<'a>(&'a ProxyState);

impl<'a> Open<'a> {
    fn count(state: &'a ProxyState) -> Self {
        state.open.fetch_add(1, SeqCst);
        Self(state)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, SeqCst);
    }
}
