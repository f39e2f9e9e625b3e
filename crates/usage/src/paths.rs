//! The JSON paths of the usage. A new provider is new rows.

#[cfg(test)]
mod tests;

use Field::{
    CacheRead, CacheWrite, CachedPart, Input, Model, Output, Reasoning, ToolInput, WholeInput,
};

/// The longest key or value that is read: bytes of JSON, with quotes and escapes. A longer key matches
/// no path, and a longer value is invalid.
pub const MAX_TOKEN_BYTES: usize = 256;

/// The meaning of a value. [`Counts::usage`](crate::counts::Counts::usage) combines them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// All input tokens, with the cached ones.
    WholeInput,
    /// Input tokens, without those in `CacheRead` and `CacheWrite`.
    Input,
    /// Input tokens of tool results, in addition to `WholeInput`.
    ToolInput,
    /// Cached tokens that are part of the input.
    CachedPart,
    /// Tokens read from the cache, in addition to `Input`.
    CacheRead,
    /// Tokens written to the cache, in addition to `Input`.
    CacheWrite,
    /// Output tokens.
    Output,
    /// Output tokens of thoughts, in addition to `Output`.
    Reasoning,
    /// The name of the model.
    Model,
}

/// One path from the root of a reply or event, through objects only.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PathRow {
    pub(crate) path: &'static [&'static str],
    pub(crate) field: Field,
}

const fn row(path: &'static [&'static str], field: Field) -> PathRow {
    PathRow { path, field }
}

/// The table. No path is the beginning of another one.
pub(crate) static PATHS: [PathRow; 23] = [
    // OpenAI chat completions and embeddings.
    row(&["model"], Model),
    row(&["usage", "prompt_tokens"], WholeInput),
    row(&["usage", "completion_tokens"], Output),
    row(&["usage", "prompt_tokens_details", "cached_tokens"], CachedPart),
    // Bodies of OpenAI responses and Anthropic messages, and Anthropic's `message_delta`.
    row(&["usage", "input_tokens"], Input),
    row(&["usage", "output_tokens"], Output),
    row(&["usage", "input_tokens_details", "cached_tokens"], CachedPart),
    row(&["usage", "cache_read_input_tokens"], CacheRead),
    row(&["usage", "cache_creation_input_tokens"], CacheWrite),
    // Events of OpenAI responses, such as `response.completed`.
    row(&["response", "model"], Model),
    row(&["response", "usage", "input_tokens"], Input),
    row(&["response", "usage", "output_tokens"], Output),
    row(&["response", "usage", "input_tokens_details", "cached_tokens"], CachedPart),
    // Anthropic's `message_start`. Its `output_tokens` are those of the first token only.
    row(&["message", "model"], Model),
    row(&["message", "usage", "input_tokens"], Input),
    row(&["message", "usage", "cache_read_input_tokens"], CacheRead),
    row(&["message", "usage", "cache_creation_input_tokens"], CacheWrite),
    // Gemini.
    row(&["modelVersion"], Model),
    row(&["usageMetadata", "promptTokenCount"], WholeInput),
    row(&["usageMetadata", "toolUsePromptTokenCount"], ToolInput),
    row(&["usageMetadata", "cachedContentTokenCount"], CachedPart),
    row(&["usageMetadata", "candidatesTokenCount"], Output),
    row(&["usageMetadata", "thoughtsTokenCount"], Reasoning),
];
