//! The settings of the reference's keys: their prefix, the second store, and what goes with what.
//!
//! Guarantees: a setting that would have no effect as things are set is told, not accepted.
//! Leaves out: what the settings do, which is for [`crate::backend::redis`].

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};
use super::{Backend, CounterKeys, RedisUrl, Settings};
use crate::kernel::units::Nanos;

/// The longest prefix, in bytes: above what anybody writes.
const LONGEST_PREFIX: usize = 256;

/// The longest that an expiry may be put off, in seconds: Redis' own bound is beyond it.
const LONGEST_JITTER: u64 = u32::MAX as u64;

/// What each of the reference's keys begins with: any text, for the reference takes any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferencePrefix(String);

impl ReferencePrefix {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for ReferencePrefix {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] if text.len() <= LONGEST_PREFIX && !text.contains(char::is_control) => {
                Some(Self((*text).to_owned()))
            }
            _ => None,
        }
    }
    fn accepts() -> String {
        "up to 256 bytes without control characters".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.0)
    }
    fn schema() -> Json {
        json!({"type": "string", "maxLength": LONGEST_PREFIX})
    }
}

/// The store of limits per second; empty for none.
impl Value for Option<RedisUrl> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [""] => Some(None),
            _ => match Backend::read(texts)? {
                Backend::Redis(url) => Some(Some(url)),
                Backend::Memory => None,
            },
        }
    }
    fn accepts() -> String {
        "redis://user:password@host:port/database, redis+unix:///path, or nothing for none"
            .to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.as_ref().map(ToString::to_string).unwrap_or_default())
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^(redis://.+|redis\\+unix://.*/.+)?$"})
    }
    fn is_later(text: &str) -> bool {
        Backend::is_later(text)
    }
    fn masked(text: &str) -> String {
        Backend::masked(text)
    }
}

/// A setting that has no effect as the others are, or that cannot be meant, and the cure.
pub(super) type Misfit = (&'static str, String, String);

/// What does not go together.
pub(super) fn misfits(settings: &Settings) -> Vec<Misfit> {
    let is_redis = matches!(settings.backend, Backend::Redis(_));
    let is_reference = is_redis && settings.counter_keys == CounterKeys::Envoyproxy;
    let defaults = Settings::default();
    let said = [
        ("reference_key_prefix", settings.reference_key_prefix != defaults.reference_key_prefix),
        ("expiry_jitter", settings.expiry_jitter != defaults.expiry_jitter),
        ("local_deny_cache", settings.local_deny_cache != defaults.local_deny_cache),
        ("stop_when_over", settings.stop_when_over != defaults.stop_when_over),
    ];
    let idle = said.into_iter().filter(|&(_, said)| said && !is_reference).map(|(name, _)| {
        let why = format!("`{name}` is about the reference's keys in a Redis, and there are none");
        (name, why, "set `counter_keys: envoyproxy` and a Redis as `backend`".to_owned())
    });
    let alone = (settings.backend_per_second.is_some() && !is_redis).then(|| {
        let why = "`backend_per_second` is a second Redis, and `backend` is not the first";
        let cure = "name the store of all other limits as `backend`";
        ("backend_per_second", why.to_owned(), cure.to_owned())
    });
    let jitter = settings.expiry_jitter;
    let seconds = jitter.0 / Nanos::SECOND.0;
    let uneven = !jitter.0.is_multiple_of(Nanos::SECOND.0) || LONGEST_JITTER < seconds;
    let uneven = uneven.then(|| {
        let why =
            format!("`expiry_jitter` {jitter} is not a whole number of up to 2^32 - 1 seconds");
        ("expiry_jitter", why, "300s is the reference's".to_owned())
    });
    idle.chain(alone).chain(uneven).collect()
}
