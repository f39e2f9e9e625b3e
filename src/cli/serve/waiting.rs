//! The HTTP port while the first limits are waited for: it says that the process lives.
//!
//! Guarantees: `/livez` is answered, and health checks hear that nobody may ask yet. Who asks anything else gets no answer, as
//! where nobody listens: proxies try another replica then, which they may not after an error. What waits here in silence holds
//! nobody up, and is let go with the wait.
//! Leaves out: how long the wait is, and the port, which the service keeps.

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

/// How long a connection may take: probes are answered at once.
const DEADLINE: Duration = Duration::from_secs(5);

/// Most connections at one time; the next wait in the kernel's queue.
const MOST: usize = 256;

/// The pause after a failed accept: without it a process that is out of files spins.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers probes at `port`, if there is one, for as long as it is polled.
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
    // One request each: the service itself is to have the next.
    http.http1().timer(TokioTimer::new()).keep_alive(false);
    // A client that breaks off is its own affair.
    http.serve_connection(TokioIo::new(stream), service_fn(asked)).await.ok();
}

/// As the service answers that has no limits and needs some. An error ends the connection.
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
