//! Processors that do not halt while nothing is to be done.
//!
//! A virtual machine whose processor halts gives it back to its host, and is given one again tens of microseconds later, or
//! milliseconds where the host is busy: each wake of a sleeping thread is that much longer, whatever the thread belongs to.
//! Linux keeps processors awake while a program asks for it, as benches of latency commonly do (`/dev/cpu_dma_latency`,
//! the `pm_qos_interface` of its documentation); it takes root.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// Until it is dropped.
pub(crate) struct Awake {
    _open: File,
}

impl Awake {
    /// `None` where it may not be asked for.
    pub(crate) fn please() -> Option<Self> {
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency").ok()?;
        // The longest that a wake may take, in microseconds.
        file.write_all(&0_i32.to_ne_bytes()).ok()?;
        Some(Self { _open: file })
    }

    /// The same, and says which it is.
    pub(crate) fn or_say() -> Option<Self> {
        let awake = Self::please();
        let what = if awake.is_some() { "are kept awake" } else { "halt as they like" };
        println!("idle processors {what}");
        awake
    }
}
