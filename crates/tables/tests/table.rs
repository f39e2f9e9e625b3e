//! Loads and changes of a table, compared with a map.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_kernel::units::Nanos;
use sluicegate_tables::{
    Amount, BadRow, CopyError, LoadError, LoadReport, Loading, Lookup, MAX_LINE_BYTES, RawRow,
    Table, TableSpec, read_copy, read_rows, write_copy,
};

const NOW: Nanos = Nanos::from_secs(1_000_000);

fn spec_with(max_shrink: u8) -> Arc<TableSpec> {
    let plan = |amounts: &[(&str, &str)]| {
        amounts.iter().map(|(column, text)| ((*column).into(), text.parse().unwrap())).collect()
    };
    let plans = BTreeMap::from([
        ("free".into(), plan(&[("api", "60"), ("in_flight", "2")])),
        ("gold".into(), plan(&[("api", "5000"), ("in_flight", "unlimited")])),
    ]);
    Arc::new(TableSpec::new("customers", plans, max_shrink).unwrap())
}

fn spec() -> Arc<TableSpec> {
    spec_with(10)
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a check")]
fn any_number(_: &str, _: NonZeroU32) -> Result<(), String> {
    Ok(())
}

fn load_over(before: Option<&Table>, rows: &str) -> Result<(Table, LoadReport), LoadError> {
    let spec = before.map_or_else(spec, |before| Arc::clone(before.spec()));
    let mut loading = Loading::new(spec, before);
    let mut add = |row: Result<RawRow<'_>, BadRow>| {
        loading.add(row, &any_number).map_err(std::io::Error::other)
    };
    read_rows(rows.as_bytes(), &mut add).unwrap();
    loading.finish()
}

fn load(rows: &str) -> (Table, LoadReport) {
    load_over(None, rows).unwrap()
}

fn change(table: &Table, rows: &str) -> Result<(Table, LoadReport), LoadError> {
    table.with_changes(
        rows.lines().map(|line| Ok(RawRow::from_json(line).unwrap())),
        &[],
        &any_number,
    )
}

fn lookup(table: &Table, id: &str, column: &str) -> Lookup {
    table.lookup(id, table.column(column).unwrap(), NOW)
}

fn number(number: u32) -> Lookup {
    Lookup::Found(Amount::from_number(number))
}

#[test]
fn the_own_amount_precedes_the_amount_of_the_plan() {
    let (table, report) = load(
        r#"{"id": "acme", "plan": "gold", "api": 9000}
{"id": "beta", "plan": "free", "in_flight": "blocked"}
{"id": 7, "api": 0}"#,
    );
    assert_eq!(report, LoadReport { read: 3, ..LoadReport::default() });
    assert_eq!(lookup(&table, "acme", "api"), number(9000));
    assert_eq!(lookup(&table, "acme", "in_flight"), Lookup::Found(Amount::Unlimited));
    assert_eq!(lookup(&table, "beta", "api"), number(60));
    assert_eq!(lookup(&table, "beta", "in_flight"), Lookup::Found(Amount::Blocked));
    assert_eq!(lookup(&table, "7", "api"), Lookup::Found(Amount::Blocked));
    assert_eq!(lookup(&table, "7", "in_flight"), Lookup::NoAmount);
    assert_eq!(lookup(&table, "zeta", "api"), Lookup::UnknownId);
}

#[test]
fn own_amounts_end_at_until_and_the_plan_applies() {
    let (table, _) =
        load(r#"{"id": "a", "plan": "free", "api": 9, "until": "1970-01-01T00:00:10Z"}"#);
    let api = table.column("api").unwrap();
    assert_eq!(table.lookup("a", api, Nanos(9_999_999_999)), number(9));
    assert_eq!(table.lookup("a", api, Nanos::from_secs(10)), number(60));
}

#[test]
fn a_bad_row_rejects_only_itself_and_is_named() {
    let (before, _) = load("{\"id\": \"a\", \"api\": 5}\n{\"id\": \"b\", \"api\": 5}");
    let rows = r#"{"id": "a", "api": -1}
{"id": "b", "api": 6}
{"id": "c", "plan": "silver"}
{"id": "d", "api": "many"}
{"id": "", "api": 1}
{"id": "e", "until": "tomorrow"}
{"id": "f", "api": 4294967296}
{"id": "b", "api": 7}
{"id": "g", "api": 1.5}
{"id": "h", "a b": 1}"#;
    let (table, report) = load_over(Some(&before), rows).unwrap();
    assert_eq!(lookup(&table, "a", "api"), number(5), "the row of the earlier version stays");
    assert_eq!(lookup(&table, "b", "api"), number(6));
    assert_eq!((table.rows(), report.read, report.bad), (2, 10, 9));
    let problems: Vec<_> = report.bad_rows.iter().map(|bad| &*bad.problem).collect();
    assert!(problems.iter().any(|problem| problem.contains("no plan `silver`")), "{problems:?}");
    assert!(
        problems.iter().any(|problem| problem.starts_with("the id occurs twice")),
        "{problems:?}"
    );
}

#[test]
fn a_number_that_no_limit_can_count_makes_its_row_bad() {
    let check = |column: &str, number: NonZeroU32| {
        if column == "api" && 1_000 < number.get() { Err("too large".to_owned()) } else { Ok(()) }
    };
    let mut loading = Loading::new(spec(), None);
    for row in [r#"{"id": "a", "api": 1001}"#, r#"{"id": "b", "in_flight": 1001}"#] {
        loading.add(Ok(RawRow::from_json(row).unwrap()), &check).unwrap();
    }
    let (table, report) = loading.finish().unwrap();
    assert_eq!((table.row("a").is_some(), table.row("b").is_some()), (false, true));
    assert_eq!(report.bad_rows[0].to_string(), "a: `api`: too large");
}

fn rows(ids: std::ops::Range<u32>) -> String {
    let row = |id| format!("{{\"id\": \"c{id}\", \"plan\": \"free\"}}");
    ids.map(row).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_load_that_loses_too_many_ids_is_refused() {
    let (before, _) = load(&rows(0..100));
    assert_eq!(load_over(Some(&before), &rows(10..100)).unwrap().0.rows(), 90);
    let shrinks = |removed| LoadError::Shrinks { removed, rows: 100, max_shrink: 10 };
    assert_eq!(load_over(Some(&before), &rows(11..100)).unwrap_err(), shrinks(11));
    assert_eq!(load_over(Some(&before), "").unwrap_err(), shrinks(100));
    // As many rows as before, under other ids.
    assert_eq!(load_over(Some(&before), &rows(100..200)).unwrap_err(), shrinks(100));
    let delete = |id| format!("{{\"id\": \"c{id}\", \"deleted\": true}}");
    let deleted: Vec<_> = (0..11).map(delete).collect();
    // Deleted rows are refused alone: the other changes apply.
    let changes = format!("{}\n{{\"id\": \"c50\", \"api\": 7}}", deleted.join("\n"));
    let (after, report) = change(&before, &changes).unwrap();
    assert_eq!((after.rows(), report.bad, lookup(&after, "c50", "api")), (100, 11, number(7)));
}

/// A small table may lose an id, too.
#[test]
fn one_id_may_always_go_but_not_the_last_one() {
    let (before, _) = load(&rows(0..3));
    assert_eq!(load_over(Some(&before), &rows(1..3)).unwrap().0.rows(), 2);
    assert!(load_over(Some(&before), &rows(2..3)).is_err());
    let (last, _) = load(&rows(0..1));
    assert!(load_over(Some(&last), "").is_err());
    let delete = "{\"id\": \"c1\", \"deleted\": true}";
    assert_eq!(change(&before, delete).unwrap().0.rows(), 2);
}

fn load_csv(before: &Table, text: &str) -> (Table, LoadReport) {
    let mut loading = Loading::new(spec(), Some(before));
    let mut add = |row: Result<RawRow<'_>, BadRow>| {
        loading.add(row, &any_number).map_err(std::io::Error::other)
    };
    read_rows(text.as_bytes(), &mut add).unwrap();
    loading.finish().unwrap()
}

/// A line without a readable id may be that of any id, such as a blocked one.
#[test]
fn a_line_without_an_id_removes_no_id() {
    let (before, _) = load(&rows(0..100));
    let csv = |text: &str| {
        let lines: Vec<_> = (0..100).map(|id| format!("c{id},gold,\n")).collect();
        format!("id,plan,api\n{}", lines.concat()).replace("c96,gold,\n", text)
    };
    for broken in ["c96,gold\n", "c96,gold,\"5\n", "\"c96,gold,\n", "c96,gold,1,2\n", ",gold,\n"] {
        let (table, report) = load_csv(&before, &csv(broken));
        assert!(0 < report.bad, "{broken}: {report:?}");
        assert_eq!(table.rows(), 100, "{broken}: {report:?}");
        assert_eq!(lookup(&table, "c96", "api"), number(60), "{broken}: the row before");
        assert_eq!(lookup(&table, "c50", "api"), number(5_000), "{broken}: the new row");
    }
}

#[test]
fn a_first_load_needs_a_good_row() {
    assert!(matches!(load_over(None, r#"{"api": 5}"#), Err(LoadError::NoGoodRow(Some(_)))));
    assert_eq!(load("").0.rows(), 0);
}

#[test]
fn reports_have_no_control_characters() {
    let (before, _) = load(&rows(0..3));
    let text = "{\"id\": \"x\\n2026 ERROR\\u001b[2J\", \"api\": \"\\u0000\"}";
    let (_, report) = load_over(Some(&before), &format!("{}{text}", rows(0..3) + "\n")).unwrap();
    let shown = report.bad_rows[0].to_string();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
}

#[test]
fn an_instant_without_end_is_no_end() {
    for until in ["infinity", "9999-12-31T23:59:59Z", "9999-01-01T00:00:00Z"] {
        let (table, report) = load(&format!(r#"{{"id": "a", "api": 9, "until": "{until}"}}"#));
        assert_eq!((report.bad, lookup(&table, "a", "api")), (0, number(9)), "{until}");
    }
}

#[test]
fn a_change_leaves_the_earlier_version_as_it_was() {
    let (before, _) = load(&rows(0..5_000));
    let (after, _) =
        change(&before, "{\"id\": \"c7\", \"api\": 1}\n{\"id\": \"c8\", \"deleted\": true}")
            .unwrap();
    assert_eq!(
        (lookup(&before, "c7", "api"), lookup(&after, "c7", "api")),
        (number(60), number(1))
    );
    assert_eq!((before.rows(), after.rows()), (5_000, 4_999));
    assert_eq!(lookup(&after, "c8", "api"), Lookup::UnknownId);
}

#[test]
fn a_bad_row_is_reported_until_its_id_has_a_good_one() {
    let check = |_: &str, number: std::num::NonZeroU32| {
        if number.get() < 100 { Ok(()) } else { Err("too large".to_owned()) }
    };
    let table = Table::empty(spec());
    let changed = |table: &Table, rows: &str, earlier: &[BadRow]| {
        table.with_json_changes(rows, earlier, &check).unwrap()
    };
    let (table, first) =
        changed(&table, "{\"id\": \"a\", \"api\": 100}\n{\"id\": \"b\", \"api\": 100}", &[]);
    assert_eq!(first.bad, 2);
    let (table, second) = changed(&table, "{\"id\": \"c\", \"api\": 1}", &first.bad_rows);
    assert_eq!(second.bad_rows, first.bad_rows);
    let (table, third) = changed(&table, "{\"id\": \"a\", \"api\": 1}", &second.bad_rows);
    assert_eq!(third.bad_rows.iter().map(|bad| &*bad.row).collect::<Vec<_>>(), ["b"]);
    let (_, last) = changed(&table, "{\"id\": \"b\", \"deleted\": true}", &third.bad_rows);
    assert_eq!(last.bad, 0);
}

#[test]
fn csv_and_json_lines_give_the_same_rows() {
    let csv = "plan,id,api,until\ngold,\"a,b\",,\nfree,c,7,2030-01-01T00:00:00Z\n";
    let json = "{\"plan\":\"gold\",\"id\":\"a,b\"}\n\n{\"id\":\"c\",\"plan\":\"free\",\"api\":\"7\",\"until\":\"2030-01-01 00:00:00+00\"}";
    let read = |text: &str| {
        let mut loading = Loading::new(spec(), None);
        let mut add = |row: Result<RawRow<'_>, BadRow>| {
            loading.add(row, &any_number).map_err(std::io::Error::other)
        };
        read_rows(text.as_bytes(), &mut add).unwrap();
        loading.finish().unwrap()
    };
    let (csv, json) = (read(csv), read(json));
    assert_eq!((csv.1.bad, json.1.bad), (0, 0), "{csv:?} {json:?}");
    assert_eq!(csv.0.digest(), json.0.digest());
    assert_eq!(csv.0.rows(), 2);
}

#[test]
fn hostile_input_is_refused_within_bounds() {
    let mut ignore = |_: Result<RawRow<'_>, BadRow>| Ok(());
    for byte in [b'x', b'{'] {
        let endless = std::io::Read::take(std::io::repeat(byte), 10 * MAX_LINE_BYTES as u64);
        let error = read_rows(endless, &mut ignore).unwrap_err();
        assert!(error.to_string().contains("longer than"), "{error}");
    }
    for header in ["name,plan\n", "id,id\n", "id,a b\n"] {
        assert!(read_rows(header.as_bytes(), &mut ignore).is_err(), "{header}");
    }
    let mut bad = Vec::new();
    let text = b"id,api\na\nb,1,2\n\xff,1\nc,1\n";
    read_rows(&text[..], &mut |row| {
        bad.extend(row.err());
        Ok(())
    })
    .unwrap();
    assert_eq!(bad.len(), 3, "{bad:?}");
}

fn copy_of(table: &Table) -> Vec<u8> {
    let mut copy = Vec::new();
    write_copy(table, &mut copy).unwrap();
    copy
}

#[test]
fn a_copy_that_was_cut_off_or_changed_is_refused() {
    let (table, _) = load(&rows(0..3));
    let copy = copy_of(&table);
    for length in 0..copy.len() {
        assert!(read_copy(&spec(), &copy[..length], &any_number).is_err(), "{length}");
    }
    for at in 0..copy.len() - 1 {
        let mut changed = copy.clone();
        changed[at] ^= 1;
        let read = read_copy(&spec(), &*changed, &any_number);
        assert!(matches!(read, Err(CopyError::Damaged(_))), "byte {at}: {read:?}");
    }
}

/// What a row can say about one of five ids.
fn any_row() -> impl Strategy<Value = (u8, Option<bool>, Option<u32>, bool)> {
    (
        0_u8..5,
        prop::option::of(any::<bool>()),
        prop::option::of(0_u32..4),
        prop::bool::weighted(0.2),
    )
}

proptest! {
    #[test]
    fn any_changes_equal_those_of_a_map(rounds in prop::collection::vec(prop::collection::vec(any_row(), 0..6), 1..8)) {
        let mut table = Table::empty(spec_with(100));
        let mut model: BTreeMap<u8, (Option<bool>, Option<u32>)> = BTreeMap::new();
        for rows in rounds {
            let mut text = String::new();
            for (id, is_gold, own, deleted) in rows {
                let plan = is_gold.map(|gold| if gold { "gold" } else { "free" });
                let row = serde_json::json!({"id": id, "plan": plan, "api": own, "deleted": deleted});
                text.extend([&*row.to_string(), "\n"]);
                if deleted { model.remove(&id); } else { model.insert(id, (is_gold, own)); }
            }
            let before = table.digest();
            table = change(&table, &text).unwrap().0;
            prop_assert_eq!(table.rows(), model.len());
            for id in 0..5 {
                let expected = match model.get(&id) {
                    None => Lookup::UnknownId,
                    Some((_, Some(own))) => number(*own),
                    Some((Some(gold), None)) => number(if *gold { 5_000 } else { 60 }),
                    Some((None, None)) => Lookup::NoAmount,
                };
                prop_assert_eq!(lookup(&table, &id.to_string(), "api"), expected);
            }
            // The digest depends on the rows alone, and a copy has the same rows.
            let (copied, _) = read_copy(&spec(), &*copy_of(&table), &any_number).unwrap();
            prop_assert_eq!(copied.digest(), table.digest());
            let (loaded, _) = read_copy(&spec(), &*copy_of(&copied), &any_number).unwrap();
            prop_assert_eq!(loaded.digest() == before, table.digest() == before);
        }
    }
}

#[test]
fn a_copy_is_read_as_a_file_of_rows() {
    let (table, _) = load("id,plan,api\na,gold,\nb,,9\n");
    let mut copy = Vec::new();
    write_copy(&table, &mut copy).unwrap();
    let copy = String::from_utf8(copy).unwrap();
    let (read, report) = load(&copy);
    assert_eq!((read.digest(), report.read, report.bad), (table.digest(), 2, 0));
    // A row that only begins like the last line of a copy stays a row.
    let (_, report) = load(&format!("{copy}{{\"copy_of\": 7, \"id\": \"c\"}}\n"));
    assert_eq!((report.read, report.bad), (3, 0));
}
