//! Reads the `OTEL_*` environment variables of one exporter.
//!
//! Guarantees:
//! - A variable of one signal (spans or metrics) overrides the general one.
//! - An unsupported protocol or exporter is an error that names the variable and the fix.

use std::time::Duration;

use tonic::codegen::http::Uri;

use super::collector_client::{self, OtlpHttpClient};
use crate::http_client::ClientTlsFiles;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// A function that returns the value of an environment variable, or `None` if it is unset or empty.
pub type EnvLookup<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The transport protocol of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpTransport {
    /// OTLP over gRPC.
    #[default]
    Grpc,
    /// OTLP in protobuf over HTTP.
    Http,
}

/// The values for unset `OTEL_*` environment variables.
#[derive(Clone, Debug)]
pub struct OtlpDefaults {
    /// The transport protocol of OTLP.
    pub protocol: OtlpTransport,
    /// Enables the export of metrics.
    pub has_metrics: bool,
    /// Attributes of the OpenTelemetry resource. The default of `service.name` is `sluicegate`.
    pub attributes: Vec<(String, String)>,
    /// The sampled fraction, 0 to 1, of the traces for which the caller has not decided whether to
    /// sample.
    pub sampled_fraction: f64,
}

impl Default for OtlpDefaults {
    fn default() -> Self {
        let (protocol, attributes) = (OtlpTransport::Grpc, Vec::new());
        Self { protocol, has_metrics: true, attributes, sampled_fraction: 1.0 }
    }
}

/// The exporter settings of one signal: spans or metrics.
#[derive(Clone, Debug)]
pub(super) struct ExporterConfig {
    pub(super) protocol: OtlpTransport,
    endpoint: String,
    tls_files: ClientTlsFiles,
    timeout: Duration,
}

impl ExporterConfig {
    /// Returns a gRPC channel with TLS. `None` for HTTP or plain text, where the exporter connects
    /// itself.
    pub(super) fn tls_channel(&self) -> Result<Option<tonic::transport::Channel>, String> {
        let is_secure = self.protocol == OtlpTransport::Grpc && self.endpoint.starts_with("https:");
        let channel = is_secure
            .then(|| collector_client::tls_channel(&self.endpoint, &self.tls_files, self.timeout));
        channel.transpose()
    }

    pub(super) fn http_client(&self) -> Result<OtlpHttpClient, String> {
        OtlpHttpClient::new(&self.tls_files, self.timeout)
    }
}

/// Reads the environment variables for `signal`, which is `TRACES` or `METRICS`. Returns `None` if
/// the signal is not exported.
pub(super) fn exporter_config(
    signal: &str,
    variable: EnvLookup<'_>,
    defaults: &OtlpDefaults,
) -> Result<Option<ExporterConfig>, String> {
    let own = |name: &str| variable(&format!("OTEL_EXPORTER_OTLP_{signal}_{name}"));
    let either = |name: &str| own(name).or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")));
    let exporter = format!("OTEL_{signal}_EXPORTER");
    match variable(&exporter).as_deref() {
        None if signal == "METRICS" && !defaults.has_metrics => return Ok(None),
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => return Err(format!("{exporter} must be otlp or none, got `{other}`")),
    }
    let Some(endpoint) = either("ENDPOINT") else { return Ok(None) };
    let variable_name = match own("ENDPOINT") {
        Some(_) => format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"),
        None => "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(),
    };
    check_endpoint(&variable_name, &endpoint)?;
    let protocol = either("PROTOCOL").map(|name| parse_protocol(signal, &name)).transpose()?;
    let identity = match (either("CLIENT_CERTIFICATE"), either("CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(format!(
                "{signal}: set both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and \
                 OTEL_EXPORTER_OTLP_CLIENT_KEY"
            ));
        }
    };
    let timeout_ms = either("TIMEOUT").and_then(|text| text.parse().ok());
    Ok(Some(ExporterConfig {
        protocol: protocol.unwrap_or(defaults.protocol),
        endpoint,
        tls_files: ClientTlsFiles { ca_file: either("CERTIFICATE"), identity },
        timeout: timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis),
    }))
}

fn parse_protocol(signal: &str, name: &str) -> Result<OtlpTransport, String> {
    match name {
        "grpc" => Ok(OtlpTransport::Grpc),
        "http/protobuf" => Ok(OtlpTransport::Http),
        other => {
            let supported = "set OTEL_EXPORTER_OTLP_PROTOCOL to grpc or http/protobuf";
            Err(format!("{signal}: OTLP over {other} is not supported; {supported}"))
        }
    }
}

/// Verifies that the endpoint is a URL with a host. Go programs also accept `host:port`.
fn check_endpoint(variable: &str, endpoint: &str) -> Result<(), String> {
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let start = endpoint.get(..scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then(|| &endpoint[scheme.len()..])
    });
    let is_host = |text: &str| !text.is_empty() && !text.starts_with(['/', ':', '?']);
    let is_url = |url: &str| url.parse::<Uri>().is_ok_and(|url| url.host().is_some());
    match rest {
        Some(rest) if is_host(rest) && is_url(endpoint) => return Ok(()),
        _ => {}
    }
    let address = endpoint.rsplit("//").next().unwrap_or(endpoint).trim();
    let corrected = format!("http://{address}");
    Err(if is_host(address) && is_url(&corrected) && !address.contains('@') {
        format!("{variable}: write {corrected} (https:// for TLS)")
    } else {
        format!("{variable}: write the collector's URL, such as http://collector:4317")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_of(
        variables: &[(&str, &str)],
        signal: &str,
    ) -> Result<Option<ExporterConfig>, String> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        exporter_config(signal, &lookup, &OtlpDefaults::default())
    }

    fn exported_signals(variables: &[(&str, &str)]) -> (bool, bool, usize) {
        let configs = ["TRACES", "METRICS"].map(|signal| config_of(variables, signal));
        let [spans, counts] = configs.each_ref().map(|config| matches!(config, Ok(Some(_))));
        (spans, counts, configs.iter().filter(|config| config.is_err()).count())
    }

    #[test]
    fn otlp_export_requires_a_configured_endpoint() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert_eq!(exported_signals(&[]), (false, false, 0));
        assert_eq!(exported_signals(&[all]), (true, true, 0));
        assert_eq!(exported_signals(&[all, ("OTEL_METRICS_EXPORTER", "none")]), (true, false, 0));
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:4317");
        assert_eq!(exported_signals(&[own]), (false, true, 0));
    }

    #[test]
    fn unsupported_otlp_settings_disable_only_their_own_signal() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4317");
        assert_eq!(exported_signals(&[all, ("OTEL_TRACES_EXPORTER", "zipkin")]), (false, true, 1));
        assert_eq!(
            exported_signals(&[all, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]),
            (false, false, 2)
        );
        let half = ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key");
        assert_eq!(exported_signals(&[all, half]), (false, true, 1));
    }

    #[test]
    fn signal_specific_variables_override_general_ones() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/all"),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/metrics"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
        ];
        let [spans, counts] =
            ["TRACES", "METRICS"].map(|signal| config_of(&variables, signal).unwrap().unwrap());
        assert_eq!((spans.protocol, counts.protocol), (OtlpTransport::Grpc, OtlpTransport::Http));
        assert_eq!(spans.tls_files.ca_file.as_deref(), Some("/all"));
        assert_eq!(counts.tls_files.ca_file.as_deref(), Some("/metrics"));
        assert_eq!(spans.timeout, Duration::from_millis(250));
    }
}
