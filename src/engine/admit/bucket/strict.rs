//! This replica's permits of one strict limit, which the store counts.
//!
//! Guarantees:
//! - Every permit that the store may know is reported as released once it ends here.
//! - Only permits that the store granted, or `on_backend_failure` allowed, are reported as in use.
//!
//! Not covered:
//! - Acquire calls and queueing: see `admit::strict`.
//! - Sending the reports: see `admit::teller`.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Bucket, State};
use crate::backend::Cause;
use crate::backend::permits::{Acquired, Answer, Heard, Id};
use crate::clock::Clock;
use crate::engine::admit::Ask;
use crate::engine::admit::strict::{Line, Seen, Strictly};
use crate::engine::admit::teller::{Ended, Teller};
use crate::kernel::concurrency::Permit;
use crate::kernel::concurrency::limiter::{Effect, Event, Refusal};
use crate::kernel::units::{Nanos, Share};
use crate::telemetry::event::StrictEvent;

#[derive(Debug)]
pub(super) struct Strict {
    name: Arc<[u8]>,
    teller: Arc<Teller>,
    pub(super) line: Arc<Line>,
    permits: HashMap<Permit, Entry>,
    /// `true` while the reporter has this bucket in its list.
    is_told: bool,
    limit: u32,
    max_duration: Nanos,
    held: Option<Share>,
    closed_for: Nanos,
    outage: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: Id,
    /// The time for which the store keeps the permit without a report.
    keep: Nanos,
    is_held: bool,
    known: Known,
    /// The latest end of a request whose release will not be seen here.
    ends: Option<Nanos>,
}

/// The store's knowledge of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    No,
    /// An acquire call is pending and may still reach the store.
    Perhaps,
    Yes,
}

impl Bucket {
    /// Applies the rules of `ask` unless the bucket has later ones, and returns
    /// the bucket's queue. Returns `None` if the bucket was removed from the map.
    pub(in crate::engine::admit) fn comes(
        &self,
        clock: &Clock,
        ask: &Ask<'_>,
        max_duration: Nanos,
        teller: &Arc<Teller>,
    ) -> Option<Arc<Line>> {
        let mut state = self.0.lock();
        if state.retired {
            return None;
        }
        let now = clock.steady();
        state.reload(now, ask.revision, ask.rules);
        if state.revision <= ask.revision {
            state.go_alone(now);
        }
        let limit = state.rules.limit;
        let made = || Box::new(Strict::new(ask.bucket, teller));
        let strict = state.strict.get_or_insert_with(made);
        (strict.limit, strict.max_duration) = (limit, max_duration);
        Some(Arc::clone(&strict.line))
    }

    /// Takes a local permit. Returns it with the id and the limit for the
    /// store call. The store keeps the permit for `kept` without a report.
    pub(in crate::engine::admit) fn begins(
        self: &Arc<Self>,
        clock: &Clock,
        keep: Option<Nanos>,
        kept: Nanos,
    ) -> Result<(Permit, Id, Share), Refusal> {
        let mut state = self.0.lock();
        let now = clock.steady();
        let arrives = Event::Arrive { keep, patience: Nanos(0) };
        let permit = match state.step(now, arrives).pop() {
            Some(Effect::Admit(permit)) => permit,
            Some(Effect::Deny(refusal)) => return Err(refusal),
            _ => return Err(Refusal::Full),
        };
        let limit = Share(state.rules.limit.into());
        let strict = state.strict.as_mut().ok_or(Refusal::Full)?;
        let id = strict.begins(permit, kept);
        if !std::mem::replace(&mut strict.is_told, true) {
            strict.teller.activate(&strict.name, self);
        }
        Ok((permit, id, limit))
    }

    /// Applies the store's answer to the acquire call that was sent at
    /// `sent`. Returns `false` if the caller must release `permit`.
    pub(in crate::engine::admit) fn answered(
        &self,
        clock: &Clock,
        permit: Permit,
        sent: Nanos,
        answer: Spoken,
        strictly: &Strictly,
    ) -> bool {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, Event::Expire);
        let in_flight = state.limiter.in_flight();
        let Some(strict) = &mut state.strict else { return false };
        let late = strict.teller.beat() <= now.since(sent);
        strict.answered(permit, answer, in_flight <= strictly.alone, late)
    }

    /// Returns the permits to report as in use, each with the time for which the
    /// store keeps it. If there is none, removes the bucket from the reporter's list.
    pub(in crate::engine::admit) fn tells(&self, clock: &Clock) -> Vec<(Id, Nanos)> {
        let mut state = self.0.lock();
        let now = clock.steady();
        state.step(now, Event::Expire);
        let State { strict: Some(strict), limiter, .. } = &mut *state else { return Vec::new() };
        if strict.permits.is_empty() {
            strict.is_told = false;
            strict.teller.rest(&strict.name);
        }
        let held = strict.permits.iter_mut().filter(|(_, entry)| entry.is_held);
        let told = held.map(|(permit, entry)| {
            if entry.known == Known::No {
                entry.known = Known::Yes;
            }
            let until = limiter.until(*permit).or(entry.ends);
            let keep = until.map(|until| until.since(now));
            (entry.id, strict.teller.kept(keep))
        });
        told.collect()
    }

    /// Reports `permit` until its longest duration is
    /// over, because its release will not be seen here.
    pub(in crate::engine::admit) fn goes_on(&self, clock: &Clock, permit: Permit) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict else { return };
        let ends = clock.steady().plus(strict.max_duration);
        if let Some(entry) = strict.permits.get_mut(&permit) {
            entry.ends = Some(ends);
        }
    }

    /// Does the same for all permits, because this replica will see no more releases.
    pub(in crate::engine::admit) fn all_go_on(&self, clock: &Clock) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict else { return };
        let ends = clock.steady().plus(strict.max_duration);
        for entry in strict.permits.values_mut() {
            entry.ends.get_or_insert(ends);
        }
    }

    pub(in crate::engine::admit) fn heard(&self, heard: Result<Heard, Cause>) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict else { return };
        strict.outage = heard.is_err();
        if let Ok(heard) = heard {
            strict.held = Some(heard.held);
        }
    }

    pub(in crate::engine::admit) fn seen(&self) -> Option<Seen> {
        let state = self.0.lock();
        let strict = state.strict.as_ref()?;
        Some(Seen {
            limit: strict.limit,
            here: state.limiter.in_flight(),
            held: strict.held,
            waiting: strict.line.waiting(),
            closed_for: strict.closed_for,
            outage: strict.outage,
        })
    }
}

impl State {
    pub(super) fn over(&mut self, now: Nanos, permit: Permit) {
        if let Some(strict) = &mut self.strict {
            strict.over(now, permit);
        }
    }

    pub(super) fn in_line(&self) -> usize {
        self.strict.as_ref().map_or(0, |strict| strict.line.waiting())
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::engine::admit) enum Spoken {
    Answered(Answer),
    /// The call was sent and got no reply.
    Unanswered,
    /// The call was not sent.
    No,
}

impl Strict {
    fn new(name: &[u8], teller: &Arc<Teller>) -> Self {
        Self {
            name: name.into(),
            teller: Arc::clone(teller),
            line: Arc::default(),
            permits: HashMap::new(),
            is_told: false,
            limit: 0,
            max_duration: Nanos(0),
            held: None,
            closed_for: Nanos(0),
            outage: false,
        }
    }

    /// Returns `true` while a request acquires or waits here, or a report is pending. A
    /// second bucket of the same name would otherwise replace this one in the reporter.
    pub(super) fn is_in_use(&self) -> bool {
        // Each request, and each release that is not reported yet, has a reference to the queue.
        self.is_told || 1 < Arc::strong_count(&self.line)
    }

    fn begins(&mut self, permit: Permit, keep: Nanos) -> Id {
        let id = self.teller.next_id();
        self.permits
            .insert(permit, Entry { id, keep, is_held: false, known: Known::Perhaps, ends: None });
        id
    }

    /// Records the reply, and returns `true` if the request has its permit.
    ///
    /// - `alone`: the requests in flight are within this replica's limit for store outages.
    /// - `late`: the reply took a heartbeat or more, so the granted permit may expire too soon.
    fn answered(&mut self, permit: Permit, answer: Spoken, alone: bool, late: bool) -> bool {
        let Some(entry) = self.permits.get_mut(&permit) else { return false };
        let Spoken::Answered(Answer { acquired, held }) = answer else {
            self.outage = true;
            if matches!(answer, Spoken::No) {
                entry.known = Known::No;
            }
            entry.is_held = alone;
            StrictEvent::Failed.emit(1);
            return alone;
        };
        (self.outage, self.held) = (false, Some(held));
        self.closed_for = match acquired {
            Acquired::Closed(closed_for) => closed_for,
            Acquired::Held | Acquired::Full => Nanos(0),
        };
        let is_held = acquired == Acquired::Held;
        entry.known = if is_held { Known::Yes } else { Known::No };
        entry.is_held = is_held && !late;
        match acquired {
            Acquired::Held => StrictEvent::Admitted,
            Acquired::Full => StrictEvent::Full,
            Acquired::Closed(_) => StrictEvent::Closed,
        }
        .emit(1);
        entry.is_held
    }

    fn over(&mut self, now: Nanos, permit: Permit) {
        let Some(Entry { id, keep, is_held, known, .. }) = self.permits.remove(&permit) else {
            return;
        };
        if known == Known::No {
            if is_held {
                self.line.moves();
            }
            return;
        }
        let (bucket, line) = (Arc::clone(&self.name), Arc::clone(&self.line));
        let repeats = known == Known::Perhaps;
        self.teller.over(now, Ended { bucket, line, id, due: now, until: now.plus(keep), repeats });
    }
}
