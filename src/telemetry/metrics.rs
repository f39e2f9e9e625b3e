//! The service's own metrics: names, units, labels and counters.
//!
//! The crate `prometheus-client` is too slow here: each count takes a lock and a hash, and all cores
//! share one cell. Its text format also differs.
//!
//! Guarantees:
//! - Counting is wait-free, exact and takes a few nanoseconds.
//! - The page is Prometheus' text format 0.0.4, or OpenMetrics with exemplars.
//! - The values of every label come from a closed list.
//!
//! Not covered:
//! - The HTTP endpoint of the page (see [`crate::edge::http::metrics`]).

mod exemplar;
mod in_use;
mod open;
mod process;

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::event::{
    Answered, Asked, BackendFailed, Called, CeilingReached, Datagram, HitsOwed, IdEvent, IdSeen,
    LeaseCalled, LeaseEnd, LeasedHits, Loaded, Outcome, OwedOutcome, Protocol, ShareEvent,
    StrictEvent,
};
use super::letters::{LetterEvent, Letters};
use crate::kernel::decision::{Cause, Reason, Verdict};
use crate::kernel::units::Nanos;

pub use exemplar::Traced;
use exemplar::{Exemplar, Exemplars};
pub use in_use::{Ceiling, SHOWN};
pub use open::open;
pub use process::Process;

/// The metrics of this process.
pub static METRICS: Metrics = Metrics::new();

/// The number of shards. The first 63 threads, among them the runtime's workers, have a shard each.
/// All further threads share the last shard with locked instructions, which cost several times more.
const SHARDS: usize = 64;

/// Upper bounds of the duration histogram: from a decision in memory (0.5 µs) to several store
/// deadlines. The text is the value of the label `le`, in seconds.
const BOUNDS: [(Nanos, &str); 13] = [
    (Nanos(500), "5e-07"),
    (Nanos(1_000), "1e-06"),
    (Nanos(2_500), "2.5e-06"),
    (Nanos(10_000), "1e-05"),
    (Nanos(50_000), "5e-05"),
    (Nanos(250_000), "0.00025"),
    (Nanos(1_000_000), "0.001"),
    (Nanos(2_500_000), "0.0025"),
    (Nanos(5_000_000), "0.005"),
    (Nanos(15_000_000), "0.015"),
    (Nanos(20_000_000), "0.02"),
    (Nanos(50_000_000), "0.05"),
    (Nanos(250_000_000), "0.25"),
];

/// The histogram with [`BOUNDS`]. Only its buckets have exemplars.
const DURATION: &str = "sluicegate_decision_duration_seconds";

/// Upper bounds of the histogram of checks per store call, up to the largest call.
const QUESTIONS: [u64; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// A set of counters.
#[derive(Debug)]
pub struct Metrics {
    shards: [Shard; SHARDS],
    loads: AtomicU64,
    refused: AtomicU64,
    revision: AtomicU64,
    loaded_at: AtomicU64,
    /// 1 if the last load was rejected, 0 otherwise.
    stale: AtomicU64,
    exemplars: Exemplars,
}

/// The counters of one thread, on separate cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    /// Allowed, denied, and allowed by global shadow mode.
    verdicts: [AtomicU64; 3],
    reasons: [AtomicU64; Reason::ALL.len()],
    near: AtomicU64,
    asked: [[AtomicU64; Outcome::ALL.len()]; Protocol::ALL.len()],
    full: [AtomicU64; 2],
    failed: [AtomicU64; Cause::ALL.len()],
    remembered: AtomicU64,
    /// First index: position in the list of reasons. Second index: 1 if enforced.
    ceilings: [[AtomicU64; 2]; CeilingReached::REASONS.len()],
    ids: [AtomicU64; IdEvent::ALL.len()],
    shares: [AtomicU64; ShareEvent::ALL.len()],
    strict: [AtomicU64; StrictEvent::ALL.len()],
    owed: [AtomicU64; OwedOutcome::ALL.len()],
    leased: [AtomicU64; LeaseEnd::ALL.len()],
    lease_calls: AtomicU64,
    lease_messages: AtomicU64,
    /// One count for each bucket, not cumulative. The last bucket has no upper bound.
    took: [AtomicU64; BOUNDS.len() + 1],
    took_sum: AtomicU64,
    /// The histogram of checks per store call, not cumulative.
    called: [AtomicU64; QUESTIONS.len() + 1],
    called_sum: AtomicU64,
    datagrams: [AtomicU64; Datagram::ALL.len()],
    letters: [AtomicU64; LetterEvent::ALL.len()],
}

/// The totals of all concurrency limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    /// Requests with a permit.
    pub in_flight: u64,
    /// Requests that wait for a permit.
    pub waiting: u64,
    /// Requests that may be in flight.
    pub limit: u64,
    /// Buckets in use.
    pub buckets: u64,
    /// The maximum number of buckets.
    pub most: u64,
    /// Remembered early releases.
    pub early: u64,
    /// The maximum number of remembered early releases.
    pub most_early: u64,
}

/// The totals of all leases of this replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balances {
    /// Keys with a lease balance.
    pub keys: u64,
    /// Hits that can be spent without a store call.
    pub hits: u64,
}

/// Values that are read when the page is rendered.
#[derive(Clone, Debug, Default)]
pub struct Gauges {
    /// Live keys of the memory store.
    pub keys: u64,
    /// The maximum number of live keys.
    pub max_keys: u64,
    /// `true` while the store is unavailable.
    pub backend_is_down: bool,
    /// The totals of all concurrency limits.
    pub ceilings: Total,
    /// The totals of all leases of this replica.
    pub balances: Balances,
    /// The concurrency limits in use.
    pub in_use: Vec<Ceiling>,
    /// The start of this process, since the Unix epoch.
    pub started: Nanos,
    /// The resource usage of this process. `None` if the system does not report it.
    pub process: Option<Process>,
}

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The number of the next new thread. Numbers are never reused, so that each shard but the last
/// has exactly one writer.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's shard.
struct Mine<'m> {
    shard: &'m Shard,
    /// `true` if no other thread writes to the shard.
    alone: bool,
}

impl Mine<'_> {
    fn add(&self, cell: &AtomicU64, by: u64) {
        if self.alone {
            cell.store(cell.load(Relaxed).wrapping_add(by), Relaxed);
        } else {
            cell.fetch_add(by, Relaxed);
        }
    }
}

impl Metrics {
    /// Creates a set of counters that are all zero.
    #[must_use]
    #[expect(
        clippy::large_stack_arrays,
        reason = "the set in use is a static, made by the compiler"
    )]
    pub const fn new() -> Self {
        Self {
            shards: [const { Shard::new() }; SHARDS],
            loads: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            revision: AtomicU64::new(0),
            loaded_at: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            exemplars: Exemplars::new(),
        }
    }

    pub(super) fn decided(
        &self,
        verdict: Verdict,
        shadowed: bool,
        reasons: impl Iterator<Item = Reason>,
        near: u64,
    ) {
        let mine = self.mine();
        if near != 0 {
            mine.add(&mine.shard.near, near);
        }
        mine.add(&mine.shard.verdicts[if shadowed { 2 } else { verdict as usize }], 1);
        reasons.for_each(|reason| mine.add(&mine.shard.reasons[reason as usize], 1));
    }

    pub(super) fn answered(&self, took: Nanos) {
        let mine = self.mine();
        mine.add(&mine.shard.took[bucket_of(took)], 1);
        mine.add(&mine.shard.took_sum, took.0);
    }

    pub(super) fn exemplify(&self, answered: Answered, traced: Traced) {
        let took = answered.took();
        self.exemplars.keep(bucket_of(took), Exemplar { traced, took, at: answered.at });
    }

    pub(super) fn asked(&self, asked: Asked) {
        let mine = self.mine();
        mine.add(&mine.shard.asked[asked.protocol as usize][asked.outcome as usize], 1);
    }

    pub(super) fn store_full(&self, verdict: Verdict) {
        let mine = self.mine();
        mine.add(&mine.shard.full[verdict as usize], 1);
    }

    pub(super) fn backend_failed(&self, failed: BackendFailed) {
        let mine = self.mine();
        mine.add(&mine.shard.failed[failed.cause as usize], failed.charges);
    }

    pub(super) fn remembered(&self, denials: u64) {
        let mine = self.mine();
        mine.add(&mine.shard.remembered, denials);
    }

    pub(super) fn ceiling_reached(&self, reached: CeilingReached) {
        let reasons = CeilingReached::REASONS;
        let Some(at) = reasons.iter().position(|reason| *reason == reached.reason) else { return };
        let mine = self.mine();
        mine.add(&mine.shard.ceilings[at][usize::from(reached.enforced)], 1);
    }

    pub(super) fn id_seen(&self, seen: IdSeen) {
        let mine = self.mine();
        mine.add(&mine.shard.ids[seen.0 as usize], 1);
    }

    pub(super) fn share_moved(&self, event: ShareEvent) {
        let mine = self.mine();
        mine.add(&mine.shard.shares[event as usize], 1);
    }

    pub(super) fn permits_seen(&self, event: StrictEvent, permits: u64) {
        let mine = self.mine();
        mine.add(&mine.shard.strict[event as usize], permits);
    }

    pub(super) fn hits_owed(&self, owed: HitsOwed) {
        let mine = self.mine();
        mine.add(&mine.shard.owed[owed.outcome as usize], owed.hits.0);
    }

    pub(super) fn leased_hits(&self, leased: LeasedHits) {
        let mine = self.mine();
        mine.add(&mine.shard.leased[leased.end as usize], leased.hits.0);
    }

    pub(super) fn lease_called(&self, called: LeaseCalled) {
        let mine = self.mine();
        mine.add(&mine.shard.lease_calls, 1);
        mine.add(&mine.shard.lease_messages, called.messages as u64);
    }

    pub(super) fn called(&self, called: Called) {
        let (mine, questions) = (self.mine(), u64::try_from(called.questions).unwrap_or(u64::MAX));
        let bucket = QUESTIONS.iter().position(|bound| questions <= *bound);
        mine.add(&mine.shard.called[bucket.unwrap_or(QUESTIONS.len())], 1);
        mine.add(&mine.shard.called_sum, questions);
    }

    pub(super) fn datagram_came(&self, outcome: Datagram) {
        let mine = self.mine();
        mine.add(&mine.shard.datagrams[outcome as usize], 1);
    }

    pub(super) fn letters(&self, letters: Letters) {
        let mine = self.mine();
        mine.add(&mine.shard.letters[letters.event as usize], letters.letters);
    }

    pub(super) fn loaded(&self, loaded: Loaded) {
        self.loads.fetch_add(1, Relaxed);
        self.stale.store(0, Relaxed);
        self.revision.store(loaded.revision.0, Relaxed);
        self.loaded_at.store(loaded.at.0, Relaxed);
    }

    pub(super) fn load_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
        self.stale.store(1, Relaxed);
    }

    fn mine(&self) -> Mine<'_> {
        let number = NUMBER.with(|mine| {
            if mine.get() == usize::MAX {
                mine.set(NEXT.fetch_add(1, Relaxed).min(SHARDS - 1));
            }
            mine.get()
        });
        Mine { shard: &self.shards[number], alone: number < SHARDS - 1 }
    }

    fn sum(&self, cell: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| cell(shard).load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

fn bucket_of(took: Nanos) -> usize {
    BOUNDS.iter().position(|&(bound, _)| took <= bound).unwrap_or(BOUNDS.len())
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Shard {
    const fn new() -> Self {
        Self {
            verdicts: [const { AtomicU64::new(0) }; 3],
            reasons: [const { AtomicU64::new(0) }; Reason::ALL.len()],
            near: AtomicU64::new(0),
            asked: [const { [const { AtomicU64::new(0) }; Outcome::ALL.len()] };
                Protocol::ALL.len()],
            full: [const { AtomicU64::new(0) }; 2],
            failed: [const { AtomicU64::new(0) }; Cause::ALL.len()],
            remembered: AtomicU64::new(0),
            ceilings: [const { [const { AtomicU64::new(0) }; 2] }; CeilingReached::REASONS.len()],
            ids: [const { AtomicU64::new(0) }; IdEvent::ALL.len()],
            shares: [const { AtomicU64::new(0) }; ShareEvent::ALL.len()],
            strict: [const { AtomicU64::new(0) }; StrictEvent::ALL.len()],
            owed: [const { AtomicU64::new(0) }; OwedOutcome::ALL.len()],
            leased: [const { AtomicU64::new(0) }; LeaseEnd::ALL.len()],
            lease_calls: AtomicU64::new(0),
            lease_messages: AtomicU64::new(0),
            took: [const { AtomicU64::new(0) }; BOUNDS.len() + 1],
            took_sum: AtomicU64::new(0),
            called: [const { AtomicU64::new(0) }; QUESTIONS.len() + 1],
            called_sum: AtomicU64::new(0),
            datagrams: [const { AtomicU64::new(0) }; Datagram::ALL.len()],
            letters: [const { AtomicU64::new(0) }; LetterEvent::ALL.len()],
        }
    }
}

impl Metrics {
    /// Returns the page in Prometheus' text format 0.0.4.
    #[must_use]
    pub const fn page(&self, gauges: Gauges) -> Page<'_> {
        Page { metrics: self, gauges }
    }
}

/// The metrics page. [`fmt::Display`] renders it.
#[derive(Clone, Debug)]
pub struct Page<'m> {
    metrics: &'m Metrics,
    gauges: Gauges,
}

impl fmt::Display for Page<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metrics.write_questions(f)?;
        self.metrics.write_took(f)?;
        self.metrics.write_asked(f)?;
        self.metrics.write_config(f)?;
        self.metrics.write_store(f, &self.gauges)?;
        self.metrics.write_ceilings(f, &self.gauges.ceilings)?;
        self.metrics.write_leases(f, self.gauges.balances)?;
        self.metrics.write_datagrams(f)?;
        in_use::write(f, &self.gauges.in_use)?;
        write_process(f, &self.gauges)
    }
}

impl Metrics {
    fn write_questions(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        head(page, "sluicegate_questions_answered_total", "counter", "Questions, by verdict")?;
        for (index, verdict) in ["admit", "deny", "shadow_deny"].into_iter().enumerate() {
            let n = self.sum(|shard| &shard.verdicts[index]);
            writeln!(page, "sluicegate_questions_answered_total{{verdict=\"{verdict}\"}} {n}")?;
        }
        head(page, "sluicegate_descriptors_decided_total", "counter", "Descriptors, by reason")?;
        for reason in Reason::ALL {
            let n = self.sum(|shard| &shard.reasons[reason as usize]);
            let reason = reason.as_str();
            writeln!(page, "sluicegate_descriptors_decided_total{{reason=\"{reason}\"}} {n}")?;
        }
        let name = "sluicegate_descriptors_near_limit_total";
        head(page, name, "counter", "Descriptors admitted beyond near_limit_ratio of their limit")?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.near))?;
        Ok(())
    }

    fn write_took(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = DURATION;
        head(page, name, "histogram", "Time from a message decoded to its reply")?;
        let mut below = 0;
        for (index, le) in BOUNDS.iter().map(|&(_, le)| le).chain(["+Inf"]).enumerate() {
            below += self.sum(|shard| &shard.took[index]);
            writeln!(page, "{name}_bucket{{le=\"{le}\"}} {below}")?;
        }
        let sum = Seconds(Nanos(self.sum(|shard| &shard.took_sum)));
        writeln!(page, "{name}_sum {sum}\n{name}_count {below}")
    }

    fn write_asked(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_edge_requests_total";
        head(page, name, "counter", "Requests, by protocol and what came of them")?;
        for protocol in Protocol::ALL {
            for outcome in Outcome::ALL {
                let n = self.sum(|shard| &shard.asked[protocol as usize][outcome as usize]);
                let (protocol, outcome) = (protocol.as_str(), outcome.as_str());
                writeln!(page, "{name}{{protocol=\"{protocol}\",outcome=\"{outcome}\"}} {n}")?;
            }
        }
        Ok(())
    }

    fn write_config(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_config_loads_total";
        head(page, name, "counter", "Configurations loaded, by what came of them")?;
        for (outcome, cell) in [("accepted", &self.loads), ("refused", &self.refused)] {
            writeln!(page, "{name}{{outcome=\"{outcome}\"}} {}", cell.load(Relaxed))?;
        }
        let name = "sluicegate_config_revision";
        head(page, name, "gauge", "The number of the configuration in force, 0 before the first")?;
        writeln!(page, "{name} {}", self.revision.load(Relaxed))?;
        let name = "sluicegate_config_stale";
        head(page, name, "gauge", "1 while the last load is one that was refused")?;
        writeln!(page, "{name} {}", self.stale.load(Relaxed))?;
        let name = "sluicegate_config_loaded_timestamp_seconds";
        head(page, name, "gauge", "When the configuration in force was loaded, Unix time")?;
        writeln!(page, "{name} {}", Seconds(Nanos(self.loaded_at.load(Relaxed))))
    }

    fn write_store(&self, page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
        let name = "sluicegate_memory_keys";
        head(page, name, "gauge", "Live keys of the memory backend")?;
        writeln!(page, "{name} {}", gauges.keys)?;
        let name = "sluicegate_memory_keys_max";
        head(page, name, "gauge", "The ceiling on live keys")?;
        writeln!(page, "{name} {}", gauges.max_keys)?;
        let name = "sluicegate_memory_full_total";
        head(page, name, "counter", "New keys at the ceiling, by what `when_full` made of them")?;
        for (index, verdict) in ["admit", "deny"].into_iter().enumerate() {
            let n = self.sum(|shard| &shard.full[index]);
            writeln!(page, "{name}{{verdict=\"{verdict}\"}} {n}")?;
        }
        let name = "sluicegate_backend_failures_total";
        head(page, name, "counter", "Charges that the shared store did not answer, by cause")?;
        for cause in Cause::ALL {
            let n = self.sum(|shard| &shard.failed[cause as usize]);
            writeln!(page, "{name}{{cause=\"{}\"}} {n}", cause.as_str())?;
        }
        let name = "sluicegate_denials_remembered_total";
        head(page, name, "counter", "Denials answered from memory, without asking the store")?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.remembered))?;
        let name = "sluicegate_local_hits_total";
        head(page, name, "counter", "Hits admitted while the store was away, by their end")?;
        for outcome in OwedOutcome::ALL {
            let n = self.sum(|shard| &shard.owed[outcome as usize]);
            writeln!(page, "{name}{{outcome=\"{}\"}} {n}", outcome.as_str())?;
        }
        self.write_called(page)?;
        let name = "sluicegate_backend_up";
        head(page, name, "gauge", "1 while the store of counters answers, 0 while it does not")?;
        writeln!(page, "{name} {}", u8::from(!gauges.backend_is_down))
    }
}

impl Metrics {
    fn write_called(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_backend_call_questions";
        head(page, name, "histogram", "Script calls to the shared store, by questions in them")?;
        let mut below = 0;
        for (index, bound) in QUESTIONS.iter().enumerate() {
            below += self.sum(|shard| &shard.called[index]);
            writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {below}")?;
        }
        below += self.sum(|shard| &shard.called[QUESTIONS.len()]);
        writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {below}")?;
        let sum = self.sum(|shard| &shard.called_sum);
        writeln!(page, "{name}_sum {sum}\n{name}_count {below}")
    }
}

impl Metrics {
    fn write_ceilings(&self, page: &mut fmt::Formatter<'_>, total: &Total) -> fmt::Result {
        let gauges = [
            ("sluicegate_requests_in_flight", "Requests that hold a permit", total.in_flight),
            ("sluicegate_requests_queued", "Requests that wait for a permit", total.waiting),
            (
                "sluicegate_ceilings_limit",
                "Requests that may be in flight, of all buckets, of strict ceilings this replica's part",
                total.limit,
            ),
            ("sluicegate_ceilings", "Buckets of ceilings", total.buckets),
            ("sluicegate_ceilings_max", "How many buckets there may be", total.most),
            ("sluicegate_early_releases", "Releases that wait for their acquire", total.early),
            ("sluicegate_early_releases_max", "How many there may be", total.most_early),
        ];
        for (name, help, value) in gauges {
            head(page, name, "gauge", help)?;
            writeln!(page, "{name} {value}")?;
        }
        let name = "sluicegate_ceilings_reached_total";
        head(page, name, "counter", "Requests that a ceiling turned away, or would have")?;
        for (at, reason) in CeilingReached::REASONS.iter().enumerate() {
            for (enforced, word) in ["no", "yes"].into_iter().enumerate() {
                let n = self.sum(|shard| &shard.ceilings[at][enforced]);
                let reason = reason.as_str();
                writeln!(page, "{name}{{reason=\"{reason}\",enforced=\"{word}\"}} {n}")?;
            }
        }
        let name = "sluicegate_permit_ids_total";
        head(page, name, "counter", "Ids of requests, by what became of what they hold")?;
        for event in IdEvent::ALL {
            let n = self.sum(|shard| &shard.ids[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        let name = "sluicegate_shares_total";
        head(page, name, "counter", "Shares of a fleet's ceilings, by what became of them")?;
        for event in ShareEvent::ALL {
            let n = self.sum(|shard| &shard.shares[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        let name = "sluicegate_strict_permits_total";
        head(
            page,
            name,
            "counter",
            "Permits of ceilings that the store counts, by what became of them",
        )?;
        for event in StrictEvent::ALL {
            let n = self.sum(|shard| &shard.strict[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        Ok(())
    }
}

impl Metrics {
    fn write_leases(&self, page: &mut fmt::Formatter<'_>, held: Balances) -> fmt::Result {
        let name = "sluicegate_lease_keys";
        head(page, name, "gauge", "Keys of leased limits that a balance is kept of")?;
        writeln!(page, "{name} {}", held.keys)?;
        let name = "sluicegate_lease_balance_hits";
        head(page, name, "gauge", "Hits held, which are spent without asking the store")?;
        writeln!(page, "{name} {}", held.hits)?;
        let name = "sluicegate_lease_calls_total";
        head(
            page,
            name,
            "counter",
            "Script calls to the store that borrow or give back, for one key or several",
        )?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.lease_calls))?;
        let name = "sluicegate_lease_messages_total";
        head(page, name, "counter", "Messages in those calls, each about one key")?;
        writeln!(page, "{name} {}", self.sum(|shard| &shard.lease_messages))?;
        let name = "sluicegate_lease_hits_total";
        head(page, name, "counter", "Hits that were borrowed, and that ended unspent, by how")?;
        for end in LeaseEnd::ALL {
            let n = self.sum(|shard| &shard.leased[end as usize]);
            writeln!(page, "{name}{{outcome=\"{}\"}} {n}", end.as_str())?;
        }
        Ok(())
    }

    fn write_datagrams(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = "sluicegate_syslog_datagrams_total";
        head(page, name, "counter", "Datagrams to the port for releases, by what they were")?;
        for outcome in Datagram::ALL {
            let n = self.sum(|shard| &shard.datagrams[outcome as usize]);
            writeln!(page, "{name}{{outcome=\"{}\"}} {n}", outcome.as_str())?;
        }
        let name = "sluicegate_peer_letters_total";
        head(page, name, "counter", "Letters between replicas, by what they met")?;
        for event in LetterEvent::ALL {
            let n = self.sum(|shard| &shard.letters[event as usize]);
            writeln!(page, "{name}{{event=\"{}\"}} {n}", event.as_str())?;
        }
        Ok(())
    }
}

fn write_process(page: &mut fmt::Formatter<'_>, gauges: &Gauges) -> fmt::Result {
    let name = "process_start_time_seconds";
    head(page, name, "gauge", "When this process started, Unix time")?;
    writeln!(page, "{name} {}", Seconds(gauges.started))?;
    if let Some(process) = &gauges.process {
        process.write(page)?;
    }
    let name = "sluicegate_build_info";
    head(page, name, "gauge", "Always 1; the version is its label")?;
    writeln!(page, "{name}{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))
}

fn head(page: &mut fmt::Formatter<'_>, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(page, "# HELP {name} {help}.\n# TYPE {name} {kind}")
}

/// Nanoseconds, formatted as seconds with nine decimals.
struct Seconds(Nanos);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.0 / 1_000_000_000, self.0.0 % 1_000_000_000)
    }
}
