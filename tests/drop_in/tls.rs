//! Tests of TLS, the Unix socket and the maximum connection age of the gRPC listener.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use hyper_util::rt::TokioIo;
use sluicegate::source::xds::{XdsServer, XdsTls, connect};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use super::process;
use crate::support::certificates::{Authority, Files};
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, soon, until};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Sends an empty check. Returns `Ok` if the service rejects it with gRPC code 2, which proves that
/// the check arrived.
async fn is_reached(channel: Channel) -> Result<(), String> {
    let mut client = RateLimitServiceClient::new(channel);
    let asked = client.should_rate_limit(RateLimitRequest::default());
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Err(status))
            if status.code() == tonic::Code::Unknown && status.message().contains("domain") =>
        {
            Ok(())
        }
        other => Err(format!("{other:?}")),
    }
}

fn call(service: &Service, ca: &str, name: &str, identity: Option<&Files>) -> Result<(), String> {
    let identity =
        identity.map(|files| (files.certificate.clone().into(), files.key.clone().into()));
    let (ca, server_name) = (Some(ca.into()), Some(name.to_owned()));
    let tls =
        XdsTls { ca_file: ca, trust_system_cas: false, client_identity: identity, server_name };
    let server =
        XdsServer { host: "127.0.0.1".to_owned(), port: service.grpc.port(), tls: Some(tls) };
    runtime().block_on(async {
        let channel = connect(&server).await.map_err(|error| error.to_string())?;
        is_reached(channel).await
    })
}

fn start(directory: &Path, more: &[(&str, &str)]) -> (tempfile::TempDir, Service) {
    let [certificate, key] =
        ["tls.crt", "tls.key"].map(|name| directory.join(name).display().to_string());
    let variables = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &*certificate),
        ("GRPC_SERVER_TLS_KEY", &*key),
        ("SLUICEGATE_STORE_URL", "memory"),
    ];
    process::start(&[&variables, more].concat())
}

fn put(directory: &Path, file: &str, from: &str) {
    // Replaces the file atomically, as Kubernetes does.
    let prepared = directory.join("prepared");
    fs::copy(from, &prepared).unwrap();
    fs::rename(prepared, directory.join(file)).unwrap();
}

#[test]
fn replaced_certificates_are_served_when_the_key_matches() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let (one, two) = (authority.sign(&["one.test"]), authority.sign(&["two.test"]));
    put(directory.path(), "tls.crt", &one.certificate);
    put(directory.path(), "tls.key", &one.key);
    // Envoy Gateway sets `GRPC_SERVER_TLS_CA_CERT`, which alone does not require client
    // certificates.
    let (_root, service) = start(directory.path(), &[("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt")]);
    let ca = authority.ca();
    call(&service, &ca, "one.test", None).unwrap();
    assert!(call(&service, &ca, "two.test", None).is_err());
    put(directory.path(), "tls.crt", &two.certificate);
    call(&service, &ca, "one.test", None).expect("the old pair, while the new one is half there");
    put(directory.path(), "tls.key", &two.key);
    call(&service, &ca, "two.test", None).unwrap();
    assert!(call(&service, &ca, "one.test", None).is_err());
    fs::write(directory.path().join("tls.crt"), "no certificate").unwrap();
    call(&service, &ca, "two.test", None).expect("the last good pair");
    let failed = "failed to reload the gRPC TLS certificate, keeping the previous one";
    assert!(service.log().contains(failed), "{}", service.log());
}

#[test]
fn client_certificates_must_match_configured_ca_and_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let own = authority.sign(&["own.test"]);
    put(directory.path(), "tls.crt", &own.certificate);
    put(directory.path(), "tls.key", &own.key);
    let ca = authority.ca();
    let known = ("GRPC_CLIENT_TLS_CACERT", &*ca);
    let (good, wrong) = (authority.sign(&["envoy.test"]), authority.sign(&["nginx.test"]));
    let stranger = other.sign(&["envoy.test"]);
    let is_accepted =
        |service: &Service, files: Option<&Files>| call(service, &ca, "own.test", files).is_ok();
    let (_root, any) = start(directory.path(), &[known]);
    assert_eq!(
        [None, Some(&good), Some(&wrong), Some(&stranger)].map(|files| is_accepted(&any, files)),
        [false, true, true, false]
    );
    let (_root, named) = start(directory.path(), &[known, ("GRPC_CLIENT_TLS_SAN", "envoy.test")]);
    assert_eq!(
        [None, Some(&good), Some(&wrong), Some(&stranger)].map(|files| is_accepted(&named, files)),
        [false, true, false, false]
    );
}

#[test]
fn mismatched_certificate_and_key_exit_with_code_2() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let (one, two) = (authority.sign(&["one.test"]), authority.sign(&["two.test"]));
    put(directory.path(), "tls.crt", &one.certificate);
    put(directory.path(), "tls.key", &two.key);
    let [certificate, key] =
        ["tls.crt", "tls.key"].map(|name| directory.path().join(name).display().to_string());
    let (code, output) = process::refused(&[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
        ("RUNTIME_ROOT", "/"),
        ("RUNTIME_SUBDIRECTORY", "no-such"),
    ]);
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("tls.crt"), "{output}");
}

/// Environment to serve gRPC at the Unix socket `path`, without a drain delay.
fn socket_without_drain_delay(path: &str) -> [(&str, &str); 3] {
    [
        ("GRPC_UDS", path),
        ("SLUICEGATE_STORE_URL", "memory"),
        ("SLUICEGATE_LISTEN_DRAIN_DELAY", "0s"),
    ]
}

#[test]
fn grpc_replaces_a_stale_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rl.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "left behind");
    let text = socket.display().to_string();
    let variables = socket_without_drain_delay(&text);
    let (_root, mut service) = process::start(&variables);
    let path = socket.clone();
    runtime()
        .block_on(async {
            let connector = unix_connector(path);
            let channel =
                Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
            is_reached(channel.unwrap()).await
        })
        .unwrap();
    service.terminate();
    assert_eq!(service.ended().unwrap().code(), Some(0));
    assert!(!socket.exists(), "it goes with its listener");
}

/// Starts a gRPC call that ends when the returned sender is dropped. `runtime` needs a worker
/// thread.
fn open_call(
    runtime: &tokio::runtime::Runtime,
    socket: &Path,
) -> mpsc::Sender<ServerReflectionRequest> {
    let (sender, asks) = mpsc::channel(1);
    let list = MessageRequest::ListServices(String::new());
    sender
        .try_send(ServerReflectionRequest {
            message_request: Some(list),
            ..ServerReflectionRequest::default()
        })
        .unwrap();
    let connector = unix_connector(socket.to_owned());
    runtime.block_on(async {
        let endpoint = Endpoint::from_static("http://localhost");
        let mut client =
            ServerReflectionClient::new(endpoint.connect_with_connector(connector).await.unwrap());
        let asked = client.server_reflection_info(ReceiverStream::new(asks));
        let mut replies = soon("a stream", asked).await.unwrap().into_inner();
        soon("an answer", replies.message()).await.unwrap().expect("one for each question");
        tokio::spawn(async move { while let Ok(Some(_)) = replies.message().await {} });
    });
    sender
}

fn background_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn assert_reachable(socket: &Path) {
    let connector = unix_connector(socket.to_owned());
    let reached = runtime().block_on(async {
        let endpoint = Endpoint::from_static("http://localhost");
        is_reached(endpoint.connect_with_connector(connector).await.unwrap()).await
    });
    reached.unwrap();
}

#[test]
fn a_draining_process_does_not_remove_its_successors_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rl.sock");
    let text = socket.display().to_string();
    let variables = socket_without_drain_delay(&text);
    let (_root, mut old) = process::start(&variables);
    let runtime = background_runtime();
    let call = open_call(&runtime, &socket);
    old.terminate();
    let closed = || match std::os::unix::net::UnixStream::connect(&socket) {
        Ok(_) => Err("it listens".to_owned()),
        Err(_) => Ok(()),
    };
    until("nobody listens", closed).unwrap();
    let (_root, _new) = process::start(&variables);
    assert!(old.is_alive(), "its call is under way: {}", old.log());
    drop(call);
    assert_eq!(old.ended().unwrap().code(), Some(0));
    assert!(socket.exists(), "it is the successor's");
    assert_reachable(&socket);
}

#[test]
fn shutdown_does_not_remove_a_socket_of_another_process() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("rl.sock");
    let text = socket.display().to_string();
    let variables = socket_without_drain_delay(&text);
    let (_root, mut old) = process::start(&variables);
    fs::remove_file(&socket).unwrap();
    let (_root, _new) = process::start(&variables);
    old.terminate();
    assert_eq!(old.ended().unwrap().code(), Some(0));
    assert!(socket.exists(), "it is the other's");
    assert_reachable(&socket);
}

#[test]
fn a_file_at_the_socket_path_stops_startup() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("precious");
    fs::write(&file, "kept").unwrap();
    let (code, output) = process::refused(&[
        ("GRPC_UDS", file.to_str().unwrap()),
        ("SLUICEGATE_STORE_URL", "memory"),
        ("RUNTIME_ROOT", "/"),
        ("RUNTIME_SUBDIRECTORY", "no-such"),
    ]);
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("precious") && output.contains("--listen-grpc-socket"), "{output}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
}

/// Connector to the Unix socket `path`, which ignores the requested address.
fn unix_connector(path: std::path::PathBuf) -> Unix {
    Unix(path)
}

#[derive(Clone)]
struct Unix(std::path::PathBuf);

impl tonic::codegen::Service<tonic::codegen::http::Uri> for Unix {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = std::io::Result<Self::Response>> + Send>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::codegen::http::Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { Ok(TokioIo::new(UnixStream::connect(path).await?)) })
    }
}

#[test]
fn old_connections_get_goaway_and_close_after_grace() {
    let variables = [
        // Long enough for a connection and a check on a busy machine.
        ("GRPC_MAX_CONNECTION_AGE", "500ms"),
        ("GRPC_MAX_CONNECTION_AGE_GRACE", "500ms"),
        ("SLUICEGATE_STORE_URL", "memory"),
    ];
    let (_root, service) = process::start(&variables);
    // Sends the HTTP/2 preface and empty SETTINGS. Afterwards, this client ignores GOAWAY.
    let mut stream = std::net::TcpStream::connect(service.grpc).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut received = Vec::new();
    // A read timeout means that the service did not close the connection, and fails the test.
    match stream.read_to_end(&mut received) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(frames(&received).contains(&7), "no GOAWAY among {:?}", frames(&received));
    // Another connection is still accepted.
    let again = || {
        let runtime = runtime();
        runtime.block_on(async {
            let endpoint = service.door();
            let channel = endpoint.connect().await;
            is_reached(channel.map_err(|error| error.to_string())?).await
        })
    };
    until("an answer", again).unwrap();
}

/// The types of the HTTP/2 frames in `bytes`.
fn frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    while let [a, b, c, kind, rest @ ..] = bytes {
        types.push(*kind);
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        bytes = rest.get(5 + length..).unwrap_or_default();
    }
    types
}
