//! Reads rows from CSV or JSON lines.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use crate::last_line::LastLine;
use crate::row::{BadRow, RawRow};
use crate::spec::{FIELDS, check_column};

/// The longest line, in bytes. Also bounds the memory for one row.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// Calls `each` with each row of `input`: JSON lines if it begins with `{`, else comma-separated values
/// with a header line (RFC 4180). A row that cannot be read is an error of its own.
///
/// # Errors
/// The input cannot be read, a line is longer than [`MAX_LINE_BYTES`], the header of CSV is invalid,
/// or `each` fails.
pub fn read_rows(
    input: impl Read,
    each: &mut dyn FnMut(Result<RawRow<'_>, BadRow>) -> io::Result<()>,
) -> io::Result<()> {
    let mut input = BufReader::new(BoundedLines { input, line_bytes: 0 });
    match input.fill_buf()?.trim_ascii_start().first() {
        Some(b'{') | None => read_json_lines(input, each),
        Some(_) => read_csv(input, each),
    }
}

fn read_csv(
    input: impl Read,
    each: &mut dyn FnMut(Result<RawRow<'_>, BadRow>) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader =
        csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(input);
    let header = reader.headers().map_err(csv_error)?.clone();
    check_header(&header).map_err(invalid_data)?;
    let mut record = csv::StringRecord::new();
    loop {
        match reader.read_record(&mut record) {
            Ok(false) => return Ok(()),
            Ok(true) => each(csv_row(&header, &record))?,
            Err(error) if error.is_io_error() => return Err(csv_error(error)),
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                each(Err(BadRow::at(&format!("line {line}"), &error.to_string())))?;
            }
        }
    }
}

fn check_header(header: &csv::StringRecord) -> Result<(), String> {
    if !header.iter().any(|name| name == "id") {
        return Err("the first line has no column `id`; name the columns there".to_owned());
    }
    for (index, name) in header.iter().enumerate() {
        if header.iter().take(index).any(|earlier| earlier == name) {
            return Err(format!("the first line has the column `{name}` twice"));
        }
        if !FIELDS.contains(&name) {
            check_column(name).map_err(|error| format!("the first line: {error}"))?;
        }
    }
    Ok(())
}

fn csv_row<'r>(
    header: &'r csv::StringRecord,
    record: &'r csv::StringRecord,
) -> Result<RawRow<'r>, BadRow> {
    let line = || format!("line {}", record.position().map_or(0, csv::Position::line));
    if header.len() != record.len() {
        let problem = format!("has {} columns, the first line has {}", record.len(), header.len());
        return Err(BadRow::at(&line(), &problem));
    }
    let mut row = RawRow::default();
    let mut set = || {
        let mut columns = header.iter().zip(record.iter());
        columns.try_for_each(|(name, text)| row.set(name, Cow::Borrowed(text)))
    };
    match set() {
        Ok(()) if row.id.is_empty() => Err(BadRow::at(&line(), NO_ID)),
        Ok(()) => Ok(row),
        // A quote that is not closed swallows the lines after it, and the ids in them.
        Err(problem) if row.id.is_empty() || record.iter().any(|field| field.contains('\n')) => {
            Err(BadRow::at(&line(), &problem))
        }
        Err(problem) => Err(BadRow::of_id(&row.id, &problem)),
    }
}

fn read_json_lines(
    mut input: impl BufRead,
    each: &mut dyn FnMut(Result<RawRow<'_>, BadRow>) -> io::Result<()>,
) -> io::Result<()> {
    let (mut line, mut number) = (Vec::new(), 0_u64);
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        number += 1;
        let at = || format!("line {number}");
        match str::from_utf8(&line).map(str::trim) {
            Ok("") => {}
            Ok(text) if LastLine::is_in(text) => {}
            Ok(text) => {
                each(match RawRow::from_json(text) {
                    Ok(row) if row.id.is_empty() => Err(BadRow::at(&at(), NO_ID)),
                    row => row.map_err(|problem| json_bad_row(text, at, &problem)),
                })?;
            }
            Err(_) => each(Err(BadRow::at(&at(), "is not UTF-8")))?,
        }
    }
}

const NO_ID: &str = "the row has no `id`";

/// Names a bad row by its id, if the id can be read.
pub(crate) fn json_bad_row(text: &str, at: impl Fn() -> String, problem: &str) -> BadRow {
    let id = serde_json::from_str::<serde_json::Value>(text).ok().and_then(|row| {
        match row.get("id")? {
            serde_json::Value::String(id) => Some(id.clone()),
            serde_json::Value::Number(id) => Some(id.to_string()),
            _ => None,
        }
    });
    let problem = problem.split(" at line ").next().unwrap_or_default();
    match id {
        Some(id) => BadRow::of_id(&id, problem),
        None => BadRow::at(&at(), problem),
    }
}

/// Fails on a line that is longer than [`MAX_LINE_BYTES`].
struct BoundedLines<R> {
    input: R,
    line_bytes: usize,
}

impl<R: Read> Read for BoundedLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        for part in buffer[..count].split_inclusive(|byte| *byte == b'\n') {
            self.line_bytes += part.len();
            if MAX_LINE_BYTES < self.line_bytes {
                return Err(invalid_data(format!("a line is longer than {MAX_LINE_BYTES} bytes")));
            }
            if part.ends_with(b"\n") {
                self.line_bytes = 0;
            }
        }
        Ok(count)
    }
}

fn invalid_data(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

fn csv_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => invalid_data(format!("{other:?}")),
    }
}
