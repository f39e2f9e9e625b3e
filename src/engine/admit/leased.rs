//! This replica's part of one ceiling of the fleet: the kernel's member, and what it reports.
//!
//! Guarantees: what a heartbeat says is taken in one instant, under the bucket's lock; without a share
//! in its term nothing is admitted, except what the ceiling's `on_backend_failure` says once the store
//! did not answer. A seat that is given up is kept until that was heard, and taken on again where somebody comes before; what
//! this replica admits alone keeps none.
//! Leaves out: sending ([`super::fleet`]), and admitting, which is the limiter's.

use std::cmp::Ordering;
use std::sync::Arc;

use tokio::sync::watch;

use super::totals::Totals;
use super::usage::Usage;
use crate::config::concurrency::OnFailure;
use crate::kernel::concurrency::Limiter;
use crate::kernel::coordinator::member::{Applied, Load};
use crate::kernel::coordinator::{Grant, Heartbeat, Law, Member, Reading, Reply, Terms};
use crate::kernel::units::{Incarnation, MemberId, Nanos, Share};
use crate::telemetry::event::ShareEvent;

/// Heartbeats without a request after which a replica gives up its seat, so that a ceiling nobody
/// uses costs the store nothing.
const IDLE: u64 = 10;

/// What a ceiling is to the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The least ceiling.
    pub min: u32,
    /// Where it starts.
    pub start: u32,
    /// The largest.
    pub max: u32,
    /// How long a request may go on.
    pub max_duration: Nanos,
    /// What counts while the store does not answer.
    pub on_failure: OnFailure,
}

/// One ceiling, as this replica has it.
#[derive(Debug)]
pub(super) struct Leased {
    pub(super) shared: Shared,
    law: Law,
    life: Incarnation,
    /// None while the ceiling is cold: nothing is held, nothing in flight.
    member: Option<Member>,
    stay: Stay,
    /// When somebody last came while it had no seat.
    joined: Nanos,
    /// Since when it is held by this replica alone, if it is: only its seat is left to be given up.
    local: Option<Nanos>,
    pub(super) usage: Usage,
    /// What was last said, under which law, and when.
    said: Option<(Load, Law, Nanos)>,
    /// The number of the newest heartbeat since it joined: answers to others came too late.
    newest: Option<u64>,
    last: Option<Grant>,
    outage: bool,
    /// Those who came while it was cold.
    asked: u64,
    answers: watch::Sender<()>,
    fences: u64,
    handoffs: u64,
    totals: Arc<Totals>,
    /// Since when it has less than would be fair.
    short: Option<Nanos>,
    handoff_took: Option<Nanos>,
}

/// Whether a replica means to keep its seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Stays,
    /// It is to be given up.
    Leaves,
    /// That was said.
    SaidSo,
    /// It was said and not answered, or refused. It is said on, but may never be heard.
    InVain,
}

/// What is to be done about a ceiling.
pub(super) enum Speak {
    /// Nothing.
    No,
    /// It is cold: nothing, until somebody comes.
    Cold,
    /// Send this.
    Beat {
        law: Law,
        said: Heartbeat,
        /// How many the ceiling has, as last heard.
        members: Option<u64>,
        /// For how long it may wait: until the share ends, and a goodbye for as long as if one had just begun.
        left: Nanos,
    },
}

/// One ceiling at one instant, for those who look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The newest grant.
    pub grant: Option<Grant>,
    /// How much may be in flight: the share in force, or in an outage what is left to this replica.
    pub share: Share,
    /// For how long still.
    pub left: Nanos,
    /// Requests in flight.
    pub in_flight: u32,
    /// Permits it would use.
    pub wanted: Share,
    /// How often a share was given up because its term was over.
    pub fences: u64,
    /// How often the share grew by what another gave up.
    pub handoffs: u64,
    /// How long the last one took: from the first grant below what would be fair to one that is not.
    pub handoff_took: Option<Nanos>,
    /// The store does not answer, and `on_backend_failure` counts.
    pub outage: bool,
}

impl Leased {
    pub(super) fn new(shared: Shared, terms: Terms, now: Nanos, totals: Arc<Totals>) -> Self {
        Self {
            shared,
            law: law(&shared, terms),
            life: Incarnation(0),
            member: None,
            stay: Stay::Stays,
            joined: now,
            local: None,
            usage: Usage::new(now),
            said: None,
            newest: None,
            last: None,
            outage: false,
            asked: 0,
            answers: watch::Sender::new(()),
            fences: 0,
            handoffs: 0,
            totals,
            short: None,
            handoff_took: None,
        }
    }

    /// Goes on under another configuration.
    pub(super) fn reload(&mut self, shared: Shared, terms: Terms) {
        (self.shared, self.law) = (shared, law(&shared, terms));
        if let Some(member) = &mut self.member {
            member.reload(terms);
        }
    }

    /// Takes a seat: in the new life `life`, unless it has one still that it was about to give up.
    pub(super) fn join(&mut self, now: Nanos, id: MemberId, life: Incarnation) {
        if let Some(member) = &mut self.member {
            // In a new life it would wait for what it left itself, for as long as for one that is lost.
            member.come_back();
        } else {
            self.life = life;
            self.member = Some(Member::new(id, life, self.law.terms));
        }
        (self.joined, self.newest) = (now, None);
        (self.stay, self.local, self.outage) = (Stay::Stays, None, false);
        (self.said, self.last, self.short, self.asked) = (None, None, None, 0);
    }

    /// Whether it has a seat that it means to keep.
    pub(super) const fn is_seated(&self) -> bool {
        self.member.is_some() && !self.leaves()
    }

    /// Whether it has a seat, or waits to hear that it has none any more: in a new life it would wait for that seat as long as for
    /// one that is lost. It does not wait on a store that does not answer, or there would be ever less room.
    pub(super) const fn is_in_use(&self) -> bool {
        self.member.is_some() && !matches!(self.stay, Stay::InVain)
    }

    /// Whether nothing was heard yet, so that one who comes does well to wait for the answer.
    pub(super) const fn is_cold(&self) -> bool {
        self.member.is_none() || self.leaves() || (self.last.is_none() && !self.outage)
    }

    /// Tells when something is heard.
    pub(super) fn answers(&mut self) -> watch::Receiver<()> {
        self.asked = self.asked.saturating_add(1);
        self.answers.subscribe()
    }

    /// This replica holds it alone from now on, and gives the seat up.
    pub(super) const fn go_alone(&mut self, now: Nanos) {
        self.local = Some(now);
        self.part();
    }

    pub(super) const fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Gives the seat up.
    pub(super) const fn part(&mut self) {
        if !self.leaves() {
            self.stay = Stay::Leaves;
        }
    }

    const fn leaves(&self) -> bool {
        !matches!(self.stay, Stay::Stays)
    }

    /// Whether a share was in force until now and is over. What this replica holds alone has no share.
    pub(super) fn fence(&mut self, now: Nanos) -> bool {
        let is_over = self.member.as_mut().is_some_and(|member| member.fence(now));
        let fenced = is_over && !self.is_local();
        if fenced {
            self.fences = self.fences.saturating_add(1);
            self.totals.fenced();
            ShareEvent::Fenced.emit();
        }
        fenced
    }

    /// The life of the store's under which all is that is held here; an error where some is not, or
    /// may not be.
    pub(super) fn under(&self, now: Nanos, limiter: &Limiter) -> Result<Option<Incarnation>, ()> {
        match self.member.as_ref().and_then(|member| member.under(now)) {
            Some(life) => Ok(Some(life)),
            None if shared(limiter, self.local) == Share(0) => Ok(None),
            None => Err(()),
        }
    }

    /// For how long from now something of it may be in use.
    pub(super) const fn longest(&self) -> Nanos {
        self.law.terms.longest()
    }

    /// The next heartbeat, if one is due.
    pub(super) fn speak(&mut self, now: Nanos, limiter: &Limiter) -> Speak {
        self.usage.pass(now, limiter.in_flight(), limiter.waiting());
        let load = self.load(now, limiter);
        let terms = self.law.terms;
        let Some(member) = &mut self.member else { return Speak::Cold };
        let idle = limiter.idle_since().map(|since| now.since(since.max(self.joined)));
        if self.stay == Stay::Stays
            && idle.is_some_and(|idle| terms.heartbeat.0.saturating_mul(IDLE) <= idle.0)
        {
            self.stay = Stay::Leaves;
        }
        let since = self.said.map(|(_, _, at)| now.since(at));
        let (said, left) = if self.stay == Stay::Stays {
            let left = member.ends_at().map_or(Nanos(0), |ends_at| ends_at.since(now));
            let fresh = terms.usable().0 < left.0.saturating_mul(2);
            // For as long as the law says is the seat of a replica kept that is lost, so a new one is news.
            let same = self.said.is_some_and(|(said, law, _)| (said, law) == (load, self.law));
            // Its pauses grow while it waits for others' shares, up to a request's whole life. Were it silent for half a term as well,
            // it would not hear in time that they are free, or that it is its turn.
            let has_none = member.grant(now).is_none_or(|grant| grant.share == Share(0));
            let waits = member.urgent(now, &load).is_some() || has_none && load.wanted != Share(0);
            if now < member.due(now, &load) || !waits && same && fresh {
                return Speak::No;
            }
            (member.beat(now, &load), left)
        } else {
            // Again and again until it is heard, but the first time at once.
            if self.stay == Stay::Leaves {
                self.stay = Stay::SaidSo;
            } else if since.is_some_and(|since| since < terms.heartbeat) {
                return Speak::No;
            }
            (member.leave(now, shared(limiter, self.local)), terms.usable())
        };
        (self.said, self.newest) = (Some((load, self.law, now)), Some(said.number));
        self.usage.spoke(now, &terms);
        Speak::Beat { law: self.law, said, members: self.last.map(|grant| grant.members), left }
    }

    /// Whether `said` is the newest that was said for the seat as it is now.
    pub(super) fn awaits(&self, said: &Heartbeat) -> bool {
        (said.life, Some(said.number)) == (self.life, self.newest)
    }

    /// Takes what became of the heartbeat `said`; the share to put in force, if it is another one.
    pub(super) fn hear(
        &mut self,
        now: Nanos,
        said: &Heartbeat,
        reply: Option<&Reply>,
        clock: Reading,
        alone: Share,
    ) -> Option<Share> {
        if !self.awaits(said) {
            return None;
        }
        let member = self.member.as_mut()?;
        member.goes_by(clock);
        if said.leaves {
            let is_heard = reply == Some(&Reply::Left);
            self.stay = if is_heard { Stay::SaidSo } else { Stay::InVain };
        }
        let share = match reply {
            Some(Reply::Grant(grant)) => match member.on_grant(now, grant) {
                Applied::From(before) => {
                    self.took(now, before, *grant);
                    Some(grant.share)
                }
                Applied::Late => None,
            },
            Some(Reply::Left) => {
                if said.in_flight == Share(0) {
                    (self.member, self.last) = (None, None);
                    (self.stay, self.outage) = (Stay::Stays, false);
                }
                None
            }
            // The store answers, so an outage's share is over, though there is none in its place.
            Some(_) => {
                member.void();
                std::mem::take(&mut self.outage).then_some(Share(0))
            }
            None => {
                member.void();
                self.fail(now, alone)
            }
        };
        self.answers.send_replace(());
        share.filter(|_| !self.is_local() && !self.leaves())
    }

    fn took(&mut self, now: Nanos, before: Share, grant: Grant) {
        let others = self.last.is_some_and(|last| last.share < last.fair);
        match before.cmp(&grant.share) {
            Ordering::Less if others => {
                self.handoffs = self.handoffs.saturating_add(1);
                self.totals.handed_over();
                ShareEvent::HandedOver.emit();
            }
            Ordering::Less => ShareEvent::Grown.emit(),
            Ordering::Greater => ShareEvent::Shrunk.emit(),
            Ordering::Equal => {}
        }
        if grant.fair <= grant.share {
            let took = self.short.take().map(|since| now.since(since));
            self.handoff_took = took.or(self.handoff_took);
        } else {
            self.short = self.short.or(Some(now));
        }
        if before != grant.share {
            self.usage.allowed(grant.share);
        }
        (self.last, self.outage) = (Some(grant), false);
    }

    /// The share while the store does not answer; none while one is in its term.
    fn fail(&mut self, now: Nanos, alone: Share) -> Option<Share> {
        if self.member.as_ref().is_some_and(|member| member.grant(now).is_some()) {
            return None;
        }
        if !std::mem::replace(&mut self.outage, true) {
            ShareEvent::Outage.emit();
        }
        Some(match self.shared.on_failure {
            OnFailure::Deny => Share(0),
            // What others had not let go of yet they use as well. Of shares that were in force at once the sum is never above the
            // ceiling; of parts that were fair at different instants it is.
            OnFailure::Local => self.last.map_or(alone, |last| last.fair.min(last.share)),
            OnFailure::Allow => Share(u64::MAX),
        })
    }

    pub(super) fn shown(&self, now: Nanos, limiter: &Limiter) -> Shown {
        let member = self.member.as_ref();
        let grant = member.and_then(|member| member.grant(now)).copied();
        let alone = if self.outage { limiter.limit() } else { 0 };
        Shown {
            grant: grant.or(self.last),
            share: grant.map_or(Share(alone.into()), |grant| grant.share),
            left: member.and_then(Member::ends_at).map_or(Nanos(0), |ends_at| ends_at.since(now)),
            in_flight: limiter.in_flight(),
            wanted: self.said.map_or(Share(0), |(load, ..)| load.wanted),
            fences: self.fences,
            handoffs: self.handoffs,
            handoff_took: self.handoff_took,
            outage: self.outage,
        }
    }

    fn load(&self, now: Nanos, limiter: &Limiter) -> Load {
        let (in_flight, waiting) = (limiter.in_flight(), limiter.waiting());
        let least = Share(self.asked.min(u64::from(self.said.is_none()).saturating_mul(u64::MAX)));
        let wanted = self.usage.wanted(now, in_flight, waiting, &self.law.terms).max(least);
        let policy = limiter.policy();
        let vote = (self.shared.min < self.shared.max)
            .then(|| self.usage.vote(policy.estimate()?))
            .flatten();
        Load { in_flight: Share(in_flight.into()), wanted, vote }
    }
}

/// The requests in flight that take up something of the share: none that came since this replica holds the ceiling `alone`,
/// or it would never be rid of its seat where there are always some.
fn shared(limiter: &Limiter, alone: Option<Nanos>) -> Share {
    let Some(alone) = alone else { return Share(limiter.in_flight().into()) };
    let before = limiter.permits().filter(|(_, since)| *since <= alone).count();
    Share(u64::try_from(before).unwrap_or(u64::MAX))
}

/// The law that goes with each heartbeat.
fn law(shared: &Shared, terms: Terms) -> Law {
    let [min, start, max] = [shared.min, shared.start, shared.max].map(|it| Share(it.into()));
    let max = max.min(crate::kernel::coordinator::terms::MOST);
    let whole = Law::new(terms, min.min(max), start.min(max), max);
    // What configuration lets through is in order; the least ceiling is what cannot be too much.
    whole.unwrap_or(Law {
        terms,
        min: Share(1),
        start: Share(1),
        max: Share(1),
        aggregate: crate::kernel::coordinator::aggregate::Aggregate::default(),
        split: crate::kernel::coordinator::split::Split::default(),
    })
}
