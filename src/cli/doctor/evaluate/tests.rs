//! The findings that facts about a Redis cause.

use super::{
    CLUSTER_SLOTS, ClusterFacts, DoctorRequirements, DoctorSeverity, MAX_CLOCK_SKEW, Nanos,
    RedisFacts, ScriptFailure, StoreProduct, evaluate_facts,
};

const REQUIREMENTS: DoctorRequirements =
    DoctorRequirements { call_timeout: Nanos(15 * Nanos::MILLI.0), has_compat_keys: false };

fn healthy() -> RedisFacts {
    RedisFacts {
        address: "h:1".to_owned(),
        version: Some((7, 0)),
        role: Some("master".to_owned()),
        has_run_id: Some(true),
        eviction_policy: Some("noeviction".to_owned()),
        maxmemory: Some(0),
        used_memory: Some(1_000_000),
        evicted_keys: Some(0),
        has_append_only_file: Some(true),
        has_snapshots: Some(true),
        clock_skew: Some(Nanos(0)),
        round_trip: Some(Nanos(200_000)),
        script_result: Some(Ok(())),
        ..RedisFacts::default()
    }
}

/// Returns the codes of the findings, with `!` before the code of an error.
fn codes(facts: &RedisFacts, wanted: DoctorRequirements) -> Vec<String> {
    let code = |it: super::DoctorFinding| {
        assert!(it.to_string().contains("h:1: ") && !it.help.is_empty());
        format!("{}{}", if it.severity == DoctorSeverity::Error { "!" } else { "" }, it.code)
    };
    evaluate_facts(facts, wanted).into_iter().map(code).collect()
}

#[test]
fn a_healthy_redis_and_unknown_facts_have_no_findings() {
    assert!(codes(&healthy(), REQUIREMENTS).is_empty());
    let unknown = RedisFacts { address: "h:1".to_owned(), ..RedisFacts::default() };
    assert!(codes(&unknown, REQUIREMENTS).is_empty());
}

#[test]
fn each_redis_problem_causes_its_finding_once() {
    let text = |text: &str| Some(text.to_owned());
    let refused = || Some(Err(ScriptFailure::Refused("NOPERM".to_owned())));
    let missing = || Some(Err(ScriptFailure::Missing("zadd".to_owned())));
    let ok = ClusterFacts { is_ok: true, slots: CLUSTER_SLOTS };
    let cases: Vec<(&str, RedisFacts)> = vec![
        ("!version", RedisFacts { version: Some((6, 0)), ..healthy() }),
        ("!version", RedisFacts { version: Some((5, 9)), ..healthy() }),
        ("", RedisFacts { version: Some((6, 2)), ..healthy() }),
        ("!replica", RedisFacts { role: text("slave"), script_result: refused(), ..healthy() }),
        ("!loading", RedisFacts { is_loading: true, ..healthy() }),
        ("run_id", RedisFacts { has_run_id: Some(false), ..healthy() }),
        ("!scripts", RedisFacts { script_result: refused(), ..healthy() }),
        ("!commands", RedisFacts { script_result: missing(), ..healthy() }),
        ("!active_replica", RedisFacts { role: text("active-replica"), ..healthy() }),
        ("!eviction", RedisFacts { eviction_policy: text("allkeys-lru"), ..healthy() }),
        ("!eviction", RedisFacts { eviction_policy: text("volatile-ttl"), ..healthy() }),
        ("memory", RedisFacts { maxmemory: Some(1_100_000), ..healthy() }),
        ("", RedisFacts { maxmemory: Some(2_000_000), ..healthy() }),
        (
            "!slots",
            RedisFacts {
                cluster: Some(ClusterFacts { slots: CLUSTER_SLOTS - 1, ..ok }),
                ..healthy()
            },
        ),
        (
            "!cluster",
            RedisFacts { cluster: Some(ClusterFacts { is_ok: false, ..ok }), ..healthy() },
        ),
        ("", RedisFacts { cluster: Some(ok), ..healthy() }),
        ("two_primaries", RedisFacts { writes_without_replica: Some(true), ..healthy() }),
        ("", RedisFacts { writes_without_replica: Some(false), ..healthy() }),
        ("!latency", RedisFacts { round_trip: Some(REQUIREMENTS.call_timeout), ..healthy() }),
        (
            "latency",
            RedisFacts { round_trip: Some(Nanos(REQUIREMENTS.call_timeout.0 / 2)), ..healthy() },
        ),
        ("clock", RedisFacts { clock_skew: Some(MAX_CLOCK_SKEW), ..healthy() }),
        (
            "persistence",
            RedisFacts {
                has_append_only_file: Some(false),
                has_snapshots: Some(false),
                ..healthy()
            },
        ),
        ("", RedisFacts { has_append_only_file: Some(false), ..healthy() }),
    ];
    for (code, facts) in cases {
        let expected: Vec<&str> = [code].into_iter().filter(|code| !code.is_empty()).collect();
        assert_eq!(codes(&facts, REQUIREMENTS), expected, "{facts:?}");
    }
    let evicting =
        RedisFacts { eviction_policy: text("allkeys-lru"), evicted_keys: Some(3), ..healthy() };
    assert_eq!(codes(&evicting, REQUIREMENTS), ["!eviction", "evicted"]);
    let failing =
        RedisFacts { has_append_only_file: Some(false), last_save_failed: true, ..healthy() };
    assert_eq!(codes(&failing, REQUIREMENTS), ["persistence"]);
}

#[test]
fn scripts_refused_with_oom_suggest_raising_maxmemory() {
    let fix = |why: &str| {
        let facts = RedisFacts {
            script_result: Some(Err(ScriptFailure::Refused(why.to_owned()))),
            ..healthy()
        };
        evaluate_facts(&facts, REQUIREMENTS).into_iter().map(|it| it.help).collect::<String>()
    };
    let full = fix("OOM command not allowed when used memory > 'maxmemory'.");
    assert!(full.contains("raise `maxmemory`") && !full.contains("EVAL"), "{full}");
    assert!(fix("NOPERM this user has no permissions").contains("allow EVAL, EVALSHA"));
}

#[test]
fn fixes_name_what_a_relative_of_redis_needs() {
    let fix = |facts: RedisFacts| evaluate_facts(&facts, REQUIREMENTS).remove(0).help;
    let refused = Some(Err(ScriptFailure::Refused("scripting support disabled".to_owned())));
    let garnet = RedisFacts { product: StoreProduct::Garnet, script_result: refused, ..healthy() };
    assert!(fix(garnet).contains("`--lua`"));
    let no_id = RedisFacts { has_run_id: Some(false), ..healthy() };
    assert!(fix(no_id.clone()).contains("allow INFO"));
    assert!(fix(RedisFacts { product: StoreProduct::Dragonfly, ..no_id }).contains("Dragonfly"));
}

#[test]
fn a_wrong_clock_is_an_error_with_envoyproxy_keys() {
    let wanted = DoctorRequirements { has_compat_keys: true, ..REQUIREMENTS };
    assert!(codes(&healthy(), wanted).is_empty());
    assert_eq!(
        codes(&RedisFacts { clock_skew: Some(MAX_CLOCK_SKEW), ..healthy() }, wanted),
        ["!clock"]
    );
}
