//! Where log lines go: standard error, as text for people or one JSON object a line.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::clock::Clock;
use crate::config::settings::{LogFormat, LogLevel};

/// Starts the log. A second start, as in tests, changes nothing.
pub(super) fn start(level: LogLevel, format: LogFormat) {
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_env_filter(filter(level));
    let started = match format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        LogFormat::Reference => lines.event_format(Reference(Clock::system())).try_init(),
    };
    drop(started);
}

/// What others write at `trace` is not for people: one tells of every change to a file, and be it the log's own. The client
/// of Redis shows at `debug` whatever it is answered, which can be the password that it sent.
fn filter(level: LogLevel) -> EnvFilter {
    EnvFilter::new(match level.word() {
        "trace" => "debug,sluicegate=trace,fred=info",
        "debug" => "debug,fred=info",
        word => word,
    })
}

/// The keys of the reference's JSON: `@timestamp`, `@message`, `level`, and each field by its name.
struct Reference(Clock);

impl<S, N> FormatEvent<S, N> for Reference
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
        let mut fields = Fields::default();
        event.record(&mut fields);
        let at = jiff::Timestamp::from_nanosecond(self.0.now().0.into()).map_err(|_| fmt::Error)?;
        fields.0.insert("@timestamp".to_owned(), at.to_string().into());
        fields.0.insert("level".to_owned(), level(*event.metadata().level()).into());
        writeln!(line, "{}", Value::Object(fields.0))
    }
}

fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let name = if field.name() == "message" { "@message" } else { field.name() };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}
