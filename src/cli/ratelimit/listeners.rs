//! Reads the environment variables of envoyproxy/ratelimit for ports, gRPC TLS and the log.

use std::path::Path;

use super::env_reader::EnvReader;
use crate::config::settings::{Absent, Word as _};

const PLAINTEXT_REASON: &str =
    "no effect: GRPC_SERVER_USE_TLS is false, so the gRPC port uses no TLS";

pub(super) fn read(reader: &mut EnvReader<'_>) {
    let hosts = [
        ("HOST", "listen.host"),
        ("GRPC_HOST", "compat.listen.grpc_host"),
        ("DEBUG_HOST", "listen.admin_host"),
    ];
    for (variable, setting) in hosts {
        let host = reader.text(variable).to_owned();
        reader.put_host(variable, setting, &host);
    }
    reader.put_port("PORT", "listen.http_port");
    reader.put_port("GRPC_PORT", "listen.grpc_port");
    reader.put_port("DEBUG_PORT", "listen.admin_port");
    reader.put_text("GRPC_UDS", "listen.grpc_socket");
    reader.put_age("GRPC_MAX_CONNECTION_AGE", "listen.max_connection_age");
    if reader.nanos("GRPC_MAX_CONNECTION_AGE") != 0
        || reader.is_setting_overridden("listen.max_connection_age")
    {
        reader.put_age("GRPC_MAX_CONNECTION_AGE_GRACE", "compat.listen.max_connection_age_grace");
    }
    // envoyproxy/ratelimit always has this behavior, without a variable.
    reader.put("PORT", "compat.listen.like_ratelimit", "true".to_owned());
    // The largest message that Go's gRPC library accepts by default.
    reader.put("GRPC_PORT", "listen.max_message", (4 << 20).to_string());
    // Disables the peer port, which envoyproxy/ratelimit does not have.
    reader.put("PORT", "listen.peer_port", Absent::WORD.to_owned());
    read_tls(reader);
    read_log(reader);
}

fn read_tls(reader: &mut EnvReader<'_>) {
    let client = ["GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN"];
    let pair = ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"];
    let is_on = reader.flag("GRPC_SERVER_USE_TLS");
    if !is_on && !reader.is_setting_overridden("listen.tls.cert_file") {
        reader.note_unused(&pair, PLAINTEXT_REASON);
        reader.note_unused(&client, PLAINTEXT_REASON);
        return;
    }
    let is_missing = |variable: &&&str| {
        reader.text(variable).is_empty() && !reader.is_variable_overridden(variable)
    };
    if is_on && let Some(missing) = pair.iter().find(is_missing) {
        return reader
            .add_error(missing, "must be the path of a file, because GRPC_SERVER_USE_TLS is true");
    }
    let [certificate, key] = pair.map(|variable| Path::new(reader.text(variable)).parent());
    let are_both_from_environment =
        !pair.iter().any(|variable| reader.is_variable_overridden(variable));
    if are_both_from_environment && certificate != key {
        let why =
            "must be in the directory of GRPC_SERVER_TLS_CERT, so that both files change together";
        return reader.add_error(pair[1], why);
    }
    reader.put_text(pair[0], "listen.tls.cert_file");
    reader.put_text(pair[1], "listen.tls.key_file");
    if reader.text(client[0]).is_empty()
        && !reader.is_setting_overridden("listen.tls.client_ca_file")
    {
        return reader.note_unused(
            &client[1..],
            "no effect: GRPC_CLIENT_TLS_CACERT is not set, so clients need no certificate",
        );
    }
    reader.put_text(client[0], "listen.tls.client_ca_file");
    reader.put_text(client[1], "listen.tls.client_name");
}

fn read_log(reader: &mut EnvReader<'_>) {
    let level = match &*reader.text("LOG_LEVEL").to_lowercase() {
        "panic" | "fatal" | "error" => Some("error"),
        "warn" | "warning" => Some("warn"),
        "info" => Some("info"),
        "debug" => Some("debug"),
        "trace" => Some("trace"),
        _ => None,
    };
    match level {
        Some(level) => reader.put("LOG_LEVEL", "telemetry.log.level", level.to_owned()),
        None => {
            reader
                .add_error("LOG_LEVEL", "must be panic, fatal, error, warn, info, debug or trace");
        }
    }
    let is_json = reader.text("LOG_FORMAT").eq_ignore_ascii_case("json");
    let format = if is_json { "compat" } else { "text" };
    reader.put("LOG_FORMAT", "telemetry.log.format", format.to_owned());
}
