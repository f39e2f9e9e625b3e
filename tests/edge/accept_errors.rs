//! The log lines of failed accepts.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::support::log_lines::{assert_line_count, minutes_since};
use crate::support::service::Service;
use crate::support::waiting::{now, until};

/// A full backlog refuses a connection only after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(50);

/// The duration of the fault: twenty retries of each port.
const FAULT_TIME: Duration = Duration::from_secs(2);

/// The largest number of lines of the whole process in a minute.
const MAX_LINES: usize = 20;

/// Sets the limit on open files of a running process.
fn limit_files(service: &Service, limit: usize) {
    let id = service.id().to_string();
    let limit = format!("--nofile={limit}:");
    let status = Command::new("prlimit").args(["--pid", &id, &limit]).status().unwrap();
    assert!(status.success());
}

fn open_files(service: &Service) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", service.id())).unwrap().count()
}

/// The log lines about failed accepts of a port.
fn lines_of(service: &Service, port: &str) -> Vec<String> {
    let log = service.log();
    let lines = log.lines().filter(|line| line.contains("failed to accept a connection"));
    lines.filter(|line| line.contains(port)).map(str::to_owned).collect()
}

#[test]
fn a_lack_of_file_descriptors_is_logged_once_with_the_fix() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), "domain: d\n").unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    let (began, before) = (now(), service.log().lines().count());
    limit_files(&service, open_files(&service));
    let connections: Vec<_> = (0..20).map(|_| TcpStream::connect(service.http).unwrap()).collect();
    until("both ports log the fault", || {
        let _connection = TcpStream::connect_timeout(&service.grpc, CONNECT_TIMEOUT);
        if ["http", "grpc"].iter().any(|port| lines_of(&service, port).is_empty()) {
            return Err(service.log());
        }
        Ok(())
    })
    .unwrap();
    std::thread::sleep(FAULT_TIME);
    let (log, lines) = (service.log(), ["http", "grpc"].map(|port| lines_of(&service, port)));
    for of_port in lines {
        assert_line_count(of_port.len(), 1, began, &log);
        assert!(of_port[0].contains("ulimit -n"), "{log}");
    }
    let all = log.lines().count() - before;
    assert!(all <= MAX_LINES * (1 + minutes_since(began)), "{all} lines: {log}");
    drop(connections);
}
