//! Tests that the service accepts rendered settings and limits, and the chart refuses invalid
//! values.

use std::fs;

use serde_json::Value;
use sluicegate::cli::{self, CommandOutcome, Terminal};
use sluicegate::config::settings::{self, LoadedSettings, SettingsInput, StoreUrl};

use super::cases::CASES;
use super::{Objects, chart, rendered, template};

fn settings_of(objects: &Objects) -> LoadedSettings {
    let file = Some(("server.yaml".to_owned(), objects.server_yaml().to_owned()));
    let input =
        SettingsInput { file, environment: secrets_of(objects), ..SettingsInput::default() };
    let loaded = settings::read(&input)
        .unwrap_or_else(|problems| panic!("{problems:?}\n{}", objects.server_yaml()));
    assert_eq!(loaded.warnings, []);
    loaded
}

/// The pod's environment variables that come from secrets, with sample values.
fn secrets_of(objects: &Objects) -> Vec<(String, String)> {
    let variables = objects.container()["env"].as_array().into_iter().flatten();
    let secret = |variable: &Value| {
        variable.pointer("/valueFrom/secretKeyRef")?;
        let name = variable["name"].as_str()?;
        let is_postgres = variable["valueFrom"]["secretKeyRef"]["key"] == "postgres";
        let value = match name {
            "SLUICEGATE_STORE_URL" if is_postgres => "postgres://user:word@pg/db?sslmode=require",
            "SLUICEGATE_STORE_URL" => "redis://user:word@redis",
            _ => "a-word-of-the-secret",
        };
        Some((name.to_owned(), value.to_owned()))
    };
    variables.filter_map(secret).collect()
}

#[test]
fn the_service_accepts_rendered_settings_of_every_test_case() {
    for case in CASES {
        let objects = rendered(case.flags);
        let loaded = settings_of(&objects);
        let from = loaded.settings.limits.paths.len()
            + usize::from(loaded.settings.limits.xds.server.is_some());
        assert_eq!(from, 1, "{}: limits come from one place", case.name);
    }
}

#[test]
fn validation_accepts_rendered_limits_of_every_test_case() {
    let mut checked = 0;
    for case in CASES {
        let objects = rendered(case.flags);
        let limits = objects.limits();
        if limits.is_empty() {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in limits {
            fs::write(directory.path().join(name), text).unwrap();
            checked += 1;
        }
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let argv = ["sluicegate".into(), "check".into(), directory.path().into()];
        let outcome = cli::run(argv.into(), [], &mut Terminal { out: &mut out, err: &mut err });
        let output = String::from_utf8([out, err].concat()).unwrap();
        assert_eq!(outcome, CommandOutcome::Success, "{}: {output}", case.name);
        assert!(output.contains("0 errors, 0 warnings"), "{}: {output}", case.name);
    }
    assert_eq!(checked, 6, "one for each preset");
}

#[test]
fn large_numbers_and_symbols_are_rendered_unchanged() {
    let everything = CASES.iter().find(|case| case.name == "everything").unwrap();
    let loaded = settings_of(&rendered(everything.flags));
    assert_eq!(loaded.settings.store.max_keys, 20_000_000);
    assert!(format!("{:?}", loaded.settings.hooks).contains("a<b&c"));
}

#[test]
fn the_service_uses_the_bundled_redis() {
    let objects = rendered(&["--set", "redis.enabled=true"]);
    let StoreUrl::Redis(url) = settings_of(&objects).settings.store.url else { panic!("memory") };
    assert_eq!(url.to_string(), "redis://edge-sluicegate-redis:6379");
    assert_eq!(objects.one("Service", "-redis")["spec"]["ports"][0]["port"], 6379);
}

#[test]
fn every_file_named_in_settings_is_mounted() {
    for case in CASES {
        let objects = rendered(case.flags);
        let settings = settings_of(&objects).settings;
        let files = [
            settings.store.password_file,
            settings.store.tls.ca_file,
            settings.store.tls.cert_file,
            settings.store.tls.key_file,
            settings.store.sentinel.password_file,
            settings.fleet.peers.secret_file,
            settings.fleet.peers.tls.ca_file,
            settings.fleet.peers.tls.cert_file,
            settings.fleet.peers.tls.key_file,
            settings.listen.tls.cert_file,
            settings.listen.tls.key_file,
            settings.listen.tls.client_ca_file,
        ];
        let mounts = objects.container()["volumeMounts"].as_array().unwrap();
        for path in files.into_iter().flatten().chain(settings.limits.paths) {
            // Each of several ConfigMaps is mounted below the directory of limits.
            let is_mount_of = |m: &&Value| {
                let at = std::path::Path::new(m["mountPath"].as_str().unwrap());
                path.starts_with(at) || at.starts_with(&path)
            };
            let mount = mounts.iter().find(is_mount_of);
            let mount = mount.unwrap_or_else(|| panic!("{}: {}", case.name, path.display()));
            let volumes = objects.pod()["volumes"].as_array().unwrap();
            assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{}", case.name);
        }
    }
}

#[test]
fn only_replicas_may_call_the_peer_port() {
    for known_by in ["peers.existingSecret=ours", "peers.tls.existingSecret=ours,peers.tls.name=a"]
    {
        let flags = ["redis.external.url=redis://a", known_by, "networkPolicy.enabled=true"];
        assert_peer_access(&rendered(&["--set", &flags.join(",")]));
    }
}

fn assert_peer_access(objects: &Objects) {
    let ports = objects.container()["ports"].as_array().unwrap();
    assert!(ports.contains(&serde_json::json!({"name": "peer", "containerPort": 8082})));
    let env = objects.container()["env"].as_array().unwrap();
    let host =
        env.iter().find(|variable| variable["name"] == "SLUICEGATE_LISTEN_PEER_HOST").unwrap();
    assert_eq!(host.pointer("/valueFrom/fieldRef/fieldPath").unwrap(), "status.podIP");
    let rules = objects.one("NetworkPolicy", "")["spec"]["ingress"].clone();
    let rules = rules.as_array().unwrap();
    let rule = rules.iter().find(|rule| rule["ports"][0]["port"] == "peer").unwrap();
    let own = objects.one("NetworkPolicy", "")["spec"]["podSelector"].clone();
    assert_eq!(rule["from"], serde_json::json!([{"podSelector": own}]));
    assert!(!objects.server_yaml().contains("ours"), "the secret is no setting");
}

/// Longest time from the end of draining to the exit of the service, in seconds:
///
/// - 2.0: leases are returned
/// - 0.5: forwarded releases are sent
/// - 1.6: the store is told that this replica leaves the fleet
/// - 4.0: spans and metrics are exported, 2.0 each
/// - 1.9: allowance for a slow machine
const SHUTDOWN_SECONDS: u64 = 10;

#[test]
fn grace_period_covers_drain_and_shutdown() {
    for (delay, timeout, drain) in
        [("5s", "20s", 25), ("1m", "1500ms", 62), ("0s", "1us", 1), ("1h", "2m", 3720)]
    {
        let set =
            format!("settings.listen.drain_delay={delay},settings.listen.drain_timeout={timeout}");
        let objects = rendered(&["--set", &set]);
        let grace = objects.pod()["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert_eq!(grace, drain + SHUTDOWN_SECONDS, "{set}");
    }
}

#[test]
fn a_custom_grace_period_must_cover_the_drain() {
    let least = 5 + 20 + SHUTDOWN_SECONDS;
    let of = |grace: u64| {
        let set = format!("terminationGracePeriodSeconds={grace}");
        template(&chart(), &["--set", &set]).map(|text| Objects::read(&text))
    };
    for grace in [least, least + 1] {
        let objects = of(grace).unwrap_or_else(|output| panic!("{grace}: {output}"));
        assert_eq!(objects.pod()["terminationGracePeriodSeconds"], grace);
    }
    let Err(output) = of(least - 1) else { panic!("{} s is too short", least - 1) };
    assert!(output.contains("would be killed with requests in flight"), "{output}");
    assert!(output.contains(&format!("Set at least {least}")), "{output}");
}

/// Kubernetes starts the grace period before the preStop hook, and sends SIGTERM after it.
#[test]
fn pre_stop_sleep_extends_the_grace_period() {
    let (sleep, least) = (15, 15 + 5 + 20 + SHUTDOWN_SECONDS);
    let set = format!("lifecycle.preStop.sleep.seconds={sleep}");
    let grace = |objects: &Objects| objects.pod()["terminationGracePeriodSeconds"].as_u64();
    assert_eq!(grace(&rendered(&["--set", &set])), Some(least));
    let own = |grace: u64| format!("{set},terminationGracePeriodSeconds={grace}");
    assert_eq!(grace(&rendered(&["--set", &own(least)])), Some(least));
    let output = template(&chart(), &["--set", &own(least - 1)]);
    let Err(output) = output else { panic!("{} s is too short", least - 1) };
    assert!(output.contains(&format!("Set at least {least}")), "{output}");
}

#[test]
fn other_pre_stop_hooks_require_an_explicit_grace_period() {
    let hook = "lifecycle.preStop.httpGet.port=http";
    let own = format!("{hook},terminationGracePeriodSeconds=60");
    assert_eq!(rendered(&["--set", &own]).pod()["terminationGracePeriodSeconds"], 60);
    let Err(output) = template(&chart(), &["--set", hook]) else { panic!("nobody knows") };
    assert!(
        output.contains("set terminationGracePeriodSeconds to the duration of the hook plus 35 s"),
        "{output}"
    );
}

#[test]
fn syslog_is_received_on_all_pod_addresses() {
    let set = "settings.listen.syslog_port=5514,settings.listen.syslog_from=10.0.0.0/8,networkPolicy.enabled=true";
    let objects = rendered(&["--set", set]);
    let listen = settings_of(&objects).settings.listen;
    let received = (listen.syslog_host().is_unspecified(), listen.syslog_port);
    assert_eq!(received, (true, Some(5514)), "{}", objects.server_yaml());
    let none = rendered(&["--set", "settings.listen.syslog_port=none"]);
    assert_eq!(settings_of(&none).settings.listen.syslog_port, None);
}

#[test]
fn contradictory_chart_values_are_refused_with_a_reason() {
    for (set, words) in [
        ("replicaCount=2", "several replicas without Redis"),
        ("autoscaling.enabled=true", "several replicas without Redis"),
        ("persistence.enabled=true,replicaCount=2", "keeps the counters of one replica"),
        ("persistence.enabled=true,redis.enabled=true", "but a Redis or PostgreSQL is configured"),
        ("terminationGracePeriodSeconds=25", "would be killed with requests in flight"),
        (
            "redis.enabled=true,redis.external.url=redis://a",
            "redis.enabled and redis.external.url are set: set only one of them",
        ),
        (
            "postgres.url=postgres://u@a,redis.external.url=redis://a",
            "redis.external.url and postgres.url are set: set only one of them",
        ),
        ("postgres.url=postgres://u:secret@a", "contains a password"),
        ("postgres.existingSecret=a", "no PostgreSQL is configured"),
        ("postgres.migrate=true", "no PostgreSQL is configured"),
        ("postgres.url=postgres://u@a,postgres.tls.existingSecret=a", "does not use TLS"),
        ("postgres.url=redis://a", "/postgres/url"),
        ("redis.enabled=true,redis.existingSecret=a", "a Redis without a password"),
        ("redis.enabled=true,redis.tls.existingSecret=a", "a Redis without a password"),
        ("redis.enabled=true,redis.tls.serverName=a", "a Redis without a password"),
        ("redis.enabled=true,redis.sentinel.existingSecret=a", "a Redis without a password"),
        ("redis.enabled=true,redis.sentinel.user=a", "a Redis without a password"),
        ("redis.existingSecret=a", "no Redis is configured"),
        ("redis.tls.existingSecret=a", "does not use TLS"),
        ("redis.external.url=redis://a,redis.tls.existingSecret=a", "does not use TLS"),
        ("redis.external.url=redis://a,redis.tls.serverName=a", "does not use TLS"),
        ("redis.external.url=redis://a,redis.sentinel.user=a", "has no sentinels"),
        ("redis.external.url=rediss://a,redis.sentinel.existingSecret=a", "has no sentinels"),
        ("redis.external.url=redis+sentinel://a/m,redis.sentinel.user=a", "redis.sentinel.user"),
        ("redis.external.url=redis://user@host", "has a user without a password"),
        (
            "redis.external.url=redis://a,redis.external.perSecondUrl=redis://u@b",
            "has a user without a password",
        ),
        ("redis.external.url=redis://u:secret@a", "contains a password"),
        ("redis.external.perSecondUrl=redis://:secret@a", "contains a password"),
        (
            "settings.limits.xds.server=a:1,limits.existingConfigMap=a",
            "set only one source of limits",
        ),
        ("grpcTLS.clientCertificates=true", "requires grpcTLS.existingSecret"),
        ("grpcTLS.issue.enabled=true,grpcTLS.existingSecret=a", "set only one of them"),
        ("grpcTLS.issue.clientNamespace=a", "requires grpcTLS.issue.enabled"),
        ("redis.tls.clientCertificate=true", "requires redis.tls.existingSecret"),
        ("redis.external.perSecondUrl=redis://a", "requires redis.external.url"),
        ("limits.existingConfigMap=a,limits.gitSync.enabled=true", "set only one source of limits"),
        ("peers.existingSecret=a", "require a shared Redis"),
        ("peers.tls.existingSecret=a,peers.tls.name=b", "require a shared Redis"),
        ("redis.external.url=redis://a,peers.tls.existingSecret=a", "requires peers.tls.name"),
        ("peers.tls.name=a", "requires peers.tls.existingSecret"),
        ("settings.fleet.peers.tls.cert_file=/a", "'tls' not allowed"),
        ("settings.listen.peer_host=0.0.0.0", "'peer_host' not allowed"),
        ("limits.gitSync.enabled=true", "requires limits.gitSync.repository"),
        (
            "settings.compat.metrics.names=compat,metrics.prometheusRule.enabled=true",
            "Set it to all",
        ),
        ("settings.compat.metrics.names=compat,dashboards.enabled=true", "Set it to all"),
        ("settings.listen.syslog_port=5514", "requires settings.listen.syslog_from"),
        // `values.schema.json` refuses the values below.
        ("replicas=3", "'replicas' not allowed"),
        ("image.name=a", "'name' not allowed"),
        ("settings.max_kyes=1", "'max_kyes' not allowed"),
        ("settings.store.max_keys=many", "/settings/store/max_keys"),
        ("settings.store.url=memory", "'url' not allowed"),
        ("redis.external.url=http://a", "/redis/external/url"),
        ("limits.inline.a/b=x", "a/b"),
    ] {
        let output = template(&chart(), &["--set", set]).expect_err(set);
        assert!(output.contains(words), "{set}: {output}");
        assert!(!output.contains("secret@"), "{output}");
    }
}

/// - Redis TLS settings may apply to the Redis for per-second limits alone.
/// - A Redis URL in a secret is unknown to the chart, so it cannot contradict.
/// - An environment variable may override a contradictory setting.
#[test]
fn valid_redis_combinations_render() {
    let user = "redis.external.url=redis://user@host";
    let env = "extraEnv[0].name=SLUICEGATE_STORE_PASSWORD_FILE,extraEnv[0].value=/vault/word";
    for set in [
        "redis.external.url=redis://a,redis.external.perSecondUrl=rediss://b,redis.tls.serverName=c",
        "redis.external.urlSecret.name=a,redis.tls.existingSecret=b,redis.sentinel.user=c",
        "redis.external.urlSecret.name=a,redis.existingSecret=b",
        &format!("{user},redis.existingSecret=a"),
        &format!("{user},{env}"),
        &format!("{user},extraEnvFrom[0].secretRef.name=a"),
    ] {
        template(&chart(), &["--set", set]).unwrap_or_else(|output| panic!("{set}: {output}"));
    }
}

#[test]
fn every_pod_uses_the_image_pull_secrets() {
    let objects = rendered(&["--set", "imagePullSecrets[0].name=ours,redis.enabled=true"]);
    let pods = objects.0.iter().filter_map(|object| match object["kind"].as_str()? {
        "Deployment" => Some(&object["spec"]["template"]["spec"]),
        "Pod" => Some(&object["spec"]),
        _ => None,
    });
    let secrets: Vec<_> = pods.map(|pod| pod["imagePullSecrets"].clone()).collect();
    let ours = serde_json::json!([{"name": "ours"}]);
    assert_eq!(secrets, [ours.clone(), ours.clone(), ours], "service, Redis, test");
}

#[test]
fn admin_port_with_a_token_binds_all_addresses() {
    for (set, host) in [("", "::"), (",settings.listen.host=0.0.0.0", "0.0.0.0")] {
        let objects = rendered(&["--set", &format!("admin.existingSecret=a{set}")]);
        assert_eq!(settings_of(&objects).settings.listen.admin_host.to_string(), host);
    }
}

#[test]
fn kubernetes_service_links_are_disabled() {
    // Service links of a Kubernetes service `sluicegate-listen-grpc` would set `SLUICEGATE_LISTEN_GRPC_PORT`.
    assert_eq!(rendered(&[]).pod()["enableServiceLinks"], false);
}
