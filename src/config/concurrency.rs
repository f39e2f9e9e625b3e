//! What `concurrency` of a node means: a ceiling on requests in flight.
//!
//! Guarantees: two ceilings that differ in numbers or words read differently.
//! Leaves out: holding it, which is for [`crate::kernel::concurrency`].

use std::fmt;

use super::resolve::words;
use crate::kernel::concurrency::limiter::{Rules, Waiting};
use crate::kernel::concurrency::policy::Adaptive;
use crate::kernel::units::Nanos;

/// `max_duration` where the file does not say.
pub const MAX_DURATION: Nanos = Nanos::from_secs(60);

/// From which `max_duration` on one that is gone keeps its part of a fleet's ceiling for so long that
/// it is worth a warning.
pub const LONG: Nanos = Nanos::from_secs(300);

/// Up to which ceiling shares are worth a warning: of a few dozen replicas most would have none.
pub const SMALL: u32 = 10;

/// From which ceiling on a call for each request is worth a warning: shares are fine enough by then.
pub const LARGE: u32 = 1_000;

/// Over which replicas a ceiling is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each replica holds it alone.
    Local,
    /// One for the whole fleet, in shares.
    Leased,
    /// One for the whole fleet, of which the store is asked for each permit.
    Strict,
}

/// What one that holds no share may have in flight while the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Nothing.
    Deny,
    /// What was last its fair part of the ceiling, as far as others had let go of that.
    #[default]
    Local,
    /// All that it holds to be right alone.
    Allow,
}

/// A ceiling, and what is answered at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ceiling {
    /// How many, and who waits.
    pub rules: Rules,
    /// Over which replicas; where it is absent the whole fleet's, if there is one.
    pub mode: Option<Mode>,
    /// What counts while the store does not answer; of no meaning where a replica holds it alone.
    pub on_backend_failure: OnFailure,
    /// How long a permit may be out where its release may never come.
    pub max_duration: Nanos,
    /// The answer to one who is turned away.
    pub reject: Reject,
    /// Counted and reported, not enforced: who would be turned away passes.
    pub shadow: bool,
    /// The node's full path, as a rule's.
    pub path: Box<str>,
    /// Where it was written: file and line.
    pub place: Box<str>,
}

/// The answer to one who is turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// When to come again, if anything is said of it.
    pub retry_after: Option<Nanos>,
    /// The body.
    pub body: Box<str>,
}

impl Default for Reject {
    fn default() -> Self {
        Self { status: 503, retry_after: None, body: Box::default() }
    }
}

/// `64 in flight, gradient from 8 to 512, queue of 100 for 300ms, rejected with 503`.
impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rules { limit, adaptive, waiting } = &self.rules;
        write!(f, "{limit} in flight")?;
        if let Some(Adaptive { law, min, max }) = adaptive {
            write!(f, ", {} from {min} to {max}", words::name(words::POLICIES, *law))?;
        }
        if let Some(Waiting { size, timeout }) = waiting {
            write!(f, ", queue of {size} for {timeout}")?;
        }
        if let Some(mode) = self.mode {
            write!(f, ", mode {}", words::name(words::CEILING_MODES, mode))?;
        }
        if self.on_backend_failure != OnFailure::default() {
            let failure = words::name(words::CEILING_FAILURES, self.on_backend_failure);
            write!(f, ", on backend failure {failure}")?;
        }
        if self.max_duration != MAX_DURATION {
            write!(f, ", at most {}", self.max_duration)?;
        }
        write!(f, ", rejected with {}", self.reject)?;
        f.write_str(if self.shadow { ", shadow" } else { "" })
    }
}

/// `503, retry after 1s, "busy"`.
impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.status.fmt(f)?;
        if let Some(retry_after) = self.retry_after {
            write!(f, ", retry after {retry_after}")?;
        }
        if self.body.is_empty() { Ok(()) } else { write!(f, ", {:?}", self.body) }
    }
}
