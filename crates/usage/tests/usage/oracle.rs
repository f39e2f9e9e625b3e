//! The usage of a whole JSON text, found with `serde_json` and a list of paths.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sluicegate_usage::{MAX_COUNT, MAX_TOKEN_BYTES, Usage};

/// The members of an object in their order, with all duplicates.
struct Members<'t>(Vec<(String, &'t RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

/// The values of a text at each path, and the number of invalid ones.
#[derive(Default)]
pub(crate) struct Found {
    values: Vec<(String, u64)>,
    model: Option<String>,
    invalid: u64,
}

const MODELS: [&str; 4] = ["/model", "/message/model", "/response/model", "/modelVersion"];

/// Every path of a count, below the objects that may contain it.
fn is_count(path: &str) -> bool {
    let details = ["/input_tokens_details/cached_tokens", "/prompt_tokens_details/cached_tokens"];
    let cache = ["/cache_read_input_tokens", "/cache_creation_input_tokens"];
    if let Some(name) = path.strip_prefix("/usageMetadata") {
        let names = ["/promptTokenCount", "/toolUsePromptTokenCount", "/cachedContentTokenCount"];
        let outputs = ["/candidatesTokenCount", "/thoughtsTokenCount"];
        names.contains(&name) || outputs.contains(&name)
    } else if let Some(name) = path.strip_prefix("/message/usage") {
        name == "/input_tokens" || cache.contains(&name)
    } else if let Some(name) = path.strip_prefix("/response/usage") {
        ["/input_tokens", "/output_tokens", details[0]].contains(&name)
    } else if let Some(name) = path.strip_prefix("/usage") {
        let chat = ["/prompt_tokens", "/completion_tokens", "/input_tokens", "/output_tokens"];
        chat.contains(&name) || cache.contains(&name) || details.contains(&name)
    } else {
        false
    }
}

impl Found {
    /// Reads one text. Returns `None` if it is not valid JSON.
    pub(crate) fn read(&mut self, text: &[u8]) -> Option<()> {
        let text: &RawValue = serde_json::from_slice(text).ok()?;
        if !text.get().starts_with('[') {
            return self.walk(text, "");
        }
        let replies: Vec<&RawValue> = serde_json::from_str(text.get()).ok()?;
        let mut objects = replies.into_iter().filter(|reply| reply.get().starts_with('{'));
        objects.try_for_each(|reply| self.walk(reply, ""))
    }

    fn walk(&mut self, value: &RawValue, path: &str) -> Option<()> {
        let is_known = is_count(path) || MODELS.contains(&path);
        if value.get().starts_with('{') && !is_known {
            let Members(members) = serde_json::from_str(value.get()).ok()?;
            for (key, value) in members {
                // A slash inside a key is not a separator.
                self.walk(value, &format!("{path}/{}", key.replace('/', "~")))?;
            }
        } else if is_known && value.get() != "null" {
            self.record(value.get(), path);
        }
        Some(())
    }

    fn record(&mut self, token: &str, path: &str) {
        let is_short = token.len() <= MAX_TOKEN_BYTES;
        if let Ok(name) = serde_json::from_str::<String>(token)
            && MODELS.contains(&path)
            && is_short
            && !name.contains(char::is_control)
        {
            self.model = Some(name).filter(|name| !name.is_empty()).or(self.model.take());
        } else if let Ok(count) = token.parse::<u64>()
            && is_count(path)
            && is_short
            && count <= MAX_COUNT
        {
            self.values.push((path.into(), count));
        } else {
            self.invalid += 1;
        }
    }

    /// The last value at a path that ends with one of `names`.
    fn last(&self, names: &[&str]) -> Option<u64> {
        let is_match = |path: &str| names.iter().any(|name| path.ends_with(&format!("/{name}")));
        self.values.iter().rev().find(|(path, _)| is_match(path)).map(|&(_, count)| count)
    }

    pub(crate) fn usage(self) -> Usage {
        let cached_part = self.last(&["cached_tokens", "cachedContentTokenCount"]);
        let cache_read = self.last(&["cache_read_input_tokens"]);
        let cache_write = self.last(&["cache_creation_input_tokens"]);
        let or_zero = |count: Option<u64>| count.unwrap_or(0);
        let is_beside = cached_part.is_none();
        let beside = if is_beside { or_zero(cache_read) + or_zero(cache_write) } else { 0 };
        let anthropic = self.last(&["input_tokens"]).map(|input| input + beside);
        let tools = self.last(&["toolUsePromptTokenCount"]);
        let input = self.last(&["prompt_tokens", "promptTokenCount"]).or(anthropic);
        let input = input.map(|input| (input + or_zero(tools)).min(MAX_COUNT));
        let own_output = self.last(&["completion_tokens", "output_tokens", "candidatesTokenCount"]);
        let thoughts = self.last(&["thoughtsTokenCount"]);
        let has_output = own_output.is_some() || thoughts.is_some();
        let output = (or_zero(own_output) + or_zero(thoughts)).min(MAX_COUNT);
        let cached = cached_part.or(cache_read);
        Usage {
            input,
            output: has_output.then_some(output),
            cached_input: cached.map(|cached| input.map_or(cached, |input| cached.min(input))),
            model: self.model,
            invalid: self.invalid,
        }
    }
}
