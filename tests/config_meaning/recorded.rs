//! The reference's recorded behaviour: which files it loads, and which limit each descriptor met.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use sluicegate::config::diagnostic::Diagnostics;
use sluicegate::config::raw;
use sluicegate::config::resolve::resolve;
use sluicegate::config::tree::Match;
use sluicegate::config::{Config, Unit, Window};
use sluicegate::kernel::units::Revision;

/// Every recorded scenario, with the group it is from.
fn scenarios() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat/vectors");
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
    let (mut bits, mut held, mut bytes) = (0usize, 0, Vec::new());
    for sextet in sextets {
        (bits, held) = ((bits << 6 | sextet) & 0xffff, held + 6);
        if 8 <= held {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).unwrap());
        }
    }
    bytes
}

fn load(scenario: &Value) -> Result<Config, Diagnostics> {
    let merge = scenario["env"]["MERGE_DOMAIN_CONFIG"].as_str() == Some("true");
    let (mut sound, mut refused) = (Vec::new(), Diagnostics::default());
    for (name, bytes) in files(scenario) {
        match raw::read(&name, &bytes) {
            Ok((file, source, _)) => sound.push((file, source)),
            Err(reasons) => refused.append(reasons),
        }
    }
    if !refused.is_empty() {
        return Err(refused);
    }
    resolve(&sound, Revision(1), merge).map(|(config, _)| config)
}

#[test]
fn what_the_reference_loads_is_loaded_and_what_it_refuses_is_refused() {
    let mut wrong = Vec::new();
    for (group, scenario) in scenarios() {
        let (id, expected) = (scenario["id"].as_str().unwrap(), &scenario["load"]);
        match load(&scenario) {
            Ok(_) if expected != "ok" => wrong.push(format!("{group} {id} was loaded: {expected}")),
            Err(said) if expected == "ok" => {
                wrong.push(format!("{group} {id} was refused: {}", said[0]));
            }
            Err(_) | Ok(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_refusal_names_the_file_that_the_reference_names_first() {
    for (group, scenario) in scenarios() {
        let (expected, Err(said)) = (&scenario["load"], load(&scenario)) else { continue };
        let one = expected["file"].as_str().into_iter();
        let any: Vec<&str> = expected["file_any_of"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let named: Vec<&str> = one.chain(any).collect();
        let blamed = said.iter().any(|one| named.iter().any(|name| &&*one.place.file == name));
        assert!(named.is_empty() || blamed, "{group} {}: {said:?}", scenario["id"]);
    }
}

// ---- matching ----

struct Met<'c> {
    found: Option<Match<'c>>,
    entries: Vec<(String, String)>,
}

fn entries(descriptor: &Value) -> Vec<(String, String)> {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let list = descriptor["entries"].as_array().into_iter().flatten();
    list.map(|entry| (text(entry, "key"), text(entry, "value"))).collect()
}

fn meet<'c>(config: &'c Config, domain: &str, descriptor: &Value) -> Met<'c> {
    let entries = entries(descriptor);
    let found = config.domains.get(domain).and_then(|domain| {
        domain.tree.lookup(entries.iter().map(|(key, value)| (&**key, &**value)))
    });
    Met { found, entries }
}

fn unit(window: &Window) -> &'static str {
    match window {
        Window::Unit(Unit::Second) => "SECOND",
        Window::Unit(Unit::Minute) => "MINUTE",
        Window::Unit(Unit::Hour) => "HOUR",
        Window::Unit(Unit::Day) => "DAY",
        Window::Unit(Unit::Week) => "WEEK",
        Window::Unit(Unit::Month) => "MONTH",
        Window::Unit(Unit::Year) => "YEAR",
        other => panic!("{other:?} in a reference file"),
    }
}

impl Met<'_> {
    fn name(&self) -> Option<&str> {
        self.found.as_ref()?.rule.name.as_deref()
    }

    /// What the status shows: requests, unit and name of a limit that is counted.
    fn shown(&self) -> Option<Value> {
        let rule = self.found.as_ref()?.rule;
        let limit = rule.limit.as_ref()?;
        let mut shown =
            serde_json::json!({"requestsPerUnit": limit.requests, "unit": unit(&limit.window)});
        if limit.requests == 0 {
            shown.as_object_mut().unwrap().remove("requestsPerUnit");
        }
        if let Some(name) = &rule.name {
            shown["name"] = Value::from(&**name);
        }
        Some(shown)
    }

    /// The counter in the reference's store.
    fn counter(&self, domain: &str) -> Option<String> {
        let found = self.found.as_ref()?;
        let limit = found.rule.limit.as_ref()?;
        let mut key = format!("{domain}_");
        for (position, (name, value)) in self.entries.iter().enumerate() {
            let shared = found.shared.iter().find(|(at, _)| *at == position);
            let value = shared.map_or(&**value, |(_, text)| text);
            key.extend([name, "_", value, "_"]);
        }
        Some(format!("{key}{{window_start:{}}}", unit(&limit.window)))
    }
}

/// The rules of one question that are counted: those that another one replaces are not.
fn counted<'c>(config: &'c Config, request: &Value) -> Vec<Option<Met<'c>>> {
    let domain = request["domain"].as_str().unwrap_or_default();
    let list = request["descriptors"].as_array().unwrap();
    let met: Vec<Met<'c>> =
        list.iter().map(|descriptor| meet(config, domain, descriptor)).collect();
    let rules = met.iter().filter_map(|met| met.found.as_ref());
    let replaced: BTreeSet<String> =
        rules.flat_map(|found| found.rule.replaces.iter().map(ToString::to_string)).collect();
    let dropped = |met: &Met<'_>| met.name().is_some_and(|name| replaced.contains(name));
    met.into_iter().map(|met| (!dropped(&met)).then_some(met)).collect()
}

/// The calls of a scenario that only matching decides: no override, no change of files.
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
fn every_descriptor_meets_the_limit_it_met_at_the_reference() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (group, scenario) in scenarios() {
        let (Some(calls), Ok(config)) = (plain_calls(&scenario), load(&scenario)) else { continue };
        for call in calls {
            let statuses = call["response"]["statuses"].as_array().unwrap();
            for (met, status) in counted(&config, &call["request"]).iter().zip(statuses) {
                let shown = met.as_ref().and_then(Met::shown);
                compared += 1;
                if shown.as_ref() != status.get("currentLimit") {
                    wrong.push(format!("{group} {}: {shown:?}, wanted {status}", scenario["id"]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(1_500 < compared, "only {compared} statuses");
}

#[test]
fn every_counter_has_the_values_that_the_reference_counts_under() {
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
            let met = counted(&config, &call["request"]);
            counters.extend(met.iter().flatten().filter_map(|met| met.counter(domain)));
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
