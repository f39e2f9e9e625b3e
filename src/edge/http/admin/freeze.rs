//! Serves `/freeze`, `/thaw` and `/frozen`: forced decisions of an operator.
//!
//! Guarantees:
//! - Every change is logged with the limit's name.
//! - A reply reports the number of replicas that apply the change within two seconds.
//! - If the store is unavailable, the reply contains the reason.
//! - An invalid query gets a message that explains the error.
//!
//! Not covered:
//! - Sending the change to other replicas (see [`crate::engine::freezer`]).

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::explain::Explain;
use super::{Admin, JSON, PLAIN};
use crate::config::frozen::Held;
use crate::config::resolve::duration::{self, Wrong};
use crate::engine::freezer::word;
use crate::engine::{Engine, Membership};
use crate::kernel::decision::{Cause, Verdict};
use crate::kernel::units::Nanos;

/// The age after which the last membership list does not count any more.
const SILENT: Nanos = Nanos::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    verdict: Verdict,
    long: Nanos,
}

type Pairs = Vec<(String, String)>;

pub(super) async fn freeze(State(admin): State<Admin>, Query(query): Query<Pairs>) -> Response {
    let (own, rest): (Pairs, Pairs) =
        query.into_iter().partition(|(name, _)| matches!(&**name, "as" | "for"));
    let held = hold(&own).and_then(|hold| {
        let asked = one(rest)?;
        let entries = asked.entries();
        let held = admin.engine.freeze((&asked.domain, &entries), hold.verdict, hold.long);
        held.map_err(|why| why.to_string())
    });
    answer(held.map(|held| {
        told("freeze", &held.domain, &held.path, Some(held.frozen.verdict));
        with_replicas(&admin, shown(&held))
    }))
}

pub(super) async fn thaw(State(admin): State<Admin>, Query(query): Query<Pairs>) -> Response {
    let thawed = one(query).and_then(|asked| {
        let thawed = admin.engine.thaw(&asked.domain, &asked.entries());
        thawed.map(|path| (asked.domain, path)).map_err(|why| why.to_string())
    });
    answer(thawed.map(|(domain, path)| {
        told("thaw", &domain, &path, None);
        with_replicas(&admin, json!({"domain": domain, "limit": path}))
    }))
}

pub(super) async fn frozen(State(admin): State<Admin>) -> Response {
    let held: Vec<_> = admin.engine.frozen().iter().map(shown).collect();
    (JSON, json!({ "frozen": held }).to_string()).into_response()
}

fn answer(done: Result<Value, String>) -> Response {
    match done {
        Ok(shown) => (JSON, shown.to_string()).into_response(),
        Err(why) => (StatusCode::BAD_REQUEST, PLAIN, why + "\n").into_response(),
    }
}

fn hold(query: &[(String, String)]) -> Result<Hold, String> {
    let text = |name: &str| {
        let found = query.iter().find(|(known, _)| known == name);
        found
            .map(|(_, text)| &**text)
            .ok_or_else(|| format!("`{name}` is needed: &as=deny&for=10m"))
    };
    let verdict = match text("as")? {
        "deny" => Verdict::Deny,
        "allow" => Verdict::Admit,
        other => return Err(format!("as `{other}` is neither deny nor allow")),
    };
    let long = text("for")?;
    let long = match duration::parse(long) {
        Ok(long) => long,
        // The engine rejects it, like every duration above a day.
        Err(Wrong::TooLong) => Nanos(u64::MAX),
        Err(Wrong::Text) => return Err(format!("for `{long}` is no duration, as 10m is")),
    };
    Ok(Hold { verdict, long })
}

struct One {
    domain: String,
    entries: Pairs,
}

impl One {
    fn entries(&self) -> Vec<(&str, &str)> {
        self.entries.iter().map(|(key, value)| (&**key, &**value)).collect()
    }
}

fn one(query: Pairs) -> Result<One, String> {
    let Explain { domain, descriptors, .. } = Explain::read(query)?;
    match <[Pairs; 1]>::try_from(descriptors) {
        Ok([entries]) => Ok(One { domain, entries }),
        Err(several) => Err(format!("one descriptor is needed, and {} are named", several.len())),
    }
}

/// Adds the number of replicas, including this one, that apply the change within two seconds.
fn with_replicas(admin: &Admin, mut said: Value) -> Value {
    let seen = admin.engine.membership().and_then(Membership::seen);
    let away = away(&admin.engine);
    let replicas = match (away, seen) {
        (None, Some(seen)) => seen.members.len().max(1),
        (Some(_), _) | (None, None) => 1,
    };
    said["replicas"] = replicas.into();
    if let Some(cause) = away {
        said["store_away"] = cause.as_str().into();
    }
    said
}

/// Returns the reason if a change cannot reach other replicas now.
/// An old membership list does not prove that they are reachable.
fn away(engine: &Engine) -> Option<Cause> {
    let membership = engine.membership()?;
    let seen = membership.seen();
    let is_silent = seen.is_none_or(|seen| SILENT < engine.clock().now().since(seen.at));
    engine.trouble().or(is_silent.then_some(Cause::Late))
}

fn shown(held: &Held) -> Value {
    json!({
        "domain": held.domain,
        "limit": held.path,
        "as": word(held.frozen.verdict),
        "until_unix_ms": held.frozen.until.0 / Nanos::MILLI.0,
    })
}

fn told(act: &str, domain: &str, limit: &str, verdict: Option<Verdict>) {
    let held = verdict.map(word);
    tracing::warn!(act, domain, limit, held, "admin changed how a limit answers");
}
