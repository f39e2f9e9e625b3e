//! Tests of the certificates that the chart issues.
//!
//! Not covered:
//! - A real cluster: a small server answers Helm's `lookup`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sluicegate::config::hooks::filter_config::FilterConfig;
use sluicegate_proxy::settings::{LimiterSettings, ProxyIdentity, ServiceSettings, TlsSettings};
use sluicegate_proxy::{DEFAULT_MEMORY_BYTES, Limiter};
use tempfile::TempDir;

use super::cases::CASES;
use super::{Objects, name_of, rendered};
use crate::support::service::Service;
use crate::support::waiting::until;

fn preset() -> Vec<&'static str> {
    CASES.iter().find(|case| case.name == "envoy-gateway-module").unwrap().flags.to_vec()
}

/// The three secrets of the preset.
const SECRETS: [&str; 3] = ["-grpc-ca", "-grpc-tls", "-grpc-client"];

/// Writes the files of a secret, as Kubernetes mounts them.
fn mounted(secret: &Value) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in secret["data"].as_object().unwrap() {
        let bytes = BASE64_STANDARD.decode(text.as_str().unwrap()).unwrap();
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    directory
}

/// The config of the filter in the preset's policy.
fn filter_config(objects: &Objects) -> FilterConfig {
    let policy = objects.0.iter().find(|object| object["kind"] == "EnvoyExtensionPolicy").unwrap();
    FilterConfig::parse(&policy["spec"]["dynamicModule"][0]["config"].to_string()).unwrap()
}

/// The mount of the certificates in Envoy, and the name of their secret.
fn envoy_mount(objects: &Objects) -> (PathBuf, String) {
    let proxy = objects.0.iter().find(|object| object["kind"] == "EnvoyProxy").unwrap();
    let deployment = &proxy["spec"]["provider"]["kubernetes"]["envoyDeployment"];
    let volumes = deployment["pod"]["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["secret"].is_object()).unwrap();
    let mounts = deployment["container"]["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&mount["mountPath"]).into(), text(&volume["secret"]["secretName"]))
}

/// Starts the service with the mounted secret and the setting `listen.proxies` of the preset.
fn serve(objects: &Objects, files: &Path) -> Service {
    let settings = objects.server_yaml();
    assert!(!settings.contains("proxies"), "auto: {settings}");
    let mut flags = Vec::new();
    for (flag, file) in [("cert", "tls.crt"), ("key", "tls.key"), ("client-ca", "ca.crt")] {
        assert!(settings.contains(&format!("/etc/grpc-tls/{file}")), "{settings}");
        let path = files.join(file).display().to_string();
        flags.extend([format!("--listen-tls-{flag}-file"), path]);
    }
    let limits = files.join("limits");
    fs::create_dir(&limits).unwrap();
    fs::write(limits.join("edge.yaml"), "domain: edge\ndescriptors: []\n").unwrap();
    Service::start(&limits, &flags).unwrap()
}

#[test]
fn issued_certificates_connect_the_module_to_the_service() {
    let objects = rendered(&preset());
    let [_, own, client] = SECRETS.map(|ending| objects.one("Secret", ending));
    let (directory, secret) = envoy_mount(&objects);
    assert_eq!(client["metadata"]["name"], *secret);
    assert_eq!(client["metadata"]["namespace"], "envoy-gateway-system");
    let (own, client) = (mounted(own), mounted(client));
    let service = serve(&objects, own.path());
    let config = filter_config(&objects).service;
    let tls = config.tls.unwrap();
    let file =
        |path: Option<PathBuf>| client.path().join(path.unwrap().strip_prefix(&directory).unwrap());
    let identity = (file(tls.certificate_file), file(tls.key_file));
    let tls = TlsSettings {
        ca_file: Some(file(tls.ca_file)),
        identity: Some(identity),
        server_name: Some(config.address.host),
    };
    let limiter = Limiter::start_thread(
        LimiterSettings {
            service: ServiceSettings { address: service.grpc.to_string(), tls: Some(tls) },
            identity: ProxyIdentity { name: "edge-1".into(), software: "test/1".into() },
            memory_bytes: DEFAULT_MEMORY_BYTES,
        },
        |_| {},
        |_, _| {},
    )
    .unwrap();
    let connected = || limiter.is_connected().then_some(()).ok_or_else(|| service.log());
    until("the connection", connected).unwrap();
}

/// A cluster with these secrets.
fn cluster_with(secrets: Vec<Value>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        listener.incoming().for_each(|stream| answer(&mut stream.unwrap(), &secrets));
    });
    format!("--kube-apiserver=http://{address}")
}

fn answer(stream: &mut TcpStream, secrets: &[Value]) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        request.extend(byte);
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split([' ', '?']).nth(1).unwrap();
    let is_asked = |secret: &&Value| {
        let of = |field: &str| secret["metadata"][field].as_str().unwrap();
        path == format!("/api/v1/namespaces/{}/secrets/{}", of("namespace"), of("name"))
    };
    let resource = json!({"name": "secrets", "namespaced": true, "kind": "Secret", "verbs": []});
    let list = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": [resource]});
    let missing = json!({"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404});
    let found = if path == "/api/v1" { Some(&list) } else { secrets.iter().find(is_asked) };
    let (status, body) = found.map_or(("404 Not Found", &missing), |found| ("200 OK", found));
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all([head, body].concat().as_bytes()).unwrap();
}

/// The data of the secrets after an upgrade in a cluster with the given ones.
fn upgraded(secrets: Vec<Value>) -> [Value; 3] {
    let cluster = cluster_with(secrets);
    let objects = rendered(&[preset(), vec!["--dry-run=server", &cluster]].concat());
    SECRETS.map(|ending| objects.one("Secret", ending)["data"].clone())
}

#[test]
fn an_upgrade_keeps_the_certificates_and_issues_missing_ones() {
    let objects = rendered(&preset());
    let secrets: Vec<_> = SECRETS.map(|ending| objects.one("Secret", ending).clone()).into();
    assert!(secrets.iter().all(|secret| name_of(secret).starts_with("Secret/edge-sluicegate")));
    let data = |at: usize| &secrets[at]["data"];
    let kept = upgraded(secrets.clone());
    assert_eq!(kept.each_ref(), [0, 1, 2].map(data));
    let [authority, own, client] = upgraded(secrets[..2].to_vec());
    assert_eq!([&authority, &own], [data(0), data(1)]);
    assert_ne!(client["tls.crt"], data(2)["tls.crt"]);
    assert_eq!(client["ca.crt"], authority["tls.crt"], "the same CA");
    let [authority, own, client] = upgraded(secrets[1..].to_vec());
    assert_ne!(own["tls.crt"], data(1)["tls.crt"], "no replica would trust it");
    assert_eq!([&own["ca.crt"], &client["ca.crt"]], [&authority["tls.crt"]; 2]);
}

#[test]
fn every_name_of_the_service_is_in_its_certificate() {
    let objects = rendered(&preset());
    let own = mounted(objects.one("Secret", "-grpc-tls"));
    let pem = fs::read_to_string(own.path().join("tls.crt")).unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let der = BASE64_STANDARD.decode(body).unwrap();
    for name in ["edge-sluicegate", "edge-sluicegate-headless"] {
        for rest in ["", ".gate", ".gate.svc", ".gate.svc.cluster.local"] {
            let name = format!("{name}{rest}");
            // A DNS name (RFC 5280): tag 2 of the choice, its length, and its text.
            let entry = [&[0x82, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
            assert!(der.windows(entry.len()).any(|window| window == entry), "{name}");
        }
    }
}
