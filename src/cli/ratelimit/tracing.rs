//! Reads the `TRACING_*` variables of envoyproxy/ratelimit. `OTEL_*` variables take precedence over
//! them.
//!
//! Not covered:
//! - `OTEL_EXPORTER_OTLP_*`: Sluicegate and envoyproxy/ratelimit read them directly.

use super::env_reader::EnvReader;

pub(super) fn read(reading: &mut EnvReader<'_>) {
    reading.put_flag("TRACING_ENABLED", "telemetry.otlp.enabled");
    if !reading.flag("TRACING_ENABLED") {
        let others = [
            "TRACING_EXPORTER_PROTOCOL",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
            "TRACING_SERVICE_INSTANCE_ID",
            "TRACING_SAMPLING_RATE",
        ];
        return reading.note_unused(&others, "TRACING_ENABLED is not on");
    }
    let variable = "TRACING_EXPORTER_PROTOCOL";
    match reading.text(variable) {
        "http" | "" => reading.put(variable, "compat.tracing.protocol", "http/protobuf".to_owned()),
        "grpc" => reading.put(variable, "compat.tracing.protocol", "grpc".to_owned()),
        _ => reading.add_error(variable, "takes http or grpc"),
    }
    // Export no metrics: the collector may accept only spans, because envoyproxy/ratelimit sends
    // nothing else.
    reading.put("TRACING_ENABLED", "compat.tracing.metrics", "false".to_owned());
    reading.put_text("TRACING_SERVICE_NAME", "compat.tracing.service_name");
    let named = [
        ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
        ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
    ];
    let named = named.map(|(name, variable)| (name.to_owned(), reading.text(variable).to_owned()));
    let named: Vec<_> = named.into_iter().filter(|(_, text)| !text.is_empty()).collect();
    reading.put_pairs("TRACING_SERVICE_NAMESPACE", "compat.tracing.attributes", &named);
    let sampled = reading.float("TRACING_SAMPLING_RATE").clamp(0.0, 1.0);
    reading.put("TRACING_SAMPLING_RATE", "compat.tracing.sampling_ratio", sampled.to_string());
}
