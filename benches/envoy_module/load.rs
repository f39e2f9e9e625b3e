//! Sends requests over keep-alive connections, and measures their time and the CPU of processes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::envoys::Envoy;

/// The result of one turn.
pub struct Turn {
    pub p50: Duration,
    /// Requests per second.
    pub rate: f64,
    /// CPU microseconds per request.
    pub envoy_cpu: f64,
    pub service_cpu: f64,
}

/// Sends `requests` with `in_flight` connections, which one thread serves.
pub fn measure(envoy: &Envoy, service: u32, in_flight: usize, requests: usize) -> Turn {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let before = (cpu(envoy.id()), cpu(service));
    let began = Instant::now();
    let mut times = runtime.block_on(send_all(envoy.ingress, in_flight, requests));
    let elapsed = began.elapsed();
    let used = (cpu(envoy.id()) - before.0, cpu(service) - before.1);
    times.sort_unstable();
    let count = times.len() as f64;
    Turn {
        p50: times[times.len() / 2],
        rate: count / elapsed.as_secs_f64(),
        envoy_cpu: used.0 / count,
        service_cpu: used.1 / count,
    }
}

async fn send_all(ingress: SocketAddr, in_flight: usize, requests: usize) -> Vec<Duration> {
    let connections = (0..in_flight).map(|_| tokio::spawn(send(ingress, requests / in_flight)));
    let connections: Vec<_> = connections.collect();
    let mut times = Vec::new();
    for connection in connections {
        times.extend(connection.await.unwrap());
    }
    times
}

async fn send(ingress: SocketAddr, requests: usize) -> Vec<Duration> {
    let mut stream = TcpStream::connect(ingress).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut times, mut part) = (Vec::with_capacity(requests), [0; 4_096]);
    for _ in 0..requests {
        let began = Instant::now();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: shop\r\nx-user: ann\r\n\r\n").await.unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n\r\nok") {
            let read = stream.read(&mut part).await.unwrap();
            assert_ne!(read, 0, "{}", String::from_utf8_lossy(&reply));
            reply.extend_from_slice(&part[..read]);
        }
        assert!(reply.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&reply));
        times.push(began.elapsed());
    }
    times
}

/// The CPU time of a process in microseconds.
fn cpu(process: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let nanos = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat"));
        text.map_or(0, |text| text.split(' ').next().unwrap().parse::<u64>().unwrap())
    });
    nanos.sum::<u64>() as f64 / 1e3
}
