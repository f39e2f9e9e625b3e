//! Tests of the processes of `docker-compose.yml`: two replicas with one Redis, Envoy and an
//! upstream; of `deploy/compose.postgres.yaml`, which replaces Redis by PostgreSQL; and of
//! `deploy/compose.regions.yaml`, which moves a replica to another region.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::envoy::{Envoy, replace_once, with_long_timeouts};
use super::{ask, serve, upstream};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::sluicegate;
use crate::support::waiting::now;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Reads `docker-compose.yml` and further files as `docker compose config` does.
fn composed(further: &[&str]) -> Value {
    let reader = root().join(".tools/bin/compose");
    assert!(reader.exists(), "no .tools/bin/compose: run scripts/chart.sh, which installs it");
    let files = [&["docker-compose.yml"], further].concat();
    let files = files.into_iter().map(|file| root().join(file));
    let out = Command::new(reader).args(["-format", "json"]).args(files).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn names(service: &Value, list: &str) -> Vec<String> {
    let items = service[list].as_array().into_iter().flatten();
    items.filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

#[test]
fn compose_replicas_share_one_limit() {
    let composed = composed(&[]);
    let mut text = fs::read_to_string(root().join("config/envoy/compose.yaml")).unwrap();
    let redis = Redis::start();
    let backend = format!("redis+unix://{}", redis.socket().display());
    let mut replicas = Vec::new();
    for name in ["replica-1", "replica-2"] {
        let command = names(&composed["services"][name], "command");
        assert_eq!(command[..2], ["serve", "--settings"]);
        // Maps a path in the container to the path in the repository.
        let settings = command[2].strip_prefix("/etc/sluicegate/").unwrap();
        assert_eq!(command[3..], ["--store-url", "redis://redis:6379"]);
        let limits = root().join("config/limits");
        let store = ["--store-url", &backend, "--store-start-timeout", "120s"];
        let flags = [&["--settings", settings, "--store-timeout", "9s"], &store[..]].concat();
        let replica = serve(&limits, &flags);
        let at = format!("{{address: 127.0.0.1, port_value: {}}}", replica.grpc.port());
        replace_once(&mut text, &format!("{{address: {name}, port_value: 8081}}"), &at);
        replicas.push(replica);
    }
    let port = upstream::start().port();
    let free = "{address: 127.0.0.1, port_value: 0}";
    replace_once(&mut text, "{address: 127.0.0.1, port_value: 9901}", free);
    replace_once(&mut text, "{address: 0.0.0.0, port_value: 10000}", free);
    let at = format!("{{address: 127.0.0.1, port_value: {port}}}");
    replace_once(&mut text, "{address: upstream, port_value: 80}", &at);
    let envoy = Envoy::start_with(with_long_timeouts(&text), 2);
    // The shipped limit has a burst of 10 and restores one hit per second.
    let (began, mut allowed) = (now(), 0);
    let mut statuses = (0..1_000).map(|_| ask(envoy.ingress, "one").status);
    let denied = statuses.find(|status| {
        allowed += u64::from(*status == 200);
        *status != 200
    });
    assert_eq!(denied, Some(429));
    assert!((10..=10 + 1 + began.elapsed().as_secs()).contains(&allowed), "{allowed}");
    assert_eq!(ask(envoy.ingress, "two").status, 200);
    for replica in &replicas {
        assert!(0 < envoy.checks_sent_to(replica.grpc), "both are asked");
    }
}

/// The flags of the command are valid, and name the database that the file creates.
#[test]
fn postgres_compose_file_replaces_only_redis() {
    let (plain, composed) = (composed(&[]), composed(&["deploy/compose.postgres.yaml"]));
    let services = |composed: &Value| -> BTreeSet<String> {
        composed["services"].as_object().unwrap().keys().cloned().collect()
    };
    let removed = &services(&plain) - &services(&composed);
    let added = &services(&composed) - &services(&plain);
    assert_eq!((removed, added), (["redis".into()].into(), ["postgres".into()].into()));
    let created = &composed["services"]["postgres"]["environment"];
    let [user, password, database] = ["USER", "PASSWORD", "DB"]
        .map(|name| created[format!("POSTGRES_{name}")].as_str().unwrap());
    for name in ["replica-1", "replica-2"] {
        let replica = &composed["services"][name];
        let mut command = names(replica, "command");
        assert!(command.contains(&format!("postgres://{user}:{password}@postgres/{database}")));
        let awaited = &replica["depends_on"]["postgres"]["condition"];
        assert_eq!(awaited, "service_healthy", "{name}: `--migrate` needs the server");
        assert!(command.contains(&"--migrate".to_owned()), "{name}");
        // Maps a path in the container to the path in the repository.
        command[2] = command[2].replace("/etc/sluicegate/", "");
        let out = sluicegate().args(command).arg("--print-config").current_dir(root()).output();
        let out = out.unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// The flags and limits are valid, and the delay is in the network of one replica only.
#[test]
fn regions_compose_file_has_valid_flags_and_limits() {
    let composed = composed(&["deploy/compose.regions.yaml"]);
    let distance = &composed["services"]["distance"];
    assert_eq!(distance["network_mode"], "service:replica-2");
    for name in ["replica-1", "replica-2"] {
        let replica = &composed["services"][name];
        let mounts = replica["volumes"].as_array().unwrap();
        // Maps a path in the container to the path in the repository.
        let local = |argument: String| {
            let mounted = mounts.iter().find_map(|mount| {
                let rest = argument.strip_prefix(mount["target"].as_str().unwrap())?;
                Some(format!("{}{rest}", mount["source"].as_str().unwrap()))
            });
            mounted.unwrap_or(argument)
        };
        let command: Vec<_> = names(replica, "command").into_iter().map(local).collect();
        let limits = &command[4];
        for arguments in [
            [&command[..], &["--print-config".into()]].concat(),
            vec!["validate".into(), limits.clone()],
        ] {
            let out = sluicegate().args(arguments).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
    }
}

#[test]
fn every_compose_mount_exists() {
    let composed = composed(&[]);
    let mut mounts = 0;
    for service in composed["services"].as_object().unwrap().values() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume["source"].as_str().unwrap();
            assert!(Path::new(source).exists(), "{source}");
            mounts += 1;
        }
    }
    assert_eq!(mounts, 7);
    let dashboards = &composed["services"]["grafana"]["volumes"][1];
    let provider = root().join("deploy/grafana/provisioning/dashboards/sluicegate.yaml");
    let provider: Value = serde_saphyr::from_str(&fs::read_to_string(provider).unwrap()).unwrap();
    assert_eq!(provider["providers"][0]["options"]["path"], dashboards["target"]);
}

/// Also validates the alert rules with `promtool`.
#[test]
fn prometheus_scrapes_every_replica() {
    let text = fs::read_to_string(root().join("deploy/prometheus.yml")).unwrap();
    let config: Value = serde_saphyr::from_str(&text).unwrap();
    let targets = &config["scrape_configs"][0]["static_configs"][0];
    assert_eq!(names(targets, "targets"), ["replica-1:9090", "replica-2:9090"]);
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("prometheus.yml"), text).unwrap();
    let alerts = root().join("charts/sluicegate/files/alerts.yaml");
    fs::copy(alerts, home.path().join("alerts.yaml")).unwrap();
    let file = home.path().join("prometheus.yml");
    let out = Command::new("promtool").args(["check", "config"]).arg(file).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let limits = root().join("config/limits");
    let page = http1::get(serve(&limits, &[]).metrics, "/metrics", &[]).unwrap();
    assert_eq!(page.status, 200);
}
