//! Questions under ceilings on requests in flight.
//!
//! Guarantees: ceilings are asked before rate limits, in one order for all questions, so that two
//! that wait cannot wait for each other; all permits or none. A permit whose deadline comes while its
//! question waits for another is gone: the question gives back all, and begins anew while it may still
//! wait. A question that a ceiling turns away has moved no counter; one that a rate limit denies holds
//! no permit. A dropped future, and dropped [`Permits`], give everything back. A question that waited
//! comes to the next ceiling as the configuration in force has that by then.
//! Leaves out: who tells that a request has ended, which is each hook's; a question asked by
//! [`Engine::decide`] meets no ceiling, because nobody would give its permits back.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::admit::{Admission, Ask, Denied, Held, Load, Look, Shared, Strictly};
use super::decide::check;
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

/// How many buckets there may be unless something else is said.
pub const MAX_BUCKETS: usize = 100_000;

/// What became of a question that asked for permits.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the usual one is the large one")]
pub enum Admitted {
    /// Every ceiling let it pass, and the rate limits answered. After a denial nothing is held.
    Decided(Answer, Permits),
    /// A ceiling turned it away; no counter has moved.
    Rejected(Rejection),
}

/// What a ceiling answers one whom it turns away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Status, `Retry-After` and body.
    pub reject: Reject,
    /// Why.
    pub reason: Reason,
    /// The ceiling's path.
    pub path: Box<str>,
}

/// What a request in flight holds. Dropped, it is given back, and tells nothing of the backend.
#[derive(Debug, Default)]
#[must_use = "what is dropped is given back"]
pub struct Permits(SmallVec<[Held; 1]>);

impl Permits {
    /// Gives everything back. `rtt` is the request's latency where somebody measured it better than
    /// from admission to now.
    pub fn finish(self, outcome: Outcome, rtt: Option<Nanos>) {
        // What its deadline took back is given back already.
        let _held = self.give_back(outcome, rtt);
    }

    /// The same; false where nothing was held any longer, because deadlines took it back.
    #[must_use]
    pub fn give_back(self, outcome: Outcome, rtt: Option<Nanos>) -> bool {
        let rtt = rtt.or_else(|| self.all_for());
        self.0.into_iter().map(|held| held.release(outcome, rtt)).filter(|held| *held).count() != 0
    }

    /// The request was seen alive: the deadlines of what is held count from now. False where deadlines
    /// took back any of it before, or there was nothing.
    #[must_use]
    pub fn renew(&self) -> bool {
        // Every one: what is left behind one that is gone goes on.
        self.0.iter().filter(|held| !held.renew()).count() == 0 && !self.is_empty()
    }

    /// Whether all of it is still held; not where there was nothing.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.is_empty() && self.0.iter().all(|held| held.since().is_some())
    }

    /// When the last of it was admitted, as far as it is still held.
    #[must_use]
    pub fn since(&self) -> Option<Nanos> {
        self.0.iter().filter_map(Held::since).max()
    }

    /// For how long all of several have been held: the first waited in no backend while the last had a queue. `None` of
    /// one alone, which counts that itself.
    fn all_for(&self) -> Option<Nanos> {
        let several = self.0.get(1).is_some();
        several.then(|| self.0.iter().filter_map(Held::age).min()).flatten()
    }

    /// The longest time that anything held may be out: after it nothing is.
    #[must_use]
    pub fn longest_keep(&self) -> Option<Nanos> {
        self.0.iter().filter_map(Held::keep).max()
    }

    /// The shortest time that anything held may be out: within it all is to be renewed.
    #[must_use]
    pub fn shortest_keep(&self) -> Option<Nanos> {
        self.0.iter().filter_map(Held::keep).min()
    }

    /// Whether somebody waits in a queue for a place that the end of this one frees.
    #[must_use]
    pub fn are_waited_for(&self) -> bool {
        self.0.iter().any(Held::is_waited_for)
    }

    /// The process goes, and the requests go on where it sees their ends no more. They count for as long as it lives; where a
    /// fleet holds the ceiling they count after that until `max_duration` is over.
    pub fn go_on(self) {
        self.0.into_iter().for_each(Held::go_on);
    }

    /// Whether nothing is held: no ceiling covers the question.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a question holds on its way from ceiling to ceiling.
#[derive(Default)]
struct Taking {
    permits: Permits,
    /// Of ceilings in shadow: one that is lost is missed by nobody.
    shadow: Vec<Held>,
}

impl Taking {
    /// One more, if there is one. The time of those before it counts from now as well: whoever is told
    /// how long that is may have waited for this one. False where a deadline took back any meanwhile.
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

/// What came of going from ceiling to ceiling, where none turned the question away.
enum Taken {
    All(Permits),
    /// A deadline took one back on the way, and nothing is held. To begin anew; to wait until then.
    Lost(Nanos),
}

/// How long a permit may be out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Until its request has ended: that is seen.
    ToTheEnd,
    /// For `max_duration` at most: nobody may ever tell of the end.
    MaxDuration,
}

/// Since when a question waits, and until when.
#[derive(Clone, Copy, Debug)]
struct Wait {
    begun: Nanos,
    /// In queues.
    queues: Option<Nanos>,
    /// For what the store says of a ceiling.
    store: Option<Nanos>,
}

impl Wait {
    /// That of one who asks now. Without any patience it asks without a queue; that is no end.
    fn of(begun: Nanos, patience: Option<Nanos>) -> Self {
        let end = patience.map(|patience| begun.plus(patience));
        Self { begun, queues: end, store: end.filter(|end| begun < *end) }
    }
}

/// From `now` until `end`.
fn left(now: Nanos, end: Option<Nanos>) -> Nanos {
    end.map_or(Nanos(u64::MAX), |end| end.since(now))
}

/// A bucket's name and its ceiling.
type Asked<'c> = SmallVec<[(CounterKey, &'c Ceiling); 2]>;

impl Engine {
    /// Asks the question's ceilings for permits, waiting in their queues and for the store for at most `patience`
    /// together (zero asks without a queue), and then the rate limits. Safe to cancel.
    ///
    /// # Errors
    /// As [`Engine::decide_within`]; nothing is held then.
    pub async fn admit(
        &self,
        question: &Question<'_>,
        patience: Option<Nanos>,
    ) -> Result<Admitted, Refusal> {
        self.admit_under(question, question, patience, Keep::ToTheEnd).await
    }

    /// The same for one whose end may never be told: each permit is out for its ceiling's
    /// `max_duration` at most, whatever is done with it, unless it is renewed.
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

    /// The same, but only `covered` meets ceilings, and what `keep` says counts.
    pub(super) async fn admit_under(
        &self,
        covered: &Question<'_>,
        question: &Question<'_>,
        patience: Option<Nanos>,
        keep: Keep,
    ) -> Result<Admitted, Refusal> {
        check(question)?;
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

    /// Goes from ceiling to ceiling once.
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
            // None is there any more.
            let Some((revision, ceiling)) = ceiling else { continue };
            let held = self.permit(bucket, (revision, ceiling), wait, keep).await?;
            if !taking.add(held, self.is_shadow(ceiling)) {
                return self.lost(&asked, ceiling, wait);
            }
        }
        Ok(Taken::All(taking.all()))
    }

    /// What becomes of one who lost a permit while it waited for that of `ceiling`: it is late once it has waited
    /// for as long as all queues let it, or its caller does.
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

    /// The configuration in force, where that is another than `config`. Cost: where it is not, nothing
    /// that all cores write to.
    fn newer_than(&self, config: &Arc<Config>) -> Option<Arc<Config>> {
        let newest = self.config.load();
        Option::as_ref(&newest).filter(|newest| !Arc::ptr_eq(newest, config)).cloned()
    }

    /// How long the question may wait in queues, all of them together, however often it begins anew.
    #[must_use]
    pub fn longest_wait(&self, question: &Question<'_>) -> Nanos {
        let Some(config) = self.config() else { return Nanos(0) };
        longest(&asked(&config, question))
    }

    /// The bucket over a descriptor, if a ceiling covers it and somebody was there lately.
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

    /// The ceilings in use, by path, each with its buckets added up; in no order. Of one that the store counts all replicas
    /// have the whole in force, and each has its part here, so that they too can be added up.
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

    /// Puts the ceilings of `config` in force for those who wait already.
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

    /// Who is in flight.
    #[must_use]
    pub const fn ceilings(&self) -> &Admission {
        &self.ceilings
    }

    /// What `ceiling` is to the fleet, if this is one and it is shared.
    fn shared(&self, ceiling: &Ceiling) -> Option<Shared> {
        self.ceilings.fleet().and_then(|fleet| fleet.shared(ceiling))
    }

    /// What `ceiling` is where the store is asked for each permit.
    fn strictly(&self, ceiling: &Ceiling) -> Option<Strictly> {
        self.ceilings.fleet().and_then(|fleet| fleet.strictly(ceiling))
    }

    /// By what this replica works. `min` is the whole fleet's, and one of many may need less; where the store
    /// is asked those who wait do so in another line.
    fn rules(&self, ceiling: &Ceiling) -> Rules {
        let shared = self.shared(ceiling).is_some();
        let own =
            |adaptive: Adaptive| if shared { Adaptive { min: 1, ..adaptive } } else { adaptive };
        let waiting = ceiling.rules.waiting.filter(|_| self.strictly(ceiling).is_none());
        Rules { adaptive: ceiling.rules.adaptive.map(own), waiting, ..ceiling.rules }
    }

    /// Whether one that `ceiling` turns away passes all the same.
    fn is_shadow(&self, ceiling: &Ceiling) -> bool {
        ceiling.shadow || self.policy.shadow
    }

    /// A permit. One that passes all the same where it is turned away waits in no queue, and for no share that is not known yet:
    /// it waits for the store alone where that is asked for each permit, because nobody else could say what comes of it.
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
            // Boxed: one of a ceiling in shares does not carry about what this takes.
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

/// One ceiling, all its buckets together.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// How many buckets.
    pub buckets: u64,
    /// How many are in flight.
    pub in_flight: u64,
    /// How many wait.
    pub waiting: u64,
    /// How many may be in flight: of a ceiling that the store counts this replica's part.
    pub limit: u64,
    /// The bucket with most in flight.
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

/// Tells of one who is turned away, and says what it is answered.
fn turned_away(ceiling: &Ceiling, reason: Reason) -> Rejection {
    CeilingReached { reason, enforced: true }.emit();
    let reasons = std::iter::once(reason);
    Decided { verdict: Verdict::Deny, shadowed: false, reasons, near: 0 }.emit();
    let (reject, path) = (ceiling.reject.clone(), ceiling.path.clone());
    Rejection { reject, reason, path }
}

/// How long one may wait in the queues of all these.
fn longest(asked: &[(CounterKey, &Ceiling)]) -> Nanos {
    let waits = asked.iter().filter_map(|(_, ceiling)| ceiling.rules.waiting);
    waits.fold(Nanos(0), |sum, waiting| sum.plus(waiting.timeout))
}

/// The ceiling of the bucket of that name.
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

/// The ceilings over a question, each once, in the order of their names. What only looks, or gives
/// back, is not in flight.
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
