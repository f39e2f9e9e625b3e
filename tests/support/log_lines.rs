//! Counts the log lines of a process during a fault.

use std::time::Duration;

use crate::support::service::Service;
use crate::support::waiting::now;

const FAULT_TIME: Duration = Duration::from_secs(20);

/// The largest number of lines during one fault.
const MAX_LINES: usize = 20;

/// Repeats a fault for [`FAULT_TIME`], and returns the log lines of that time. Fails if there are
/// more than [`MAX_LINES`].
pub fn few_lines_during(service: &Service, mut fault: impl FnMut()) -> Vec<String> {
    let (began, before) = (now(), service.log().lines().count());
    while now() - began < FAULT_TIME {
        fault();
        std::thread::sleep(Duration::from_millis(100));
    }
    let lines: Vec<_> = service.log().lines().skip(before).map(str::to_owned).collect();
    assert!(lines.len() <= MAX_LINES, "{} lines:\n{}", lines.len(), lines.join("\n"));
    lines
}

/// The number of lines that contain `text`.
pub fn count(lines: &[String], text: &str) -> usize {
    lines.iter().filter(|line| line.contains(text)).count()
}
