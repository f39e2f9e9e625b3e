//! Reads the environment variables of envoyproxy/ratelimit for counting and response headers.

use super::env_reader::EnvReader;

/// The smallest size of envoyproxy/ratelimit's local cache, in bytes.
const MIN_CACHE_BYTES: i64 = 512 * 1024;

pub(super) fn read(reader: &mut EnvReader<'_>) {
    for (variable, setting) in [
        ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "compat.store.stop_when_over"),
        ("SHADOW_MODE", "answers.shadow_mode"),
        ("QUOTA_MODE", "compat.limits.quota_mode"),
        ("RESPONSE_DYNAMIC_METADATA", "answers.metadata"),
        ("LIMIT_REQUEST_HEADERS_ENABLED", "compat.answers.request_headers"),
        ("ENABLE_NEGATIVE_HITS", "limits.refunds"),
    ] {
        reader.put_flag(variable, setting);
    }
    for (variable, setting) in [
        ("LIMIT_LIMIT_HEADER", "compat.answers.limit_header"),
        ("LIMIT_REMAINING_HEADER", "compat.answers.remaining_header"),
        ("LIMIT_RESET_HEADER", "compat.answers.reset_header"),
        ("CACHE_KEY_PREFIX", "compat.store.key_prefix"),
    ] {
        reader.put_text(variable, setting);
    }
    let headers = if reader.flag("LIMIT_RESPONSE_HEADERS_ENABLED") { "compat" } else { "none" };
    reader.put("LIMIT_RESPONSE_HEADERS_ENABLED", "answers.headers", headers.to_owned());
    // envoyproxy/ratelimit always has this behavior, without a variable.
    reader.put("GRPC_PORT", "limits.overrides", "replace".to_owned());
    let jitter = reader.int("EXPIRATION_JITTER_MAX_SECONDS").max(0);
    reader.put("EXPIRATION_JITTER_MAX_SECONDS", "compat.store.expiry_jitter", format!("{jitter}s"));
    read_cache_size(reader);
    read_near_limit_ratio(reader);
}

fn read_cache_size(reader: &mut EnvReader<'_>) {
    let size = match reader.int("LOCAL_CACHE_SIZE_IN_BYTES") {
        0 => "none".to_owned(),
        bytes => bytes.max(MIN_CACHE_BYTES).to_string(),
    };
    reader.put("LOCAL_CACHE_SIZE_IN_BYTES", "compat.store.deny_cache", size);
}

/// Clamps `NEAR_LIMIT_RATIO` to 0..=1. envoyproxy/ratelimit computes meaningless counts outside.
fn read_near_limit_ratio(reader: &mut EnvReader<'_>) {
    let configured_ratio = reader.float("NEAR_LIMIT_RATIO");
    let ratio = if configured_ratio.is_nan() { 1.0 } else { configured_ratio.clamp(0.0, 1.0) };
    if !(0.0..=1.0).contains(&configured_ratio) {
        let line = format!("must be from 0 to 1; using {ratio}");
        reader.add_note("NEAR_LIMIT_RATIO", &line);
    }
    reader.put("NEAR_LIMIT_RATIO", "telemetry.near_limit", ratio.to_string());
}
