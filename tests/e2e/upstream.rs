//! Upstream that answers every request with 200 and a fixed body.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Starts the upstream on a free port, until the test binary exits.
pub fn start() -> SocketAddr {
    counting().0
}

/// As [`start`], and counts the requests.
pub fn counting() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let (address, came) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counts = Arc::clone(&came);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let app = axum::Router::new().fallback(move || async move {
                counts.fetch_add(1, Relaxed);
                "upstream"
            });
            axum::serve(listener, app).await.unwrap();
        });
    });
    (address, came)
}
