//! Decides the requests of this process.
//!
//! A request is decided in three steps: the rules of its descriptors are found, its permits are
//! acquired, and each rule is charged. They run in the caller's thread if the rules are known, and
//! permits and leased hits are left. Otherwise they run in the background. Each step, and each
//! concurrency limit, waits for Sluicegate at most for the deadline. The time in queues is extra.
//!
//! Guarantees:
//! - A denied request has no permits.
//! - No rule is charged before all rules of the request are known.
//! - After a change of the limits, or of the row of a table, an old rule is used for at most half a second.
//! - Without a connection, known rules and leased hits stay in use until they expire.
//! - The failure rule decides requests that have to wait while their memory is full.
//!
//! Not covered:
//! - Reading descriptors from a request, and writing the response.

mod background;
mod rules;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate_lease::clock::Clock;
use sluicegate_lease::leases::{LeaseManager, LeaseObserver, LeaseOptions};
use sluicegate_lease::store::Outcomes;
use smallvec::SmallVec;
use thiserror::Error;
use tokio::runtime::{Builder, Handle};
use tokio::time::{MissedTickBehavior, interval};

use crate::answer::{Answer, RuleAnswer};
use crate::concurrency::Concurrency;
use crate::connection::{Connection, LogLine};
use crate::found_rule::{FoundRule, long_bytes};
use crate::kernel::proxy_rule::ProxyHandling;
use crate::memory::{MemoryBudget, MemoryPart};
use crate::pending::{AnswerSlot, PendingAnswer};
use crate::permits::Admission;
use crate::request::{self, DescriptorEntries, DescriptorHasher, OwnedDescriptor};
use crate::rule::KnownRule;
use crate::rule_table::RuleTable;
use crate::service_store::ServiceStore;
use crate::settings::{LimiterSettings, WaitSettings};
use crate::usage::UsageList;
use crate::wire::api::{ConcurrencyUsage, UsageReport, proxy_message};
use rules::{RuleState, Rules};

const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A rule without a request in one to two times as many reports is forgotten.
const REPORTS_UNTIL_IDLE: u64 = 60;

/// The descriptors of a request.
#[derive(Clone, Copy, Debug)]
pub struct Check<'c, 'd> {
    /// The domain of the limits.
    pub domain: &'c str,
    /// The descriptors, each with at least one entry.
    pub descriptors: &'c [DescriptorEntries<'d>],
    /// The longest wait of one step for Sluicegate, and the decision without it.
    pub wait: WaitSettings,
}

/// The state of a request after [`Limiter::start`].
#[derive(Debug)]
pub enum Started {
    /// The request is decided.
    Decided(Admission),
    /// The answer arrives later.
    Waiting(PendingAnswer),
}

/// The limiter cannot start.
#[derive(Debug, Error)]
#[error("cannot start the thread of the limiter: {0}")]
pub struct StartError(#[from] std::io::Error);

/// Decides requests. One for each Sluicegate and process.
#[derive(Clone, Debug)]
pub struct Limiter(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    clock: Arc<Clock>,
    connection: Arc<Connection>,
    leases: Arc<LeaseManager>,
    rules: Rules,
    concurrency: Concurrency,
    usage: UsageList,
    hasher: DescriptorHasher,
    runtime: Handle,
    /// The memory of waiting requests and their calls.
    memory: Arc<MemoryPart>,
}

impl Limiter {
    /// Starts a thread that connects to Sluicegate. Does not wait for the connection.
    ///
    /// `log` writes a line to the proxy's log, and `observe` counts leased hits. Both are called on
    /// any thread and must not block.
    ///
    /// # Errors
    /// The operating system refuses a thread or its resources.
    pub fn start_thread(
        settings: LimiterSettings,
        log: LogLine,
        observe: LeaseObserver,
    ) -> Result<Self, StartError> {
        let LimiterSettings { service, identity, memory_bytes } = settings;
        let budget = MemoryBudget(memory_bytes);
        let memory = budget.request_part();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let clock = Arc::new(Clock::system());
        let table = Arc::new(RuleTable::new(budget.rule_bytes()));
        let connection = Connection::new(service, identity, log, Arc::clone(&clock), table);
        let connection = Arc::new(connection);
        let store = Arc::new(ServiceStore::new(Arc::clone(&connection)));
        let options = LeaseOptions { observe, max_keys: budget.leased_keys() };
        let concurrency = Concurrency::new(
            (Arc::clone(&clock), runtime.handle().clone()),
            Arc::clone(&connection),
            Arc::clone(&store),
            budget.buckets(),
        );
        let (rule_clock, calls) = (Arc::clone(&clock), Arc::clone(&memory));
        let limiter = Self(Arc::new(Parts {
            leases: LeaseManager::new(Arc::clone(&clock), store, options),
            rules: Rules::new(Arc::clone(&connection), rule_clock, calls),
            concurrency,
            usage: UsageList::new(budget.usage_bytes()),
            hasher: DescriptorHasher::new(),
            runtime: runtime.handle().clone(),
            clock,
            connection,
            memory,
        }));
        let background = limiter.clone();
        thread::Builder::new()
            .name("sluicegate".to_owned())
            .spawn(move || runtime.block_on(background.run()))?;
        Ok(limiter)
    }

    /// Decides a request, or begins to. Cost: no allocation and no call if all descriptors are
    /// decided from leased hits.
    ///
    /// The failure rule decides a request that Sluicegate would refuse: see [`crate::MAX_KEY_BYTES`]
    /// and [`crate::MAX_REQUEST_BYTES`]. It also decides a request that has to wait without memory.
    #[must_use]
    pub fn start(&self, check: &Check<'_, '_>) -> Started {
        if !request::is_accepted(check.domain, check.descriptors) {
            return Started::Decided(Answer::failed(check.wait.failure).into());
        }
        let _runtime = self.0.runtime.enter();
        let mut found: SmallVec<[FoundRule; 4]> = SmallVec::new();
        for entries in check.descriptors {
            match self.find_rule(check.domain, entries) {
                Some(rule) if !matches!(rule.reply.handling, ProxyHandling::AskTogether) => {
                    found.push(rule);
                }
                _ => return self.decide_later(check),
            }
        }
        if found.iter().any(|rule| rule.reply.concurrency.is_some()) {
            return self.start_with_permits(found.into_vec(), check.wait);
        }
        let (answer, undecided) = self.try_decide_all(&found, check.wait);
        if undecided.is_empty() {
            return Started::Decided(answer.into());
        }
        self.decide_rest_later(answer, undecided, check.wait)
    }

    /// Acquires permits, and decides the rules. Most requests are decided by the first poll.
    fn start_with_permits(&self, rules: Vec<FoundRule>, wait: WaitSettings) -> Started {
        let (limiter, text_bytes) = (self.clone(), long_bytes(&rules));
        let mut admission = Box::pin(async move { limiter.admit(&rules, wait).await });
        match admission.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admission) => Started::Decided(admission),
            Poll::Pending => self.wait_for(wait, text_bytes, admission),
        }
    }

    /// Decides in the background, if there is memory for a request with `text_bytes` of texts.
    fn wait_for(
        &self,
        wait: WaitSettings,
        text_bytes: usize,
        decision: impl Future<Output = Admission> + Send + 'static,
    ) -> Started {
        let Some(memory) = self.0.memory.reserve_request(text_bytes) else {
            return Started::Decided(Answer::failed(wait.failure).into());
        };
        Started::Waiting(spawn(wait, async move {
            let _memory = memory;
            decision.await
        }))
    }

    /// Returns the number of leased keys and the sum of their hits. Cost: O(keys).
    #[must_use]
    pub fn leased(&self) -> (usize, u64) {
        let totals = self.0.leases.totals();
        (totals.keys, totals.hits.0)
    }

    /// Returns the number of requests and calls since the last call of this function that had no
    /// memory.
    #[must_use]
    pub fn take_refused(&self) -> u64 {
        self.0.memory.take_refused()
    }

    /// Returns `true` while a stream to Sluicegate is open.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.connection.is_connected()
    }

    /// Returns a known rule that may be used now. Fetches a changed rule again in the background.
    fn find_rule(&self, domain: &str, entries: &DescriptorEntries<'_>) -> Option<FoundRule> {
        let (rules, hash) = (&self.0.rules, self.0.hasher.hash(domain, entries));
        let known = rules.find(hash).or_else(|| {
            rules
                .find(self.0.hasher.hash_keys(domain, entries))
                .filter(|rule| rule.reply.is_for_any_values)
        })?;
        let found = if request::has_long_value(entries) {
            FoundRule::new(known, &OwnedDescriptor::new(hash, domain, entries))
        } else {
            FoundRule::without_long_values(known)
        };
        match rules.state(&found, self.0.clock.steady()) {
            RuleState::Current => Some(found),
            RuleState::Changed => {
                self.refresh(&found);
                Some(found)
            }
            RuleState::Expired => None,
        }
    }

    /// Decides rules without a call. Returns the rules that need one.
    fn try_decide_all(&self, rules: &[FoundRule], wait: WaitSettings) -> (Answer, Vec<FoundRule>) {
        let (mut answer, mut undecided) = (Answer::unlimited(), Vec::new());
        for rule in rules {
            match self.try_decide(rule, wait) {
                Some(part) => answer.add(part),
                None => undecided.push(rule.clone()),
            }
        }
        (answer, undecided)
    }

    /// Decides the descriptor of a rule without a call. Returns `None` if a call is needed.
    fn try_decide(&self, rule: &KnownRule, wait: WaitSettings) -> Option<RuleAnswer> {
        let answer = match rule.reply.handling {
            ProxyHandling::Unlimited => return Some(rule.unlimited_answer()),
            ProxyHandling::Forced(verdict) => rule.forced_answer(verdict),
            ProxyHandling::Leased(_) => {
                let (now, mut outcomes) = (self.0.clock.now(), Outcomes::new());
                let charges = rule.charges.as_deref()?;
                self.0.leases.try_charge(now, charges, rule.terms(), &mut outcomes)?;
                rule.leased_answer(&outcomes, wait.failure)
            }
            ProxyHandling::Ask | ProxyHandling::AskTogether => return None,
        };
        Some(self.count(rule, answer))
    }

    /// Counts the result of a rule, for the next report.
    fn count(&self, rule: &KnownRule, answer: RuleAnswer) -> RuleAnswer {
        self.0.usage.count(&rule.usage, answer.verdict);
        answer
    }

    fn decide_later(&self, check: &Check<'_, '_>) -> Started {
        let domain = check.domain;
        let owned = |entries: &DescriptorEntries<'_>| {
            OwnedDescriptor::new(self.0.hasher.hash(domain, entries), domain, entries)
        };
        let descriptors: Vec<OwnedDescriptor> = check.descriptors.iter().map(owned).collect();
        let (limiter, wait) = (self.clone(), check.wait);
        let text_bytes = request::text_bytes(domain, check.descriptors);
        self.wait_for(wait, text_bytes, async move { limiter.decide(descriptors, wait).await })
    }

    fn decide_rest_later(
        &self,
        answer: Answer,
        undecided: Vec<FoundRule>,
        wait: WaitSettings,
    ) -> Started {
        let (limiter, text_bytes) = (self.clone(), long_bytes(&undecided));
        let deadline = wait.end();
        let decided = async move { limiter.decide_rest(answer, undecided, wait, deadline).await };
        self.wait_for(wait, text_bytes, decided.map(Admission::from))
    }

    /// The work of the thread: the connection, the upkeep of leases, and reports.
    async fn run(self) {
        let leases = Arc::clone(&self.0.leases);
        tokio::spawn(async move { leases.run_upkeep().await });
        let reporter = self.clone();
        tokio::spawn(async move { reporter.report_usage().await });
        self.0.connection.run().await;
    }

    async fn report_usage(self) {
        let mut ticks = interval(REPORT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reports = 0_u64;
        loop {
            ticks.tick().await;
            // Without a connection, the counts wait, and a forgotten rule could not be fetched.
            if self.is_connected() {
                self.send_usage();
                reports += 1;
                if reports.is_multiple_of(REPORTS_UNTIL_IDLE) {
                    self.0.rules.forget_idle();
                }
            }
        }
    }

    fn send_usage(&self) {
        let (leased_keys, leased_hits) = self.leased();
        let mut concurrency = self.0.concurrency.take_usage();
        let mut reports = self.0.usage.take_reports();
        if reports.is_empty() {
            reports.push(Vec::new());
        }
        for keys in reports {
            let leased_keys = u64::try_from(leased_keys).unwrap_or(u64::MAX);
            let counts = concurrency.clone();
            let report = UsageReport { keys, leased_keys, leased_hits, concurrency: counts };
            self.0.connection.send(proxy_message::Message::Usage(report));
            // Later reports of this second repeat only the loads.
            concurrency.iter_mut().for_each(keep_load);
        }
    }
}

/// Removes the counts of requests.
fn keep_load(usage: &mut ConcurrencyUsage) {
    *usage = ConcurrencyUsage {
        bucket: std::mem::take(&mut usage.bucket),
        in_flight: usage.in_flight,
        waiting: usage.waiting,
        limit: usage.limit,
        ..ConcurrencyUsage::default()
    };
}

/// Decides in the background.
fn spawn(
    wait: WaitSettings,
    decision: impl Future<Output = Admission> + Send + 'static,
) -> PendingAnswer {
    let slot = Arc::new(AnswerSlot::default());
    let admission = Answer::failed(wait.failure).into();
    let guard = AnswerGuard { slot: Arc::clone(&slot), admission };
    let task = tokio::spawn(async move {
        let mut guard = guard;
        guard.admission = decision.await;
    });
    PendingAnswer::new(slot, task.abort_handle())
}

/// Sets the answer on drop. If the decision did not end, for example because it panicked, the
/// failure rule decides.
struct AnswerGuard {
    slot: Arc<AnswerSlot>,
    admission: Admission,
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        let taken = std::mem::replace(&mut self.admission, Answer::unlimited().into());
        self.slot.set(taken);
    }
}

#[cfg(test)]
mod tests;
