//! Clients of a gateway that send requests until they are stopped; some leave early.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::MODELS;
use crate::support::dice::Dice;
use crate::support::waiting::{PATIENCE, until};

/// The longest time after which a client leaves. A reply takes about half of it.
const LEAVES_WITHIN: u64 = 80_000;

/// The pause after a request that was denied or aborted, or failed.
const PAUSE: Duration = Duration::from_millis(20);

/// Clients, and the counts of their requests.
pub(super) struct Traffic {
    counts: Arc<Counts>,
    clients: JoinSet<()>,
    runtime: Runtime,
}

#[derive(Debug)]
pub(super) struct Counts {
    stop: AtomicBool,
    ingress: Mutex<SocketAddr>,
    /// Complete replies.
    pub(super) completed: AtomicU64,
    /// Denied by a budget.
    pub(super) denied: AtomicU64,
    /// Other replies, and connections that were lost.
    pub(super) failed: AtomicU64,
    /// Clients that left.
    pub(super) left: AtomicU64,
}

impl Traffic {
    /// Starts clients of the Envoy at `ingress`. Three of ten requests are aborted.
    pub(super) fn start(clients: u64, ingress: SocketAddr, seed: u64) -> Self {
        let zero = || AtomicU64::new(0);
        let counts = Arc::new(Counts {
            stop: false.into(),
            ingress: Mutex::new(ingress),
            completed: zero(),
            denied: zero(),
            failed: zero(),
            left: zero(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut tasks = JoinSet::new();
        for client in 0..clients {
            let dice = Dice::new(seed.wrapping_add(client));
            tasks.spawn_on(run(Arc::clone(&counts), dice), runtime.handle());
        }
        Self { counts, clients: tasks, runtime }
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sends the next requests to another Envoy.
    pub(super) fn set_ingress(&self, ingress: SocketAddr) {
        *self.counts.ingress.lock() = ingress;
    }

    /// Waits for this number of further complete replies.
    pub(super) fn wait_for_replies(&self, more: u64) {
        let before = self.counts.completed.load(SeqCst);
        until("complete replies", || match self.counts.completed.load(SeqCst) {
            completed if before + more <= completed => Ok(()),
            _ => Err(format!("{:?}", self.counts)),
        })
        .unwrap();
    }

    /// Stops the clients after their current requests.
    pub(super) fn stop(&mut self) {
        self.counts.stop.store(true, SeqCst);
        let clients = &mut self.clients;
        self.runtime.block_on(async { while clients.join_next().await.is_some() {} });
    }
}

async fn run(counts: Arc<Counts>, mut dice: Dice) {
    while !counts.stop.load(SeqCst) {
        let ingress = *counts.ingress.lock();
        let request = send(ingress, dice.pick(&MODELS), "/chat");
        if dice.up_to(9) < 3 {
            let leaves_after = Duration::from_micros(dice.up_to(LEAVES_WITHIN));
            if tokio::time::timeout(leaves_after, request).await.is_err() {
                counts.left.fetch_add(1, SeqCst);
            }
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        let count = match tokio::time::timeout(PATIENCE, request).await {
            Ok(Ok(reply)) if reply.ends_with("[DONE]\n\n\r\n0\r\n\r\n") => {
                counts.completed.fetch_add(1, SeqCst);
                continue;
            }
            Ok(Ok(reply)) if reply.starts_with("HTTP/1.1 429 ") => &counts.denied,
            _ => &counts.failed,
        };
        count.fetch_add(1, SeqCst);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends a request, and returns the whole reply. Dropping the future closes the connection.
pub(super) async fn send(ingress: SocketAddr, model: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(ingress).await?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: llm\r\nconnection: close\r\nx-org: acme\r\n\
         x-model: {model}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await?;
    Ok(reply)
}
