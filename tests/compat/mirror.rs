//! Replays recorded scenarios with a mirror that replies as envoyproxy/ratelimit did.
//!
//! Guarantees:
//! - The mirror finds no difference in a recording.
//! - A planted difference is found, with its rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitResponse;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::vectors::{self, Scenario};
use super::wire::{Connection, SHOULD_RATE_LIMIT};
use super::{deliberate_differences, flags, message};
use crate::support::http1;
use crate::support::rate_limit_server::RateLimitServer;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const GROUPS: [&str; 7] = [
    "hits_addend",
    "matching",
    "multi_descriptor",
    "replaces",
    "shadow",
    "share_threshold",
    "unlimited",
];

fn code(json: &Value) -> i32 {
    json.as_str().and_then(Code::from_str_name).unwrap_or(Code::Unknown).into()
}

/// The codes and the remaining hits of a recorded response.
fn recorded_reply(json: &Value) -> RateLimitResponse {
    let statuses = json["statuses"].as_array().cloned().unwrap_or_default();
    let statuses = statuses.iter().map(|status| DescriptorStatus {
        code: code(&status["code"]),
        limit_remaining: u32::try_from(status["limitRemaining"].as_u64().unwrap_or(0)).unwrap(),
        ..DescriptorStatus::default()
    });
    RateLimitResponse {
        overall_code: code(&json["overallCode"]),
        statuses: statuses.collect(),
        ..RateLimitResponse::default()
    }
}

/// Returns `true` if all steps are calls with a decision, and the memory store reproduces them.
fn is_comparable(scenario: &Scenario) -> bool {
    let is_decision = |response: &Option<Value>| {
        response.as_ref().is_some_and(|response| response["grpc_code"].is_null())
    };
    scenario.steps.iter().all(|step| step.request.is_some() && is_decision(&step.response))
        && scenario.load == "ok"
        && scenario.env.keys().all(|name| flags::is_mapped(name))
        && scenario.distinct_windows.is_empty()
        && scenario.store_before.is_none()
        && scenario.defect.is_none()
        && scenario.files_base64.is_empty()
}

/// Replays the scenario against a mirror with these replies, until no reply is later than the 200 ms
/// for which the service waits. Returns the page `/mirror`.
fn replay(scenario: &Scenario, replies: &[RateLimitResponse], runtime: &Runtime) -> Value {
    let page = until("a replay without a late reply", || {
        for_a_day_with_a_minute_left();
        let page = replay_once(scenario, replies, runtime);
        if page["checks"]["failed"] == 0 { Ok(page) } else { Err(page.to_string()) }
    });
    page.unwrap()
}

fn replay_once(scenario: &Scenario, replies: &[RateLimitResponse], runtime: &Runtime) -> Value {
    let (replies, current_step) = (replies.to_vec(), Arc::new(AtomicUsize::new(0)));
    // The reply depends on the step and not on the number of calls, of which some may get lost.
    let step = Arc::clone(&current_step);
    let mirror = RateLimitServer::start(Box::new(move |_| replies.get(step.load(SeqCst)).cloned()));
    let limits = tempfile::tempdir().unwrap();
    for (name, text) in &scenario.files {
        std::fs::write(limits.path().join(name), text).unwrap();
    }
    let mut flags = flags::from_env(&scenario.env);
    let to = mirror.address.to_string();
    flags.extend(["--mirror-to", &to, "--mirror-sample", "100%"].map(str::to_owned));
    let service = Service::start(limits.path(), &flags).unwrap();
    let entered = runtime.enter();
    let connection = Connection::to(service.grpc);
    drop(entered);
    let page = || {
        let reply = http1::get(service.admin, "/mirror", &[]).unwrap();
        serde_json::from_slice::<Value>(&reply.body).unwrap()
    };
    for (calls, step) in (1_u64..).zip(&scenario.steps) {
        current_step.store(usize::try_from(calls - 1).unwrap(), SeqCst);
        let request = message::request(step.request.as_ref().unwrap()).unwrap().encode_to_vec();
        runtime.block_on(connection.call(SHOULD_RATE_LIMIT, request)).unwrap();
        until("the comparison", || {
            let checks = page()["checks"].clone();
            let done: u64 = checks.as_object().unwrap().values().filter_map(Value::as_u64).sum();
            if done == calls { Ok(()) } else { Err(checks.to_string()) }
        })
        .unwrap();
    }
    page()
}

fn recorded_replies(scenario: &Scenario) -> Vec<RateLimitResponse> {
    let responses = scenario.steps.iter().filter_map(|step| step.response.as_ref());
    responses.map(recorded_reply).collect()
}

#[test]
fn the_mirror_finds_no_difference_in_recorded_replies() {
    let (runtime, differs) = (Runtime::new().unwrap(), deliberate_differences(false));
    let groups = vectors::read(&vectors::directory());
    let groups = groups.iter().filter(|group| GROUPS.contains(&&*group.name));
    let scenarios = groups.flat_map(|group| &group.scenarios).filter(|one| is_comparable(one));
    let mut compared = 0;
    for scenario in scenarios.filter(|scenario| !differs.contains_key(&scenario.id)) {
        let page = replay(scenario, &recorded_replies(scenario), &runtime);
        let wanted = json!({
            "equal": scenario.steps.len(), "different": 0, "failed": 0, "dropped": 0,
        });
        assert_eq!(page["checks"], wanted, "{}: {page}", scenario.id);
        compared += 1;
    }
    assert!(50 <= compared, "{compared} scenarios");
}

#[test]
fn a_planted_difference_is_found_with_its_rule() {
    let groups = vectors::read(&vectors::directory());
    let mut scenarios = groups.iter().flat_map(|group| &group.scenarios);
    let scenario = scenarios.find(|scenario| scenario.id == "multi_descriptor-002").unwrap();
    let mut replies = recorded_replies(scenario);
    // In the first check, the other service denies the second descriptor.
    replies[0].statuses[1].code = Code::OverLimit.into();
    replies[0].statuses[1].limit_remaining = 0;
    replies[0].overall_code = Code::OverLimit.into();
    // In the second check, it allows the first descriptor.
    replies[1].statuses[0].code = Code::Ok.into();
    replies[1].overall_code = Code::Ok.into();
    let page = replay(scenario, &replies, &Runtime::new().unwrap());
    assert_eq!((&page["checks"]["different"], &page["checks"]["failed"]), (&json!(2), &json!(0)));
    let rules = json!([
        {"rule": "d.a", "ours_deny": 1, "theirs_deny": 0},
        {"rule": "d.b", "ours_deny": 0, "theirs_deny": 1},
    ]);
    assert_eq!(page["rules"], rules, "{page}");
    let first = &page["last"][1];
    assert_eq!(
        (&first["domain"], &first["ours"], &first["theirs"]),
        (&json!("d"), &json!("OK"), &json!("OVER_LIMIT"),)
    );
    let descriptor = json!({
        "rule": "d.b",
        "descriptor": "b=1",
        "ours": "OK",
        "theirs": "OVER_LIMIT",
        "ours_remaining": 8,
        "theirs_remaining": 0,
    });
    assert_eq!(first["descriptors"], json!([descriptor]));
}
