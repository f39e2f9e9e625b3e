//! Tests of the modes of files and directories.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sluicegate::store::audit::AuditRecord;
use sluicegate::store::{AuditStore as _, StoreReply};

use super::{NEW_YEAR, open};

const FILES: [&str; 2] = ["counters.redb", "audit.jsonl"];

/// Opens the store, and writes a record to its audit log.
fn write_store(directory: &Path) {
    let file = open(directory, NEW_YEAR);
    let record = AuditRecord { id: "a".into(), text: "{}".into() };
    let StoreReply::Pending(reply) = file.store.append_audit(NEW_YEAR, &record) else {
        panic!("the audit log needs the disk")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(reply).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn only_the_owner_can_read_new_files_and_directories() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("new");
    write_store(&directory);
    assert_eq!(mode(&directory), 0o700);
    for name in FILES {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
}

#[test]
fn files_of_an_older_version_are_closed_to_others() {
    let directory = tempfile::tempdir().unwrap();
    write_store(directory.path());
    for name in FILES.iter().chain(&["audit.jsonl.new"]) {
        let path = directory.path().join(name);
        fs::OpenOptions::new().create(true).append(true).open(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    write_store(directory.path());
    for name in FILES {
        assert_eq!(mode(&directory.path().join(name)), 0o600, "{name}");
    }
}
