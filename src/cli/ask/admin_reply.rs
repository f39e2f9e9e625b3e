//! Describes the result of a change by `sluicegate ask` as a sentence.

use std::time::Duration;

use serde_json::Value;

use super::AskArgs;

/// Explains why a counter is above its limit.
const ABOVE_LIMIT: &str = "or empty the counter with --reset; denied checks were counted, too, \
     unless the domain has `charge: all_or_nothing`";

/// Describes the admin port's `reply` to the change `action`. Returns `None` if it is not JSON with
/// the expected fields.
pub(super) fn describe_change(args: &AskArgs, action: &str, reply: &str) -> Option<String> {
    let reply_json: Value = serde_json::from_str(reply).ok()?;
    let target = || {
        if args.scope.as_deref() == Some("everything") {
            return Some("every limit");
        }
        let is_key = args.scope.as_deref() == Some("key") || action.ends_with("boost");
        reply_json[if is_key { "descriptor" } else { "limit" }].as_str()
    };
    let replicas_text = replicas_suffix(&reply_json);
    let sentence = match action {
        "force" => {
            let effect = if reply_json["value"] == "deny" {
                "denies everything"
            } else {
                "allows everything"
            };
            let duration = args.long.as_deref()?;
            format!("{} {effect} for {duration}{replicas_text}", target()?)
        }
        "boost" => {
            let (size, duration) = (args.boost.as_deref()?, args.long.as_deref()?);
            let size = match size.strip_prefix('x') {
                Some(factor) => format!("{factor} times its limit"),
                None => format!("a limit of {size}"),
            };
            format!("{} has {size} for {duration}{replicas_text}", target()?)
        }
        "unforce" => format!("{} is enforced again{replicas_text}", target()?),
        "unboost" => format!("{} has its configured limit again{replicas_text}", target()?),
        "refund" => {
            let number = |name: &str| reply_json[name].as_u64();
            let reset_secs =
                Duration::from_nanos(number("reset_after_nanoseconds")?).as_secs_f64().ceil();
            let (remaining, requests) = (number("remaining")?, number("requests")?);
            let used = number("counted");
            let used =
                used.map_or_else(String::new, |counted| format!("{counted} of {requests} used, "));
            format!(
                "{}: {used}{remaining} of {requests} remaining, resets in {reset_secs}s{}",
                args.descriptors.join(" "),
                warning(&reply_json)
            )
        }
        _ => return None,
    };
    Some(sentence + "\n")
}

/// Says how many hits to refund before a check of one hit is allowed. Empty if none.
fn warning(reply_json: &Value) -> String {
    match reply_json["to_refund"].as_u64() {
        None | Some(0) => String::new(),
        Some(hits) => format!("; still denied: refund {hits} more, {ABOVE_LIMIT}"),
    }
}

/// Describes which replicas apply a change. Empty in a fleet of one replica.
pub(in crate::cli) fn replicas_suffix(reply_json: &Value) -> String {
    if let Some(cause) = reply_json["store_failure"].as_str() {
        return format!(
            ", at this replica only: the store is unavailable ({cause}); other replicas follow \
             once the store is available"
        );
    }
    match reply_json["replicas"].as_u64() {
        None | Some(0 | 1) => String::new(),
        Some(count) => format!(", at all {count} replicas within two seconds"),
    }
}
