//! Converts Envoy's JSON access log to a recording, with the descriptors of a hook.
//!
//! | field of a line | attribute for the hook |
//! |---|---|
//! | `start_time` | the time of the check: RFC 3339, or seconds since the Unix epoch |
//! | `method`, `path`, `authority` | the headers `:method`, `:path` and `:authority` |
//! | `downstream_remote_address`, or else the last of `x_forwarded_for` | the client's address |
//! | any other, such as `x_api_key` | the request header of that name (`x-api-key`) |
//!
//! Guarantees:
//! - Each unusable line is counted by its cause, with the first line number.
//! - Lines are sorted by `start_time` within [`MAX_PENDING`] lines: Envoy logs a request at its end.
//! - A line has at most [`MAX_LINE_BYTES`]; a longer one is unusable.
//!
//! Not covered:
//! - Decisions: every outcome is [`CheckOutcome::Unknown`].
//! - Actions `metadata`: an access log has no dynamic metadata by name.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::io::{self, BufRead, Read as _, Write};

use serde_json::Value;

use super::call::RecordedDecision;
use super::check_outcome::CheckOutcome;
use super::hashed_values::{ValueHasher, with_values};
use super::header::{CheckOrder, RecordedPlanning, RecordingEnd, RecordingHeader};
use super::percent::Percent;
use super::writer::RecordingWriter;
use crate::config::Config;
use crate::config::hooks::address::ClientAddress;
use crate::config::hooks::{Hook, RequestAttributes};
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::units::{Hits, Nanos};

/// The number of lines within which times are sorted.
pub const MAX_PENDING: usize = 65_536;

/// The largest line, in bytes.
pub const MAX_LINE_BYTES: u64 = 1 << 20;

/// The options of an import.
pub struct ImportOptions<'a> {
    /// The hook whose actions build the descriptors.
    pub hook: &'a Hook,
    /// The salt of hashed values, with the limits whose values stay clear; `None` for clear values.
    pub hashed: Option<([u8; 16], &'a Config)>,
    /// The settings of the replica that affect how checks are planned.
    pub planning: RecordedPlanning,
}

/// The result of an import.
#[derive(Debug, Default)]
pub struct ImportSummary {
    /// The number of lines, without empty ones.
    pub lines: u64,
    /// The end of the recording; `None` if no line was usable, so that nothing was written.
    pub end: Option<RecordingEnd>,
    /// The unusable lines: their number and the first line number, by cause.
    pub unusable: BTreeMap<LineError, (u64, u64)>,
}

/// The reason why a line is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum LineError {
    /// The line is longer than [`MAX_LINE_BYTES`].
    #[error("longer than 1 MiB")]
    TooLong,
    /// The line is no JSON object.
    #[error("no JSON object; set json_format in Envoy's access log")]
    NotJson,
    /// The time is missing or has another form.
    #[error("no `start_time` as RFC 3339 or Unix seconds; add start_time: \"%START_TIME%\"")]
    NoTime,
    /// The fields of the line are not enough for any descriptor of the hook.
    #[error("no descriptor of the hook can be built; log the headers that its actions read")]
    NoDescriptors,
}

/// Writes the requests of the access log `input` to `output` as a recording.
///
/// # Errors
/// The errors of `input` and `output`.
pub fn import(
    mut input: impl BufRead,
    output: impl Write,
    options: &ImportOptions<'_>,
) -> io::Result<ImportSummary> {
    let mut summary = ImportSummary::default();
    let mut sorted = SortedChecks::new(output, options);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let is_cut = line.last() != Some(&b'\n') && line.len() as u64 == MAX_LINE_BYTES;
        if is_cut {
            skip_line(&mut input)?;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        summary.lines += 1;
        let logged = if is_cut { Err(LineError::TooLong) } else { read_line(&line, options.hook) };
        match logged {
            Ok(logged) => sorted.push(logged)?,
            Err(cause) => summary.unusable.entry(cause).or_insert((0, number)).0 += 1,
        }
    }
    summary.end = sorted.finish()?;
    Ok(summary)
}

/// Skips the rest of a line.
fn skip_line(input: &mut impl BufRead) -> io::Result<()> {
    loop {
        let mut rest = Vec::new();
        let length = input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut rest)?;
        if length == 0 || rest.last() == Some(&b'\n') {
            return Ok(());
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LoggedRequest {
    time: Nanos,
    descriptors: Vec<Vec<(String, String)>>,
}

fn read_line(line: &[u8], hook: &Hook) -> Result<LoggedRequest, LineError> {
    let line: Value = serde_json::from_slice(line).map_err(|_| LineError::NotJson)?;
    let Value::Object(fields) = line else { return Err(LineError::NotJson) };
    let texts: HashMap<String, String> = fields
        .into_iter()
        .filter_map(|(name, value)| Some((field_name(&name), text(value)?)))
        .collect();
    let time = texts.get("start-time").and_then(|text| parse_time(text));
    let time = time.ok_or(LineError::NoTime)?;
    let header = |name: &str| {
        let name = match name {
            ":method" => "method",
            ":path" => "path",
            ":authority" | "host" => "authority",
            name => name,
        };
        texts.get(name).map(|value| Cow::Borrowed(value.as_str()))
    };
    let attributes = RequestAttributes {
        first_header_value: &header,
        joined_header_values: &header,
        path: texts.get("path").map_or("", |path| path),
        remote_address: client_address(&texts),
        metadata: &|_| None,
    };
    let descriptors = hook.build_descriptors(&attributes).into_iter().map(|entries| {
        entries.into_iter().map(|(key, value)| (key.to_owned(), value.into_owned())).collect()
    });
    let descriptors: Vec<_> = descriptors.collect();
    if descriptors.is_empty() {
        return Err(LineError::NoDescriptors);
    }
    Ok(LoggedRequest { time, descriptors })
}

/// Returns the name of a field as the name of a header: `x_api_key` is `x-api-key`.
fn field_name(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// Returns the value of a field. Envoy logs a missing value as `null` or `-`.
fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => (text != "-").then_some(text),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Parses `2025-11-20T15:55:25.123Z`, or `1763654125.123` seconds since the Unix epoch.
fn parse_time(text: &str) -> Option<Nanos> {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return u64::try_from(time.as_nanosecond()).ok().map(Nanos);
    }
    let (seconds, decimals) = text.split_once('.').unwrap_or((text, ""));
    if !decimals.bytes().all(|digit| digit.is_ascii_digit()) || 9 < decimals.len() {
        return None;
    }
    let nanos: u64 = format!("{decimals:0<9}").parse().ok()?;
    Some(Nanos::from_secs(seconds.parse().ok()?).plus(Nanos(nanos)))
}

/// Returns the client's address without a port. Envoy's `downstream_remote_address` is the address
/// that `x-forwarded-for` yields by its settings, so it comes first.
fn client_address(texts: &HashMap<String, String>) -> Option<ClientAddress<'_>> {
    let downstream = texts.get("downstream-remote-address");
    let downstream = downstream.and_then(|text| ClientAddress::parse(text));
    let forwarded = || texts.get("x-forwarded-for")?.rsplit(',').find_map(ClientAddress::parse);
    downstream.or_else(forwarded)
}

/// Sorts the last [`MAX_PENDING`] requests by time, and writes the earlier ones.
struct SortedChecks<'a, W> {
    options: &'a ImportOptions<'a>,
    pending: BinaryHeap<Reverse<LoggedRequest>>,
    output: RecordingOutput<W>,
}

enum RecordingOutput<W> {
    NotStarted(W),
    Started(RecordingWriter<W>),
    /// The output failed, and its error was returned.
    Failed,
}

impl<'a, W: Write> SortedChecks<'a, W> {
    fn new(output: W, options: &'a ImportOptions<'a>) -> Self {
        Self { options, pending: BinaryHeap::new(), output: RecordingOutput::NotStarted(output) }
    }

    fn push(&mut self, request: LoggedRequest) -> io::Result<()> {
        self.pending.push(Reverse(request));
        if MAX_PENDING < self.pending.len() { self.write_first() } else { Ok(()) }
    }

    fn write_first(&mut self) -> io::Result<()> {
        let Some(Reverse(request)) = self.pending.pop() else { return Ok(()) };
        self.output.start(request.time, self.options)?;
        let RecordingOutput::Started(writer) = &mut self.output else { return Ok(()) };
        let decision = RecordedDecision {
            time: request.time,
            outcome: CheckOutcome::Unknown,
            denied_by: None,
        };
        let check = request.check(&self.options.hook.domain);
        let Some((salt, config)) = self.options.hashed else {
            return writer.add(&check, decision);
        };
        let Some(values) = ValueHasher::new(salt).hash_values(config, &check) else {
            writer.count_dropped();
            return Ok(());
        };
        writer.add(&with_values(&check, &values), decision)
    }

    fn finish(mut self) -> io::Result<Option<RecordingEnd>> {
        while !self.pending.is_empty() {
            self.write_first()?;
        }
        match self.output {
            RecordingOutput::Started(writer) => writer.finish().map(Some),
            RecordingOutput::NotStarted(_) | RecordingOutput::Failed => Ok(None),
        }
    }
}

impl<W: Write> RecordingOutput<W> {
    fn start(&mut self, started_at: Nanos, options: &ImportOptions<'_>) -> io::Result<()> {
        *self = match std::mem::replace(self, Self::Failed) {
            Self::NotStarted(output) => {
                let header = RecordingHeader {
                    salt: options.hashed.map(|(salt, _)| salt),
                    sample: Percent::ALL,
                    started_at,
                    order: CheckOrder::Requests,
                    planning: options.planning,
                };
                Self::Started(RecordingWriter::start(output, &header)?)
            }
            started => started,
        };
        Ok(())
    }
}

impl LoggedRequest {
    /// Returns the check that Envoy's rate limit filter would have sent: one hit.
    fn check<'a>(&'a self, domain: &'a str) -> Check<'a> {
        let descriptors = self.descriptors.iter().map(|entries| Descriptor {
            entries: entries.iter().map(|(key, value)| (&**key, &**value)).collect(),
            cost: Cost::Charge(Hits(1)),
            limit: None,
        });
        Check { domain, descriptors: descriptors.collect() }
    }
}
