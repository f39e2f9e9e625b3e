//! Describes the result of `sluicegate ask --freeze`, `--thaw` or `--grant` as a sentence.

use std::time::Duration;

use serde_json::Value;

use super::AskArgs;

/// Describes the admin port's `reply` to the change `action`. Returns `None` if it is not JSON with
/// the expected fields.
pub(super) fn describe_change(args: &AskArgs, action: &str, reply: &str) -> Option<String> {
    let reply_json: Value = serde_json::from_str(reply).ok()?;
    let limit = || reply_json["limit"].as_str();
    let replicas_text = replicas_suffix(&reply_json);
    let sentence = match action {
        "freeze" => {
            let effect =
                if reply_json["as"] == "deny" { "denies everybody" } else { "lets everybody pass" };
            let duration = args.long.as_deref()?;
            format!("{} {effect} for {duration}{replicas_text}", limit()?)
        }
        "thaw" => format!("{} counts again{replicas_text}", limit()?),
        "grant" => {
            let number = |name: &str| reply_json[name].as_u64();
            let reset_secs =
                Duration::from_nanos(number("reset_after_nanoseconds")?).as_secs_f64().ceil();
            let (remaining, requests) = (number("remaining")?, number("requests")?);
            format!(
                "{}: {remaining} of {requests} left, whole again in {reset_secs}s",
                args.descriptors.join(" ")
            )
        }
        _ => return None,
    };
    Some(sentence + "\n")
}

/// Describes which replicas apply a change. Empty in a fleet of one replica.
fn replicas_suffix(reply_json: &Value) -> String {
    if let Some(cause) = reply_json["store_away"].as_str() {
        return format!(
            ", at this replica alone: the store does not answer ({cause}), and the others hear \
             of it once it does"
        );
    }
    match reply_json["replicas"].as_u64() {
        None | Some(0 | 1) => String::new(),
        Some(count) => format!(", at all {count} replicas within two seconds"),
    }
}
