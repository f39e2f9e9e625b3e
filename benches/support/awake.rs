//! Keeps idle processors awake while latency is measured.
//!
//! A virtual machine returns a halted processor to its host. It gets one back tens of microseconds
//! later, or milliseconds later if the host is busy. Each wake of a sleeping thread takes that much
//! longer. Linux keeps processors awake while a program has `/dev/cpu_dma_latency` open, which
//! needs root (see `pm_qos_interface` in its documentation). Latency benchmarks commonly do this.

use std::fs::{File, OpenOptions};
use std::io::Write as _;

/// Keeps processors awake until it is dropped.
pub(crate) struct Awake {
    _open: File,
}

impl Awake {
    /// Returns `None` without the permission.
    pub(crate) fn please() -> Option<Self> {
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency").ok()?;
        // The maximum wake latency in microseconds.
        file.write_all(&0_i32.to_ne_bytes()).ok()?;
        Some(Self { _open: file })
    }

    /// The same, and prints the result.
    pub(crate) fn or_say() -> Option<Self> {
        let awake = Self::please();
        let what = if awake.is_some() { "are kept awake" } else { "halt as they like" };
        println!("idle processors {what}");
        awake
    }
}
