//! The `process_*` metrics of Prometheus' client libraries, for systems with `/proc`.

use std::fmt;
use std::fs;

use super::text_format::{DecimalSeconds, MetricHead};
use crate::kernel::units::Nanos;

/// The unit of CPU times in `/proc/self/stat`: 10 ms on every Linux architecture.
const CPU_TICK: Nanos = Nanos(10 * Nanos::MILLI.0);

/// The resource usage of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Resident memory, in bytes.
    pub resident_bytes: u64,
    /// Virtual memory, in bytes.
    pub virtual_bytes: u64,
    /// CPU time in user and kernel mode.
    pub cpu_time: Nanos,
    /// Open files and sockets.
    pub open_files: u64,
    /// The maximum number of open files and sockets.
    pub max_files: u64,
}

impl ProcessUsage {
    /// Reads the usage of this process. Returns `None` if any value is missing.
    #[must_use]
    pub fn measure() -> Option<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).ok();
        let (status, stat, limits) = (read("status")?, read("stat")?, read("limits")?);
        let files = fs::read_dir("/proc/self/fd").ok()?.count();
        Self::parse(&status, &stat, &limits, u64::try_from(files).unwrap_or(u64::MAX))
    }

    fn parse(status: &str, stat: &str, limits: &str, files: u64) -> Option<Self> {
        let kilobytes = |name: &str| {
            let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.saturating_mul(1024))
        };
        // Count the fields after the process name in parentheses, which may contain any character.
        // Fields 11 and 12 (from 0) are the ticks in user and in kernel mode.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let max_files = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        Some(Self {
            resident_bytes: kilobytes("VmRSS:")?,
            virtual_bytes: kilobytes("VmSize:")?,
            cpu_time: Nanos(ticks(11)?.saturating_add(ticks(12)?).saturating_mul(CPU_TICK.0)),
            open_files: files,
            max_files: max_files.split_whitespace().next()?.parse().unwrap_or(u64::MAX),
        })
    }

    pub(super) fn write(&self, page: &mut fmt::Formatter<'_>) -> fmt::Result {
        MetricHead("process_cpu_seconds_total", "Time on a processor")
            .write_counter(page, DecimalSeconds(self.cpu_time))?;
        let gauges = [
            ("process_resident_memory_bytes", "Resident memory", self.resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory", self.virtual_bytes),
            ("process_open_fds", "Open files and sockets", self.open_files),
            ("process_max_fds", "The largest number of open files and sockets", self.max_files),
        ];
        gauges
            .into_iter()
            .try_for_each(|(name, help, value)| MetricHead(name, help).write_gauge(page, value))
    }
}

#[cfg(test)]
mod tests {
    use super::{Nanos, ProcessUsage};

    #[test]
    fn proc_files_parse_with_parentheses_in_the_process_name() {
        let status = "Name:\tx\nVmSize:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20";
        let limits =
            "Limit Soft Hard\nMax open files            1024                 4096  files\n";
        let expected = ProcessUsage {
            resident_bytes: 1 << 20,
            virtual_bytes: 2 << 20,
            cpu_time: Nanos(1_750_000_000),
            open_files: 9,
            max_files: 1024,
        };
        assert_eq!(ProcessUsage::parse(status, stat, limits, 9), Some(expected));
        assert_eq!(ProcessUsage::parse("", stat, limits, 9), None);
        assert_eq!(ProcessUsage::parse(status, "7 (a) S 1", limits, 9), None);
    }

    #[test]
    fn process_metrics_of_this_process_are_plausible() {
        let usage = ProcessUsage::measure().unwrap();
        assert!(1 << 20 < usage.resident_bytes, "{usage:?}");
        assert!(usage.resident_bytes <= usage.virtual_bytes, "{usage:?}");
        assert!(3 <= usage.open_files && usage.open_files <= usage.max_files, "{usage:?}");
    }
}
