//! Where log lines go: standard error, as text for people or one JSON object a line.

use tracing::level_filters::LevelFilter;

use crate::config::settings::{LogFormat, LogLevel};

/// Starts the log. A second start, as in tests, changes nothing.
pub(super) fn start(level: LogLevel, format: LogFormat) {
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_max_level(filter(level));
    let started = match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    drop(started);
}

fn filter(level: LogLevel) -> LevelFilter {
    level.word().parse().unwrap_or(LevelFilter::INFO)
}
