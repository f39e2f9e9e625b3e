//! Processes that wait for their first limits.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use super::{descriptor, domain};
use crate::support::service::Service;
use crate::support::waiting::until;
use crate::support::xds::Xds;
use crate::support::{http1, ports};

#[test]
fn ports_stay_closed_until_the_first_limits_arrive() {
    let xds = Xds::start();
    let port = ports::free().port();
    let (address, port_text) = (xds.address.to_string(), port.to_string());
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &*address),
        ("PORT", &*port_text),
        ("USE_STATSD", "false"),
    ];
    let mut process = crate::support::service::as_ratelimit();
    let mut process = process.envs(variables).stdout(Stdio::null()).spawn().unwrap();
    until("it asks", || if xds.requests().is_empty() { Err(String::new()) } else { Ok(()) })
        .unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "closed while it waits");
    crate::support::signals::send(process.id(), "TERM");
    let ended = until("its end", || match process.try_wait() {
        Ok(Some(status)) => Ok(status),
        other => Err(format!("{other:?}")),
    });
    let _ = process.kill();
    assert_eq!(ended.unwrap().code(), Some(0));
    let address = xds.address;
    std::thread::spawn(move || {
        until(
            "it asks again",
            || if xds.requests().len() < 2 { Err(String::new()) } else { Ok(()) },
        )
        .unwrap();
        xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
        until(
            "it takes them",
            || if xds.requests().len() < 3 { Err(String::new()) } else { Ok(()) },
        )
        .unwrap();
    });
    let text = address.to_string();
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &*text),
        ("USE_STATSD", "false"),
    ];
    let service = Service::start_as_ratelimit(&variables).unwrap();
    assert!(service.said.contains("domain d: 1 rules"), "{}", service.said);
}

/// A process that waits for its first limits, and its log. The process is killed on drop.
struct WaitingProcess(Child, tempfile::NamedTempFile);

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl WaitingProcess {
    fn start(http: SocketAddr, grpc: SocketAddr, server: SocketAddr) -> Self {
        Self::with_backoff(["10ms", "50ms"], http, grpc, server)
    }

    fn with_backoff(
        [least, most]: [&str; 2],
        http: SocketAddr,
        grpc: SocketAddr,
        server: SocketAddr,
    ) -> Self {
        let mut command = crate::support::service::sluicegate();
        command.args([
            "serve",
            "--compat-xds-backoff-min",
            least,
            "--compat-xds-backoff-max",
            most,
        ]);
        command.args([
            "--listen-admin-port",
            "0",
            "--listen-metrics-port",
            "0",
            "--limits-xds-server",
        ]);
        command.arg(server.to_string()).arg("--listen-http-port").arg(http.port().to_string());
        command.arg("--listen-grpc-port").arg(grpc.port().to_string());
        let log = tempfile::NamedTempFile::new().unwrap();
        command.stdout(Stdio::null()).stderr(log.reopen().unwrap());
        Self(command.args(["--listen-host", "127.0.0.1"]).spawn().unwrap(), log)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.1.path()).unwrap()
    }
}

#[test]
fn process_without_limits_is_live_but_not_ready() {
    let (http, grpc, server) = (ports::free(), ports::free(), ports::free());
    let waiting = WaitingProcess::start(http, grpc, server);
    let status = |path: &str| match http1::get(http, path, &[]) {
        Ok(reply) => Ok(reply.status),
        Err(error) => Err(error.to_string()),
    };
    let becomes = |path: &str, wanted: u16| {
        let is = || match status(path)? {
            found if found == wanted => Ok(()),
            found => Err(found.to_string()),
        };
        until(path, is).unwrap();
    };
    becomes("/livez", 200);
    assert_eq!(["/readyz", "/healthcheck"].map(status), [Ok(503), Ok(500)]);
    // Until limits arrive, connections close without a response: a proxy then tries another
    // replica, but it may not retry an error.
    for path in ["/check", "/json", "/acquire", "/"] {
        assert!(status(path).is_err(), "{path}: {:?}", status(path));
    }
    assert!(TcpStream::connect(grpc).is_err(), "gRPC is closed while it waits");
    let xds = Xds::start_at(server, None);
    xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
    becomes("/readyz", 200);
    becomes("/livez", 200);
    assert!(TcpStream::connect(grpc).is_ok());
    drop(waiting);
}

#[test]
fn idle_client_connection_does_not_block_startup() {
    let (http, server) = (ports::free(), ports::free());
    let _waiting = WaitingProcess::start(http, ports::free(), server);
    let silent = until("the port", || TcpStream::connect(http).map_err(|error| error.to_string()));
    let silent = silent.unwrap();
    assert_eq!(http1::get(http, "/livez", &[]).unwrap().status, 200);
    let xds = Xds::start_at(server, None);
    xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
    let is_ready = || match http1::get(http, "/readyz", &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    until("it is ready", is_ready).unwrap();
    drop(silent);
}

#[test]
fn sighup_during_startup_reconnects_to_xds_at_once() {
    let (http, server) = (ports::free(), ports::free());
    // Without SIGHUP, the next connection attempt would be an hour later.
    let mut waiting = WaitingProcess::with_backoff(["1h", "1h"], http, ports::free(), server);
    let called = || match waiting.log() {
        log if log.contains("xDS stream failed") => Ok(()),
        log => Err(log),
    };
    until("its first call", called).unwrap();
    let xds = Xds::start_at(server, None);
    xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
    crate::support::signals::send(waiting.0.id(), "HUP");
    let is_ready = || match http1::get(http, "/readyz", &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let ready = until("it is ready", is_ready);
    let ended = waiting.0.try_wait().unwrap();
    assert!(ready.is_ok() && ended.is_none(), "{ready:?}, {ended:?}: {}", waiting.log());
}
