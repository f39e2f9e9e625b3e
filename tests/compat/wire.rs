//! gRPC calls with raw message bytes, so that scenarios can send malformed requests.

use std::net::SocketAddr;

use prost::bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::waiting::PATIENCE;

/// gRPC path of the method that Envoy calls.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A gRPC connection. It must be created and used on the same tokio runtime.
#[derive(Clone)]
pub struct Connection(Channel);

impl Connection {
    pub fn to(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Self(endpoint.connect_timeout(PATIENCE).timeout(PATIENCE).connect_lazy())
    }

    pub async fn call(&self, method: &str, message: Vec<u8>) -> Result<Vec<u8>, Status> {
        let path: PathAndQuery = method.parse().map_err(|_| Status::internal("no path"))?;
        let mut client = tonic::client::Grpc::new(self.0.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(client.unary(Request::new(message), path, Bytes).await?.into_inner())
    }

    /// Asks for the health of `service` and returns the name of the status.
    pub async fn health(&self, service: &str) -> Result<&'static str, Status> {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = HealthClient::new(self.0.clone()).check(request).await?.into_inner();
        Ok(ServingStatus::try_from(answer.status).map_or("?", |status| status.as_str_name()))
    }
}

/// A gRPC codec that sends and receives message bytes without conversion.
#[derive(Clone, Copy)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}
