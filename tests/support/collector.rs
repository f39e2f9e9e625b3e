//! Runs an OTLP collector on a free port, over gRPC or HTTP, with or without TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use parking_lot::Mutex;
use prost::Message as _;
use sluicegate::edge::grpc::tls;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Response, Status};

use super::certificates::Files;

pub struct Collector {
    address: SocketAddr,
    scheme: &'static str,
    received: Received,
    runtime: Option<Runtime>,
}

#[derive(Clone, Default)]
struct Received {
    exports: Arc<Mutex<(Vec<ResourceSpans>, Vec<ResourceMetrics>)>>,
    paths: Arc<Mutex<Vec<&'static str>>>,
}

/// Detects HTTP/1 or HTTP/2 on each connection.
async fn serve(listener: TcpListener, tls: Option<Arc<tls::ServerTls>>, router: Router) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, service) = (tls.clone(), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            let Some(tls) = tls else {
                drop(server.serve_connection(TokioIo::new(stream), service).await);
                return;
            };
            let mut config = (*tls::ServerTls::current(&tls).await).clone();
            config.alpn_protocols.push(b"http/1.1".to_vec());
            if let Ok(stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await {
                drop(server.serve_connection(TokioIo::new(stream), service).await);
            }
        });
    }
}

impl Received {
    fn router(&self) -> Router {
        let spans = self.clone();
        let spans = move |body: Bytes| async move {
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            spans.paths.lock().push("/v1/traces");
            spans.exports.lock().0.extend(request.resource_spans);
        };
        let counts = self.clone();
        let counts = move |body: Bytes| async move {
            let request = ExportMetricsServiceRequest::decode(body).unwrap();
            counts.paths.lock().push("/v1/metrics");
            counts.exports.lock().1.extend(request.resource_metrics);
        };
        tonic::service::Routes::new(TraceServiceServer::new(self.clone()))
            .add_service(MetricsServiceServer::new(self.clone()))
            .into_axum_router()
            .route("/v1/traces", post(spans))
            .route("/v1/metrics", post(counts))
    }
}

impl Collector {
    pub fn start() -> Self {
        Self::over(None)
    }

    /// Starts a collector with TLS. It requires client certificates signed by `clients`, if set.
    pub fn start_with_tls(own: &Files, clients: Option<String>) -> Self {
        let files = tls::TlsFiles {
            certificate: own.certificate.clone().into(),
            key: own.key.clone().into(),
            client_ca: clients.map(Into::into),
            client_name: None,
        };
        Self::over(Some(tls::ServerTls::new(files).unwrap()))
    }

    fn over(tls: Option<tls::ServerTls>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let received = Received::default();
        let scheme = if tls.is_some() { "https" } else { "http" };
        runtime.spawn(serve(listener, tls.map(Arc::new), received.router()));
        Self { address, scheme, received, runtime: Some(runtime) }
    }

    /// Value for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Paths of the HTTP exports so far.
    pub fn paths(&self) -> Vec<&'static str> {
        self.received.paths.lock().clone()
    }

    pub fn spans(&self) -> Vec<Span> {
        let received = self.received.exports.lock();
        let scopes = received.0.iter().flat_map(|resource| &resource.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// Value of a resource attribute in the first span export.
    pub fn resource(&self, name: &str) -> Option<String> {
        let received = self.received.exports.lock();
        text(&received.0.first()?.resource.as_ref()?.attributes, name)
    }

    /// All exported values of this metric so far.
    pub fn metrics(&self, name: &str) -> Vec<Metric> {
        let received = self.received.exports.lock();
        let scopes = received.1.iter().flat_map(|resource| &resource.scope_metrics);
        let metrics = scopes.flat_map(|scope| &scope.metrics);
        metrics.filter(|metric| metric.name == name).cloned().collect()
    }
}

/// Value of a string attribute with this name.
pub fn text(attributes: &[KeyValue], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match &found.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some(text.clone()),
        _ => None,
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.exports.lock().0.extend(request.into_inner().resource_spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Received {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.exports.lock().1.extend(request.into_inner().resource_metrics);
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}
