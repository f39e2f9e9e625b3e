//! The service under load while its Redis is stopped for a minute (SIGSTOP) and resumed.
//!
//! The load is an open loop at half of the service's maximum rate. Checks are sent when due, and
//! latency counts from the due time. The same service runs first without a stall, then with one.
//! The service's own latency comes from its histogram: from the decoded message to the reply.
//!
//! Processors are kept awake if permitted, because slow wakes by the host are not the service's
//! fault. A table of late decisions lists their due times, the processor usage at that time, and
//! the wake delay of a thread that sleeps for 1 ms.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::awake::Awake;
use super::lean::{self, Pace, Taken};
use super::{CONNECTIONS, IN_FLIGHT, Server, Store, row, tokio};

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  rate_limit: {requests_per_unit: 1000000000, \
                      unit: day, strategy: gcra, on_store_failure: allow}\n";
const DEADLINE: &str = "15ms";
/// The histogram bucket that ends 5 ms after the timeout.
const IN_TIME: &str = "0.02";
const CALM: Duration = Duration::from_secs(15);
const STALL: Duration = Duration::from_secs(60);
const AFTER: Duration = Duration::from_secs(5);
/// Interval between processor samples.
const LOOK: Duration = Duration::from_millis(250);
const IN_TIME_AT_THE_CLIENT: Duration = Duration::from_millis(20);
/// Time after the stop during which the service's memory may still grow.
const AT_FIRST: Duration = Duration::from_secs(5);
/// Duration of the load before Redis stops.
const BEFORE: Duration = Duration::from_secs(2);
/// Latencies must be normal within this time after Redis resumes.
const NORMAL: Duration = Duration::from_secs(1);
/// Duration of the saturating load. Only its second half counts.
const SATURATED: Duration = Duration::from_secs(4);

pub(crate) fn run(store: &Store) {
    let _awake = Awake::or_say();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let flags = ["--store-url", &store.url(), "--store-timeout", DEADLINE];
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

/// Decisions per second with [`IN_FLIGHT`] checks in flight.
async fn saturated(server: &Server) -> f64 {
    // Waits until the server is connected to Redis.
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

/// Start of the load: leaves time to connect.
fn soon() -> Instant {
    Instant::now() + Duration::from_millis(500)
}

struct Load<'s> {
    server: &'s Server,
    store: &'s Store,
    per_second: f64,
}

/// Results of a run.
struct Seen {
    took: Vec<Taken>,
    looks: Vec<Look>,
    /// In the service's histogram: decisions later than [`IN_TIME`], and `answered` for all.
    late: u64,
    answered: u64,
    /// Resident bytes of the service, sampled each second.
    memory: Vec<u64>,
}

/// Results after Redis resumed.
#[derive(Default)]
struct After {
    /// When Redis resumed, from the start of the load.
    since: Duration,
    /// Time from then until the service reported its store as up.
    normal: Duration,
    /// Checks decided without the store later than [`NORMAL`] after the resume.
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

    /// Sends checks while `what` runs.
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

    /// Late decisions and all decisions, from the service's histogram.
    fn times(&self) -> (u64, u64) {
        let name = "sluicegate_decision_duration_seconds_";
        let in_time = self.server.metric(&format!("{name}bucket{{le=\"{IN_TIME}\"}}"));
        let all = self.server.metric(&format!("{name}count"));
        (all - in_time, all)
    }

    /// Samples the service's memory each second for `time`, except during [`AT_FIRST`].
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

    /// Waits until the service reports its store as up, and returns the duration.
    async fn answered_by_the_store(&self) -> Duration {
        let began = Instant::now();
        while self.server.metric("sluicegate_store_up") == 0 {
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
    /// The largest latency of checks due at `from` or later.
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
        // One row per fifth of the time: a leak grows in every row.
        for (nth, fifth) in self.memory.chunks(self.memory.len().div_ceil(5).max(1)).enumerate() {
            let most = fifth.iter().max().map_or(0.0, |most| *most as f64 / 1e6);
            row(&format!("  memory, most, in part {} of five", nth + 1), most, "MB", "");
        }
    }

    /// Prints when decisions were late, with the processor usage at that time.
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

/// Processor time of three processes and of the machine, and time stolen by the host.
struct Look {
    at: Duration,
    /// Nanoseconds.
    spent: [u64; 5],
    /// The longest wake delay of a 1 ms sleep since the previous sample.
    pause: Duration,
}

impl Look {
    fn now(began: Instant, whose: [u32; 3]) -> Self {
        let [service, client, redis] = whose.map(on_processors);
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let ticks = |n: usize| stat.split_whitespace().nth(n).unwrap().parse::<u64>().unwrap();
        // Fields of /proc/stat: user, nice, system, irq and softirq; field 8 is steal.
        let all = [1, 2, 3, 6, 7].map(ticks).iter().sum::<u64>() * 10_000_000;
        let spent = [service, client, redis, all, ticks(8) * 10_000_000];
        Self { at: began.elapsed(), spent, pause: Duration::ZERO }
    }

    /// Usage since `before`, in percent of one processor.
    fn since(&self, before: &Self) -> [f64; 5] {
        let wall = self.at.saturating_sub(before.at).as_nanos() as f64;
        let part = |n: usize| (self.spent[n].saturating_sub(before.spent[n])) as f64 * 100.0 / wall;
        std::array::from_fn(part)
    }
}

/// CPU time of a process's live threads, in nanoseconds.
fn on_processors(process: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let spent = |schedstat: String| schedstat.split(' ').next()?.parse::<u64>().ok();
    let schedstats =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok());
    schedstats.filter_map(spent).sum()
}

/// Sleeps for 1 ms repeatedly and returns the longest delay of a wake. With idle processors, such
/// a delay means that the host paused the machine.
fn longest_pause(time: Duration) -> Duration {
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < time {
        let slept = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        longest = longest.max(slept.elapsed().saturating_sub(Duration::from_millis(1)));
    }
    longest
}

/// A thread that samples processor usage.
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
