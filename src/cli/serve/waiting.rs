//! Answers probes on the HTTP port while the first limits are awaited.
//!
//! Guarantees:
//! - `/livez` succeeds, and readiness checks fail.
//! - Other requests get no reply, so that proxies try another replica.
//! - Idle connections delay no other connection, and close when the wait ends.
//!
//! Not covered:
//! - The duration of the wait.
//! - The listener, which the service continues to use.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::http::StatusCode;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::edge::health::Ready;

/// The maximum duration of a connection. Probes are answered at once.
const DEADLINE: Duration = Duration::from_secs(5);

/// The maximum number of connections. Further connections wait in the kernel's queue.
const MOST: usize = 256;

/// The pause after a failed accept. Prevents a busy
/// loop when the process has no free file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers probes at `port`, if any, as long as the future is polled.
pub(super) async fn say_alive(port: Option<&TcpListener>) -> Infallible {
    let Some(port) = port else { return std::future::pending().await };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = port.accept(), if connections.len() < MOST => match accepted {
                Ok((stream, _)) => drop(connections.spawn(tokio::time::timeout(DEADLINE, serve(stream)))),
                Err(_) => tokio::time::sleep(PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream) {
    let asked = async |request: Request<Incoming>| answer(request.uri().path());
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    // One request per connection: the next request must reach the service itself.
    http.http1().timer(TokioTimer::new()).keep_alive(false);
    // A disconnected client needs no handling.
    http.serve_connection(TokioIo::new(stream), service_fn(asked)).await.ok();
}

/// Replies like a service without the limits that it needs. An error closes the
/// connection: proxies retry another replica after that, but not after an error reply.
fn answer(path: &str) -> std::io::Result<Response<String>> {
    let (status, text) = match path {
        "/livez" => (StatusCode::OK, "alive\n".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", Ready::NoConfig)),
        "/healthcheck" => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
        _ => return Err(std::io::Error::other("no limits came yet")),
    };
    let mut answer = Response::new(text);
    *answer.status_mut() = status;
    Ok(answer)
}
