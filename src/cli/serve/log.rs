//! Writes the log to standard error, as text or as one JSON object per line.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::clock::Clock;
use crate::config::settings::{LogFormat, LogLevel, LogSettings};

/// Starts the log. Later calls have no effect.
pub(super) fn start(log: &LogSettings) {
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_max_level(LevelFilter::TRACE);
    let filter = line_filter(log);
    let started = match log.format {
        LogFormat::Text => lines.with_ansi(false).finish().with(filter).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().with(filter).try_init(),
        LogFormat::Compat => {
            let format = RatelimitLogFormat(Clock::system());
            lines.event_format(format).finish().with(filter).try_init()
        }
    };
    drop(started);
}

/// Returns the filter for log lines. Libraries have none: their lines can contain a password of the
/// store, and the service logs all faults in its own words.
fn line_filter(log: &LogSettings) -> Targets {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_target(env!("CARGO_CRATE_NAME"), level)
}

/// The JSON log format of envoyproxy/ratelimit: `@timestamp`, `@message`, the level, and the fields
/// of the event by name.
struct RatelimitLogFormat(Clock);

impl<S, N> FormatEvent<S, N> for RatelimitLogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = LogFields::default();
        event.record(&mut fields);
        let at = jiff::Timestamp::from_nanosecond(self.0.now().0.into()).map_err(|_| fmt::Error)?;
        fields.0.insert("@timestamp".to_owned(), at.to_string().into());
        fields.0.insert("level".to_owned(), level_name(*event.metadata().level()).into());
        writeln!(line, "{}", Value::Object(fields.0))
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

#[derive(Default)]
struct LogFields(Map<String, Value>);

impl LogFields {
    fn insert(&mut self, field: &Field, value: Value) {
        let name = if field.name() == "message" { "@message" } else { field.name() };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }
}
