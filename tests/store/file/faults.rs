//! Tests of damaged, locked and unwritable files.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::{NEW_YEAR, execute, hits, open, remaining, strategies, sync, try_open};
use crate::support::dice::Dice;

const FILE: &str = "counters.redb";

/// Creates a file in which 5 of 10 hits of `a` are left, and before its last batch 8.
fn create(directory: &Path) {
    let mut file = open(directory, NEW_YEAR);
    for hits_of_batch in [2, 3] {
        execute(&file.store, NEW_YEAR, &hits("a", strategies(10)[0], hits_of_batch));
        sync(&mut file, NEW_YEAR);
    }
}

fn error_of(directory: &Path) -> String {
    let error = try_open(directory, NEW_YEAR).map(|_| ()).expect_err("the store opened");
    error.to_string()
}

#[test]
fn a_second_process_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = open(directory.path(), NEW_YEAR);
    let error = error_of(directory.path());
    assert!(error.contains("another process uses this directory"), "{error}");
    assert!(error.ends_with("(setting store.url)"), "{error}");
    drop(first);
    open(directory.path(), NEW_YEAR);
}

#[test]
fn a_directory_without_write_permission_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let blocked = directory.path().join("blocked");
    fs::create_dir(&blocked).unwrap();
    fs::set_permissions(&blocked, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(blocked.join("probe"), "").is_ok() {
        // This user may write everywhere.
        return;
    }
    let error = error_of(&blocked);
    assert!(error.contains("Permission denied; let this user write to the directory"), "{error}");
}

#[test]
fn a_path_below_a_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = error_of(&path);
        assert!(error.contains("name a directory (setting store.url)"), "{error}");
    }
}

#[test]
fn a_foreign_file_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let text = "not a database ".repeat(1_000);
    fs::write(directory.path().join(FILE), &text).unwrap();
    let error = error_of(directory.path());
    assert!(error.contains("are corrupt") && error.contains("move the directory away"), "{error}");
    assert_eq!(fs::read_to_string(directory.path().join(FILE)).unwrap(), text);
}

/// A damaged file is an error, or returns to one of the last two batches. It never becomes an empty store.
fn assert_detected(bytes: &[u8], what: &str) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(FILE), bytes).unwrap();
    match try_open(directory.path(), NEW_YEAR) {
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("move the directory away"), "{what}: {error}");
        }
        Ok(file) => {
            let left = remaining(&file.store, NEW_YEAR, "a", strategies(10)[0]);
            assert!(matches!(left, Some(5 | 8)), "{what}: {left:?}");
        }
    }
}

#[test]
fn a_truncated_file_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path());
    let bytes = fs::read(directory.path().join(FILE)).unwrap();
    for len in (1..bytes.len()).step_by(bytes.len() / 40) {
        assert_detected(&bytes[..len], &format!("{len} bytes"));
    }
}

#[test]
fn damaged_pages_are_detected() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path());
    let bytes = fs::read(directory.path().join(FILE)).unwrap();
    let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
    let mut dice = Dice::new(7);
    for _ in 0..60 {
        let mut damaged = bytes.clone();
        let at = dice.pick(&used);
        let end = (at + 8).min(damaged.len());
        damaged[at..end].fill(0xA5);
        assert_detected(&damaged, &format!("byte {at}"));
    }
}
