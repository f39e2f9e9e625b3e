//! The values of a reply, and the usage that they add up to.

use serde_json::Value;

use crate::paths::{Field, MAX_TOKEN_BYTES};

/// The largest count: 2^53 - 1, which every JSON parser reads exactly.
pub const MAX_COUNT: u64 = (1 << 53) - 1;

/// The usage of one reply, in tokens. `None` means that the reply gave no valid value: charge an estimate.
/// Counts are at most [`MAX_COUNT`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// All input tokens: those read from a cache, those written to a cache, and the others.
    pub input: Option<u64>,
    /// All output tokens, with reasoning.
    pub output: Option<u64>,
    /// The part of `input` that was read from a cache. Never above `input`, if both are known.
    pub cached_input: Option<u64>,
    /// The model that the provider names: 1 to 254 bytes without control characters.
    pub model: Option<String>,
    /// Ignored values at known paths, and JSON texts with an error outside of skipped values.
    pub invalid: u64,
}

/// The last valid value of each field.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    whole_input: Option<u64>,
    input: Option<u64>,
    tool_input: Option<u64>,
    cached_part: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
    model: Option<String>,
    invalid: u64,
}

impl Counts {
    /// Replaces the value of `field` by `token`, a JSON scalar. Ignores `null`, and counts other invalid values.
    pub(crate) fn record(&mut self, field: Field, token: &[u8]) {
        let is_short = token.len() <= MAX_TOKEN_BYTES;
        let value = is_short.then(|| serde_json::from_slice(token).ok()).flatten();
        let is_valid = match (value, self.slot(field)) {
            (Some(Value::Null), _) => true,
            (Some(Value::Number(number)), Some(slot)) => {
                let count = number.as_u64().filter(|&count| count <= MAX_COUNT);
                *slot = count.or(*slot);
                count.is_some()
            }
            (Some(Value::String(name)), None) => self.record_model(name),
            _ => false,
        };
        if !is_valid {
            self.add_invalid();
        }
    }

    /// Counts an ignored value or text.
    pub(crate) fn add_invalid(&mut self) {
        self.invalid = self.invalid.saturating_add(1);
    }

    /// Keeps a name without control characters, unless it is empty. Returns `false` for other names.
    fn record_model(&mut self, name: String) -> bool {
        let is_valid = !name.chars().any(char::is_control);
        if is_valid && !name.is_empty() {
            self.model = Some(name);
        }
        is_valid
    }

    /// The count of `field`; `None` for the model.
    fn slot(&mut self, field: Field) -> Option<&mut Option<u64>> {
        match field {
            Field::WholeInput => Some(&mut self.whole_input),
            Field::Input => Some(&mut self.input),
            Field::ToolInput => Some(&mut self.tool_input),
            Field::CachedPart => Some(&mut self.cached_part),
            Field::CacheRead => Some(&mut self.cache_read),
            Field::CacheWrite => Some(&mut self.cache_write),
            Field::Output => Some(&mut self.output),
            Field::Reasoning => Some(&mut self.reasoning),
            Field::Model => None,
        }
    }

    /// Adds the fields up, in tokens:
    ///
    /// | usage | sum |
    /// |---|---|
    /// | input | whole input, or input + cache read + cache write; plus tool input |
    /// | cached input | cached part, or cache read; at most the input |
    /// | output | output + reasoning |
    ///
    /// OpenAI and Gemini give the whole input with its cached part. OpenAI responses do so under Anthropic's name
    /// `input_tokens`. So a cached part means that the input is whole, and cache read and write are not added.
    ///
    /// | reply | fields | input | cached input |
    /// |---|---|---|---|
    /// | Anthropic | input 10, cache read 2000, cache write 300 | 2310 | 2000 |
    /// | OpenAI responses | input 2310, cached part 2000 | 2310 | 2000 |
    /// | Gemini | whole input 2310, cached part 2000, tool input 5 | 2315 | 2000 |
    ///
    /// The sums stop at [`MAX_COUNT`]. The input is unknown if only its cached tokens are known.
    pub(crate) fn usage(&self) -> Usage {
        let cache = match self.cached_part {
            Some(_) => 0,
            None => sum([self.cache_read, self.cache_write]).unwrap_or_default(),
        };
        let own_input = self.whole_input.or(self.input.map(|input| input + cache));
        let input = own_input.and_then(|own| sum([Some(own), self.tool_input]));
        let cached_input = self.cached_part.or(self.cache_read);
        Usage {
            input,
            output: sum([self.output, self.reasoning]),
            cached_input: cached_input.map(|cached| cached.min(input.unwrap_or(MAX_COUNT))),
            model: self.model.clone(),
            invalid: self.invalid,
        }
    }
}

/// The sum of the known counts; `None` if none is known.
fn sum(counts: [Option<u64>; 2]) -> Option<u64> {
    let known = counts.into_iter().flatten();
    known.reduce(u64::saturating_add).map(|sum| sum.min(MAX_COUNT))
}
