//! Looks at a process from outside, for as long as it is told.
//!
//! Guarantees: whoever is looked at goes on whatever becomes of this process, which may be killed at any time: Linux lets a
//! thread go whose holder is gone. See [`super::look`] for what is done to it.
//! Leaves out: other systems than Linux, on which it says so.

use std::collections::HashMap;
use std::time::Duration;

use super::encode::{When, encode};
use super::look::Looking;
use super::program::Program;

/// Between two looks, as Go's.
pub const PERIOD: Duration = Duration::from_millis(10);

/// What was seen, how often, and how many nanoseconds of a processor it stands for.
pub(super) type Seen = HashMap<Place, (u64, u64)>;

/// Where a thread was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// The name of the thread.
    pub(super) thread: String,
    /// The instruction first, then what it returns to.
    pub(super) addresses: Vec<u64>,
}

/// Looks at process `pid` every `period` for `length`, and gives gzip of pprof's `profile.proto`. `now` is a clock in nanoseconds
/// since the Unix epoch; `go_on` says before each look whether anybody still wants it.
///
/// # Errors
/// In words, where this system or its settings do not let one process look at another.
pub fn take(
    pid: u32,
    length: Duration,
    period: Duration,
    now: impl Fn() -> u64,
    go_on: impl Fn() -> bool,
) -> Result<Vec<u8>, String> {
    let program = Program::read(pid)?;
    let began = now();
    let took = || now().saturating_sub(began);
    let mut looking = Looking::at(pid, program)?;
    while u128::from(took()) < length.as_nanos() {
        if !go_on() {
            return Err("nobody waits for it any more".to_owned());
        }
        looking.look_at_all()?;
        std::thread::sleep(period);
    }
    let (program, seen) = looking.done();
    encode(&program, &seen, When { began, took: took(), period }).map_err(|error| error.to_string())
}
