//! Reads the CPU time of a process from `/proc`.
//!
//! Guarantees:
//! - Threads that ended are included.
//!
//! Not covered:
//! - Systems without `/proc`.

use std::io::ErrorKind;

use crate::kernel::units::Nanos;

/// The unit of CPU time in `/proc`, in nanoseconds: `USER_HZ` is 100 on x86-64 and arm64.
const TICK: u64 = 10_000_000;

/// Returns the CPU time of the process `pid` in user and kernel mode, in steps of 10 ms.
///
/// # Errors
/// A message with the file that cannot be read.
pub fn cpu_time(pid: u32) -> Result<Nanos, String> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("no process {pid} on this machine"),
        _ => format!("{path}: {error}"),
    })?;
    parse_stat(&text).ok_or_else(|| format!("{path} is not a Linux stat file"))
}

/// Returns the CPU time in a file `stat`, or `None` if it has another form.
#[must_use]
pub fn parse_stat(text: &str) -> Option<Nanos> {
    // The name in parentheses may contain blanks and parentheses. Field 3 follows it.
    let (_, fields) = text.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, kernel) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    Some(Nanos(user.checked_add(kernel)?.checked_mul(TICK)?))
}
