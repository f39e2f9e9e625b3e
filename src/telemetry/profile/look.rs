//! Holds one thread after the other of a process, and reads where it is.
//!
//! Guarantees: a thread is held while its registers and [`STACK`] of its stack are read, and let go with what it was sent meanwhile, or heard to its end if that was
//! its death; one that sleeps is left alone. What a thread took of a processor (`schedstat`) counts for what it was next seen at, however
//! late that is; what it took after it was last seen counts for nothing, so that the sum is at most what was taken. What is kept is bounded.
//! Leaves out: what the addresses are called ([`super::program`]).

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::program::{Program, Registers, registers};
use super::sampler::{Place, Seen};

const NOT_ALLOWED: &str = "this system does not let one process look at another here";

/// How much of a stack is read, in bytes. What is deeper is not seen.
const STACK: usize = 64 << 10;

/// How many places are told apart: 20 MB at most, where each is as deep as can be, and as much for each of the two forms in which they are
/// written.
const MOST_PLACES: usize = 20_000;

/// What is known while it goes on.
pub(super) struct Looking {
    pid: u32,
    memory: File,
    program: Program,
    seen: Seen,
    /// What each thread had taken of a processor when it was last counted, in nanoseconds.
    counted: HashMap<i32, u64>,
    stack: Vec<u8>,
}

impl Looking {
    pub(super) fn at(pid: u32, program: Program) -> Result<Self, String> {
        let memory = File::open(format!("/proc/{pid}/mem"));
        let memory = memory.map_err(|error| format!("{NOT_ALLOWED}: {error}"))?;
        let mut looking = Self {
            pid,
            memory,
            program,
            seen: Seen::new(),
            counted: HashMap::new(),
            stack: vec![0; STACK],
        };
        // What was taken before it began is not of it.
        for thread in looking.threads()? {
            looking.counted.insert(thread, looking.taken(thread).unwrap_or(0));
        }
        looking.try_once()?;
        Ok(looking)
    }

    /// Looks at the first thread, whether it runs or not: where nobody runs for a while, that it may not is seen at once.
    fn try_once(&mut self) -> Result<(), String> {
        let first = i32::try_from(self.pid).map_err(|error| error.to_string())?;
        self.taken(first).ok_or("this system does not say what a thread takes: no schedstat")?;
        let held = self.held(Pid::from_raw(first));
        held.map(drop).map_err(|error| format!("{NOT_ALLOWED}: ptrace: {error}"))
    }

    pub(super) fn done(self) -> (Program, Seen) {
        (self.program, self.seen)
    }

    pub(super) fn look_at_all(&mut self) -> Result<(), String> {
        for thread in self.threads()? {
            self.look_at(thread)?;
        }
        Ok(())
    }

    fn threads(&self) -> Result<Vec<i32>, String> {
        let listed = fs::read_dir(format!("/proc/{}/task", self.pid));
        let listed = listed.map_err(|error| format!("the process is gone: {error}"))?;
        let id = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        Ok(listed.flatten().filter_map(id).collect())
    }

    /// A thread that is gone meanwhile is nobody's loss.
    fn look_at(&mut self, thread: i32) -> Result<(), String> {
        let Some((name, true)) = self.name_and_whether_it_runs(thread) else { return Ok(()) };
        let Some(taken) = self.taken(thread) else { return Ok(()) };
        let held = match self.held(Pid::from_raw(thread)) {
            Ok(held) => held,
            Err(Errno::ESRCH) => return Ok(()),
            // What Linux says of one that has ended and is still listed.
            Err(Errno::EPERM) if !self.runs(thread) => return Ok(()),
            Err(error) => return Err(format!("{NOT_ALLOWED}: ptrace: {error}")),
        };
        let Some((registers, bytes)) = held else { return Ok(()) };
        let stack = self.stack.get(..bytes).unwrap_or_default();
        let addresses = self.program.unwound(registers, stack);
        let before = self.counted.insert(thread, taken).unwrap_or(0);
        let place = self.kept(Place { thread: name, addresses });
        let (times, nanos) = self.seen.entry(place).or_default();
        *times += 1;
        *nanos += taken.saturating_sub(before);
        Ok(())
    }

    /// The place; where too many are known, what the thread began with.
    fn kept(&self, place: Place) -> Place {
        if self.seen.len() < MOST_PLACES || self.seen.contains_key(&place) {
            return place;
        }
        let first = place.addresses.last().copied();
        Place { addresses: first.into_iter().collect(), ..place }
    }

    fn runs(&self, thread: i32) -> bool {
        self.name_and_whether_it_runs(thread).is_some_and(|(_, runs)| runs)
    }

    fn name_and_whether_it_runs(&self, thread: i32) -> Option<(String, bool)> {
        let stat = fs::read_to_string(format!("/proc/{}/task/{thread}/stat", self.pid)).ok()?;
        let (_, rest) = stat.split_once('(')?;
        let (name, rest) = rest.rsplit_once(") ")?;
        Some((name.to_owned(), rest.starts_with('R')))
    }

    /// What the thread took of a processor since it began, in nanoseconds.
    fn taken(&self, thread: i32) -> Option<u64> {
        let path = format!("/proc/{}/task/{thread}/schedstat", self.pid);
        fs::read_to_string(path).ok()?.split(' ').next()?.parse().ok()
    }

    /// Holds the thread while its registers and stack are read; so many bytes of the latter are in `stack` then.
    fn held(&mut self, thread: Pid) -> Result<Option<(Registers, usize)>, Errno> {
        ptrace::seize(thread, ptrace::Options::empty())?;
        ptrace::interrupt(thread)?;
        // A signal for which nix has no name, which nobody here sends, ends the profile, and reaches the thread.
        let sent = match waitpid(thread, Some(WaitPidFlag::__WALL))? {
            WaitStatus::Stopped(_, signal) => Some(signal),
            WaitStatus::PtraceEvent(..) => None,
            _ => return Ok(None),
        };
        let read = self.read(thread);
        let_go(thread, sent, read)
    }

    fn read(&mut self, thread: Pid) -> Result<(Registers, usize), Errno> {
        let registers = registers(&ptrace::getregs(thread)?);
        let read = self.memory.read_at(&mut self.stack, registers.stack);
        Ok((registers, read.unwrap_or(0)))
    }
}

/// Lets a held thread go; none of what was read where it was killed meanwhile.
fn let_go<T>(
    thread: Pid,
    sent: Option<Signal>,
    read: Result<T, Errno>,
) -> Result<Option<T>, Errno> {
    match ptrace::detach(thread, sent) {
        // Who holds it hears of its end first, and its parent not before.
        Err(Errno::ESRCH) => waitpid(thread, Some(WaitPidFlag::__WALL)).map(|_| None),
        let_go => let_go.and(read).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use nix::sys::signal::kill;

    use super::*;

    /// Ends it, also where the test fails.
    struct Busy(Pid);

    impl Drop for Busy {
        fn drop(&mut self) {
            let _gone = kill(self.0, Signal::SIGKILL);
        }
    }

    #[test]
    fn whoever_is_killed_while_it_is_held_is_heard_to_its_end() {
        let script = "while :; do :; done & echo $!; wait";
        let mut parent = Command::new("sh");
        let mut parent = parent.args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Busy(busy) = &Busy(Pid::from_raw(line.trim().parse().unwrap()));
        let busy = *busy;
        ptrace::seize(busy, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(busy).unwrap();
        waitpid(busy, Some(WaitPidFlag::__WALL)).unwrap();
        kill(busy, Signal::SIGKILL).unwrap();
        assert_eq!(let_go(busy, None, Ok(())), Ok(None));
        let heard = waitpid(busy, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG));
        assert_eq!(heard, Err(Errno::ECHILD), "there is nothing more to hear");
        assert!(parent.wait().unwrap().success());
    }
}
