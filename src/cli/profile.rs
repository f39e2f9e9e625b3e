//! `sluicegate profile`: looks at another process of this program, for the admin port that started it.
//!
//! Guarantees: begins when its standard input says so or ends; ends once its parent is gone.
//! Leaves out: looking ([`take`]).

use std::io::{self, Read as _};
use std::os::unix::process::parent_id;
use std::time::Duration;

use super::args::Profile;
use super::{Outcome, Terminal};
use crate::clock::Clock;
use crate::telemetry::profile::LONGEST;
use crate::telemetry::profile::sampler::{PERIOD, take};

/// Writes the profile to standard output.
pub(super) fn profile(args: &Profile, terminal: &mut Terminal<'_>) -> io::Result<Outcome> {
    let asker = parent_id();
    // The asker says so once this process may look at it.
    let _ended = io::stdin().read(&mut [0])?;
    let clock = Clock::system();
    let length = Duration::from_secs(args.seconds).min(LONGEST);
    match take(args.pid, length, PERIOD, || clock.now().0, || parent_id() == asker) {
        Ok(profile) => terminal.out.write_all(&profile).map(|()| Outcome::Yes),
        Err(why) => writeln!(terminal.err, "{why}").map(|()| Outcome::CouldNotSay),
    }
}
