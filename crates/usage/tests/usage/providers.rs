//! Replies in the shapes that the providers document.
//!
//! Sources: the API references of OpenAI (chat completions with `include_usage`, responses), Anthropic (streaming
//! messages, prompt caching) and Gemini (`UsageMetadata`).

use sluicegate_usage::Usage;

use crate::{EVENTS, read_chunks, read_events, read_json, usage};

const CHAT: &str = r#"data: {"id":"c1","object":"chat.completion.chunk","model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}

data: {"id":"c1","object":"chat.completion.chunk","model":"gpt-4o-2024-08-06","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}],"usage":null}

data: {"id":"c1","object":"chat.completion.chunk","model":"gpt-4o-2024-08-06","choices":[],"usage":{"prompt_tokens":2006,"completion_tokens":300,"total_tokens":2306,"prompt_tokens_details":{"cached_tokens":1920,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":7}}}

data: [DONE]

"#;

const RESPONSES: &str = r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"r1","object":"response","status":"in_progress","model":"gpt-4.1-2025-04-14","output":[],"usage":null,"metadata":{}}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":1,"item_id":"m1","output_index":0,"content_index":0,"delta":"Hi"}

event: response.completed
data: {"type":"response.completed","sequence_number":2,"response":{"id":"r1","object":"response","status":"completed","model":"gpt-4.1-2025-04-14","output":[{"type":"message","content":[{"type":"output_text","text":"Hi"}]}],"usage":{"input_tokens":328,"input_tokens_details":{"cached_tokens":100},"output_tokens":52,"output_tokens_details":{"reasoning_tokens":10},"total_tokens":380},"metadata":{}}}

"#;

const ANTHROPIC: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m1","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":300,"cache_read_input_tokens":2000,"cache_creation":{"ephemeral_5m_input_tokens":300},"output_tokens":1}}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":null},"usage":{"output_tokens":7}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

"#;

const GEMINI: &str = "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Let\"}],\"role\": \"model\"},\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 2400,\"cachedContentTokenCount\": 2048,\"thoughtsTokenCount\": 30,\"totalTokenCount\": 2430,\"promptTokensDetails\": [{\"modality\": \"TEXT\",\"tokenCount\": 2400}]},\"modelVersion\": \"gemini-2.5-flash\",\"responseId\": \"a\"}\r\n\r\ndata: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \" us\"}],\"role\": \"model\"},\"finishReason\": \"STOP\",\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 2400,\"cachedContentTokenCount\": 2048,\"candidatesTokenCount\": 12,\"thoughtsTokenCount\": 40,\"totalTokenCount\": 2452},\"modelVersion\": \"gemini-2.5-flash\",\"responseId\": \"a\"}\r\n\r\n";

#[test]
fn openai_chat_usage_is_in_the_last_chunk() {
    assert_eq!(read_events(CHAT), usage(2006, 300, Some(1920), "gpt-4o-2024-08-06"));
}

#[test]
fn openai_chat_without_include_usage_has_no_counts() {
    let body = CHAT.replace(r#""usage":{"#, r#""other":{"#);
    let expected = Usage { model: Some("gpt-4o-2024-08-06".into()), ..Usage::default() };
    assert_eq!(read_events(body), expected);
}

#[test]
fn openai_responses_usage_is_in_the_completed_event() {
    assert_eq!(read_events(RESPONSES), usage(328, 52, Some(100), "gpt-4.1-2025-04-14"));
}

#[test]
fn anthropic_input_includes_the_cached_tokens() {
    assert_eq!(read_events(ANTHROPIC), usage(2325, 15, Some(2000), "claude-sonnet-4-5"));
}

#[test]
fn anthropic_server_tools_raise_the_input_in_the_last_delta() {
    let last = r#"data: {"type":"message_delta","usage":{"input_tokens":10682,"cache_creation_input_tokens":0,"cache_read_input_tokens":2500,"output_tokens":510,"server_tool_use":{"web_search_requests":1}}}"#;
    let body = format!("{ANTHROPIC}{last}\n\n");
    assert_eq!(read_events(body), usage(13_182, 510, Some(2500), "claude-sonnet-4-5"));
}

#[test]
fn an_anthropic_stream_without_deltas_has_no_output() {
    let start = ANTHROPIC.split("event: ping").next().unwrap();
    let read = read_events(start);
    assert_eq!((read.input, read.output), (Some(2325), None));
}

#[test]
fn gemini_counts_are_cumulative_and_include_thoughts() {
    assert_eq!(read_events(GEMINI), usage(2400, 52, Some(2048), "gemini-2.5-flash"));
}

#[test]
fn plain_bodies_have_the_same_paths() {
    let chat = r#"{"id":"c1","object":"chat.completion","model":"gpt-4o","choices":[{"message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":19,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":0}}}"#;
    assert_eq!(read_json(chat), usage(19, 10, Some(0), "gpt-4o"));
    let responses = r#"{"object":"response","model":"gpt-4.1","output":[],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":6},"output_tokens":87}}"#;
    assert_eq!(read_json(responses), usage(36, 87, Some(6), "gpt-4.1"));
    let anthropic = r#"{"type":"message","model":"claude-opus-4-1","content":[{"type":"text","text":"Hi"}],"usage":{"input_tokens":5,"cache_creation_input_tokens":100,"cache_read_input_tokens":20,"output_tokens":9}}"#;
    assert_eq!(read_json(anthropic), usage(125, 9, Some(20), "claude-opus-4-1"));
    let gemini = r#"{"candidates":[],"usageMetadata":{"promptTokenCount":8,"toolUsePromptTokenCount":50,"candidatesTokenCount":3},"modelVersion":"gemini-2.5-pro"}"#;
    assert_eq!(read_json(gemini), usage(58, 3, None, "gemini-2.5-pro"));
}

#[test]
fn a_json_array_is_a_sequence_of_replies() {
    let events = GEMINI.split("\r\n\r\n").filter_map(|event| event.strip_prefix("data: "));
    let body = format!("[{}]", events.collect::<Vec<_>>().join("\r\n,"));
    assert_eq!(read_json(body), read_events(GEMINI));
    assert_eq!(read_json("[]"), Usage::default());
}

#[test]
fn a_gateway_that_repeats_cached_tokens_counts_them_once() {
    let litellm = r#"{"model":"m","usage":{"prompt_tokens":120,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":100},"cache_read_input_tokens":90,"cache_creation_input_tokens":15}}"#;
    assert_eq!(read_json(litellm), usage(120, 9, Some(100), "m"));
    let without_details = litellm.replace("prompt_tokens_details", "other");
    assert_eq!(read_json(without_details), usage(120, 9, Some(90), "m"));
    let responses =
        litellm.replace("prompt_tokens", "input_tokens").replace("completion", "output");
    assert_eq!(read_json(responses), usage(120, 9, Some(100), "m"));
}

#[test]
fn an_empty_model_of_azure_keeps_the_name() {
    let body = "data: {\"model\":\"gpt-4o\"}\n\ndata: {\"model\":\"\"}\n\n";
    assert_eq!(read_events(body).model.as_deref(), Some("gpt-4o"));
    assert_eq!(read_events(body).invalid, 0);
}

/// A stream may end at any byte: each number is absent, or one that the stream gives.
#[test]
fn a_stream_that_ends_early_keeps_complete_values() {
    let cases: [(&str, &[u64], &[u64]); 4] = [
        (CHAT, &[2006], &[300]),
        (RESPONSES, &[328], &[52]),
        // Input before and after the two cache counts, which are in the same event.
        (ANTHROPIC, &[25, 325, 2325], &[7, 15]),
        (GEMINI, &[2400], &[30, 42, 52]),
    ];
    for (body, inputs, outputs) in cases {
        for end in 0..body.len() {
            let read = read_chunks(EVENTS, [&body.as_bytes()[..end]]);
            assert!(read.input.is_none_or(|input| inputs.contains(&input)), "{end}: {read:?}");
            assert!(read.output.is_none_or(|output| outputs.contains(&output)), "{end}: {read:?}");
            assert_eq!(read.invalid, 0);
        }
    }
}
