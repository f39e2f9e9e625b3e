//! Acquires the permits of a check before its rate limits are decided.
//!
//! Guarantees:
//! - All checks acquire permits in the same order, so they cannot deadlock.
//! - A check gets all of its permits or none.
//! - If a permit expires during the wait, the check restarts while time is left.
//! - A check that a concurrency limit rejects changes no counter.
//! - A check that a rate limit denies keeps no permit.
//! - Dropping the future or [`Permits`] releases everything.
//! - After a wait, the next limit is taken from the current configuration.
//!
//! Not covered:
//! - The end of a request: each protocol reports it.
//! - Checks of [`Engine::decide`]: they need no permits, because they have no end.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::admit::{Admission, Ask, Denied, Held, Load, Look, Shared, Strictly};
use super::path::validate;
use super::{Answer, Engine, Refusal};
use crate::config::Config;
use crate::config::concurrency::{Ceiling, Mode, Reject};
use crate::config::tree::Covered;
use crate::kernel::concurrency::Outcome;
use crate::kernel::concurrency::limiter::Rules;
use crate::kernel::concurrency::policy::Adaptive;
use crate::kernel::decision::{Cost, Question, Reason, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::telemetry::event::{CeilingReached, Decided};

/// The default for the largest number of buckets.
pub const MAX_BUCKETS: usize = 100_000;

/// The result of a check that needs permits.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the usual one is the large one")]
pub enum Admitted {
    /// The check has its permits and a decision. After a denial the permits are empty.
    Decided(Answer, Permits),
    /// A concurrency limit rejected the check. No counter changed.
    Rejected(Rejection),
}

/// The response to a check that a concurrency limit rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The status, `Retry-After` and body.
    pub reject: Reject,
    /// The reason of the rejection.
    pub reason: Reason,
    /// The path of the limit.
    pub path: Box<str>,
}

/// The permits of a request in flight. Dropping them releases them without a latency sample.
#[derive(Debug, Default)]
#[must_use = "what is dropped is given back"]
pub struct Permits(SmallVec<[Held; 1]>);

impl Permits {
    /// Releases all permits. `rtt` is the latency of the request, if
    /// the caller measured it better than from acquire to release.
    pub fn finish(self, outcome: Outcome, rtt: Option<Nanos>) {
        // `false` only means that deadlines have released the permits.
        let _held = self.give_back(outcome, rtt);
    }

    /// Releases all permits. Returns `false` if there
    /// were none, or deadlines had released all of them.
    #[must_use]
    pub fn give_back(self, outcome: Outcome, rtt: Option<Nanos>) -> bool {
        let rtt = rtt.or_else(|| self.all_for());
        self.0.into_iter().map(|held| held.release(outcome, rtt)).filter(|held| *held).count() != 0
    }

    /// Restarts the deadlines, because the request is still active. Returns
    /// `false` if there are no permits, or a deadline has released one.
    #[must_use]
    pub fn renew(&self) -> bool {
        // Renew all permits: `all()` would stop at the first expired one.
        self.0.iter().filter(|held| !held.renew()).count() == 0 && !self.is_empty()
    }

    /// Returns `true` if there are permits and none has been released by its deadline.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.is_empty() && self.0.iter().all(|held| held.since().is_some())
    }

    /// Returns the latest acquire instant of the permits that are still valid.
    #[must_use]
    pub fn since(&self) -> Option<Nanos> {
        self.0.iter().filter_map(Held::since).max()
    }

    /// Returns the time since the last acquire. With several permits, an earlier one also measured
    /// the wait in a later queue. `None` for a single permit, which measures its own latency.
    fn all_for(&self) -> Option<Nanos> {
        let several = self.0.get(1).is_some();
        several.then(|| self.0.iter().filter_map(Held::age).min()).flatten()
    }

    /// Returns the longest `max_duration` of the permits. After this time all of them have expired.
    #[must_use]
    pub fn longest_keep(&self) -> Option<Nanos> {
        self.0.iter().filter_map(Held::keep).max()
    }

    /// Returns the shortest `max_duration` of the permits.
    /// All of them must be renewed within this time.
    #[must_use]
    pub fn shortest_keep(&self) -> Option<Nanos> {
        self.0.iter().filter_map(Held::keep).min()
    }

    /// Returns `true` if a request waits in a queue for one of these permits.
    #[must_use]
    pub fn are_waited_for(&self) -> bool {
        self.0.iter().any(Held::is_waited_for)
    }

    /// Leaves the permits to their deadlines, because this process stops
    /// while the requests continue. They count while the process runs.
    /// Permits of a fleet-wide limit count until `max_duration` is over.
    pub fn go_on(self) {
        self.0.into_iter().for_each(Held::go_on);
    }

    /// Returns `true` if there are no permits: no concurrency limit covers the check.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The permits that a check has acquired so far.
#[derive(Default)]
struct Taking {
    permits: Permits,
    /// Permits of limits in shadow mode. Losing one has no effect.
    shadow: Vec<Held>,
}

impl Taking {
    /// Adds a permit, and restarts the deadlines of the earlier ones:
    /// the caller learns the duration only after this wait. Returns
    /// `false` if a deadline has released one in the meantime.
    fn add(&mut self, held: Option<Held>, shadow: bool) -> bool {
        self.shadow.retain(Held::renew);
        let lost = self.permits.0.iter().filter(|held| !held.renew()).count();
        if shadow {
            self.shadow.extend(held);
        } else {
            self.permits.0.extend(held);
        }
        lost == 0
    }

    fn all(mut self) -> Permits {
        self.permits.0.extend(self.shadow);
        self.permits
    }
}

/// The result of one pass over the limits of a check.
enum Taken {
    All(Permits),
    /// A deadline released a permit, and the others were released
    /// too. The check starts again and waits until this instant.
    Lost(Nanos),
}

/// The time after which a permit expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Never: the end of the request is always seen.
    ToTheEnd,
    /// After `max_duration`, because the end of the request may never be reported.
    MaxDuration,
}

/// The start and the deadlines of a check's waits.
#[derive(Clone, Copy, Debug)]
struct Wait {
    begun: Nanos,
    queues: Option<Nanos>,
    store: Option<Nanos>,
}

impl Wait {
    /// Creates the deadlines of a check that starts at `begun`. A timeout
    /// of zero disables queueing, but does not limit store calls.
    fn of(begun: Nanos, patience: Option<Nanos>) -> Self {
        let end = patience.map(|patience| begun.plus(patience));
        Self { begun, queues: end, store: end.filter(|end| begun < *end) }
    }
}

fn left(now: Nanos, end: Option<Nanos>) -> Nanos {
    end.map_or(Nanos(u64::MAX), |end| end.since(now))
}

type Asked<'c> = SmallVec<[(CounterKey, &'c Ceiling); 2]>;

impl Engine {
    /// Acquires the permits of the check, then decides its rate limits.
    ///
    /// `patience` limits the waits in queues and for the store,
    /// all together. Zero disables queueing. Safe to cancel.
    ///
    /// # Errors
    /// As [`Engine::decide_within`]. No permit is taken then.
    pub async fn admit(
        &self,
        question: &Question<'_>,
        patience: Option<Nanos>,
    ) -> Result<Admitted, Refusal> {
        self.admit_under(question, question, patience, Keep::ToTheEnd).await
    }

    /// Does the same for a caller that may never report the end. Each permit
    /// expires after the `max_duration` of its limit unless it is renewed.
    ///
    /// # Errors
    /// As [`Engine::admit`].
    pub async fn admit_with_deadline(
        &self,
        question: &Question<'_>,
        patience: Option<Nanos>,
    ) -> Result<Admitted, Refusal> {
        self.admit_under(question, question, patience, Keep::MaxDuration).await
    }

    /// Does the same with the given `keep`. Only the descriptors of `covered` need permits.
    pub(super) async fn admit_under(
        &self,
        covered: &Question<'_>,
        question: &Question<'_>,
        patience: Option<Nanos>,
        keep: Keep,
    ) -> Result<Admitted, Refusal> {
        validate(question)?;
        let begun = self.clock().steady();
        let mut wait = Wait::of(begun, patience);
        let end = wait.queues;
        let permits = loop {
            let config = self.config().ok_or(Refusal::NoConfig)?;
            match self.permits(&config, covered, wait, keep).await {
                Ok(Taken::All(permits)) => break permits,
                Ok(Taken::Lost(last)) => wait.queues = Some(last),
                Err(rejection) => return Ok(Admitted::Rejected(rejection)),
            }
        };
        let left = end.map(|end| end.since(self.clock().steady()));
        let answer = self.decide_within(question, left).await?;
        let held = if answer.verdict == Verdict::Admit { permits } else { Permits::default() };
        Ok(Admitted::Decided(answer, held))
    }

    async fn permits(
        &self,
        config: &Arc<Config>,
        covered: &Question<'_>,
        wait: Wait,
        keep: Keep,
    ) -> Result<Taken, Rejection> {
        let asked = asked(config, covered);
        let mut taking = Taking::default();
        for (bucket, ceiling) in &asked {
            let newer = self.newer_than(config);
            let ceiling = match &newer {
                None => Some((config.revision, *ceiling)),
                Some(newer) => {
                    let ceiling = ceiling_of(newer, bucket.as_bytes());
                    ceiling.map(|ceiling| (newer.revision, ceiling))
                }
            };
            // The newer configuration has no limit for this bucket.
            let Some((revision, ceiling)) = ceiling else { continue };
            let held = self.permit(bucket, (revision, ceiling), wait, keep).await?;
            if !taking.add(held, self.is_shadow(ceiling)) {
                return self.lost(&asked, ceiling, wait);
            }
        }
        Ok(Taken::All(taking.all()))
    }

    /// Decides about a check that lost a permit while it waited for `ceiling`. It
    /// starts again unless the timeouts of all queues, or of the caller, have passed.
    fn lost(
        &self,
        asked: &[(CounterKey, &Ceiling)],
        ceiling: &Ceiling,
        wait: Wait,
    ) -> Result<Taken, Rejection> {
        let last = wait.begun.plus(longest(asked));
        let last = wait.queues.map_or(last, |end| end.min(last));
        if last <= self.clock().steady() {
            return Err(turned_away(ceiling, Reason::QueueTimeout));
        }
        Ok(Taken::Lost(last))
    }

    /// Returns the current configuration if it differs from
    /// `config`. The usual path writes no shared memory.
    fn newer_than(&self, config: &Arc<Config>) -> Option<Arc<Config>> {
        let newest = self.config.load();
        Option::as_ref(&newest).filter(|newest| !Arc::ptr_eq(newest, config)).cloned()
    }

    /// Returns the longest total time that the check may wait in queues, including restarts.
    #[must_use]
    pub fn longest_wait(&self, question: &Question<'_>) -> Nanos {
        let Some(config) = self.config() else { return Nanos(0) };
        longest(&asked(&config, question))
    }

    /// Returns a snapshot of the bucket that covers a
    /// descriptor. `None` if there is no such limit or bucket.
    #[must_use]
    pub fn look(&self, domain: &str, entries: &[(&str, &str)]) -> Option<Look> {
        let config = self.config()?;
        let tree = &config.domains.get(domain)?.tree;
        let Covered { shared, .. } = tree.ceiling(entries.iter().copied())?;
        let named = entries.iter().enumerate().map(|(position, &(key, value))| {
            let pattern = shared.iter().find(|(at, _)| *at == position);
            (key, pattern.map_or(value, |(_, pattern)| *pattern))
        });
        self.ceilings.look(CounterKey::ceiling(domain, named).as_bytes())
    }

    /// Returns the limits in use by path, each summed over its buckets.
    ///
    /// For a strict limit, each replica shows its part of
    /// the limit, so that sums over replicas are correct.
    #[must_use]
    pub fn ceilings_in_use(&self) -> HashMap<Box<str>, InUse> {
        let Some(config) = self.config() else { return HashMap::new() };
        let mut in_use: HashMap<Box<str>, InUse> = HashMap::new();
        for (name, look) in self.ceilings.looks() {
            if let Some(ceiling) = ceiling_of(&config, &name) {
                let limit = self.part(ceiling, &name, look.load.limit);
                in_use.entry(ceiling.path.clone()).or_default().add(look, limit);
            }
        }
        in_use
    }

    fn part(&self, ceiling: &Ceiling, name: &[u8], limit: u32) -> u32 {
        let fleet = self.ceilings.fleet().filter(|_| ceiling.mode == Some(Mode::Strict));
        fleet.map_or(limit, |fleet| fleet.part(name, limit))
    }

    /// Applies the concurrency limits of `config` to existing buckets and their waiting requests.
    pub(super) fn reload_ceilings(&self, config: &Config) {
        if let Some(fleet) = self.ceilings.fleet() {
            let all = || config.domains.values().flat_map(|domain| domain.tree.ceilings());
            fleet.expects_strict(all().any(|ceiling| ceiling.mode == Some(Mode::Strict)));
            fleet.expects_shared(all());
        }
        self.ceilings.reload_all(config.revision, |name| {
            let ceiling = ceiling_of(config, name)?;
            Some((self.rules(ceiling), self.shared(ceiling)))
        });
    }

    /// Returns the concurrency limits of this replica.
    #[must_use]
    pub const fn ceilings(&self) -> &Admission {
        &self.ceilings
    }

    fn shared(&self, ceiling: &Ceiling) -> Option<Shared> {
        self.ceilings.fleet().and_then(|fleet| fleet.shared(ceiling))
    }

    fn strictly(&self, ceiling: &Ceiling) -> Option<Strictly> {
        self.ceilings.fleet().and_then(|fleet| fleet.strictly(ceiling))
    }

    /// Returns the local rules of a limit. `min` applies to the whole fleet,
    /// and one replica may need less. Strict limits have another queue.
    fn rules(&self, ceiling: &Ceiling) -> Rules {
        let shared = self.shared(ceiling).is_some();
        let own =
            |adaptive: Adaptive| if shared { Adaptive { min: 1, ..adaptive } } else { adaptive };
        let waiting = ceiling.rules.waiting.filter(|_| self.strictly(ceiling).is_none());
        Rules { adaptive: ceiling.rules.adaptive.map(own), waiting, ..ceiling.rules }
    }

    /// Returns `true` if a rejection by `ceiling` is only reported.
    fn is_shadow(&self, ceiling: &Ceiling) -> bool {
        ceiling.shadow || self.policy.shadow
    }

    /// Acquires one permit. In shadow mode a check neither queues nor waits for an unknown
    /// share. With a strict limit it waits for the store, which alone knows the count.
    async fn permit(
        &self,
        bucket: &CounterKey,
        (revision, ceiling): (Revision, &Ceiling),
        wait: Wait,
        keep: Keep,
    ) -> Result<Option<Held>, Rejection> {
        let shadow = self.is_shadow(ceiling);
        let (shared, rules, strictly) =
            (self.shared(ceiling), self.rules(ceiling), self.strictly(ceiling));
        let now = self.clock().steady();
        let patience = if shadow { Nanos(0) } else { left(now, wait.queues) };
        let answer = if shadow && strictly.is_none() { Nanos(0) } else { left(now, wait.store) };
        let (bucket, rules) = (bucket.as_bytes(), &rules);
        let keep = (keep == Keep::MaxDuration).then_some(ceiling.max_duration);
        let ask = Ask { bucket, revision, rules, keep, patience, answer, shared };
        let acquired = match strictly {
            // Boxed, to keep the future of the other modes small.
            Some(strictly) => {
                Box::pin(self.ceilings.acquire_strictly(ask, strictly, self.backend())).await
            }
            None => self.ceilings.acquire(ask).await,
        };
        match acquired {
            Ok(held) => Ok(Some(held)),
            Err(denied) if shadow => {
                CeilingReached { reason: reason(denied), enforced: false }.emit();
                Ok(None)
            }
            Err(denied) => Err(turned_away(ceiling, reason(denied))),
        }
    }
}

/// One concurrency limit, summed over its buckets.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// The number of buckets.
    pub buckets: u64,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The number of waiting requests.
    pub waiting: u64,
    /// The sum of the limits. For a strict limit, this replica's part.
    pub limit: u64,
    /// The bucket with the most requests in flight.
    pub busiest: Option<Look>,
}

impl InUse {
    fn add(&mut self, look: Look, limit: u32) {
        let Load { in_flight, waiting, .. } = look.load;
        self.buckets = self.buckets.saturating_add(1);
        self.in_flight = self.in_flight.saturating_add(in_flight.into());
        self.waiting = self.waiting.saturating_add(u64::try_from(waiting).unwrap_or(u64::MAX));
        self.limit = self.limit.saturating_add(limit.into());
        if self.busiest.is_none_or(|busiest| busiest.load.in_flight < in_flight) {
            self.busiest = Some(look);
        }
    }
}

/// Counts the rejection, and returns the response.
fn turned_away(ceiling: &Ceiling, reason: Reason) -> Rejection {
    CeilingReached { reason, enforced: true }.emit();
    let reasons = std::iter::once(reason);
    Decided { verdict: Verdict::Deny, shadowed: false, reasons, near: 0 }.emit();
    let (reject, path) = (ceiling.reject.clone(), ceiling.path.clone());
    Rejection { reject, reason, path }
}

fn longest(asked: &[(CounterKey, &Ceiling)]) -> Nanos {
    let waits = asked.iter().filter_map(|(_, ceiling)| ceiling.rules.waiting);
    waits.fold(Nanos(0), |sum, waiting| sum.plus(waiting.timeout))
}

fn ceiling_of<'c>(config: &'c Config, name: &[u8]) -> Option<&'c Ceiling> {
    let (domain, entries) = CounterKey::read_ceiling(name)?;
    let covered = config.domains.get(domain)?.tree.ceiling(entries)?;
    Some(covered.ceiling)
}

const fn reason(denied: Denied) -> Reason {
    match denied {
        Denied::Full => Reason::CeilingReached,
        Denied::QueueFull => Reason::QueueFull,
        Denied::Late => Reason::QueueTimeout,
        Denied::TooManyBuckets => Reason::TooManyBuckets,
    }
}

/// Returns the limits that cover the check, each once,
/// sorted by bucket name. Peeks and refunds need no permit.
fn asked<'c>(config: &'c Config, question: &Question<'_>) -> Asked<'c> {
    let Some(domain) = config.domains.get(question.domain) else { return Asked::new() };
    let mut asked = Asked::new();
    for descriptor in &question.descriptors {
        if matches!(descriptor.cost, Cost::Charge(Hits(0)) | Cost::Refund(_)) {
            continue;
        }
        let entries = || descriptor.entries.iter().copied();
        let Some(Covered { ceiling, shared }) = domain.tree.ceiling(entries()) else { continue };
        let entries = entries().enumerate().map(|(position, (key, value))| {
            let pattern = shared.iter().find(|(at, _)| *at == position);
            (key, pattern.map_or(value, |(_, pattern)| *pattern))
        });
        asked.push((CounterKey::ceiling(&domain.name, entries), ceiling));
    }
    asked.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    asked.dedup_by(|(a, _), (b, _)| a == b);
    asked
}
