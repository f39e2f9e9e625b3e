//! Tests of gRPC server reflection and its committed Protobuf descriptors.
//!
//! `proto/ratelimit.binpb` is a subset of the descriptors in the crate `envoy-types`. After
//! upgrading `envoy-types`, run `UPDATE_DESCRIPTORS=1 cargo test --test all reflection`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use prost::Message as _;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use super::{AUTHORIZATION, SERVICE, Served, limited};

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/ratelimit.binpb");
const ROOTS: [&str; 4] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/auth/v3/external_auth.proto",
    "envoy/service/accesslog/v3/als.proto",
    "envoy/service/ext_proc/v3/external_processor.proto",
];

/// Returns the host's target triple, to read the crates of this platform only: offline, others may
/// be missing.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

fn published_descriptors() -> FileDescriptorSet {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--format-version=1", "--filter-platform", &host()])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        // The test runner sets it for the times of tests, and cargo would build everything again.
        .env_remove("RUSTC_BOOTSTRAP")
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "envoy-types").unwrap();
    let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
    let descriptors = manifest.with_file_name("src").join("generated/types.bin");
    FileDescriptorSet::decode(&std::fs::read(descriptors).unwrap()[..]).unwrap()
}

/// Returns `true` for a `.proto` file that only defines custom options, such as validation rules.
fn only_annotates(file: &str) -> bool {
    file.contains("annotations/") || file.starts_with("validate/")
}

/// Returns the `.proto` files of the services and their imports, without comments and files of
/// custom options.
fn files_of_services(all: &FileDescriptorSet) -> FileDescriptorSet {
    let mut wanted = ROOTS.map(str::to_owned).to_vec();
    let mut seen = BTreeSet::new();
    let mut file = Vec::new();
    while let Some(name) = wanted.pop() {
        if seen.insert(name.clone()) {
            let found = all.file.iter().find(|file| file.name() == name).unwrap();
            file.push(without_annotations(found.clone()));
            wanted.extend(file[file.len() - 1].dependency.clone());
        }
    }
    file.sort_by(|a, b| a.name().cmp(b.name()));
    FileDescriptorSet { file }
}

fn without_annotations(mut file: FileDescriptorProto) -> FileDescriptorProto {
    assert!(file.public_dependency.is_empty() && file.weak_dependency.is_empty());
    file.dependency.retain(|name| !only_annotates(name));
    file.source_code_info = None;
    file
}

#[test]
fn committed_protobuf_descriptors_match_the_crate_envoy_types() {
    let want = files_of_services(&published_descriptors()).encode_to_vec();
    if std::env::var_os("UPDATE_DESCRIPTORS").is_some() {
        std::fs::write(COMMITTED, &want).unwrap();
    }
    let got = std::fs::read(COMMITTED).unwrap();
    assert!(got == want, "run UPDATE_DESCRIPTORS=1 cargo test --test all reflection");
}

async fn reflect(served: &Served, query: MessageRequest) -> MessageResponse {
    let query = ServerReflectionRequest { host: String::new(), message_request: Some(query) };
    let mut client = ServerReflectionClient::new(served.channel.clone());
    let reply = client.server_reflection_info(tokio_stream::iter([query])).await.unwrap();
    reply.into_inner().message().await.unwrap().unwrap().message_response.unwrap()
}

#[tokio::test]
async fn reflection_lists_all_services() {
    let served = limited().await;
    let query = MessageRequest::ListServices(String::new());
    let MessageResponse::ListServicesResponse(list) = reflect(&served, query).await else {
        panic!("no list");
    };
    let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "envoy.service.accesslog.v3.AccessLogService",
            AUTHORIZATION,
            "envoy.service.ext_proc.v3.ExternalProcessor",
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "sluicegate.v1.Budgets",
            "sluicegate.v1.Leases",
            "sluicegate.v1.Permits"
        ]
    );
}

#[tokio::test]
async fn reflection_describes_request_fields_with_their_numbers() {
    let served = limited().await;
    let query = MessageRequest::FileContainingSymbol(SERVICE.into());
    let MessageResponse::FileDescriptorResponse(files) = reflect(&served, query).await else {
        panic!("no file");
    };
    let file = FileDescriptorProto::decode(&files.file_descriptor_proto[0][..]).unwrap();
    assert_eq!(file.service[0].method[0].name(), "ShouldRateLimit");
    let request = file.message_type.iter().find(|m| m.name() == "RateLimitRequest").unwrap();
    let fields: Vec<_> = request.field.iter().map(|f| (f.name(), f.number())).collect();
    assert_eq!(fields, [("domain", 1), ("descriptors", 2), ("hits_addend", 3)]);
}
