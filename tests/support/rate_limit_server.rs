//! Runs a rate limit service whose replies a test chooses.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Chooses the reply to a check. `None`: no reply.
pub type Choose = Box<dyn FnMut(&RateLimitRequest) -> Option<RateLimitResponse> + Send>;

pub struct RateLimitServer {
    pub address: SocketAddr,
    choose: Arc<Mutex<Choose>>,
    runtime: Option<Runtime>,
}

struct Chosen(Arc<Mutex<Choose>>);

#[tonic::async_trait]
impl RateLimitService for Chosen {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let reply = {
            let mut choose = self.0.lock();
            (*choose)(request.get_ref())
        };
        match reply {
            Some(reply) => Ok(Response::new(reply)),
            None => std::future::pending().await,
        }
    }
}

impl RateLimitServer {
    pub fn start(choose: Choose) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let choose = Arc::new(Mutex::new(choose));
        let service = RateLimitServiceServer::new(Chosen(Arc::clone(&choose)));
        let served = Server::builder().add_service(service);
        runtime.spawn(served.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, choose, runtime: Some(runtime) }
    }

    /// Replaces the choice of replies.
    pub fn choose(&self, choose: Choose) {
        *self.choose.lock() = choose;
    }
}

impl Drop for RateLimitServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
