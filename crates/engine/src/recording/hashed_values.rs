//! Replaces descriptor values by keyed hashes, and restores the values that a configuration names, and
//! the ids of its tables.
//!
//! | limits | value | recorded |
//! |---|---|---|
//! | exact value `partner` | `partner` | `partner` |
//! | pattern `/pay/*` | `/pay/123` | `/pay/~c0ffee…` |
//! | network `10.0.0.0/8` | `10.1.2.3` | `10.192.255.238` |
//! | bare key, or no rule | `ann` | `~c0ffee…` |
//!
//! Guarantees:
//! - A check with hashed values matches the same rules and budgets of the recorded limits.
//! - Equal values get equal hashes, also under different patterns.
//! - A value that later limits name exactly can be restored, because the salt is in the file.
//! - An id that only a table has can be restored for decisions, and hashed again for a report.
//!
//! Not covered:
//! - A pattern that the recorded limits lack: it does not match hashed values.
//! - Two addresses of a small network may get one hash.
//! - Guesses: a reader of the file can hash a guess and compare.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::Hasher as _;

use ring::rand::SystemRandom;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::config::hooks::address::{ClientAddress, Network};
use crate::config::tree::values::ValueMatch;
use crate::config::{Config, Domain, RuleNumber};
use crate::kernel::decision::{Check, Descriptor};

/// The character before a hash.
const MARK: char = '~';
/// The number of hexadecimal digits of a hash.
const HASH_DIGITS: usize = 16;

/// Hashes values with a salt.
#[derive(Clone, Debug)]
pub struct ValueHasher {
    salt: [u8; 16],
}

impl ValueHasher {
    /// Creates a hasher with the salt of a recording.
    #[must_use]
    pub const fn new(salt: [u8; 16]) -> Self {
        Self { salt }
    }

    /// Returns the hash of `value`, with the mark before it.
    #[must_use]
    pub fn hash(&self, value: &str) -> String {
        let mut text = String::with_capacity(1 + HASH_DIGITS);
        let _infallible = write!(text, "{MARK}{:016x}", self.number(value));
        text
    }

    fn number(&self, value: &str) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.salt);
        hasher.write(value.as_bytes());
        hasher.finish()
    }

    /// Returns the values of `check` as they are recorded: for each descriptor, one text for each
    /// entry. `None` if the check would match other rules or budgets of `config` with them, for example
    /// because a pattern such as `*a*` matches the digits of a hash.
    #[must_use]
    pub fn hash_values(&self, config: &Config, check: &Check<'_>) -> Option<Vec<Vec<String>>> {
        let domain = config.domains.get(check.domain);
        let hash_descriptor = |entries: &[(&str, &str)]| {
            let Some(domain) = domain else {
                return Some(entries.iter().map(|(_, value)| self.hash(value)).collect());
            };
            let matches = domain.tree.match_values(entries.iter().copied());
            let matches = matches.into_iter().chain(std::iter::repeat(ValueMatch::Any));
            let hashed: Vec<_> = entries
                .iter()
                .zip(matches)
                .map(|((_, value), matched)| self.hash_matched(value, matched))
                .collect();
            let replaced: SmallVec<[_; 4]> = entries
                .iter()
                .zip(&hashed)
                .map(|((key, _), value)| (*key, value.as_str()))
                .collect();
            let is_same = rules_of(domain, entries) == rules_of(domain, &replaced);
            drop(replaced);
            is_same.then_some(hashed)
        };
        check.descriptors.iter().map(|one| hash_descriptor(&one.entries)).collect()
    }

    fn hash_matched(&self, value: &str, matched: ValueMatch<'_>) -> String {
        match matched {
            ValueMatch::Exact => value.to_owned(),
            ValueMatch::Pattern(pattern) => {
                // The other `*` match the empty text.
                pattern.replacen('*', &self.hash(value), 1).replace('*', "")
            }
            ValueMatch::Network(network) => self.hash_address(value, network),
            ValueMatch::Any => self.hash(value),
        }
    }

    /// Returns the address of `network` whose other bits are the hash.
    fn hash_address(&self, value: &str, network: Network) -> String {
        let address = ClientAddress::parse(value).map(ClientAddress::value);
        let hash = self.number(address.as_deref().unwrap_or(value));
        network.address_with_host_bits(hash).to_string()
    }
}

/// Returns the rule and the budgets that a descriptor matches.
fn rules_of(
    domain: &Domain,
    entries: &[(&str, &str)],
) -> (Option<RuleNumber>, SmallVec<[RuleNumber; 4]>) {
    let rule = domain.tree.lookup(entries.iter().copied()).map(|found| found.rule.number);
    let budgets = domain.tree.lookup_budgets(entries).into_iter();
    (rule, budgets.map(|found| found.rule.number).collect())
}

/// Returns `check` with other values of its entries, one list for each descriptor.
#[must_use]
pub fn with_values<'a>(check: &'a Check<'_>, values: &'a [Vec<String>]) -> Check<'a> {
    let replace = |(one, values): (&'a Descriptor<'_>, &'a Vec<String>)| Descriptor {
        entries: one.entries.iter().zip(values).map(|((key, _), value)| (*key, &**value)).collect(),
        ..*one
    };
    let descriptors = check.descriptors.iter().zip(values).map(replace).collect();
    Check { domain: check.domain, descriptors }
}

/// Returns a random salt. `None` if the operating system has no random numbers.
#[must_use]
pub fn new_salt() -> Option<[u8; 16]> {
    ring::rand::generate(&SystemRandom::new()).ok().map(ring::rand::Random::expose)
}

/// Restores the hashed values that configurations name, and the ids of their tables.
///
/// Memory: about 80 bytes for an id of a table.
#[derive(Debug)]
pub struct HashedValues {
    hasher: ValueHasher,
    /// The exact values of rules, by their hashes.
    named: HashMap<u64, Box<str>>,
    /// The ids of tables, by their hashes. The recording hides them.
    ids: HashMap<u64, Box<str>>,
}

impl HashedValues {
    /// Collects the exact values of `configs`, and the ids of their tables. Cost: linear in the
    /// number of their rules and rows.
    #[must_use]
    pub fn named_by<'c>(salt: [u8; 16], configs: impl IntoIterator<Item = &'c Config>) -> Self {
        let hasher = ValueHasher::new(salt);
        let (mut named, mut ids) = (HashMap::new(), HashMap::new());
        for config in configs {
            let values = config.domains.values().flat_map(|domain| domain.tree.exact_values());
            named.extend(values.map(|value| (hasher.number(value), value.into())));
            for (id, _) in config.tables.tables().iter().flat_map(|table| table.iter()) {
                ids.entry(hasher.number(id)).or_insert_with(|| id.into());
            }
        }
        Self { hasher, named, ids }
    }

    /// Returns the clear text of a recorded value, if it contains a hash of a known value.
    #[must_use]
    pub fn restore(&self, recorded: &str) -> Option<String> {
        let starts = recorded.match_indices(MARK).map(|(at, _)| at);
        let hashes = starts.filter_map(|at| parse_hash(recorded.get(at + 1..=at + HASH_DIGITS)?));
        let known = |hash: u64| self.named.get(&hash).or_else(|| self.ids.get(&hash));
        hashes.into_iter().find_map(known).map(ToString::to_string)
    }

    /// Returns the text for reports: the hash of a value that only tables have, else the value.
    #[must_use]
    pub fn hide<'v>(&self, value: &'v str) -> Cow<'v, str> {
        let hash = self.hasher.number(value);
        let is_hidden = self.ids.contains_key(&hash) && !self.named.contains_key(&hash);
        if is_hidden { self.hasher.hash(value).into() } else { value.into() }
    }
}

fn parse_hash(digits: &str) -> Option<u64> {
    let is_hash = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_hash.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}
