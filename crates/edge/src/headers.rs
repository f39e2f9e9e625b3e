//! Builds the rate limit headers of a decision, the same in all protocols.
//!
//! Guarantees:
//! - Times are whole seconds, rounded up.
//! - Every header value is visible ASCII.
//! - The two headers of the IETF draft list at most [`MAX_LISTED`] limits.
//!
//! | header | content | sent if |
//! |---|---|---|
//! | three names from the settings | the binding limit | `answers.headers: compat` or `all` |
//! | `RateLimit-Policy`: `"name";q=100;w=60` | limits that counted or denied | `draft` or `all` |
//! | `RateLimit`: `"name";r=50;t=30` | the same limits in the same order | `draft` or `all` |
//! | `x-sluicegate-denied-by` | the path of the rule | `answers.denied_by: header` or `both`, and denied |
//! | `x-sluicegate-shadow-denied-by` | the path of the rule | likewise, and a limit in shadow mode would have denied |
//! | `Retry-After` | the retry-after of the decision | `answers.retry_after: true`, and denied |
//!
//! Sources: envoyproxy/ratelimit for the three named headers; RFC 9110 §10.2.3 for `Retry-After`;
//! draft-ietf-httpapi-ratelimit-headers-10 and RFC 9651 (structured fields) for the others.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::settings::{DeniedBy, ResponseHeaders, Settings};
use crate::engine::{Decision, Rejection};
use crate::kernel::decision::{AppliedLimit, DescriptorDecision};
use crate::kernel::units::Nanos;

/// The header, and the key in dynamic metadata, with the name of the replica that decided.
/// The release of the permits must reach this replica.
pub const OWNER_KEY: &str = "x-sluicegate-owner";

/// The header with the path of the rule that denied.
pub const DENIED_BY: &str = "x-sluicegate-denied-by";

/// The header with the path of the rule in shadow mode that would have denied.
pub const SHADOW_DENIED_BY: &str = "x-sluicegate-shadow-denied-by";

/// The header with the seconds until the same check would be allowed.
pub(super) const RETRY_AFTER: &str = "Retry-After";

/// The largest number of limits in `RateLimit` and `RateLimit-Policy`. Proxies may reject headers
/// of several kilobytes.
pub const MAX_LISTED: usize = 8;

const DEFAULT_NAME: &str = "default";

/// The largest integer in a structured header field: 15 digits (RFC 9651 §3.3.1).
const MAX_STRUCTURED_INTEGER: u64 = 999_999_999_999_999;

/// The rate limit headers that replies contain.
#[derive(Clone, Debug, Default)]
pub struct RateLimitHeaders {
    /// The names of the three headers of envoyproxy/ratelimit. `None` sends none of them.
    pub compat_names: Option<CompatHeaderNames>,
    /// Sends `RateLimit` and `RateLimit-Policy` of the IETF draft.
    pub draft: bool,
    /// Sends `Retry-After` with denials.
    pub retry_after: bool,
    /// Sends [`DENIED_BY`] with denials, and [`SHADOW_DENIED_BY`] with those of shadow mode.
    pub denied_by: bool,
}

/// The names of the three rate limit headers of envoyproxy/ratelimit. They are sent as configured,
/// even if empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompatHeaderNames {
    /// The name of the header with the limit's requests per unit.
    pub limit: Box<str>,
    /// The name of the header with the remaining hits.
    pub remaining: Box<str>,
    /// The name of the header with the reset-after, in seconds.
    pub reset: Box<str>,
}

impl Default for CompatHeaderNames {
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".into(),
            remaining: "RateLimit-Remaining".into(),
            reset: "RateLimit-Reset".into(),
        }
    }
}

/// The name and the value of a header.
pub type HeaderPair<'h> = (&'h str, String);

impl RateLimitHeaders {
    /// Returns the headers that the settings `answers.headers`, `answers.retry_after` and
    /// `answers.denied_by` select.
    #[must_use]
    pub fn from_settings(settings: &Settings) -> Self {
        let selected = settings.answers.headers;
        let has_compat = matches!(selected, ResponseHeaders::Compat | ResponseHeaders::All);
        Self {
            compat_names: has_compat.then(|| CompatHeaderNames::from_settings(settings)),
            // Clients should not obey limits in shadow mode, which are not enforced.
            draft: matches!(selected, ResponseHeaders::Draft | ResponseHeaders::All)
                && !settings.answers.shadow_mode,
            retry_after: settings.answers.retry_after,
            denied_by: matches!(settings.answers.denied_by, DeniedBy::Header | DeniedBy::Both),
        }
    }

    /// Returns the headers of a decision, in the order in which they are sent. Allocates nothing if
    /// all headers are disabled.
    #[must_use]
    pub fn for_decision(&self, decision: &Decision) -> SmallVec<[HeaderPair<'_>; 6]> {
        let mut headers = SmallVec::new();
        if let Some(names) = &self.compat_names {
            headers.extend(names.compat_headers(decision));
        }
        if self.draft {
            headers.extend(draft_headers(decision));
        }
        if self.retry_after {
            headers.extend(retry_after_header(decision));
        }
        if self.denied_by {
            let paths =
                [(DENIED_BY, &decision.denied_by), (SHADOW_DENIED_BY, &decision.shadow_denied_by)];
            let named = |(name, path): (_, &Option<Arc<str>>)| {
                path.as_deref().map(|path| (name, VisibleAscii(path).to_string()))
            };
            headers.extend(paths.into_iter().filter_map(named));
        }
        headers
    }

    /// Returns [`DENIED_BY`] of a rejection by a concurrency limit.
    #[must_use]
    pub fn for_rejection(&self, rejection: &Rejection) -> Option<HeaderPair<'static>> {
        self.denied_by.then(|| (DENIED_BY, VisibleAscii(&rejection.path).to_string()))
    }
}

impl CompatHeaderNames {
    /// Returns the names in the settings `limit_header`, `remaining_header` and `reset_header`.
    #[must_use]
    pub fn from_settings(settings: &Settings) -> Self {
        Self {
            limit: settings.compat.answers.limit_header.as_str().into(),
            remaining: settings.compat.answers.remaining_header.as_str().into(),
            reset: settings.compat.answers.reset_header.as_str().into(),
        }
    }

    fn compat_headers(&self, decision: &Decision) -> SmallVec<[HeaderPair<'_>; 3]> {
        let binding = decision.binding.and_then(|index| decision.statuses.get(index));
        let Some((descriptor_decision, limit)) =
            binding.and_then(|status| reportable_limit(&status.decision))
        else {
            return SmallVec::new();
        };
        let reset = descriptor_decision.headroom.reset_after.as_secs_ceil();
        smallvec::smallvec![
            (&*self.limit, limit.requests.to_string()),
            (&*self.remaining, descriptor_decision.headroom.remaining.to_string()),
            (&*self.reset, reset.to_string()),
        ]
    }
}

/// Returns `RateLimit-Policy` and `RateLimit` of the IETF draft. Omits limits in shadow mode,
/// because a client would obey them.
fn draft_headers<'h>(decision: &Decision) -> SmallVec<[HeaderPair<'h>; 2]> {
    let listed: SmallVec<[_; MAX_LISTED]> = decision
        .statuses
        .iter()
        .filter_map(|status| reportable_limit(&status.decision))
        .filter(|(decision, _)| !decision.enforcement.shadow)
        .take(MAX_LISTED)
        .collect();
    if listed.is_empty() {
        return SmallVec::new();
    }
    let policy_names =
        listed.iter().map(|(_, limit)| StructuredString(policy_name(limit)).to_string());
    let names = make_names_unique(&policy_names.collect::<SmallVec<[_; MAX_LISTED]>>());
    let items = |format_item: fn(&DescriptorDecision, &AppliedLimit) -> String| -> String {
        let format_named =
            |(name, &(decision, limit)): (&String, &(&DescriptorDecision, &AppliedLimit))| {
                format!("\"{name}\";{}", format_item(decision, limit))
            };
        names
            .iter()
            .zip(&listed)
            .map(format_named)
            .collect::<SmallVec<[_; MAX_LISTED]>>()
            .join(", ")
    };
    let policies =
        items(|_, limit| format!("q={};w={}", limit.requests, whole_seconds(limit.period)));
    let limits = items(|decision, _| {
        let remaining = decision.headroom.remaining.0.min(MAX_STRUCTURED_INTEGER);
        format!("r={remaining};t={}", decision.headroom.reset_after.as_secs_ceil())
    });
    smallvec::smallvec![("RateLimit-Policy", policies), ("RateLimit", limits)]
}

fn retry_after_header<'h>(decision: &Decision) -> Option<HeaderPair<'h>> {
    decision.retry_after.map(|wait| (RETRY_AFTER, whole_seconds(wait).to_string()))
}

fn reportable_limit(
    descriptor_decision: &DescriptorDecision,
) -> Option<(&DescriptorDecision, &AppliedLimit)> {
    descriptor_decision.header_limit().map(|limit| (descriptor_decision, limit))
}

fn policy_name(limit: &AppliedLimit) -> &str {
    limit.name.as_deref().filter(|name| !name.is_empty()).unwrap_or(DEFAULT_NAME)
}

/// Formats a limit's name as the content of a structured field string (RFC 9651). Other bytes are
/// percent-encoded.
struct StructuredString<'a>(&'a str);

impl fmt::Display for StructuredString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'"' | b'\\' => write!(f, "\\{}", char::from(byte)),
            b' '..=b'~' => f.write_char(char::from(byte)),
            _ => write!(f, "%{byte:02x}"),
        })
    }
}

/// A path whose control characters, bytes outside ASCII and `%` are percent-encoded.
struct VisibleAscii<'a>(&'a str);

impl fmt::Display for VisibleAscii<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match byte {
            b'%' => f.write_str("%25"),
            b' '..=b'~' => f.write_char(char::from(byte)),
            _ => write!(f, "%{byte:02x}"),
        })
    }
}

/// Makes the limits' names unique: the second limit `name` becomes `name-2`, or the next free
/// number. Clients match the items of `RateLimit` and `RateLimit-Policy` by name.
fn make_names_unique(policy_names: &[String]) -> SmallVec<[String; MAX_LISTED]> {
    let mut names = SmallVec::new();
    for (index, name) in policy_names.iter().enumerate() {
        let is_taken =
            |candidate: &String| policy_names.contains(candidate) || names.contains(candidate);
        let mut numbered = (2_u64..).map(|number| format!("{name}-{number}"));
        let is_duplicate = policy_names[..index].contains(name);
        let number =
            if is_duplicate { numbered.find(|candidate| !is_taken(candidate)) } else { None };
        names.push(number.unwrap_or_else(|| name.clone()));
    }
    names
}

/// Converts to whole seconds, rounded up and at least 1: a `Retry-After` of 0 would mean "retry
/// now".
fn whole_seconds(duration: Nanos) -> u64 {
    duration.as_secs_ceil().max(1)
}
