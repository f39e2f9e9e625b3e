//! The lines of a stream of server-sent events (WHATWG HTML, section 9.2.6), in chunks.
//!
//! Guarantees:
//! - A line ends with CR, LF or CRLF. One byte order mark at the beginning is skipped.
//! - Only the values of `data` lines are read. A line feed separates them.
//! - No line is buffered.

/// The name of the field with data, after the optional byte order mark of the stream.
const NAME: &[u8] = b"\xEF\xBB\xBFdata";

/// The length of the byte order mark.
const MARK_BYTES: usize = 3;

/// A part of an event.
pub(crate) enum EventPart<'c> {
    /// The next bytes of the data.
    Data(&'c [u8]),
    /// An empty line: the event is complete.
    End,
}

/// The position in a line.
#[derive(Debug, Clone, Copy)]
enum LinePlace {
    /// In the name of the field; that many bytes of [`NAME`] were read or are not needed.
    Name(usize),
    /// After `data:`, before an optional space.
    Colon,
    /// In the data.
    Data,
    /// In a comment or another field.
    Other,
}

/// Splits a stream into the data of its events.
#[derive(Debug)]
pub(crate) struct EventLines {
    place: LinePlace,
    /// The last byte was CR: a line feed belongs to it.
    is_after_cr: bool,
}

impl Default for EventLines {
    fn default() -> Self {
        Self { place: LinePlace::Name(0), is_after_cr: false }
    }
}

impl EventLines {
    /// Reads the next chunk and emits its parts in order.
    pub(crate) fn push(&mut self, mut chunk: &[u8], mut emit: impl FnMut(EventPart<'_>)) {
        while let Some((&byte, rest)) = chunk.split_first() {
            let is_second_end = self.is_after_cr && byte == b'\n';
            self.is_after_cr = byte == b'\r';
            chunk = match self.place {
                _ if is_second_end => rest,
                _ if is_line_end(byte) => {
                    self.end_line(&mut emit);
                    rest
                }
                LinePlace::Name(read) => {
                    self.read_name(read, byte, &mut emit);
                    rest
                }
                LinePlace::Colon => {
                    self.place = LinePlace::Data;
                    if byte == b' ' { rest } else { chunk }
                }
                LinePlace::Data | LinePlace::Other => self.read_value(chunk, &mut emit),
            };
        }
    }

    fn end_line(&mut self, emit: &mut impl FnMut(EventPart<'_>)) {
        if let LinePlace::Name(MARK_BYTES) = self.place {
            emit(EventPart::End);
        }
        self.place = LinePlace::Name(MARK_BYTES);
    }

    fn read_name(&mut self, read: usize, byte: u8, emit: &mut impl FnMut(EventPart<'_>)) {
        let is_without_mark = read == 0 && NAME.first() != Some(&byte);
        let read = if is_without_mark { MARK_BYTES } else { read };
        self.place = if NAME.get(read) == Some(&byte) {
            LinePlace::Name(read + 1)
        } else if read == NAME.len() && byte == b':' {
            emit(EventPart::Data(b"\n"));
            LinePlace::Colon
        } else {
            LinePlace::Other
        };
    }

    /// Reads up to the end of the line, and returns the rest of the chunk.
    fn read_value<'c>(&self, chunk: &'c [u8], emit: &mut impl FnMut(EventPart<'_>)) -> &'c [u8] {
        let end = chunk.iter().position(|&byte| is_line_end(byte)).unwrap_or(chunk.len());
        let (value, rest) = chunk.split_at(end);
        if matches!(self.place, LinePlace::Data) {
            emit(EventPart::Data(value));
        }
        rest
    }
}

const fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}
