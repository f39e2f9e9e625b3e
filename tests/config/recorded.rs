//! Tests against recordings of envoyproxy/ratelimit: accepted files, matched limits, counter keys.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use sluicegate::config::diagnostic::Diagnostics;
use sluicegate::config::raw;
use sluicegate::config::resolve::resolve;
use sluicegate::config::tree::RuleMatch;
use sluicegate::config::{Config, LimitWindow, Unit};
use sluicegate::kernel::units::Revision;

fn scenarios() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("spec/conformance/vectors");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all = Vec::new();
    for path in files.filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let group = path.file_stem().unwrap().to_string_lossy().into_owned();
        let list: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        all.extend(list.into_iter().map(|scenario| (group.clone(), scenario)));
    }
    assert!(500 < all.len(), "{} scenarios", all.len());
    all
}

fn files(scenario: &Value) -> Vec<(String, Vec<u8>)> {
    let object = |key: &str| scenario[key].as_object().cloned().unwrap_or_default();
    let text = |value: Value| value.as_str().unwrap().to_owned();
    let plain = object("files").into_iter().map(|(name, value)| (name, text(value).into_bytes()));
    let encoded =
        object("files_base64").into_iter().map(|(name, value)| (name, base64(&text(value))));
    plain.chain(encoded).collect()
}

fn base64(text: &str) -> Vec<u8> {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let sextets = text.bytes().filter_map(|byte| letters.iter().position(|&letter| letter == byte));
    let (mut bits, mut bit_count, mut bytes) = (0usize, 0, Vec::new());
    for sextet in sextets {
        (bits, bit_count) = ((bits << 6 | sextet) & 0xffff, bit_count + 6);
        if 8 <= bit_count {
            bit_count -= 8;
            bytes.push(u8::try_from(bits >> bit_count & 0xff).unwrap());
        }
    }
    bytes
}

fn load(scenario: &Value) -> Result<Config, Diagnostics> {
    let merge = scenario["env"]["MERGE_DOMAIN_CONFIG"].as_str() == Some("true");
    let (mut loaded, mut refused) = (Vec::new(), Diagnostics::default());
    for (name, bytes) in files(scenario) {
        match raw::read(&name, &bytes) {
            Ok((file, source, _)) => loaded.push((file, source)),
            Err(reasons) => refused.append(reasons.diagnostics),
        }
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    resolve(&loaded, Revision(1), merge).map(|(config, _)| config)
}

#[test]
fn limits_files_are_accepted_or_refused_as_recorded() {
    let mut wrong = Vec::new();
    for (group, scenario) in scenarios() {
        let (id, expected) = (scenario["id"].as_str().unwrap(), &scenario["load"]);
        match load(&scenario) {
            Ok(_) if expected != "ok" => wrong.push(format!("{group} {id} was loaded: {expected}")),
            Err(findings) if expected == "ok" => {
                wrong.push(format!("{group} {id} was refused: {}", findings[0]));
            }
            Err(_) | Ok(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn errors_of_refused_limits_name_the_recorded_file() {
    for (group, scenario) in scenarios() {
        let (expected, Err(findings)) = (&scenario["load"], load(&scenario)) else { continue };
        let one = expected["file"].as_str().into_iter();
        let any: Vec<&str> = expected["file_any_of"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let named: Vec<&str> = one.chain(any).collect();
        let blamed =
            findings.iter().any(|one| named.iter().any(|name| &&*one.location.file == name));
        assert!(named.is_empty() || blamed, "{group} {}: {findings:?}", scenario["id"]);
    }
}

// ---- matching ----

struct Matched<'c> {
    found: Option<RuleMatch<'c>>,
    entries: Vec<(String, String)>,
}

fn entries(descriptor: &Value) -> Vec<(String, String)> {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let list = descriptor["entries"].as_array().into_iter().flatten();
    list.map(|entry| (text(entry, "key"), text(entry, "value"))).collect()
}

fn match_descriptor<'c>(config: &'c Config, domain: &str, descriptor: &Value) -> Matched<'c> {
    let entries = entries(descriptor);
    let found = config.domains.get(domain).and_then(|domain| {
        domain.tree.lookup(entries.iter().map(|(key, value)| (&**key, &**value)))
    });
    Matched { found, entries }
}

fn unit(window: &LimitWindow) -> &'static str {
    match window {
        LimitWindow::Unit(Unit::Second) => "SECOND",
        LimitWindow::Unit(Unit::Minute) => "MINUTE",
        LimitWindow::Unit(Unit::Hour) => "HOUR",
        LimitWindow::Unit(Unit::Day) => "DAY",
        LimitWindow::Unit(Unit::Week) => "WEEK",
        LimitWindow::Unit(Unit::Month) => "MONTH",
        LimitWindow::Unit(Unit::Year) => "YEAR",
        other => panic!("{other:?} in a reference file"),
    }
}

impl Matched<'_> {
    fn name(&self) -> Option<&str> {
        self.found.as_ref()?.rule.name.as_deref()
    }

    /// The `currentLimit` of the response for this descriptor: requests, unit and name.
    fn current_limit(&self) -> Option<Value> {
        let rule = self.found.as_ref()?.rule;
        let limit = rule.limits.first()?;
        let mut current_limit =
            serde_json::json!({"requestsPerUnit": limit.requests, "unit": unit(&limit.window)});
        if limit.requests == 0 {
            current_limit.as_object_mut().unwrap().remove("requestsPerUnit");
        }
        if let Some(name) = &rule.name {
            current_limit["name"] = Value::from(&**name);
        }
        Some(current_limit)
    }

    /// The key under which envoyproxy/ratelimit stores this counter.
    fn counter(&self, domain: &str) -> Option<String> {
        let found = self.found.as_ref()?;
        let limit = found.rule.limits.first()?;
        let mut key = format!("{domain}_");
        for (position, (name, value)) in self.entries.iter().enumerate() {
            // The key of envoyproxy/ratelimit has whole values, also long ones.
            let shared = found.shared.iter().find(|(at, text)| {
                *at == position && matches!(text, std::borrow::Cow::Borrowed(_))
            });
            let value = shared.map_or(&**value, |(_, text)| text);
            key.extend([name, "_", value, "_"]);
        }
        Some(format!("{key}{{window_start:{}}}", unit(&limit.window)))
    }
}

/// The match of each descriptor of a request, or `None` if another matched rule replaces it.
fn counted<'c>(config: &'c Config, request: &Value) -> Vec<Option<Matched<'c>>> {
    let domain = request["domain"].as_str().unwrap_or_default();
    let list = request["descriptors"].as_array().unwrap();
    let matched: Vec<Matched<'c>> =
        list.iter().map(|descriptor| match_descriptor(config, domain, descriptor)).collect();
    let rules = matched.iter().filter_map(|matched| matched.found.as_ref());
    let replaced: BTreeSet<String> =
        rules.flat_map(|found| found.rule.replaces.iter().map(ToString::to_string)).collect();
    let dropped =
        |matched: &Matched<'_>| matched.name().is_some_and(|name| replaced.contains(name));
    matched.into_iter().map(|matched| (!dropped(&matched)).then_some(matched)).collect()
}

/// The calls of a scenario, or `None` if the scenario overrides limits or changes files.
fn plain_calls(scenario: &Value) -> Option<Vec<&Value>> {
    let steps = scenario["steps"].as_array()?;
    let plain = |step: &&Value| {
        let descriptors = step["request"]["descriptors"].as_array();
        step["response"]["statuses"].is_array()
            && descriptors.is_some_and(|list| list.iter().all(|one| one["limit"].is_null()))
    };
    steps.iter().all(|step| plain(&step)).then(|| steps.iter().collect())
}

#[test]
fn descriptors_match_the_recorded_limits() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (group, scenario) in scenarios() {
        let (Some(calls), Ok(config)) = (plain_calls(&scenario), load(&scenario)) else { continue };
        for call in calls {
            let statuses = call["response"]["statuses"].as_array().unwrap();
            for (matched, status) in counted(&config, &call["request"]).iter().zip(statuses) {
                let current_limit = matched.as_ref().and_then(Matched::current_limit);
                compared += 1;
                if current_limit.as_ref() != status.get("currentLimit") {
                    wrong.push(format!(
                        "{group} {}: {current_limit:?}, wanted {status}",
                        scenario["id"]
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(1_500 < compared, "only {compared} statuses");
}

#[test]
fn counter_keys_match_the_recorded_store() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (group, scenario) in scenarios() {
        let (Some(calls), Some(store)) = (plain_calls(&scenario), scenario["store"].as_object())
        else {
            continue;
        };
        let Ok(config) = load(&scenario) else { continue };
        if scenario["env"]["CACHE_KEY_PREFIX"].is_string() {
            continue;
        }
        let before = scenario["store_before"].as_object().into_iter().flatten();
        let mut counters: BTreeSet<String> = before.map(|(key, _)| key.clone()).collect();
        for call in calls {
            let domain = call["request"]["domain"].as_str().unwrap_or_default();
            let matched = counted(&config, &call["request"]);
            counters.extend(matched.iter().flatten().filter_map(|matched| matched.counter(domain)));
        }
        compared += 1;
        let kept: BTreeSet<String> = store.keys().cloned().collect();
        if counters != kept {
            wrong.push(format!("{group} {}: {counters:?}, wanted {kept:?}", scenario["id"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(300 < compared, "only {compared} stores");
}
