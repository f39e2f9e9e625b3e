//! What stands behind Envoy: answers 200 and a body to everything.

use std::net::SocketAddr;

/// Starts it on a free port. It lives as long as the test binary.
pub fn start() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let app = axum::Router::new().fallback(|| async { "upstream" });
            axum::serve(listener, app).await.unwrap();
        });
    });
    address
}
