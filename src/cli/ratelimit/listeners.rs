//! Reads the environment variables of envoyproxy/ratelimit for ports, gRPC TLS and the log.

use std::path::Path;

use super::env_reader::EnvReader;

const PLAINTEXT_REASON: &str = "GRPC_SERVER_USE_TLS is not on, so gRPC is in plain text";

pub(super) fn read(reading: &mut EnvReader<'_>) {
    let hosts = [
        ("HOST", "compat.listen.http_host"),
        ("GRPC_HOST", "compat.listen.grpc_host"),
        ("DEBUG_HOST", "listen.admin_host"),
    ];
    for (variable, setting) in hosts {
        let host = reading.text(variable).to_owned();
        reading.put_host(variable, setting, &host);
    }
    reading.put_port("PORT", "listen.http_port");
    reading.put_port("GRPC_PORT", "listen.grpc_port");
    reading.put_port("DEBUG_PORT", "listen.admin_port");
    reading.put_text("GRPC_UDS", "listen.grpc_socket");
    reading.put_nanos("GRPC_MAX_CONNECTION_AGE", "listen.max_connection_age");
    if reading.nanos("GRPC_MAX_CONNECTION_AGE") != 0
        || reading.is_setting_overridden("listen.max_connection_age")
    {
        reading
            .put_nanos("GRPC_MAX_CONNECTION_AGE_GRACE", "compat.listen.max_connection_age_grace");
    }
    // Behavior that envoyproxy/ratelimit always has, without a variable for it.
    reading.put("DEBUG_PORT", "compat.listen.debug_pages", "true".to_owned());
    reading.put("PORT", "compat.listen.reuse_port", "true".to_owned());
    reading.put("PORT", "compat.listen.on_hangup", "stop".to_owned());
    // Disable the peer port, which envoyproxy/ratelimit does not have.
    reading.put("PORT", "listen.peer_port", String::new());
    read_tls(reading);
    read_log(reading);
}

fn read_tls(reading: &mut EnvReader<'_>) {
    let client = ["GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN"];
    let pair = ["GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"];
    let is_on = reading.flag("GRPC_SERVER_USE_TLS");
    if !is_on && !reading.is_setting_overridden("listen.tls.cert_file") {
        reading.note_unused(&pair, PLAINTEXT_REASON);
        reading.note_unused(&client, PLAINTEXT_REASON);
        return;
    }
    let is_missing = |variable: &&&str| {
        reading.text(variable).is_empty() && !reading.is_variable_overridden(variable)
    };
    if is_on && let Some(missing) = pair.iter().find(is_missing) {
        return reading.add_error(missing, "must name a file, because GRPC_SERVER_USE_TLS is on");
    }
    let [certificate, key] = pair.map(|variable| Path::new(reading.text(variable)).parent());
    let are_both_from_environment =
        !pair.iter().any(|variable| reading.is_variable_overridden(variable));
    if are_both_from_environment && certificate != key {
        let why = "must lie in the directory of GRPC_SERVER_TLS_CERT, so that both change at once";
        return reading.add_error(pair[1], why);
    }
    reading.put_text(pair[0], "listen.tls.cert_file");
    reading.put_text(pair[1], "listen.tls.key_file");
    if reading.text(client[0]).is_empty()
        && !reading.is_setting_overridden("listen.tls.client_ca_file")
    {
        return reading.note_unused(
            &client[1..],
            "GRPC_CLIENT_TLS_CACERT is not set, so clients need no certificate",
        );
    }
    reading.put_text(client[0], "listen.tls.client_ca_file");
    reading.put_text(client[1], "listen.tls.client_name");
}

fn read_log(reading: &mut EnvReader<'_>) {
    let level = match &*reading.text("LOG_LEVEL").to_lowercase() {
        "panic" | "fatal" | "error" => Some("error"),
        "warn" | "warning" => Some("warn"),
        "info" => Some("info"),
        "debug" => Some("debug"),
        "trace" => Some("trace"),
        _ => None,
    };
    match level {
        Some(level) => reading.put("LOG_LEVEL", "telemetry.log.level", level.to_owned()),
        None => {
            reading.add_error("LOG_LEVEL", "takes panic, fatal, error, warn, info, debug or trace");
        }
    }
    let is_json = reading.text("LOG_FORMAT").eq_ignore_ascii_case("json");
    let format = if is_json { "compat" } else { "text" };
    reading.put("LOG_FORMAT", "telemetry.log.format", format.to_owned());
}
