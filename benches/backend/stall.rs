//! A Redis that stands still (SIGSTOP) under load, and goes on.
//!
//! The load is open: questions are asked when they are due, at half of the rate that the service answers at
//! most, whether or not earlier ones were answered, and a question's time counts from when it was due.
//! First without a stall, then with one of a minute, on the same service. What the service says it took is its
//! own histogram, from a message decoded to its reply. Idle processors are kept awake, where that may be asked for: how
//! late a host wakes them is not the service's doing. Where answers were late, a table says when they were due,
//! what the processors did then, and for how long a thread that asked for a millisecond of sleep was not woken.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::awake::Awake;
use super::lean::{self, Pace, Taken};
use super::{CONNECTIONS, IN_FLIGHT, Server, Store, row, tokio};

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {requests_per_unit: 1000000000, \
                      unit: day, strategy: gcra, on_backend_failure: allow}\n";
const DEADLINE: &str = "15ms";
/// The bucket that ends five milliseconds after the deadline.
const IN_TIME: &str = "0.02";
const CALM: Duration = Duration::from_secs(15);
const STALL: Duration = Duration::from_secs(60);
const AFTER: Duration = Duration::from_secs(5);
/// How often the processors are looked at.
const LOOK: Duration = Duration::from_millis(250);
const IN_TIME_AT_THE_CLIENT: Duration = Duration::from_millis(20);
/// How long the memory of a stalled service may still grow.
const AT_FIRST: Duration = Duration::from_secs(5);
/// How long the load has been there when the Redis stops.
const BEFORE: Duration = Duration::from_secs(2);
/// What all has to be normal within, after it goes on.
const NORMAL: Duration = Duration::from_secs(1);
/// How long it is asked as much as it answers, of which the second half counts.
const SATURATED: Duration = Duration::from_secs(4);

pub(crate) fn run(store: &Store) {
    let _awake = Awake::or_say();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let flags = ["--backend", &store.url(), "--backend-deadline", DEADLINE];
    let server = Server::start(dir.path(), &flags);
    let client = tokio(1);
    let most = client.block_on(saturated(&server));
    row("rate that it answers at most, 128 in flight", most, "/s", "");
    let load = Load { server: &server, store, per_second: most / 2.0 };
    client.block_on(load.calm()).show("no stall");
    let (stalled, after) = client.block_on(load.stalled());
    let later = stalled.slowest_from(after.since + NORMAL);
    stalled.show("Redis stopped for a minute");
    row("  answered by the store again after SIGCONT", after.normal.as_secs_f64(), "s", "1");
    row("  due a second after SIGCONT or later: slowest", later.as_secs_f64() * 1e3, "ms", "20");
    row("  answered without the store then", after.failures as f64, "", "0");
}

/// Answers a second with as many in flight as ever.
async fn saturated(server: &Server) -> f64 {
    // It may not be connected to its Redis yet.
    drop(server.client().await);
    let over = Arc::new(AtomicBool::new(false));
    let pace = Pace::Ever { in_flight: IN_FLIGHT / CONNECTIONS };
    let (began, failures) = (soon(), server.failures());
    let asking = tokio::spawn(lean::ask(server.address, pace, began, Arc::clone(&over)));
    tokio::time::sleep(SATURATED).await;
    over.store(true, Relaxed);
    let rested = |taken: &Taken| SATURATED / 2 <= taken.due;
    let answers = asking.await.unwrap().into_iter().filter(rested).count();
    row("at most: answered without the store", (server.failures() - failures) as f64, "", "");
    answers as f64 / (SATURATED / 2).as_secs_f64()
}

/// When questions begin to be due: once all is connected.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(500)
}

struct Load<'s> {
    server: &'s Server,
    store: &'s Store,
    per_second: f64,
}

/// What a run came to.
struct Seen {
    took: Vec<Taken>,
    looks: Vec<Look>,
    /// Of the service's own times, those beyond the deadline and five milliseconds, and all.
    late: u64,
    answered: u64,
    /// Bytes of the service, each second.
    memory: Vec<u64>,
}

/// What it was like after the Redis went on.
#[derive(Default)]
struct After {
    /// When, from the beginning of the load.
    since: Duration,
    /// From then until the service said that its store answers.
    normal: Duration,
    /// Questions that were answered without it later than [`NORMAL`] after that.
    failures: u64,
}

impl Load<'_> {
    async fn calm(&self) -> Seen {
        let (began, failures) = (soon(), self.server.failures());
        let calm = async {
            tokio::time::sleep(CALM).await;
            Vec::new()
        };
        let seen = self.during(began, calm).await;
        row(
            "no stall: answered without the store",
            (self.server.failures() - failures) as f64,
            "",
            "0",
        );
        seen
    }

    async fn stalled(&self) -> (Seen, After) {
        let began = soon();
        let mut after = After::default();
        let stalled = async {
            tokio::time::sleep(BEFORE).await;
            signal(self.store, "STOP");
            let memory = self.memory_over(STALL).await;
            signal(self.store, "CONT");
            after.since = began.elapsed();
            after.normal = self.answered_by_the_store().await;
            tokio::time::sleep((after.since + NORMAL).saturating_sub(began.elapsed())).await;
            let failures = self.server.failures();
            tokio::time::sleep(AFTER).await;
            after.failures = self.server.failures() - failures;
            memory
        };
        let seen = self.during(began, stalled).await;
        (seen, after)
    }

    /// Asks while `what` lasts.
    async fn during(&self, began: Instant, what: impl Future<Output = Vec<u64>>) -> Seen {
        let before = self.times();
        let over = Arc::new(AtomicBool::new(false));
        let whose = [self.server.process.id(), std::process::id(), self.store.process.id()];
        let looking = Looking::start(whose, began);
        let pace = Pace::Due { per_second: self.per_second };
        let asking = tokio::spawn(lean::ask(self.server.address, pace, began, Arc::clone(&over)));
        let memory = what.await;
        over.store(true, Relaxed);
        let took = asking.await.unwrap();
        let looks = looking.end();
        let after = self.times();
        Seen { took, looks, late: after.0 - before.0, answered: after.1 - before.1, memory }
    }

    /// The service's own times: those that were late, and all.
    fn times(&self) -> (u64, u64) {
        let name = "sluicegate_decision_duration_seconds_";
        let in_time = self.server.metric(&format!("{name}bucket{{le=\"{IN_TIME}\"}}"));
        let all = self.server.metric(&format!("{name}count"));
        (all - in_time, all)
    }

    /// The memory of the service for so long, each second, but for what it takes at first.
    async fn memory_over(&self, time: Duration) -> Vec<u64> {
        let (began, mut memory) = (Instant::now(), Vec::new());
        tokio::time::sleep(AT_FIRST).await;
        while began.elapsed() < time {
            let statm = format!("/proc/{}/statm", self.server.process.id());
            let statm = std::fs::read_to_string(statm).unwrap();
            let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
            memory.push(pages * 4096);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        memory
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

fn signal(store: &Store, name: &str) {
    let pid = store.process.id().to_string();
    let sent = std::process::Command::new("kill").args([&format!("-{name}"), &pid]).status();
    assert!(sent.unwrap().success());
}

impl Seen {
    /// The slowest of those that were due at `from` or later.
    fn slowest_from(&self, from: Duration) -> Duration {
        let later = self.took.iter().filter(|taken| from <= taken.due);
        later.map(|taken| taken.took).max().unwrap_or(Duration::MAX)
    }

    fn show(mut self, what: &str) {
        self.show_when_late();
        self.took.sort_unstable_by_key(|taken| taken.took);
        let millis = |part: f64| {
            let at = (self.took.len() as f64 * part) as usize;
            self.took[at.min(self.took.len() - 1)].took.as_secs_f64() * 1e3
        };
        println!("{what}: {} questions", self.took.len());
        row("  at the client, p50", millis(0.5), "ms", "");
        row("  at the client, p99", millis(0.99), "ms", "");
        row("  at the client, p99.9", millis(0.999), "ms", "20");
        row("  at the client, slowest", millis(1.0), "ms", "30");
        row("  answers of the service later than 20 ms", self.late as f64, "", "0");
        row("  of all its answers", self.answered as f64, "", "");
        // Each fifth of the time for itself: what grows without an end is more in each.
        for (nth, fifth) in self.memory.chunks(self.memory.len().div_ceil(5).max(1)).enumerate() {
            let most = fifth.iter().max().map_or(0.0, |most| *most as f64 / 1e6);
            row(&format!("  memory, most, in part {} of five", nth + 1), most, "MB", "");
        }
    }

    /// When answers were late, and what the processors did then.
    fn show_when_late(&self) {
        let late = |from: &Look, to: &Look| {
            let its = self.took.iter().filter(|taken| (from.at..to.at).contains(&taken.due));
            its.filter(|taken| IN_TIME_AT_THE_CLIENT < taken.took).count()
        };
        let mut is_headed = false;
        for (from, to) in self.looks.iter().zip(self.looks.iter().skip(1)) {
            let late = late(from, to);
            if late == 0 {
                continue;
            }
            if !is_headed {
                println!(
                    "  late: from second  answers   percent: service client  redis others stolen   pause, ms"
                );
                is_headed = true;
            }
            let [service, client, redis, all, stolen] = to.since(from);
            let others = (all - service - client - redis).max(0.0);
            println!(
                "  {:>17.2} {late:>8} {service:>18.0} {client:>6.0} {redis:>6.0} {others:>6.0} {stolen:>6.0} {:>11.0}",
                from.at.as_secs_f64(),
                to.pause.as_secs_f64() * 1e3
            );
        }
    }
}

/// What three processes and all together have had of the processors, and what the machine was not given of them.
struct Look {
    at: Duration,
    /// Nanoseconds.
    spent: [u64; 5],
    /// The longest time since the look before in which one who slept for a millisecond was not woken.
    pause: Duration,
}

impl Look {
    fn now(began: Instant, whose: [u32; 3]) -> Self {
        let [service, client, redis] = whose.map(on_processors);
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let ticks = |n: usize| stat.split_whitespace().nth(n).unwrap().parse::<u64>().unwrap();
        // user, nice, system, irq, softirq; and steal.
        let all = [1, 2, 3, 6, 7].map(ticks).iter().sum::<u64>() * 10_000_000;
        let spent = [service, client, redis, all, ticks(8) * 10_000_000];
        Self { at: began.elapsed(), spent, pause: Duration::ZERO }
    }

    /// Percent of one processor.
    fn since(&self, before: &Self) -> [f64; 5] {
        let wall = self.at.saturating_sub(before.at).as_nanos() as f64;
        let part = |n: usize| (self.spent[n].saturating_sub(before.spent[n])) as f64 * 100.0 / wall;
        std::array::from_fn(part)
    }
}

/// Nanoseconds that the threads of a process spent on processors; of those that live.
fn on_processors(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let spent = |schedstat: String| schedstat.split(' ').next()?.parse::<u64>().ok();
    let schedstats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
    schedstats.filter_map(spent).sum()
}

/// The longest time beyond a millisecond that a thread was asleep which asked for one, again and again for so long: where
/// the processors are not full nobody ran then, the machine stood still.
fn longest_pause(time: Duration) -> Duration {
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < time {
        let slept = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        longest = longest.max(slept.elapsed().saturating_sub(Duration::from_millis(1)));
    }
    longest
}

/// A thread that looks at the processors.
struct Looking {
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Look>>,
}

impl Looking {
    fn start(whose: [u32; 3], began: Instant) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut looks = Vec::new();
            let mut pause = Duration::ZERO;
            while !is_over.load(Relaxed) {
                looks.push(Look { pause, ..Look::now(began, whose) });
                pause = longest_pause(LOOK);
            }
            looks.push(Look { pause, ..Look::now(began, whose) });
            looks
        });
        Self { over, thread }
    }

    fn end(self) -> Vec<Look> {
        self.over.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}
