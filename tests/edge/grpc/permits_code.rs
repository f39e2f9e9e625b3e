//! Tests that the generated Rust code in `proto/sluicegate` matches its proto files.
//!
//! The generated code is committed, so a build needs no Protobuf compiler. After editing a proto
//! file, run `UPDATE_DESCRIPTORS=1 cargo test --test all permits_code`.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("proto")
}

/// Returns the code of one proto file. Messages of the file that it imports have their code elsewhere.
fn generated(mut descriptors: prost_types::FileDescriptorSet, file: &str, package: &str) -> String {
    let out = tempfile::tempdir().unwrap();
    descriptors.file.retain(|found| found.name() == file);
    let mut code = tonic_prost_build::configure().out_dir(out.path());
    if file == "sluicegate/v1/budgets.proto" {
        let imported = "crate::grpc::permits::api::Descriptor";
        code = code.extern_path(".sluicegate.v1.Descriptor", imported);
    }
    code.compile_fds(descriptors).unwrap();
    fs::read_to_string(out.path().join(format!("{package}.rs"))).unwrap()
}

/// Compares the file with `want`, or writes it if `UPDATE_DESCRIPTORS` is set.
fn assert_committed(path: &Path, want: &[u8]) {
    if std::env::var_os("UPDATE_DESCRIPTORS").is_some() {
        fs::write(path, want).unwrap();
    }
    let got = fs::read(path).unwrap_or_default();
    let fix = "run UPDATE_DESCRIPTORS=1 cargo test --test all permits_code";
    assert!(got == want, "{}: {fix}", path.display());
}

#[test]
fn committed_code_matches_the_protos() {
    let protos = [
        ("sluicegate/v1/permits", "sluicegate.v1"),
        ("sluicegate/v1/budgets", "sluicegate.v1"),
        ("sluicegate/v1/leases", "sluicegate.v1"),
        ("sluicegate/peer/v1/peer", "sluicegate.peer.v1"),
    ];
    for (name, package) in protos {
        let mut descriptors = protox::compile([format!("{name}.proto")], [root()]).unwrap();
        let code = generated(descriptors.clone(), &format!("{name}.proto"), package);
        assert_committed(&root().join(format!("{name}.rs")), code.as_bytes());
        for file in &mut descriptors.file {
            file.source_code_info = None;
        }
        assert_committed(&root().join(format!("{name}.binpb")), &descriptors.encode_to_vec());
    }
}
