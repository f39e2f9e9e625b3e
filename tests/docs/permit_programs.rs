//! Runs the examples of checks and permits in Python and Go against a real service.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use super::programs::{assert_prepared, compile_go, root};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::until;

fn serve(limits: &str) -> (Service, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("edge.yaml"), limits).unwrap();
    let service = Service::start(dir.path(), &["--store-url", "memory"].map(str::to_owned));
    (service.unwrap(), dir)
}

#[test]
fn the_python_example_checks_and_holds_permits() {
    let python = root().join(".tools/examples/bin/python");
    assert_prepared(&python);
    let (service, _limits) = serve(
        "domain: edge\ndescriptors:\n\
         - {key: upstream, concurrency: {limit: 2, max_duration: 60s}}\n\
         - {key: api_key, rate_limit: {unit: year, requests_per_unit: 2}}\n",
    );
    let run = || {
        let mut program = Command::new(&python);
        program.arg(root().join("examples/python/permits.py"));
        let output = program.arg(service.grpc.to_string()).arg(format!("http://{}", service.http));
        let output = output.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let works = ["the rate limit allows the work", "a permit is held", "another permit is held"];
    // The second run gets both permits only if the first run released them.
    for _ in 0..2 {
        assert_eq!(run().lines().collect::<Vec<_>>(), works);
    }
    assert!(run().starts_with("denied: rate limit; retry after "));
}

#[test]
fn a_denied_permit_ends_the_python_example() {
    let python = root().join(".tools/examples/bin/python");
    assert_prepared(&python);
    let (service, _limits) = serve(
        "domain: edge\ndescriptors:\n- {key: upstream, concurrency: {limit: 1, max_duration: 60s}}\n",
    );
    let mut program = Command::new(&python);
    program.arg(root().join("examples/python/permits.py"));
    program.arg(service.grpc.to_string()).arg(format!("http://{}", service.http));
    let output = program.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.ends_with("a permit is held\ndenied: concurrency_limit_reached\n"), "{output:?}");
}

/// Ends the program with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_go_handler_limits_requests_in_flight() {
    let (service, _limits) = serve(
        "domain: edge\ndescriptors:\n- key: api_key\n  concurrency:\n    limit: 1\n    max_duration: 60s\n    \
         reject: {status: 429, retry_after: 1s, body: too many}\n",
    );
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("handler");
    compile_go("./handler", &program);
    let mut handler = Command::new(program);
    handler.arg(service.grpc.to_string()).arg("127.0.0.1:0").stdout(Stdio::piped());
    let mut handler = Program(handler.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(handler.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address: SocketAddr = line.trim().rsplit(' ').next().unwrap().parse().unwrap();

    let ask = |key| http1::get(address, "/", &[("x-api-key", key)]).unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    let head = "POST / HTTP/1.1\r\nhost: handler\r\nx-api-key: a\r\nconnection: close\r\ncontent-length: 1\r\n";
    slow.write_all([head, "expect: 100-continue\r\n\r\n"].concat().as_bytes()).unwrap();
    // The handler asks for the body when it has the permit.
    let mut interim = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    slow.read_exact(&mut interim).unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&interim));
    let denied = ask("a");
    assert_eq!(denied.status, 429);
    assert_eq!((denied.header("retry-after"), denied.text().trim()), (Some("1"), "too many"));
    assert_eq!(ask("b").status, 200, "another key has its own permits");
    slow.write_all(b"!").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.contains(" 200 ") && answer.ends_with("read 1 bytes\n"), "{answer}");
    // The handler releases the permit after its answer.
    until("the permit is released", || match ask("a").status {
        200 => Ok(()),
        status => Err(status.to_string()),
    })
    .unwrap();
    service.terminate();
}

#[test]
fn the_go_example_checks_a_rate_limit_over_envoys_protocol() {
    let (service, _limits) = serve(
        "domain: shop\ndescriptors:\n- {key: api_key, rate_limit: {unit: year, requests_per_unit: 2}}\n",
    );
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("check");
    compile_go("./check", &program);
    let check = || {
        let mut command = Command::new(&program);
        let output = command.arg(service.grpc.to_string()).args(["shop", "api_key=demo"]).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        [check(), check(), check()],
        ["OK 1 of 2 left\n", "OK 0 of 2 left\n", "OVER_LIMIT 0 of 2 left\n"]
    );
}
