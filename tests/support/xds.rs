//! An xDS server for aggregated discovery (state of the world), with responses chosen by the test.
//!
//! Not covered:
//! - Delta discovery.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use prost::Message as _;
use sluicegate::edge::connection_gate::{ConnectionGate, ListenPort};
use sluicegate::edge::grpc::incoming::{GrpcListener, IncomingConnections};
use sluicegate::edge::grpc::tls::{ServerTls, TlsFiles};
use sluicegate::source::xds::message::{RateLimitConfig, TYPE_URL};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{broadcast, oneshot};
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::support::waiting::until;

/// A discovery request and the HTTP headers of its stream.
#[derive(Clone, Debug)]
pub struct Asked {
    pub headers: MetadataMap,
    pub request: DiscoveryRequest,
}

#[derive(Clone)]
struct ServerState {
    asked: Arc<Mutex<Vec<Asked>>>,
    /// The first response to a new stream.
    latest: Arc<Mutex<Option<DiscoveryResponse>>>,
    /// Responses to all open streams. `None` closes them.
    updates: broadcast::Sender<Option<DiscoveryResponse>>,
}

pub struct Xds {
    runtime: Runtime,
    pub address: SocketAddr,
    state: ServerState,
    stop: Option<oneshot::Sender<()>>,
}

impl Xds {
    pub fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), None)
    }

    pub fn start_with_tls(files: TlsFiles) -> Self {
        Self::start_at(
            "127.0.0.1:0".parse().unwrap(),
            Some(Arc::new(ServerTls::new(files).unwrap())),
        )
    }

    /// Starts a server on an address, for example that of a stopped one.
    pub fn start_at(address: SocketAddr, tls: Option<Arc<ServerTls>>) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let listener = until("the port is free", || {
            runtime.block_on(TcpListener::bind(address)).map_err(|error| error.to_string())
        });
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let state = ServerState {
            asked: Arc::default(),
            latest: Arc::default(),
            updates: broadcast::channel(64).0,
        };
        let (stop, stopped) = oneshot::channel();
        let service = AggregatedDiscoveryServiceServer::new(state.clone());
        runtime.spawn(async move {
            let incoming = IncomingConnections::new(
                GrpcListener::Tcp(listener),
                tls,
                None,
                ConnectionGate::new(ListenPort::Grpc, 64),
            );
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::select! {
                ended = server.serve_with_incoming(incoming) => ended.unwrap(),
                _ = stopped => {}
            }
        });
        Self { runtime, address, state, stop: Some(stop) }
    }

    /// Publishes the complete configuration to open and future streams.
    pub fn publish(&self, version: &str, configs: &[RateLimitConfig]) {
        let any = |config: &RateLimitConfig| Any {
            type_url: TYPE_URL.to_owned(),
            value: config.encode_to_vec(),
        };
        self.tell_resources(version, configs.iter().map(any).collect());
    }

    pub fn tell_resources(&self, version: &str, resources: Vec<Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            nonce: format!("n{version}"),
            type_url: TYPE_URL.to_owned(),
            resources,
            ..DiscoveryResponse::default()
        };
        *self.state.latest.lock().unwrap() = Some(response.clone());
        let _ = self.state.updates.send(Some(response));
    }

    pub fn hang_up(&self) {
        let _ = self.state.updates.send(None);
    }

    /// All discovery requests so far.
    pub fn requests(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    /// Waits for the ACK or NACK of the response with this version. Returns the version in force
    /// and the error message of a NACK.
    pub fn wait_for_ack(&self, version: &str) -> (String, Option<String>) {
        let nonce = format!("n{version}");
        let answer = until("an answer to a response", || {
            let asked = self.requests();
            let answer = asked.iter().rfind(|it| it.request.response_nonce == nonce);
            answer.map(|it| it.request.clone()).ok_or_else(|| format!("{asked:?}"))
        });
        let answer = answer.unwrap();
        (answer.version_info, answer.error_detail.map(|detail| detail.message))
    }
}

impl Drop for Xds {
    fn drop(&mut self) {
        drop(self.stop.take());
        let runtime = std::mem::replace(
            &mut self.runtime,
            tokio::runtime::Builder::new_current_thread().build().unwrap(),
        );
        runtime.shutdown_background();
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for ServerState {
    type StreamAggregatedResourcesStream = Responses<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let headers = request.metadata().clone();
        let mut requests = request.into_inner();
        let (state, mut updates) = (self.clone(), self.updates.subscribe());
        let asked = Arc::clone(&self.asked);
        let (to_client, responses) = tokio::sync::mpsc::channel(64);
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                asked.lock().unwrap().push(Asked { headers: headers.clone(), request });
            }
        });
        let latest = state.latest.lock().unwrap().clone();
        // As servers in Go do, sends the HTTP response headers with the first response.
        let first = match latest {
            Some(latest) => Some(latest),
            None => updates.recv().await.ok().flatten(),
        };
        tokio::spawn(async move {
            if let Some(first) = first {
                let _ = to_client.send(Ok(first)).await;
            }
            while let Ok(Some(response)) = updates.recv().await {
                if to_client.send(Ok(response)).await.is_err() {
                    break;
                }
            }
        });
        let responses = tokio_stream::wrappers::ReceiverStream::new(responses);
        Ok(Response::new(Box::pin(responses)))
    }

    async fn delta_aggregated_resources(
        &self,
        _request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}
