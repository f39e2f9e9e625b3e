//! Counts the log lines of a process during a fault.

use std::time::{Duration, Instant};

use crate::support::service::Service;
use crate::support::waiting::now;

/// The number of repetitions of a fault, far above [`MAX_LINES`].
const REPETITIONS: usize = 100;

const PAUSE: Duration = Duration::from_millis(100);

/// The largest number of lines during one fault, and in each further minute.
const MAX_LINES: usize = 20;

/// The number of full minutes since `began`. A line about a lasting condition is repeated once in
/// each of them.
pub fn minutes_since(began: Instant) -> usize {
    usize::try_from(began.elapsed().as_secs() / 60).unwrap()
}

/// Repeats a fault, and returns the log lines of that time. Fails if there are more than
/// [`MAX_LINES`].
pub fn few_lines_during(service: &Service, mut fault: impl FnMut()) -> Vec<String> {
    let (began, before) = (now(), service.log().lines().count());
    for _ in 0..REPETITIONS {
        fault();
        std::thread::sleep(PAUSE);
    }
    let lines: Vec<_> = service.log().lines().skip(before).map(str::to_owned).collect();
    let most = MAX_LINES * (1 + minutes_since(began));
    assert!(lines.len() <= most, "{} lines:\n{}", lines.len(), lines.join("\n"));
    lines
}

/// Asserts that `conditions` since `began` logged `found` lines: one each, and one more a minute.
pub fn assert_line_count(found: usize, conditions: usize, began: Instant, log: &str) {
    let most = conditions + minutes_since(began);
    assert!((conditions..=most).contains(&found), "{found} lines for {conditions}: {log}");
}

/// The number of lines that contain `text`.
pub fn count(lines: &[String], text: &str) -> usize {
    lines.iter().filter(|line| line.contains(text)).count()
}
