//! Describes the result of `sluicegate ask --freeze`, `--thaw` or `--grant` as a sentence.
//!
//! Not covered:
//! - A reply that is not JSON: the caller prints it unchanged.

use std::time::Duration;

use serde_json::Value;

use super::AskArgs;

/// Describes the result of the change `action` by the admin port's `reply`. Returns `None` if the
/// reply lacks the expected fields.
pub(super) fn describe_change(args: &AskArgs, action: &str, reply: &str) -> Option<String> {
    let said: Value = serde_json::from_str(reply).ok()?;
    let limit = || said["limit"].as_str();
    let everywhere = replicas_suffix(&said);
    let sentence = match action {
        "freeze" => {
            let does =
                if said["as"] == "deny" { "denies everybody" } else { "lets everybody pass" };
            let long = args.long.as_deref()?;
            format!("{} {does} for {long}{everywhere}", limit()?)
        }
        "thaw" => format!("{} counts again{everywhere}", limit()?),
        "grant" => {
            let number = |name: &str| said[name].as_u64();
            let whole =
                Duration::from_nanos(number("reset_after_nanoseconds")?).as_secs_f64().ceil();
            let (left, of) = (number("remaining")?, number("requests")?);
            format!("{}: {left} of {of} left, whole again in {whole}s", args.descriptors.join(" "))
        }
        _ => return None,
    };
    Some(sentence + "\n")
}

/// Describes which replicas apply a change. Empty if the fleet has a single replica.
fn replicas_suffix(said: &Value) -> String {
    if let Some(cause) = said["store_away"].as_str() {
        return format!(
            ", at this replica alone: the store does not answer ({cause}), and the others hear \
             of it once it does"
        );
    }
    match said["replicas"].as_u64() {
        None | Some(0 | 1) => String::new(),
        Some(all) => format!(", at all {all} replicas within two seconds"),
    }
}
