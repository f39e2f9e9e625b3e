//! A Redis that stands still (SIGSTOP) under load, and goes on.
//!
//! The load is open: questions are asked when they are due, at half of the rate that the service answers at
//! most, whether or not earlier ones were answered, and a question's time counts from when it was due.
//! First without a stall, then with one of a minute, on the same service. What the service says it took is its
//! own histogram, from a message decoded to its reply.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tonic::transport::Channel;

use super::{
    CONNECTIONS, IN_FLIGHT, KEYS, RateLimitServiceClient, Server, Store, ask, question, row, tokio,
};

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {requests_per_unit: 1000000000, \
                      unit: day, strategy: gcra, on_backend_failure: allow}\n";
const DEADLINE: &str = "15ms";
/// The bucket that ends five milliseconds after the deadline.
const IN_TIME: &str = "0.02";
const CALM: Duration = Duration::from_secs(15);
const STALL: Duration = Duration::from_secs(60);
const AFTER: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(1);

pub(crate) fn run(store: &Store) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let flags = ["--backend", &store.url(), "--backend-deadline", DEADLINE];
    let server = Server::start(dir.path(), &flags);
    let client = tokio(2);
    let most = client.block_on(saturated(&server));
    row("rate that it answers at most, 128 in flight", most, "/s", "");
    let load = Load { server: &server, per_second: most / 2.0 };
    client.block_on(load.calm()).show("no stall");
    let (stalled, normal) = client.block_on(load.stalled(store));
    stalled.show("Redis stopped for a minute");
    row("  answered by the store again after SIGCONT", normal.as_secs_f64(), "s", "1");
}

/// Answers a second with as many in flight as ever.
async fn saturated(server: &Server) -> f64 {
    let (calls, began) = (60_000, Instant::now());
    let left = Arc::new(AtomicU64::new(calls));
    let mut tasks = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = server.client().await;
        let asker = |_| tokio::spawn(ask(client.clone(), Arc::clone(&left)));
        tasks.extend((0..IN_FLIGHT / CONNECTIONS).map(asker));
    }
    for task in tasks {
        task.await.unwrap();
    }
    calls as f64 / began.elapsed().as_secs_f64()
}

struct Load<'s> {
    server: &'s Server,
    per_second: f64,
}

/// What a run came to.
struct Seen {
    took: Vec<Duration>,
    /// Of the service's own times, those beyond the deadline and five milliseconds, and all.
    late: u64,
    answered: u64,
    /// Bytes of the service, least and most.
    memory: (u64, u64),
}

impl Load<'_> {
    async fn calm(&self) -> Seen {
        self.during(async {
            tokio::time::sleep(CALM).await;
            (0, 0)
        })
        .await
    }

    async fn stalled(&self, store: &Store) -> (Seen, Duration) {
        let mut normal = Duration::MAX;
        let seen = self.during(async {
            signal(store, "STOP");
            let memory = self.memory_over(STALL).await;
            signal(store, "CONT");
            normal = self.answered_by_the_store().await;
            tokio::time::sleep(AFTER).await;
            memory
        });
        let seen = seen.await;
        (seen, normal)
    }

    /// Asks while `what` lasts.
    async fn during(&self, what: impl Future<Output = (u64, u64)>) -> Seen {
        let before = self.times();
        let over = Arc::new(AtomicBool::new(false));
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(self.server.client().await);
        }
        let asking =
            tokio::spawn(ask_when_due(clients, self.per_second, Arc::clone(&over), sender));
        let memory = what.await;
        over.store(true, Relaxed);
        asking.await.unwrap();
        let mut took = Vec::new();
        while let Some(each) = receiver.recv().await {
            took.push(each);
        }
        let after = self.times();
        Seen { took, late: after.0 - before.0, answered: after.1 - before.1, memory }
    }

    /// The service's own times: those that were late, and all.
    fn times(&self) -> (u64, u64) {
        let name = "sluicegate_decision_duration_seconds_";
        let in_time = self.server.metric(&format!("{name}bucket{{le=\"{IN_TIME}\"}}"));
        let all = self.server.metric(&format!("{name}count"));
        (all - in_time, all)
    }

    /// The least and the most memory of the service for so long.
    async fn memory_over(&self, time: Duration) -> (u64, u64) {
        let (began, mut least, mut most) = (Instant::now(), u64::MAX, 0);
        while began.elapsed() < time {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let statm = format!("/proc/{}/statm", self.server.process.id());
            let statm = std::fs::read_to_string(statm).unwrap();
            let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
            (least, most) = (least.min(pages * 4096), most.max(pages * 4096));
        }
        (least, most)
    }

    /// How long it takes until the service says that its store answers.
    async fn answered_by_the_store(&self) -> Duration {
        let began = Instant::now();
        while self.server.metric("sluicegate_backend_up") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        began.elapsed()
    }
}

/// Asks when questions are due, until `over`; sends how long each took.
async fn ask_when_due(
    clients: Vec<RateLimitServiceClient<Channel>>,
    per_second: f64,
    over: Arc<AtomicBool>,
    took: mpsc::UnboundedSender<Duration>,
) {
    let (began, mut asked) = (Instant::now(), 0_u64);
    let mut ticks = tokio::time::interval(TICK);
    while !over.load(Relaxed) {
        ticks.tick().await;
        while (asked as f64) < began.elapsed().as_secs_f64() * per_second {
            let due = began + Duration::from_secs_f64(asked as f64 / per_second);
            let (took, number) = (took.clone(), asked);
            let mut client = clients[asked as usize % clients.len()].clone();
            tokio::spawn(async move {
                let answer = client.should_rate_limit(question(number % KEYS)).await;
                assert!(answer.is_ok(), "{answer:?}");
                assert!(took.send(due.elapsed()).is_ok(), "it is read to its end");
            });
            asked += 1;
        }
    }
}

fn signal(store: &Store, name: &str) {
    let pid = store.process.id().to_string();
    let sent = std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status();
    assert!(sent.unwrap().success());
}

impl Seen {
    fn show(mut self, what: &str) {
        self.took.sort_unstable();
        let millis = |part: f64| {
            let at = (self.took.len() as f64 * part) as usize;
            self.took[at.min(self.took.len() - 1)].as_secs_f64() * 1e3
        };
        println!("{what}: {} questions", self.took.len());
        row("  at the client, p50", millis(0.5), "ms", "");
        row("  at the client, p99", millis(0.99), "ms", "");
        row("  at the client, p99.9", millis(0.999), "ms", "20");
        row("  at the client, slowest", millis(1.0), "ms", "30");
        row("  answers of the service later than 20 ms", self.late as f64, "", "0");
        row("  of all its answers", self.answered as f64, "", "");
        if 0 < self.memory.1 {
            row("  memory, least", self.memory.0 as f64 / 1e6, "MB", "");
            row("  memory, most", self.memory.1 as f64 / 1e6, "MB", "");
        }
    }
}
