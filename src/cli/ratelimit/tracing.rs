//! Reads the `TRACING_*` variables of envoyproxy/ratelimit. `OTEL_*` variables take precedence;
//! `OTEL_EXPORTER_OTLP_*` are read by the exporter.

use super::env_reader::EnvReader;
use crate::config::settings::OtlpExport;

pub(super) fn read(reader: &mut EnvReader<'_>) {
    // Exports no metrics, because envoyproxy/ratelimit sends only spans and the collector may
    // refuse others.
    let is_enabled = reader.flag("TRACING_ENABLED");
    let signals = if is_enabled { OtlpExport::Traces } else { OtlpExport::None };
    reader.put("TRACING_ENABLED", "telemetry.otlp.export", signals.word().to_owned());
    if !is_enabled {
        let others = [
            "TRACING_EXPORTER_PROTOCOL",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
            "TRACING_SERVICE_INSTANCE_ID",
            "TRACING_SAMPLING_RATE",
        ];
        return reader.note_unused(&others, "no effect: TRACING_ENABLED is false");
    }
    let variable = "TRACING_EXPORTER_PROTOCOL";
    match reader.text(variable) {
        "http" | "" => reader.put(variable, "compat.tracing.protocol", "http/protobuf".to_owned()),
        "grpc" => reader.put(variable, "compat.tracing.protocol", "grpc".to_owned()),
        _ => reader.add_error(variable, "must be http or grpc"),
    }
    let attributes = [
        ("service.name", "TRACING_SERVICE_NAME"),
        ("service.namespace", "TRACING_SERVICE_NAMESPACE"),
        ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID"),
    ];
    let attributes =
        attributes.map(|(name, variable)| (name.to_owned(), reader.text(variable).to_owned()));
    let attributes: Vec<_> = attributes.into_iter().filter(|(_, text)| !text.is_empty()).collect();
    reader.put_pairs("TRACING_SERVICE_NAME", "compat.tracing.attributes", &attributes);
    let sampled = reader.float("TRACING_SAMPLING_RATE").clamp(0.0, 1.0);
    reader.put("TRACING_SAMPLING_RATE", "compat.tracing.sampling_ratio", sampled.to_string());
}
