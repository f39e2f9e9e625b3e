//! Signals for processes, sent by the test itself: another process that sends them takes milliseconds on a busy machine,
//! which a test would count as those of what it looks at.

use rustix::process::{Pid, Signal, kill_process};

/// Sends it, by its name: `STOP`, `CONT`, `TERM`.
///
/// # Panics
/// Where there is no such process or signal.
pub fn send(process: u32, name: &str) {
    try_send(process, name).unwrap_or_else(|error| panic!("could not send SIG{name}: {error}"));
}

/// The same to a process that may have gone.
///
/// # Errors
/// Where it has.
pub fn try_send(process: u32, name: &str) -> Result<(), rustix::io::Errno> {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).unwrap();
    kill_process(process, named(name))
}

fn named(name: &str) -> Signal {
    match name {
        "CONT" => Signal::CONT,
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "KILL" => Signal::KILL,
        "STOP" => Signal::STOP,
        "TERM" => Signal::TERM,
        other => panic!("no test sends SIG{other}"),
    }
}
