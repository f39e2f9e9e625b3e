//! Sends signals to processes directly from the test.
//!
//! Guarantees:
//! - No helper process adds milliseconds to a measured time.

use rustix::process::{Pid, Signal, kill_process};

/// Sends a signal by its short name: `STOP`, `CONT`, `TERM`.
pub fn send(process: u32, name: &str) {
    try_send(process, name).unwrap_or_else(|error| panic!("could not send SIG{name}: {error}"));
}

/// [`send`] to a process that may have exited.
pub fn try_send(process: u32, name: &str) -> Result<(), rustix::io::Errno> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).unwrap();
    kill_process(process, named(name))
}

fn named(name: &str) -> Signal {
    match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        other => panic!("no test sends SIG{other}"),
    }
}
