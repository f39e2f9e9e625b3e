//! Runs an HTTP server that receives CloudEvents, and fails as a test demands.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde_json::Value;
use sluicegate::edge::grpc::tls;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use super::certificates::Files;

/// The replies to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// Status 202.
    Accept,
    /// Every second request gets 503. Half of these are accepted nevertheless, as if the reply of
    /// the receiver was lost.
    Flaky,
    /// Requests get this status.
    Status(u16),
    /// Requests get 503 and this header `Retry-After`.
    RetryAfter(&'static str),
    /// Requests whose body contains this text get 503. The others get 202.
    FailContaining(&'static str),
    /// Requests get no reply.
    Never,
}

/// One accepted request.
#[derive(Clone, Debug)]
pub struct Received {
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Received {
    pub fn header(&self, name: &str) -> String {
        self.headers.get(name).map_or_else(String::new, |text| text.to_str().unwrap().to_owned())
    }

    pub fn event(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Clone)]
struct Shared {
    replies: Arc<Mutex<(Replies, u64)>>,
    received: Arc<Mutex<Vec<Received>>>,
}

pub struct EventReceiver {
    pub address: SocketAddr,
    shared: Shared,
    tls: Option<Arc<tls::ServerTls>>,
    runtime: Option<Runtime>,
}

async fn receive(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let (replies, number) = {
        let mut replies = shared.replies.lock();
        replies.1 += 1;
        *replies
    };
    let (is_accepted, status) = match replies {
        Replies::Accept => (true, StatusCode::ACCEPTED),
        Replies::Status(status) => (true, StatusCode::from_u16(status).unwrap()),
        Replies::Never => {
            shared.received.lock().push(Received { headers, body });
            return std::future::pending().await;
        }
        Replies::FailContaining(text) => {
            let is_failure = String::from_utf8_lossy(&body).contains(text);
            let status =
                if is_failure { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::ACCEPTED };
            (!is_failure, status)
        }
        Replies::RetryAfter(wait) => {
            return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, wait)]).into_response();
        }
        Replies::Flaky => match number % 4 {
            1 => (false, StatusCode::SERVICE_UNAVAILABLE),
            3 => (true, StatusCode::SERVICE_UNAVAILABLE),
            _ => (true, StatusCode::NO_CONTENT),
        },
    };
    if is_accepted {
        shared.received.lock().push(Received { headers, body });
    }
    status.into_response()
}

async fn serve(listener: TcpListener, tls: Option<Arc<tls::ServerTls>>, router: Router) {
    let Some(tls) = tls else { return axum::serve(listener, router).await.unwrap() };
    let mut config = (*tls::ServerTls::current(&tls).await).clone();
    config.alpn_protocols.push(b"http/1.1".to_vec());
    let acceptor = TlsAcceptor::from(Arc::new(config));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let server = auto::Builder::new(TokioExecutor::new());
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

impl EventReceiver {
    pub fn start(replies: Replies) -> Self {
        Self::over(replies, None)
    }

    pub fn start_with_tls(own: &Files) -> Self {
        let files = tls::TlsFiles {
            certificate: own.certificate.clone().into(),
            key: own.key.clone().into(),
            client_ca: None,
            client_name: None,
        };
        Self::over(Replies::Accept, Some(Arc::new(tls::ServerTls::new(files).unwrap())))
    }

    fn over(replies: Replies, tls: Option<Arc<tls::ServerTls>>) -> Self {
        let replies = Arc::new(Mutex::new((replies, 0)));
        let shared = Shared { replies, received: Arc::default() };
        let mut receiver = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            shared,
            tls,
            runtime: None,
        };
        receiver.open();
        receiver
    }

    /// Replies differently from now on.
    pub fn reply(&self, replies: Replies) {
        self.shared.replies.lock().0 = replies;
    }

    /// Listens on the same port as before.
    pub fn open(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind(self.address)).unwrap();
        self.address = listener.local_addr().unwrap();
        let router = Router::new().route("/events", post(receive)).with_state(self.shared.clone());
        runtime.spawn(serve(listener, self.tls.clone(), router));
        self.runtime = Some(runtime);
    }

    /// Closes the port and all connections.
    pub fn close(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/events", self.address)
    }

    /// The accepted requests so far, repetitions included.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.lock().clone()
    }

    /// The accepted events so far, repetitions included.
    pub fn events(&self) -> Vec<Value> {
        self.received().iter().map(Received::event).collect()
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.shared.replies.lock().1
    }
}

impl Drop for EventReceiver {
    fn drop(&mut self) {
        self.close();
    }
}
