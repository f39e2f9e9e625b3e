//! Tests of values from the field: labels of an organization, clusters that choose users, IPv6, and
//! further containers.

use serde_json::{Value, json};
use sluicegate::config::settings::{RedisUrl, Setting, SettingsInput, read, table};

use super::cases::CASES;
use super::{Objects, chart, rendered, template};

#[test]
fn no_rendered_object_has_a_key_twice() {
    // The parser refuses repeated keys, as Flux, Kustomize and kubeconform do.
    assert!(serde_saphyr::from_str::<Value>("{a: 1, a: 2}").is_err());
    for case in CASES {
        Objects::read(&template(&chart(), case.flags).unwrap());
    }
}

#[test]
fn labels_of_the_user_replace_those_of_the_chart() {
    let flags = ["--values=tests/chart/values/labels.yaml", "--set=podLabels.team=edge"];
    let objects = rendered(&flags);
    for object in &objects.0 {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/part-of"], "platform", "{object}");
        assert_eq!(labels["team"], "gate", "{object}");
    }
    let pod = &objects.deployment()["spec"]["template"]["metadata"]["labels"];
    assert_eq!(pod["team"], "edge");
    let selector = objects.deployment()["spec"]["selector"]["matchLabels"].as_object().unwrap();
    assert!(selector.iter().all(|(key, value)| pod[key] == *value), "{selector:?} {pod}");
}

#[test]
fn annotations_of_the_user_replace_those_of_the_chart() {
    let objects = rendered(&["--set-string=podAnnotations.checksum/settings=mine"]);
    let pod = &objects.deployment()["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(*pod, json!({"checksum/settings": "mine"}));
}

#[test]
fn labels_of_the_selector_are_refused() {
    for value in ["commonLabels", "podLabels", "service.labels", "dashboards.labels"] {
        for key in ["name", "instance", "component"] {
            let flag = format!("--set-string={value}.app\\.kubernetes\\.io/{key}=limiter");
            let error = template(&chart(), &[&flag]).unwrap_err();
            let wanted =
                format!("{value} sets app.kubernetes.io/{key}, by which the chart selects");
            assert!(error.contains(&wanted), "{error}");
        }
    }
}

/// All security contexts of the pods.
fn security_contexts(objects: &Objects) -> Vec<&Value> {
    let pods = objects.0.iter().filter_map(|object| object.pointer("/spec/template/spec"));
    let contexts = pods.flat_map(|pod| {
        let containers = ["initContainers", "containers"].map(|key| pod[key].as_array());
        let inner = containers.into_iter().flatten().flatten();
        inner.map(|one| &one["securityContext"]).chain([&pod["securityContext"]])
    });
    contexts.collect()
}

#[test]
fn no_container_has_a_fixed_user_if_the_cluster_chooses_users() {
    let case = CASES.iter().find(|case| case.name == "openshift").unwrap();
    let objects = rendered(case.flags);
    let contexts = security_contexts(&objects);
    assert_eq!(contexts.len(), 6, "git-sync twice, the service, Redis and two pods");
    for context in contexts {
        assert!(context.get("runAsUser").is_none(), "{context}");
    }
}

#[test]
fn the_user_of_the_values_is_the_user_of_all_containers() {
    let own = ["--values=tests/chart/values/own_uid.yaml", "--set=redis.enabled=true"];
    let git =
        ["--set=limits.gitSync.enabled=true", "--set=limits.gitSync.repository=https://git/x"];
    let objects = rendered(&[own, git].concat());
    let pods = ["", "-redis"].map(|ending| objects.one("Deployment", ending));
    for pod in pods.map(|object| &object["spec"]["template"]["spec"]) {
        for container in pod["containers"].as_array().unwrap() {
            assert_eq!(container["securityContext"]["runAsUser"], 1_000_680_001, "{container}");
        }
    }
    let none = "--set=limits.gitSync.securityContext.runAsUser=null";
    let objects = rendered(&[git[0], git[1], none]);
    let context = &objects.pod()["containers"][1]["securityContext"];
    assert_eq!(
        (context.get("runAsUser"), &context["readOnlyRootFilesystem"]),
        (None, &json!(true))
    );
}

#[test]
fn every_service_gets_the_ip_families() {
    let objects =
        rendered(&["--values=tests/chart/values/dual_stack.yaml", "--set=redis.enabled=true"]);
    for ending in ["", "-headless", "-redis"] {
        let service = &objects.one("Service", ending)["spec"];
        assert_eq!(service["ipFamilyPolicy"], "PreferDualStack");
        assert_eq!(service["ipFamilies"], json!(["IPv6", "IPv4"]));
    }
    let flags =
        ["--values=tests/chart/values/dual_stack.yaml", "--set=service.ipFamilyPolicy=SingleStack"];
    let error = template(&chart(), &flags).unwrap_err();
    assert!(error.contains("use PreferDualStack or RequireDualStack"), "{error}");
}

#[test]
fn each_config_map_of_limits_is_a_directory() {
    let objects = rendered(&["--set=limits.existingConfigMap={team-a,team.b}"]);
    let mounts = objects.container()["volumeMounts"].as_array().unwrap();
    let volumes = objects.pod()["volumes"].as_array().unwrap();
    for (map, volume) in [("team-a", "limits-0"), ("team.b", "limits-1")] {
        let mount = mounts.iter().find(|mount| mount["name"] == volume).unwrap();
        assert_eq!(mount["mountPath"], format!("/limits/{map}"));
        let volume = volumes.iter().find(|one| one["name"] == volume).unwrap();
        assert_eq!(volume["configMap"]["name"], map);
    }
    assert!(objects.server_yaml().contains(r#""paths":["/limits"]"#), "{}", objects.server_yaml());
}

#[test]
fn further_containers_run_before_and_beside_the_service() {
    let case = CASES.iter().find(|case| case.name == "everything").unwrap();
    let objects = rendered(case.flags);
    assert_eq!(objects.pod()["initContainers"][0]["name"], "wait");
    let containers = objects.pod()["containers"].as_array().unwrap();
    let names: Vec<_> = containers.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sluicegate", "shipper"]);
}

/// URLs of Redis in every form that the service accepts without a password.
const REDIS_URLS: &[&str] = &[
    "redis://redis",
    "redis://redis.data.svc.cluster.local:6380/7",
    "rediss://[2001:db8::1]:6379/0",
    "redis+sentinel://a:1,b:2/main/3",
    "rediss+sentinel://[2001:db8::1],b/main",
    "redis+cluster://a:1,b:2",
    "rediss+cluster://[2001:db8::1]:6379/0",
    "redis+unix:///run/redis.sock?db=2",
];

/// The same for PostgreSQL.
const POSTGRES_URLS: &[&str] = &[
    "postgres://gate@pg/db",
    "postgresql://gate@[2001:db8::1]:5432/db?sslmode=require",
    "postgres://gate@a:1,b:2/db?sslmode=verify-full&connect_timeout=3&application_name=gate",
    "postgres:///db?user=gate&host=/run/postgresql",
];

#[test]
fn the_chart_takes_every_url_that_the_service_takes() {
    for url in REDIS_URLS {
        assert!(RedisUrl::new(url).is_some(), "{url}");
    }
    for (value, urls) in [("redis.external.url", REDIS_URLS), ("postgres.url", POSTGRES_URLS)] {
        for url in urls {
            let flag = format!("--set-string={value}={}", url.replace(',', "\\,"));
            let objects = rendered(&[&flag]);
            let file = Some(("server.yaml".to_owned(), objects.server_yaml().to_owned()));
            let input = SettingsInput { file, ..SettingsInput::default() };
            let loaded = read(&input).unwrap_or_else(|problems| panic!("{url}: {problems:?}"));
            let store: Vec<&Setting> =
                table().iter().filter(|row| row.name == "store.url").collect();
            assert_ne!(store[0].show(&loaded.settings), "memory", "{url}");
        }
    }
}
