//! This replica's permits of one ceiling for which every request asks the store.
//!
//! Guarantees: what the store may know of is told over once it is not held any more, whatever ended it: its
//! release, its deadline, a caller that left while the store was asked. Only what the store granted, or what
//! `on_backend_failure` let pass, is told as held.
//! Leaves out: asking and waiting ([`super::super::strict`]), and telling ([`super::super::teller`]).

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

/// One ceiling, as this replica has it.
#[derive(Debug)]
pub(super) struct Strict {
    name: Arc<[u8]>,
    teller: Arc<Teller>,
    pub(super) line: Arc<Line>,
    permits: HashMap<Permit, Entry>,
    /// The teller has it on its list.
    is_told: bool,
    limit: u32,
    /// The longest that a request may go on.
    max_duration: Nanos,
    held: Option<Share>,
    closed_for: Nanos,
    outage: bool,
}

/// One permit.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: Id,
    /// For how long the store keeps it without another word.
    keep: Nanos,
    is_held: bool,
    known: Known,
    /// When it is over at the latest, where its end will not be seen.
    ends: Option<Nanos>,
}

/// Whether the store knows of a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    No,
    /// It was asked, and has not answered: what was asked may yet arrive.
    Perhaps,
    Yes,
}

impl Bucket {
    /// One comes: its rules are in force from now on, unless those of a later configuration are. Nothing where
    /// this bucket is no longer the one of its name.
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

    /// A place of this replica's own, and the name and the limit by which the store is to be asked for it, which
    /// keeps it for `kept` without another word.
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

    /// Whether `permit`, which the store was asked for at `sent`, is held; what is not is to be dropped.
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

    /// What the store is to be told of: each permit that is held, for how long still. Nothing where none is,
    /// and then the teller's list has it no more.
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

    /// The request of `permit` goes on, and its end will not be seen here: the store keeps it for as long as it may take.
    pub(in crate::engine::admit) fn goes_on(&self, clock: &Clock, permit: Permit) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict else { return };
        let ends = clock.steady().plus(strict.max_duration);
        if let Some(entry) = strict.permits.get_mut(&permit) {
            entry.ends = Some(ends);
        }
    }

    /// The same of all whose end is seen: no more ends are.
    pub(in crate::engine::admit) fn all_go_on(&self, clock: &Clock) {
        let mut state = self.0.lock();
        let Some(strict) = &mut state.strict else { return };
        let ends = clock.steady().plus(strict.max_duration);
        for entry in strict.permits.values_mut() {
            entry.ends.get_or_insert(ends);
        }
    }

    /// What the store said to it.
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
    /// `permit` is not held any more.
    pub(super) fn over(&mut self, now: Nanos, permit: Permit) {
        if let Some(strict) = &mut self.strict {
            strict.over(now, permit);
        }
    }

    pub(super) fn in_line(&self) -> usize {
        self.strict.as_ref().map_or(0, |strict| strict.line.waiting())
    }
}

/// What came of asking the store.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::admit) enum Spoken {
    /// It answered.
    Answered(Answer),
    /// It was asked and did not answer.
    Unanswered,
    /// It was not asked.
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

    /// Whether one who came is here still, asking or in line, or the store is to be told of one: a bucket of the
    /// same name beside this one would be told in its place.
    pub(super) fn is_in_use(&self) -> bool {
        // Who comes takes the line along, under the bucket's lock, and so does what is over and not told yet.
        self.is_told || 1 < Arc::strong_count(&self.line)
    }

    fn begins(&mut self, permit: Permit, keep: Nanos) -> Id {
        let id = self.teller.next_id();
        self.permits
            .insert(permit, Entry { id, keep, is_held: false, known: Known::Perhaps, ends: None });
        id
    }

    /// `alone` says whether this replica may have as many in flight while the store does not answer; an
    /// answer that took a beat is as good as none, because what it granted may be over soon.
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
