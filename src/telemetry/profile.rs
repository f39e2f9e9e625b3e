//! Where this process spends its time on processors, for whoever asks.
//!
//! Guarantees: nothing runs in the process for it but the asking. A child of it ([`sampler`]) looks from outside a hundred times
//! a second, and only at threads that want a processor: each is stopped while its registers and the top of its stack are read. The child ends
//! with its time, with the asker and with this process, and a thread that it had stopped goes on when it ends, however that was.
//! One at a time, for [`LONGEST`] at most.
//! Leaves out: memory; what the kernel does for a thread; systems other than Linux on x86-64 and arm64.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod encode;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod look;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod program;
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod sampler;
#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[path = "profile/nowhere.rs"]
pub mod sampler;

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, TryAcquireError};
use tokio::time::timeout;

/// For so long one may be taken.
pub const LONGEST: Duration = Duration::from_secs(300);

/// What the child may take for reading the program and writing the profile, where a debug build's names are many.
const AROUND: Duration = Duration::from_secs(30);

/// The command that is the child.
const COMMAND: &str = "profile";

static ONE_AT_A_TIME: Semaphore = Semaphore::const_new(1);

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Another is being taken.
    #[error("another profile is being taken: ask again when it is done")]
    Busy,
    /// The system does not let one process look at another, or not here.
    #[error("{0}")]
    CannotLook(String),
    /// The profiler did not come to its end.
    #[error("no profile: {0}")]
    Failed(String),
}

/// Takes a profile of this process for so long: gzip of pprof's `profile.proto`.
///
/// # Errors
/// When another is being taken, when the system does not allow it, and when it came to nothing; with the reason.
pub async fn take(seconds: u64) -> Result<Vec<u8>, Refused> {
    let one = ONE_AT_A_TIME.try_acquire();
    let _one = one.map_err(|_: TryAcquireError| Refused::Busy)?;
    tracing::info!(seconds, "a profile is taken");
    let length = Duration::from_secs(seconds).min(LONGEST);
    let failed = |error: std::io::Error| Refused::Failed(error.to_string());
    let child = begin(length).await.map_err(failed)?;
    let Ok(ended) = timeout(length + AROUND, child.wait_with_output()).await else {
        return Err(Refused::Failed("the profiler did not come to an end".to_owned()));
    };
    let ended = ended.map_err(failed)?;
    if ended.status.success() {
        return Ok(ended.stdout);
    }
    let why = String::from_utf8_lossy(&ended.stderr);
    let Some(why) = why.lines().next() else {
        return Err(Refused::Failed(format!("the profiler ended: {}", ended.status)));
    };
    Err(Refused::CannotLook(why.to_owned()))
}

/// Starts the child, which is killed when it is dropped, and lets it look.
async fn begin(length: Duration) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    let own = std::process::id().to_string();
    let seconds = length.as_secs().to_string();
    // The name that the process was started under may mean other words.
    command.arg0("sluicegate").args([COMMAND, "--pid", &own, "--seconds", &seconds]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).env_clear().spawn()?;
    if let Some(id) = child.id() {
        let_look(id);
    }
    if let Some(mut told) = child.stdin.take() {
        // One that has ended already has said why.
        told.write_all(b"\n").await.ok();
    }
    Ok(child)
}

/// Where Linux lets only a process' parents look at it (Yama), names the child beside them.
#[cfg(target_os = "linux")]
fn let_look(child: u32) {
    use rustix::process::{PTracer, Pid, set_ptracer};
    let Some(child) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return };
    // Where there is no Yama it cannot be said, and need not be.
    set_ptracer(PTracer::ProcessID(child)).ok();
}

#[cfg(not(target_os = "linux"))]
fn let_look(_: u32) {}
