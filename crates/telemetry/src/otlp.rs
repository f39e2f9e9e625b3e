//! Exports spans and metrics to the collector that the `OTEL_*` environment variables name, by OTLP
//! over gRPC or HTTP.
//!
//! Guarantees:
//! - Nothing is exported without `OTEL_EXPORTER_OTLP_ENDPOINT` or its variants for traces and
//!   metrics.
//! - A slow or unavailable collector loses spans, but never delays a reply.
//! - Queues of spans are bounded.
//! - An unsupported protocol or exporter of one signal (spans or metrics) is reported. The other
//!   signal is still exported.
//!
//! Not covered:
//! - OTLP in JSON.
//! - The buckets of histograms: only count and sum are exported.

mod collector_client;
mod exporter_config;
mod page_cache;
mod page_samples;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter, MeterProvider as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{
    MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

use super::trace::{self, Propagators};
pub use exporter_config::{EnvLookup, OtlpDefaults, OtlpTransport};
use exporter_config::{ExporterConfig, exporter_config};
pub use page_cache::RenderPage;
use page_cache::{PageCache, PageReader};
use page_samples::{ExportedFamily, parse_families, parse_samples};

/// The timeout of the last export of each signal during shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The running exporters of spans and metrics.
#[derive(Debug, Default)]
pub struct OtlpExporters {
    tracer_provider: Option<SdkTracerProvider>,
    meter_provider: Option<SdkMeterProvider>,
}

/// Starts the exporters that the environment variables configure. Must run within a Tokio runtime.
///
/// Also returns an error message for each signal (spans, metrics) that cannot be exported.
#[must_use]
pub fn start(
    variable: EnvLookup<'_>,
    defaults: &OtlpDefaults,
    page: &RenderPage,
) -> (OtlpExporters, Vec<String>) {
    let mut errors = Vec::new();
    if variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return (OtlpExporters::default(), errors);
    }
    let mut wanted = |signal| match exporter_config(signal, variable, defaults) {
        Ok(wanted) => wanted,
        Err(why) => {
            errors.push(why);
            None
        }
    };
    let (spans, counts) = (wanted("TRACES"), wanted("METRICS"));
    let resource = resource(variable, defaults);
    let mut exporters = OtlpExporters::default();
    if let Some(way) = spans {
        let spans = start_span_export(&way, variable, defaults.sampled_fraction, resource.clone());
        exporters.tracer_provider = keep_or_report(spans, &mut errors);
    }
    if let Some(way) = counts {
        exporters.meter_provider =
            keep_or_report(start_metric_export(&way, page, resource), &mut errors);
    }
    (exporters, errors)
}

fn keep_or_report<T>(result: Result<T, String>, refused: &mut Vec<String>) -> Option<T> {
    result.map_err(|why| refused.push(why)).ok()
}

/// Builds the OpenTelemetry resource, which describes this process. `OTEL_*` variables take
/// precedence over the settings.
fn resource(variable: EnvLookup<'_>, defaults: &OtlpDefaults) -> Resource {
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let names = attributes.split(',').filter_map(|pair| pair.split_once('='));
    let configured: Vec<&str> = names.map(|(name, _)| name.trim()).collect();
    let mut own = defaults.attributes.clone();
    own.push(("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
    if variable("OTEL_SERVICE_NAME").is_some() {
        own.retain(|(name, _)| name != "service.name");
    } else if !own.iter().any(|(name, _)| name == "service.name") {
        own.push(("service.name".to_owned(), "sluicegate".to_owned()));
    }
    own.retain(|(name, _)| !configured.contains(&&**name));
    let own = own.into_iter().map(|(name, text)| KeyValue::new(name, text));
    Resource::builder().with_attributes(own).build()
}

fn start_span_export(
    way: &ExporterConfig,
    variable: EnvLookup<'_>,
    sampled: f64,
    resource: Resource,
) -> Result<SdkTracerProvider, String> {
    let propagators = variable("OTEL_PROPAGATORS");
    let propagators = Propagators::parse(propagators.as_deref())
        .ok_or("OTEL_PROPAGATORS must list tracecontext, b3, b3multi, baggage or none")?;
    let exporter = match (way.protocol, way.tls_channel()?) {
        (OtlpTransport::Http, _) => {
            let http = SpanExporter::builder().with_http().with_http_client(way.http_client()?);
            http.with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build()
        }
        (OtlpTransport::Grpc, None) => with_grpc(SpanExporter::builder().with_tonic()).build(),
        (OtlpTransport::Grpc, Some(channel)) => {
            with_grpc(SpanExporter::builder().with_tonic()).with_channel(channel).build()
        }
    };
    let exporter =
        exporter.map_err(|error| format!("failed to create the span exporter: {error}"))?;
    let mut provider = SdkTracerProvider::builder();
    if variable("OTEL_TRACES_SAMPLER").is_none() {
        let part = Sampler::TraceIdRatioBased(sampled);
        provider = provider.with_sampler(Sampler::ParentBased(Box::new(part)));
    }
    let provider = provider.with_batch_exporter(exporter).with_resource(resource).build();
    trace::install_tracer(provider.tracer("sluicegate"), propagators);
    Ok(provider)
}

fn start_metric_export(
    way: &ExporterConfig,
    page: &RenderPage,
    resource: Resource,
) -> Result<SdkMeterProvider, String> {
    let exporter = match (way.protocol, way.tls_channel()?) {
        (OtlpTransport::Http, _) => {
            let http = MetricExporter::builder().with_http().with_http_client(way.http_client()?);
            http.with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build()
        }
        (OtlpTransport::Grpc, None) => with_grpc(MetricExporter::builder().with_tonic()).build(),
        (OtlpTransport::Grpc, Some(channel)) => {
            with_grpc(MetricExporter::builder().with_tonic()).with_channel(channel).build()
        }
    };
    let exporter =
        exporter.map_err(|error| format!("failed to create the metric exporter: {error}"))?;
    let provider = SdkMeterProvider::builder();
    let provider = provider.with_periodic_exporter(exporter).with_resource(resource).build();
    let meter = provider.meter("sluicegate");
    let shared = Arc::new(PageCache::new(Arc::clone(page)));
    for family in parse_families(&page()) {
        register_family(&meter, family, PageReader::new(&shared));
    }
    Ok(provider)
}

/// Sets the protocol explicitly, because the exporter would otherwise read it from the environment.
fn with_grpc<B: opentelemetry_otlp::WithExportConfig>(builder: B) -> B {
    builder.with_protocol(opentelemetry_otlp::Protocol::Grpc)
}

/// Registers `family` for export. Each export reads the metrics page, so both always have the same
/// metrics.
fn register_family(meter: &Meter, family: ExportedFamily, page: PageReader) {
    let ExportedFamily { name, help, is_counter: grows } = family;
    let callback = {
        let name = name.clone();
        move |observer: &dyn AsyncInstrument<f64>| {
            for (labels, value) in parse_samples(&page.next_page(), &name) {
                observer.observe(value, &labels);
            }
        }
    };
    if grows {
        meter.f64_observable_counter(name).with_description(help).with_callback(callback).build();
    } else {
        meter.f64_observable_gauge(name).with_description(help).with_callback(callback).build();
    }
}

impl OtlpExporters {
    /// Returns `true` if any signal is exported.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.tracer_provider.is_some() || self.meter_provider.is_some()
    }

    /// Exports the last spans and metrics. Blocks for up to 2 s for each of both, so it must not
    /// run on a thread that serves requests.
    pub fn shutdown(self) {
        if let Some(spans) = self.tracer_provider {
            drop(spans.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        }
        if let Some(counts) = self.meter_provider {
            drop(counts.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        }
    }
}
