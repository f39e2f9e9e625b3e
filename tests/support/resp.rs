//! Minimal RESP2 client over a Unix socket, with pipelining.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Socket timeout. It is longer than any Redis command of the tests blocks, and than any stop of
/// Redis (SIGSTOP).
const LONGEST: Duration = Duration::from_secs(180);

/// A RESP2 reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Nil,
    Int(i64),
    /// A simple string or a bulk string.
    Text(Vec<u8>),
    Error(String),
    Array(Vec<Value>),
}

impl Value {
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => panic!("wanted an integer, got {other:?}"),
        }
    }

    pub fn ints(&self) -> Vec<i64> {
        self.array().iter().map(Self::int).collect()
    }

    pub fn array(&self) -> &[Self] {
        match self {
            Self::Array(values) => values,
            other => panic!("wanted an array, got {other:?}"),
        }
    }

    pub fn text(&self) -> String {
        match self {
            Self::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("wanted text, got {other:?}"),
        }
    }
}

#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    unsent: Vec<u8>,
}

impl Client {
    pub fn connect(socket: &Path) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LONGEST))?;
        stream.set_write_timeout(Some(LONGEST))?;
        Ok(Self { stream: BufReader::new(stream), unsent: Vec::new() })
    }

    /// Sends one command and reads its reply.
    pub fn call(&mut self, parts: &[impl AsRef<[u8]>]) -> Value {
        self.queue(parts);
        self.flush();
        self.receive()
    }

    /// Adds a command to the pipeline. [`Client::flush`] sends it.
    pub fn queue(&mut self, parts: &[impl AsRef<[u8]>]) {
        self.unsent.extend(format!("*{}\r\n", parts.len()).into_bytes());
        for part in parts.iter().map(AsRef::as_ref) {
            self.unsent.extend(format!("${}\r\n", part.len()).into_bytes());
            self.unsent.extend(part);
            self.unsent.extend(b"\r\n");
        }
    }

    pub fn flush(&mut self) {
        self.send().unwrap();
    }

    fn send(&mut self) -> std::io::Result<()> {
        let sent = self.stream.get_mut().write_all(&self.unsent);
        self.unsent.clear();
        sent
    }

    /// As [`Client::call`], for a server that may close the connection.
    pub fn try_call(&mut self, parts: &[impl AsRef<[u8]>]) -> std::io::Result<Value> {
        self.queue(parts);
        self.send()?;
        self.try_receive()
    }

    /// Reads the next reply of the pipeline.
    pub fn receive(&mut self) -> Value {
        self.try_receive().unwrap()
    }

    fn try_receive(&mut self) -> std::io::Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let hung_up = || std::io::Error::other("the server hung up");
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(hung_up)?;
        match kind {
            "+" => Ok(Value::Text(rest.as_bytes().to_vec())),
            "-" => Ok(Value::Error(rest.to_owned())),
            ":" => Ok(Value::Int(rest.parse().unwrap())),
            "$" | "*" if rest == "-1" => Ok(Value::Nil),
            "$" => self.bulk(rest.parse().unwrap()),
            "*" => (0..rest.parse().unwrap()).map(|_: usize| self.try_receive()).collect(),
            _ => panic!("not RESP2: {line:?}"),
        }
    }

    fn bulk(&mut self, length: usize) -> std::io::Result<Value> {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Value::Text(bytes))
    }
}

impl FromIterator<Value> for Value {
    fn from_iter<I: IntoIterator<Item = Self>>(values: I) -> Self {
        Self::Array(values.into_iter().collect())
    }
}
