//! This replica's share of one fleet-wide concurrency limit.
//!
//! Guarantees:
//! - The values of a report are read at one instant, under the bucket's lock.
//! - Without a valid share no request is allowed, except by `on_backend_failure` during an outage.
//! - A returned share can be taken up again until the store confirms the return.
//!
//! Not covered:
//! - Sending the reports: see [`super::fleet`].
//! - Permits: see the limiter.

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

/// The idle heartbeats after which a replica returns its
/// share, so that an unused limit costs the store nothing.
const IDLE: u64 = 10;

/// The fleet parameters of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The smallest limit.
    pub min: u32,
    /// The initial limit.
    pub start: u32,
    /// The largest limit.
    pub max: u32,
    /// The longest duration of a request.
    pub max_duration: Nanos,
    /// The behavior during a store outage.
    pub on_failure: OnFailure,
}

#[derive(Debug)]
pub(super) struct Leased {
    pub(super) shared: Shared,
    law: Law,
    life: Incarnation,
    /// `None` without a share and without requests in flight.
    member: Option<Member>,
    stay: Stay,
    joined: Nanos,
    /// Set since the limit belongs to this replica alone.
    /// Only the return of its share is still open.
    local: Option<Nanos>,
    pub(super) usage: Usage,
    /// The last reported load, its law and its instant.
    said: Option<(Load, Law, Nanos)>,
    /// The number of the newest report since the last join. Replies to earlier reports are ignored.
    newest: Option<u64>,
    last: Option<Grant>,
    outage: bool,
    /// The requests that arrived before the first reply.
    asked: u64,
    answers: watch::Sender<()>,
    fences: u64,
    handoffs: u64,
    totals: Arc<Totals>,
    /// The instant since when the share is below the fair share.
    short: Option<Nanos>,
    handoff_took: Option<Nanos>,
}

/// The intention to keep or to return the share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Stays,
    /// The return has not been reported yet.
    Leaves,
    /// The return has been reported.
    SaidSo,
    /// The return was reported, but there was no reply or a refusal. The reports continue.
    InVain,
}

/// The next action for one limit.
pub(super) enum Speak {
    No,
    /// No action until the next request.
    Cold,
    /// Send this report.
    Beat {
        law: Law,
        said: Heartbeat,
        /// The number of replicas that share the limit, from the last grant.
        members: Option<u64>,
        /// The time until the report must be sent: the remaining
        /// time of the share. For a return, the time of a new share.
        left: Nanos,
    },
}

/// A snapshot of one fleet-wide limit at this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The newest grant.
    pub grant: Option<Grant>,
    /// The valid share. During an outage, the limit that applies at this replica instead.
    pub share: Share,
    /// The remaining time of the share.
    pub left: Nanos,
    /// The requests in flight.
    pub in_flight: u32,
    /// The permits that this replica could use.
    pub wanted: Share,
    /// The number of shares that expired.
    pub fences: u64,
    /// The number of times that the share grew by permits from other replicas.
    pub handoffs: u64,
    /// The duration of the last handoff: from the first grant
    /// below the fair share to a grant that reached it.
    pub handoff_took: Option<Nanos>,
    /// `true` while the store is unavailable and `on_backend_failure` applies.
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

    pub(super) fn reload(&mut self, shared: Shared, terms: Terms) {
        (self.shared, self.law) = (shared, law(&shared, terms));
        if let Some(member) = &mut self.member {
            member.reload(terms);
        }
    }

    /// Joins the fleet, as incarnation `life` unless the previous return is still unconfirmed.
    pub(super) fn join(&mut self, now: Nanos, id: MemberId, life: Incarnation) {
        if let Some(member) = &mut self.member {
            // A new incarnation would have to wait for its own
            // old share, like for the share of a lost replica.
            member.come_back();
        } else {
            self.life = life;
            self.member = Some(Member::new(id, life, self.law.terms));
        }
        (self.joined, self.newest) = (now, None);
        (self.stay, self.local, self.outage) = (Stay::Stays, None, false);
        (self.said, self.last, self.short, self.asked) = (None, None, None, 0);
    }

    /// Returns `true` if this replica is in the fleet and intends to stay.
    pub(super) const fn is_seated(&self) -> bool {
        self.member.is_some() && !self.leaves()
    }

    /// Returns `true` if the store may still list the share: a new incarnation
    /// would wait for it like for a lost replica. `false` after a return without a
    /// reply, because an unavailable store must not fill the map with idle buckets.
    pub(super) const fn is_in_use(&self) -> bool {
        self.member.is_some() && !matches!(self.stay, Stay::InVain)
    }

    /// Returns `true` until the first reply. A new request should wait for it.
    pub(super) const fn is_cold(&self) -> bool {
        self.member.is_none() || self.leaves() || (self.last.is_none() && !self.outage)
    }

    /// Counts a request that waits, and returns a receiver that is notified of the next reply.
    pub(super) fn answers(&mut self) -> watch::Receiver<()> {
        self.asked = self.asked.saturating_add(1);
        self.answers.subscribe()
    }

    /// Turns the limit into one of this replica alone, and returns the share.
    pub(super) const fn go_alone(&mut self, now: Nanos) {
        self.local = Some(now);
        self.part();
    }

    pub(super) const fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Returns the share with the next report.
    pub(super) const fn part(&mut self) {
        if !self.leaves() {
            self.stay = Stay::Leaves;
        }
    }

    const fn leaves(&self) -> bool {
        !matches!(self.stay, Stay::Stays)
    }

    /// Returns `true` if a share expired just now. A limit of this replica alone has no share.
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

    /// Returns the store incarnation that granted everything
    /// in use here. `Ok(None)` if nothing is in use.
    ///
    /// # Errors
    /// Something in use has no valid grant.
    pub(super) fn under(&self, now: Nanos, limiter: &Limiter) -> Result<Option<Incarnation>, ()> {
        match self.member.as_ref().and_then(|member| member.under(now)) {
            Some(life) => Ok(Some(life)),
            None if shared(limiter, self.local) == Share(0) => Ok(None),
            None => Err(()),
        }
    }

    /// Returns the longest time from now for which the share or its requests may last.
    pub(super) const fn longest(&self) -> Nanos {
        self.law.terms.longest()
    }

    /// Returns the next report if it is due.
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
            // A new law must be reported, because the store
            // keeps the share of a lost replica by its last law.
            let same = self.said.is_some_and(|(said, law, _)| (said, law) == (load, self.law));
            // A waiting replica already pauses longer and longer, up to the duration of a request.
            // With another half term of silence it would learn too late that permits are free.
            let has_none = member.grant(now).is_none_or(|grant| grant.share == Share(0));
            let waits = member.urgent(now, &load).is_some() || has_none && load.wanted != Share(0);
            if now < member.due(now, &load) || !waits && same && fresh {
                return Speak::No;
            }
            (member.beat(now, &load), left)
        } else {
            // Reported at once, then every heartbeat until the store confirms.
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

    /// Returns `true` if `said` is the newest report of the current incarnation.
    pub(super) fn awaits(&self, said: &Heartbeat) -> bool {
        (said.life, Some(said.number)) == (self.life, self.newest)
    }

    /// Applies the reply to the report `said`. Returns
    /// the share that comes into force, if it changes.
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
            // The store replied, so the outage is over, although it granted no share.
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

    /// Returns the share during an outage. `None` while a granted share is valid.
    fn fail(&mut self, now: Nanos, alone: Share) -> Option<Share> {
        if self.member.as_ref().is_some_and(|member| member.grant(now).is_some()) {
            return None;
        }
        if !std::mem::replace(&mut self.outage, true) {
            ShareEvent::Outage.emit();
        }
        Some(match self.shared.on_failure {
            OnFailure::Deny => Share(0),
            // Other replicas still use the permits that they have not returned.
            // The sum of shares that were valid at the same time never exceeds the
            // limit. A sum of fair shares from different instants can exceed it.
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

/// Returns the requests in flight that use the share. Requests that started since
/// `alone` do not count, because a busy limit could otherwise never return its share.
fn shared(limiter: &Limiter, alone: Option<Nanos>) -> Share {
    let Some(alone) = alone else { return Share(limiter.in_flight().into()) };
    let before = limiter.permits().filter(|(_, since)| *since <= alone).count();
    Share(u64::try_from(before).unwrap_or(u64::MAX))
}

fn law(shared: &Shared, terms: Terms) -> Law {
    let [min, start, max] = [shared.min, shared.start, shared.max].map(|it| Share(it.into()));
    let max = max.min(crate::kernel::coordinator::terms::MOST);
    let whole = Law::new(terms, min.min(max), start.min(max), max);
    // Never happens with a validated configuration. A limit of 1 is the safe choice.
    whole.unwrap_or(Law {
        terms,
        min: Share(1),
        start: Share(1),
        max: Share(1),
        aggregate: crate::kernel::coordinator::aggregate::Aggregate::default(),
        split: crate::kernel::coordinator::split::Split::default(),
    })
}
