//! A profile as pprof reads it: gzip of `profile.proto` (github.com/google/pprof, proto/profile.proto).
//!
//! Guarantees: what is said once is listed once; strings are numbered from the empty one, everything else from 1, as that file asks.
//! Leaves out: lines of source, which pprof finds in the program where it is told to (`-symbolize=force`).

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;

use super::program::{Program, Range};
use super::sampler::Seen;

/// When it was looked, in nanoseconds, the first since the Unix epoch; and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    pub(super) began: u64,
    pub(super) took: u64,
    pub(super) period: Duration,
}

/// Of `profile.proto` what is written here, by its numbers.
#[derive(Clone, PartialEq, prost::Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    of: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(uint64, tag = "4")]
    file_offset: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
}

/// What is being written, and the numbers of what is in it.
#[derive(Default)]
struct Writing {
    profile: Profile,
    strings: HashMap<String, i64>,
    locations: HashMap<u64, u64>,
    functions: HashMap<String, u64>,
}

/// The profile of what was seen of a program.
pub(super) fn encode(program: &Program, seen: &Seen, when: When) -> std::io::Result<Vec<u8>> {
    let mut writing = Writing::default();
    writing.string("");
    writing.head(when);
    let names = program.names(seen.keys().flat_map(|place| &place.addresses).copied());
    let with_names: HashSet<_> =
        names.keys().filter_map(|address| program.range_of(*address)).collect();
    for (at, range) in program.ranges().iter().enumerate() {
        let mapping = writing.mapping(range, (at as u64 + 1, with_names.contains(&at)));
        writing.profile.mapping.push(mapping);
    }
    for (place, (times, nanos)) in seen {
        let at = |address: &u64| writing.location(program, *address, names.get(address));
        let location_id = place.addresses.iter().map(at).collect();
        let label = Label { key: writing.string("thread"), str: writing.string(&place.thread) };
        let value = vec![signed(*times), signed(*nanos)];
        writing.profile.sample.push(Sample { location_id, value, label: vec![label] });
    }
    let mut zipped = GzEncoder::new(Vec::new(), Compression::default());
    zipped.write_all(&writing.profile.encode_to_vec())?;
    zipped.finish()
}

impl Writing {
    fn head(&mut self, when: When) {
        let samples = ValueType { of: self.string("samples"), unit: self.string("count") };
        let cpu = ValueType { of: self.string("cpu"), unit: self.string("nanoseconds") };
        self.profile.sample_type = vec![samples, cpu];
        self.profile.period_type = Some(cpu);
        self.profile.period = signed(u64::try_from(when.period.as_nanos()).unwrap_or(u64::MAX));
        self.profile.time_nanos = signed(when.began);
        self.profile.duration_nanos = signed(when.took);
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let number = signed(self.profile.string_table.len() as u64);
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), number);
        number
    }

    fn mapping(&mut self, range: &Range, (id, has_functions): (u64, bool)) -> Mapping {
        Mapping {
            id,
            memory_start: range.begins,
            memory_limit: range.ends,
            file_offset: range.offset,
            filename: self.string(&range.path),
            build_id: self.string(&range.build_id),
            has_functions,
        }
    }

    fn location(&mut self, program: &Program, address: u64, name: Option<&String>) -> u64 {
        if let Some(known) = self.locations.get(&address) {
            return *known;
        }
        let id = self.profile.location.len() as u64 + 1;
        let line = name.map(|name| Line { function_id: self.function(name) });
        let mapping_id = program.range_of(address).map_or(0, |at| at as u64 + 1);
        let line = line.into_iter().collect();
        self.profile.location.push(Location { id, mapping_id, address, line });
        self.locations.insert(address, id);
        id
    }

    fn function(&mut self, name: &str) -> u64 {
        if let Some(known) = self.functions.get(name) {
            return *known;
        }
        let id = self.profile.function.len() as u64 + 1;
        let plain = format!("{:#}", rustc_demangle::demangle(name));
        let function = Function { id, name: self.string(&plain), system_name: self.string(name) };
        self.profile.function.push(function);
        self.functions.insert(name.to_owned(), id);
        id
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
