//! The code of `proto/sluicegate/v1` is what the proto gives.
//!
//! It is committed, so that no build needs a compiler of protos; after an edit of the proto:
//! `UPDATE_DESCRIPTORS=1 cargo test --test all permits_code`.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("proto")
}

fn generated(descriptors: prost_types::FileDescriptorSet) -> String {
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure().out_dir(out.path()).compile_fds(descriptors).unwrap();
    fs::read_to_string(out.path().join("sluicegate.v1.rs")).unwrap()
}

/// Compares, or writes where it is told to.
fn is_committed(path: &Path, want: &[u8]) {
    if std::env::var_os("UPDATE_DESCRIPTORS").is_some() {
        fs::write(path, want).unwrap();
    }
    let got = fs::read(path).unwrap_or_default();
    let cure = "run UPDATE_DESCRIPTORS=1 cargo test --test all permits_code";
    assert!(got == want, "{}: {cure}", path.display());
}

#[test]
fn the_committed_code_and_descriptors_are_those_of_the_proto() {
    let mut descriptors = protox::compile(["sluicegate/v1/permits.proto"], [root()]).unwrap();
    is_committed(
        &root().join("sluicegate/v1/permits.rs"),
        generated(descriptors.clone()).as_bytes(),
    );
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    is_committed(&root().join("sluicegate/v1/permits.binpb"), &descriptors.encode_to_vec());
}
