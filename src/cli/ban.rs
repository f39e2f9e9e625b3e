//! Implements `sluicegate ban`: the keys that a `penalty` bans.
//!
//! Guarantees:
//! - Lifting a ban needs a reason.

use std::fmt::Write as _;
use std::io;

use serde_json::Value;

use super::args::{BanCommand, BanLiftArgs, BanListArgs};
use super::ask::replicas_suffix;
use super::{CommandOutcome, Terminal, admin_client};
use crate::kernel::units::Nanos;
use crate::telemetry::cloud_events::format_time;

pub(super) fn ban(command: &BanCommand, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    let done = match command {
        BanCommand::List(args) => list(args),
        BanCommand::Lift(args) => lift(args),
    };
    terminal.report(done, "no ban of this descriptor")
}

/// Lists bans, one per line: `shop api_key=partner until 2026-03-02T10:25:07Z, by shop.api_key`.
fn list(args: &BanListArgs) -> Result<String, String> {
    let rows = args.rows.to_string();
    let mut parameters = vec![("limit", &*rows)];
    parameters.extend(args.domain.iter().map(|domain| ("domain", &**domain)));
    let body = admin_client::get_page(&args.server, "bans", &parameters)?;
    let page: Value = serde_json::from_slice(&body)
        .map_err(|error| format!("{}: invalid reply to /bans: {error}", args.server))?;
    let bans = page["bans"].as_array().cloned().unwrap_or_default();
    let mut text: String = bans.iter().map(describe).collect();
    let more = page["count"].as_u64().unwrap_or(0).saturating_sub(bans.len() as u64);
    if 0 < more {
        // Writing to a `String` cannot fail.
        writeln!(text, "… and {more} more bans").ok();
    }
    Ok(text)
}

fn describe(ban: &Value) -> String {
    let text = |name: &str| ban[name].as_str().unwrap_or_default();
    let until = ban["until_unix_ms"].as_u64().unwrap_or_default();
    let until = format_time(Nanos(until.saturating_mul(Nanos::MILLI.0))).unwrap_or_default();
    format!("{} {} until {until}, by {}\n", text("domain"), text("descriptor"), text("limit"))
}

fn lift(args: &BanLiftArgs) -> Result<String, String> {
    let BanLiftArgs { descriptor, domain, reason, server } = args;
    let parameters = [("reason", &**reason)];
    let descriptors = std::slice::from_ref(descriptor);
    let reply = admin_client::post_change(server, "lift", domain, descriptors, &parameters)?;
    let reply: Value = serde_json::from_str(&reply)
        .map_err(|error| format!("{server}: invalid reply to /lift: {error}"))?;
    let lifted = reply["descriptor"].as_str().unwrap_or(descriptor);
    Ok(format!("{lifted} is not banned any more{}\n", replicas_suffix(&reply)))
}
