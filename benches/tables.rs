//! Loads, changes and looks up a table of a million rows.
//!
//! `cargo bench -p sluicegate-tables`. Ids have 24 bytes, there are 5 plans, and 1 % of the rows have an own
//! number. Prints memory and times, each beside its baseline in the same run. Bounds:
//! - The table needs at most 100 MB.
//! - A load from CSV takes at most 3 s.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)]

use std::fmt::Write as _;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use sluicegate_kernel::units::Nanos;
use sluicegate_tables::{
    Amount, BadRow, Loading, RawRow, Table, TableSpec, read_copy, read_rows, write_copy,
};

const ROWS: usize = 1_000_000;
const LOOKUPS: usize = 1_000_000;

fn id(number: usize) -> String {
    format!("customer-{number:015}")
}

fn csv() -> String {
    let mut text = "id,plan,api,in_flight\n".to_owned();
    for number in 0..ROWS {
        let own =
            if number.is_multiple_of(100) { (number / 100 + 1).to_string() } else { String::new() };
        writeln!(text, "{},plan{},{own},", id(number), number % 5).unwrap();
    }
    text
}

fn spec() -> Arc<TableSpec> {
    let plan = |number: u32| {
        let amounts = [
            ("api".into(), Amount::from_number(60 * number)),
            ("in_flight".into(), Amount::from_number(number)),
        ];
        (format!("plan{}", number - 1).into(), amounts.into())
    };
    Arc::new(TableSpec::new("customers", (1..=5).map(plan).collect(), 10).unwrap())
}

fn load(text: &str, before: Option<&Table>) -> Table {
    let mut loading = Loading::new(spec(), before);
    let mut add = |row: Result<RawRow<'_>, BadRow>| {
        loading.add(row, &|_, _| Ok(())).map_err(io::Error::other)
    };
    read_rows(text.as_bytes(), &mut add).unwrap();
    let (table, report) = loading.finish().unwrap();
    assert_eq!((report.bad, table.rows()), (0, ROWS));
    table
}

/// The resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix(" kB"));
    line.unwrap().trim().parse::<u64>().unwrap() * 1_024
}

/// Runs `work` and prints its time. Returns its result.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    println!("{what:<52} {:>12.3} ms", begun.elapsed().as_secs_f64() * 1e3);
    result
}

fn main() {
    let text = csv();
    let before = resident();
    let table = timed("load from CSV", || load(&text, None));
    let bytes = resident().saturating_sub(before);
    println!("{:<52} {:>12} MB", "memory of the table, as resident", bytes / 1_000_000);
    timed("baseline: the same CSV, only parsed", || {
        let mut rows = 0_usize;
        let mut count = |row: Result<RawRow<'_>, BadRow>| {
            rows += usize::from(row.is_ok());
            Ok(())
        };
        read_rows(text.as_bytes(), &mut count).unwrap();
        assert_eq!(rows, ROWS);
    });
    timed("load again, beside the version in use", || drop(load(&text, Some(&table))));
    let mut copy = Vec::new();
    timed("write the copy", || write_copy(&table, &mut copy).unwrap());
    timed("read the copy", || drop(read_copy(&spec(), &*copy, &|_, _| Ok(())).unwrap()));
    let change = format!("{{\"id\": \"{}\", \"api\": 7}}", id(ROWS / 2));
    timed("change one row", || {
        table.with_json_changes(&change, &[], &|_, _| Ok(())).unwrap();
    });
    let (column, ids): (_, Vec<_>) =
        (table.column("api").unwrap(), (0..LOOKUPS).map(|at| id(at * 7919 % ROWS)).collect());
    timed("a million lookups", || {
        for id in &ids {
            black_box(table.lookup(id, column, Nanos(0)));
        }
    });
    let map: std::collections::HashMap<_, _> = ids.iter().map(|id| (id.clone(), 7_u32)).collect();
    timed("baseline: a million lookups in the standard library", || {
        for id in &ids {
            black_box(map.get(id));
        }
    });
}
