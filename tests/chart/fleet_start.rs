//! Tests of the Job that starts the fleet at the first installation.

use serde_json::{Value, json};

use super::cases::CASES;
use super::{Objects, rendered};

const REDIS: &str = "redis.external.url=redis://redis.data";

fn job(objects: &Objects) -> &Value {
    objects.one("Job", "-fleet-start")
}

/// Helm runs a hook `pre-install` before a release exists, and never at an upgrade.
#[test]
fn only_the_first_installation_starts_the_fleet() {
    let objects = rendered(&["--set", REDIS]);
    for hook in [job(&objects), objects.one("ConfigMap", "-fleet-start")] {
        assert_eq!(hook["metadata"]["annotations"]["helm.sh/hook"], "pre-install");
    }
    let pod = &job(&objects)["spec"]["template"]["spec"];
    let [container] = &pod["containers"].as_array().unwrap()[..] else { panic!("{pod}") };
    let args = json!(["fleet", "start", "--if-new", "--settings", "/etc/sluicegate/server.yaml"]);
    assert_eq!(container["args"], args);
    assert_eq!(container["image"], objects.container()["image"]);
}

#[test]
fn the_fleet_start_has_the_settings_and_files_of_the_store() {
    let flags = |name: &str| CASES.iter().find(|case| case.name == name).unwrap().flags;
    for name in ["postgres", "postgres_tls", "sentinel", "cluster", "everything"] {
        let objects = rendered(flags(name));
        let settings = &objects.one("ConfigMap", "-fleet-start")["data"]["server.yaml"];
        assert_eq!(settings, objects.server_yaml(), "{name}");
        let pod = &job(&objects)["spec"]["template"]["spec"];
        let of_store = |pod: &Value, list: &str, place: &str| -> Vec<String> {
            let all = pod.pointer(place).and_then(|at| at[list].as_array()).into_iter().flatten();
            let texts = all.map(ToString::to_string);
            texts.filter(|text| text.contains("redis") || text.contains("postgres")).collect()
        };
        for (list, place) in
            [("volumeMounts", "/containers/0"), ("env", "/containers/0"), ("volumes", "")]
        {
            let (own, replicas) =
                (of_store(pod, list, place), of_store(objects.pod(), list, place));
            assert_eq!(own, replicas, "{name}: {list}");
        }
    }
    let postgres = rendered(flags("postgres"));
    let migration = &job(&postgres)["spec"]["template"]["spec"]["initContainers"][0];
    assert_eq!(migration["args"][0], "migrate", "the replicas have not created the tables yet");
}

#[test]
fn no_fleet_is_started_without_an_existing_store() {
    for set in
        ["replicaCount=1", "redis.enabled=true", &format!("{REDIS},fleetStart.enabled=false")]
    {
        let names = rendered(&["--set", set]).names();
        assert!(!names.iter().any(|name| name.contains("fleet-start")), "{set}: {names:?}");
    }
}
