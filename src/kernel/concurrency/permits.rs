//! The permits of one ceiling for which every request asks one store.
//!
//! ```
//! use sluicegate::kernel::concurrency::permits::{Acquired, Ask, Id, Permits, Times};
//! use sluicegate::kernel::units::{Nanos, Share};
//!
//! let [silence, grace, longest] = [2, 4, 60].map(Nanos::from_secs);
//! let times = Times { silence, grace, longest };
//! let ask = |number| Ask { id: Id(7, number), limit: Share(1), keep: Nanos::from_secs(3), times };
//! let (mut permits, now, open) = (Permits::default(), Nanos::from_secs(1_000), Nanos(0));
//! assert_eq!(permits.acquire(now, open, &ask(0)), Acquired::Held);
//! assert_eq!(permits.acquire(now, open, &ask(0)), Acquired::Held, "the same one again");
//! assert_eq!(permits.acquire(now, open, &ask(1)), Acquired::Full);
//! assert_eq!(permits.acquire(now.plus(Nanos::from_secs(3)), open, &ask(1)), Acquired::Held);
//! ```
//!
//! Guarantees: whoever is newly admitted is at most the limit-th that is held; a permit counts from its
//! acquire until it is given back or its deadline comes, and each telling moves the deadline. What is told
//! is held, whether the store knows of it or not: requests in flight are a fact, and a store that forgot
//! must count them. A store that may have forgotten admits nobody until all had the time to tell ([`Life`]).
//! Cost: O(log n) for each permit that is asked for, told or over.
//! Leaves out: who asks when, and who waits; one replica's own ceiling ([`super::limiter`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::kernel::units::{Nanos, Share};

/// One permit in the whole fleet: whose life it is of, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64, pub u64);

/// What all who ask for permits of a ceiling agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// For how long a store that may have forgotten admits nobody: until every replica has told what it
    /// holds.
    pub grace: Nanos,
    /// After how long without a word of anybody a store must doubt: less than a permit is held without being
    /// told, by as much as tellings of replicas lie apart.
    pub silence: Nanos,
    /// The longest time for which a permit is ever told. A deadline beyond it was set by another clock.
    pub longest: Nanos,
}

/// One asks for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Which it will be. Asking twice is asking once.
    pub id: Id,
    /// How many may be held.
    pub limit: Share,
    /// For how long it is held unless it is told again.
    pub keep: Nanos,
    /// What all agree on.
    pub times: Times,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is held.
    Held,
    /// As many are held as may be.
    Full,
    /// For so long the store cannot say: it may have forgotten who holds what.
    Closed(Nanos),
}

/// What a telling found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many of those held were not known.
    pub put_back: u64,
    /// How many of those over were known.
    pub freed: u64,
}

/// All permits of one ceiling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permits {
    until: BTreeMap<Id, Nanos>,
    deadlines: BTreeSet<(Nanos, Id)>,
}

impl Permits {
    /// Asks for one, at a store that admits nobody for `closed_for` still.
    pub fn acquire(&mut self, now: Nanos, closed_for: Nanos, ask: &Ask) -> Acquired {
        self.expire(now);
        if !self.until.contains_key(&ask.id) {
            if Nanos(0) < closed_for {
                return Acquired::Closed(closed_for);
            }
            if ask.limit <= self.held() {
                self.mend(now.plus(ask.times.longest));
                return Acquired::Full;
            }
        }
        self.put(ask.id, now.plus(ask.keep));
        Acquired::Held
    }

    /// Hears which are `held`, each for how long still, and which are `over`.
    pub fn tell(&mut self, now: Nanos, held: &[(Id, Nanos)], over: &[Id]) -> Found {
        self.expire(now);
        let mut found = Found::default();
        for &(id, keep) in held {
            let is_new = self.put(id, now.plus(keep));
            found.put_back = found.put_back.saturating_add(u64::from(is_new));
        }
        for id in over {
            found.freed = found.freed.saturating_add(u64::from(self.take(id)));
        }
        found
    }

    /// How many are held, those whose deadline came since the last call among them.
    #[must_use]
    pub fn held(&self) -> Share {
        Share(u64::try_from(self.until.len()).unwrap_or(u64::MAX))
    }

    /// When the last of them is over; nothing where none is held.
    #[must_use]
    pub fn last(&self) -> Option<Nanos> {
        self.deadlines.last().map(|&(until, _)| until)
    }

    fn expire(&mut self, now: Nanos) {
        while let Some(&(until, id)) = self.deadlines.first() {
            if now < until {
                return;
            }
            self.take(&id);
        }
    }

    /// A clock that was set back left deadlines that nobody told: none is after `latest`.
    fn mend(&mut self, latest: Nanos) {
        while let Some(&(until, id)) = self.deadlines.last() {
            if until <= latest {
                return;
            }
            self.put(id, latest);
        }
    }

    /// True where it was not known.
    fn put(&mut self, id: Id, until: Nanos) -> bool {
        let is_new = !self.take(&id);
        self.until.insert(id, until);
        self.deadlines.insert((until, id));
        is_new
    }

    /// False where it was not known.
    fn take(&mut self, id: &Id) -> bool {
        let until = self.until.remove(id);
        until.is_some_and(|until| self.deadlines.remove(&(until, *id)))
    }
}

/// One life of a store: from when on it knows who holds what, and when it was last told.
///
/// Guarantees: every replica that tells once within the grace what it holds is counted before anybody is
/// admitted. Leaves out: permits whose replica is gone, which nobody tells again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    opens_at: Nanos,
    told_at: Nanos,
}

impl Life {
    /// A store that has forgotten, or is new: it cannot tell which.
    #[must_use]
    pub const fn begin(now: Nanos, grace: Nanos) -> Self {
        Self { opens_at: now.plus(grace), told_at: now }
    }

    /// A store that nobody can hold anything of, and that doubts nothing before it is told of something.
    #[must_use]
    pub const fn settled() -> Self {
        Self { opens_at: Nanos(0), told_at: Nanos(u64::MAX) }
    }

    /// For how long nobody is admitted still. Never for longer than the grace, whatever the clock did.
    ///
    /// Silence is as forgetting: of a store that stood still, that nobody could reach, or whose clock leapt,
    /// permits may have ended that nobody could tell.
    pub fn closed_for(&mut self, now: Nanos, times: &Times) -> Nanos {
        if self.told_at.plus(times.silence) <= now {
            *self = Self::begin(now, times.grace);
        }
        self.opens_at = self.opens_at.min(now.plus(times.grace));
        self.opens_at.since(now)
    }

    /// Somebody told what it holds, if only that it holds nothing.
    pub const fn told(&mut self, now: Nanos) {
        self.told_at = now;
    }
}
