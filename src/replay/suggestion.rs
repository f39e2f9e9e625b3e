//! Suggests limits from recorded checks.
//!
//! The limit of a list of descriptor keys is the percentile, over the values, of the largest use in
//! one unit, times the headroom:
//!
//! | largest hits in a minute, by value | p50 | headroom 1.5 |
//! |---|---|---|
//! | a: 4, b: 10, c: 40 | 10 | 15 |
//!
//! Guarantees:
//! - Windows are those of `fixed_window`, aligned to the Unix epoch.
//! - The denied share of each limit is found by replaying the recording with it.
//! - At most [`MAX_KEYS`] keys are counted; further ones are reported.
//!
//! Not covered:
//! - Budgets: reserves count as checks of their hits, and settles are left out.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher as _;
use std::io::Read;

use fnv::FnvBuildHasher;
use serde_json::{Value, json};
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::engine::ReplayEngine;
use super::limits_yaml::{SuggestedLimit, unit_name, write_limits};
use super::warnings::recording_warnings;
use crate::config::load;
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::units::{Hits, Nanos, Revision, Unit};
use crate::recording::percent::{Percent, format_share};
use crate::recording::{RecordingError, RecordingReader};

/// The largest number of keys that are counted.
pub const MAX_KEYS: usize = 4_000_000;

/// The largest number of lists of descriptor keys in a domain.
const MAX_SHAPES: usize = 10_000;

/// The largest size of these lists in a limits file, in bytes.
const MAX_SHAPE_BYTES: usize = 64 << 20;

/// The parameters of a suggestion.
#[derive(Clone, Copy, Debug)]
pub struct SuggestionOptions {
    /// The percentile over the values of a list of keys.
    pub percentile: Percent,
    /// The headroom, in thousandths: 1,500 is 1.5.
    pub headroom_thousandths: u64,
    /// The unit of the limits.
    pub unit: Unit,
}

/// The suggested limits of a domain.
#[derive(Debug)]
pub struct Suggestion {
    domain: String,
    options: SuggestionOptions,
    /// The suggested limits, by the list of their keys.
    pub shapes: BTreeMap<Vec<String>, SuggestedShape>,
    warnings: Vec<String>,
}

/// The suggested limit of one list of descriptor keys.
#[derive(Clone, Debug)]
pub struct SuggestedShape {
    /// The number of different values.
    pub values: usize,
    /// The percentile of the largest use in one unit, in hits.
    pub observed: u64,
    /// The suggested requests per unit.
    pub requests: u32,
    /// The checks with such a descriptor.
    pub checks: u64,
    /// The checks that the limit denies.
    pub denied: u64,
}

/// The reason why there is no suggestion.
#[derive(Debug, thiserror::Error)]
pub enum SuggestionError {
    /// The recording cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The recording has no checks that charge hits.
    #[error("no checks with hits are recorded")]
    Empty,
    /// The recording has several domains, or not the requested one.
    #[error("set --domain to a recorded domain: {0}")]
    Domain(String),
    /// The suggested limits are invalid.
    #[error("no valid limits for the recorded keys: {0}")]
    Invalid(String),
}

/// Suggests limits for `domain`, or for the only recorded domain. `open` opens the recording, which
/// is read twice.
///
/// # Errors
/// [`SuggestionError`].
pub fn suggest<R: Read>(
    open: impl Fn() -> std::io::Result<R>,
    domain: Option<&str>,
    options: SuggestionOptions,
) -> Result<Suggestion, SuggestionError> {
    let unreadable = |error| RecordingError::Unreadable { offset: 0, error };
    let mut usage = ObservedUsage::new(options.unit);
    let mut reader = RecordingReader::open(open().map_err(unreadable)?)?;
    while let Some(block) = reader.next_block()? {
        block.checks().for_each(|(check, recorded)| usage.add(&check, recorded.time));
    }
    let mut warnings = recording_warnings(reader.header(), reader.end());
    if usage.uncounted != 0 {
        warnings.push(format!("{} hits of further keys are not counted", usage.uncounted));
    }
    let domain = usage.select_domain(domain)?;
    let shapes = usage.into_shapes(&domain, options);
    let mut suggestion = Suggestion { domain, options, shapes, warnings };
    suggestion.count_denied(open().map_err(unreadable)?)?;
    Ok(suggestion)
}

/// The use of one key.
#[derive(Clone, Copy, Default)]
struct KeyUsage {
    window: u64,
    used: u64,
    largest: u64,
}

type ShapeNumber = u32;

struct ObservedUsage {
    unit: Unit,
    /// The number of each domain with a list of keys.
    shapes: HashMap<(String, Vec<String>), ShapeNumber>,
    shape_bytes: usize,
    keys: HashMap<(ShapeNumber, u128), KeyUsage, FnvBuildHasher>,
    uncounted: u64,
}

impl ObservedUsage {
    fn new(unit: Unit) -> Self {
        let (shapes, keys) = (HashMap::new(), HashMap::default());
        Self { unit, shapes, shape_bytes: 0, keys, uncounted: 0 }
    }

    fn add(&mut self, check: &Check<'_>, time: Nanos) {
        let window = time.0 / self.unit.length().0;
        for descriptor in &check.descriptors {
            let Cost::Charge(Hits(hits @ 1..)) = descriptor.cost else { continue };
            let Some(shape) = self.shape_number(check.domain, descriptor) else {
                self.uncounted += hits;
                continue;
            };
            let key = (shape, hash_values(descriptor));
            if MAX_KEYS <= self.keys.len() && !self.keys.contains_key(&key) {
                self.uncounted += hits;
                continue;
            }
            self.keys.entry(key).or_default().add(window, hits);
        }
    }

    fn shape_number(&mut self, domain: &str, descriptor: &Descriptor<'_>) -> Option<ShapeNumber> {
        let keys = descriptor.entries.iter().map(|(key, _)| (*key).to_owned()).collect();
        let next = ShapeNumber::try_from(self.shapes.len()).ok()?;
        let shape = (domain.to_owned(), keys);
        if let Some(known) = self.shapes.get(&shape) {
            return Some(*known);
        }
        let bytes = self.shape_bytes + size_of_shape(&shape);
        if MAX_SHAPES <= self.shapes.len() || MAX_SHAPE_BYTES < bytes {
            return None;
        }
        self.shape_bytes = bytes;
        self.shapes.insert(shape, next);
        Some(next)
    }

    fn select_domain(&self, domain: Option<&str>) -> Result<String, SuggestionError> {
        let mut domains: Vec<_> = self.shapes.keys().map(|(domain, _)| &**domain).collect();
        domains.sort_unstable();
        domains.dedup();
        match (domain, &*domains) {
            (_, []) => Err(SuggestionError::Empty),
            (None, [only]) => Ok((*only).to_owned()),
            (Some(domain), known) if known.contains(&domain) => Ok(domain.to_owned()),
            _ => Err(SuggestionError::Domain(domains.join(", "))),
        }
    }

    fn into_shapes(
        self,
        domain: &str,
        options: SuggestionOptions,
    ) -> BTreeMap<Vec<String>, SuggestedShape> {
        let mut largest: HashMap<ShapeNumber, Vec<u64>> = HashMap::new();
        for ((shape, _), usage) in self.keys {
            largest.entry(shape).or_default().push(usage.largest);
        }
        let shapes = self.shapes.into_iter().filter(|((of, _), _)| of == domain);
        let suggested = shapes.filter_map(|((_, keys), number)| {
            Some((keys, SuggestedShape::from_uses(largest.remove(&number)?, options)))
        });
        suggested.collect()
    }
}

impl KeyUsage {
    fn add(&mut self, window: u64, hits: u64) {
        if window != self.window {
            (self.window, self.used) = (window, 0);
        }
        self.used = self.used.saturating_add(hits);
        self.largest = self.largest.max(self.used);
    }
}

impl SuggestedShape {
    fn from_uses(mut uses: Vec<u64>, options: SuggestionOptions) -> Self {
        uses.sort_unstable();
        let rank = options.percentile.rank_of(uses.len());
        let observed = uses.get(rank - 1).copied().unwrap_or(0);
        let scaled = u128::from(observed) * u128::from(options.headroom_thousandths);
        let requests = u32::try_from(scaled.div_ceil(1_000)).unwrap_or(u32::MAX).max(1);
        Self { values: uses.len(), observed, requests, checks: 0, denied: 0 }
    }

    fn comment(&self, SuggestionOptions { percentile, unit, .. }: SuggestionOptions) -> String {
        let Self { values, observed, checks, denied, .. } = self;
        format!(
            "{percentile} of {values} values use at most {observed} per {}; denies {denied} of \
             {checks} checks ({})",
            unit_name(unit),
            format_share(*denied, *checks)
        )
    }
}

/// Returns the size of a list of keys in a limits file: each level has two lines, and is indented
/// by four spaces more.
fn size_of_shape((domain, keys): &(String, Vec<String>)) -> usize {
    let keys = keys.iter().enumerate();
    domain.len() + keys.map(|(level, key)| 32 + 8 * level + key.len()).sum::<usize>()
}

fn hash_values(descriptor: &Descriptor<'_>) -> u128 {
    let mut hasher = SipHasher13::new();
    for (_, value) in &descriptor.entries {
        hasher.write(value.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish128().as_u128()
}

impl Suggestion {
    /// Counts the checks that each limit denies, by a replay with all of them.
    fn count_denied(&mut self, input: impl Read) -> Result<(), SuggestionError> {
        let mut reader = RecordingReader::open(input)?;
        let file = self.limits_file();
        let loaded = load([("suggested.yaml", file.as_bytes())], Revision(1), false);
        let (config, _) = loaded.map_err(|findings| {
            let first = findings.iter().next().map(|finding| finding.message.clone());
            SuggestionError::Invalid(first.unwrap_or_default())
        })?;
        let mut engine = ReplayEngine::new(config, reader.header());
        let domain = self.domain.clone();
        while let Some(block) = reader.next_block()? {
            for (check, recorded) in block.checks().filter(|(one, _)| one.domain == domain) {
                let Some(decision) = engine.decide(recorded.time, &check) else { continue };
                for (descriptor, status) in check.descriptors.iter().zip(&decision.statuses) {
                    self.count(descriptor, status.decision.is_denied);
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, descriptor: &Descriptor<'_>, is_denied: bool) {
        if !matches!(descriptor.cost, Cost::Charge(Hits(1..))) {
            return;
        }
        let keys: Vec<_> = descriptor.entries.iter().map(|(key, _)| (*key).to_owned()).collect();
        if let Some(shape) = self.shapes.get_mut(&keys) {
            shape.checks += 1;
            shape.denied += u64::from(is_denied);
        }
    }

    /// Returns the suggested limits file, with remarks as comments.
    #[must_use]
    pub fn limits_file(&self) -> String {
        let limits = self.shapes.iter().map(|(keys, shape)| {
            let limit =
                SuggestedLimit { requests: shape.requests, comment: shape.comment(self.options) };
            (&**keys, limit)
        });
        let limits: Vec<(&[String], SuggestedLimit)> = limits.collect();
        let limits = limits.iter().map(|(keys, limit)| (*keys, limit));
        let mut file = String::new();
        for warning in &self.warnings {
            file.extend(["# warning: ", warning, "\n"]);
        }
        file + &write_limits(&self.domain, self.options.unit, limits)
    }

    /// Returns the suggested limits as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let limits = self.shapes.iter().map(|(keys, shape)| {
            json!({
                "keys": keys,
                "values": shape.values,
                "observed": shape.observed,
                "requests_per_unit": shape.requests,
                "checks": shape.checks,
                "denied": shape.denied,
            })
        });
        json!({
            "domain": self.domain,
            "unit": unit_name(self.options.unit),
            "limits": limits.collect::<Vec<_>>(),
            "warnings": self.warnings,
        })
    }
}
