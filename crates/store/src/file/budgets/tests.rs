//! Tests of the records of budgets, in a database in memory.

use redb::backends::InMemoryBackend;
use redb::{Database, ReadableDatabase as _};

use super::*;
use crate::file::FileFault;
use crate::kernel::budget::{Amount, Budget, BudgetPeriod, BudgetTerms, HoldId, OnExpiry};
use crate::memory::WhenFull;

const NOW: Nanos = Nanos::from_secs(1_767_225_600);

fn saved() -> SavedBudget {
    let terms = BudgetTerms {
        amount: Amount(0),
        period: BudgetPeriod::Prepaid,
        time_limit: Nanos::from_secs(600),
        on_expiry: OnExpiry::Charge,
        is_enforced: true,
    };
    let mut budget = Budget::default();
    budget.top_up(&terms, HoldId(7, 1), Amount(100), NOW);
    budget.settle(&terms, HoldId(7, 2), Amount(30), NOW);
    let keep_until = budget.keep_until(&terms, NOW);
    (budget, keep_until)
}

fn record(name: &[u8]) -> BudgetRecord {
    (name.into(), encode(vec![(name.into(), Some(saved()))]).unwrap_or_default().remove(0).1)
}

fn database() -> Result<Database, redb::Error> {
    Ok(Database::builder().create_with_backend(InMemoryBackend::new())?)
}

fn write(database: &Database, batch: &BudgetBatch) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    batch.write(&transaction)?;
    Ok(transaction.commit()?)
}

fn names(database: &Database) -> Result<Vec<Vec<u8>>, redb::Error> {
    let table = database.begin_read()?.open_table(BUDGETS)?;
    let names = table.iter()?.map(|entry| entry.map(|(name, _)| name.value().to_vec()));
    Ok(names.collect::<Result<_, _>>()?)
}

#[test]
fn decoding_inverts_encoding_and_rejects_other_bytes() {
    let bytes = record(b"a").1.unwrap_or_default();
    assert_eq!(decode(&bytes), Ok(saved()));
    for len in 0..bytes.len() {
        assert_eq!(decode(&bytes[..len]), Err(InvalidRecord), "{len} bytes");
    }
    assert_eq!(decode(&[&bytes[..], &[0]].concat()), Err(InvalidRecord));
}

#[test]
fn a_batch_replaces_changed_records_and_removes_others() -> Result<(), redb::Error> {
    let database = database()?;
    let two = vec![record(b"a"), record(b"b"), record(b"c")];
    write(&database, &BudgetBatch::Changed(two))?;
    let removed = (Box::from(&b"a"[..]), None);
    write(&database, &BudgetBatch::Changed(vec![removed, record(b"d")]))?;
    assert_eq!(names(&database)?, [b"b", b"c", b"d"]);
    write(&database, &BudgetBatch::All(vec![record(b"c"), record(b"e")]))?;
    assert_eq!(names(&database)?, [b"c", b"e"], "a batch of all budgets leaves no other");
    Ok(())
}

#[test]
fn invalid_records_and_too_many_are_errors() -> Result<(), redb::Error> {
    let memory = |max_keys| MemoryStore::new(max_keys, WhenFull::Deny, [7; 16]);
    let database = database()?;
    let read = || database.begin_read();
    assert!(restore(&read()?, &memory(9), NOW).is_ok(), "a file without the table");
    write(&database, &BudgetBatch::Changed(vec![record(b"a"), record(b"b")]))?;
    assert!(restore(&read()?, &memory(2), NOW).is_ok());
    let surplus = restore(&read()?, &memory(1), NOW);
    assert!(matches!(surplus, Err(FileFault::TooManyCounters { max_keys: 1 })), "{surplus:?}");
    let invalid = (Box::from(&b"b"[..]), Some(vec![1, 2, 3]));
    write(&database, &BudgetBatch::Changed(vec![invalid]))?;
    let fault = restore(&read()?, &memory(9), NOW);
    assert!(matches!(fault, Err(FileFault::Corrupt(_))), "{fault:?}");
    Ok(())
}
