//! The log lines of failed accepts.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::support::log_lines::few_lines_during;
use crate::support::service::Service;
use crate::support::waiting::until;

const CONNECT_TIMEOUT: Duration = Duration::from_millis(50);

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

#[test]
fn a_lack_of_file_descriptors_is_logged_once_with_the_fix() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), "domain: d\n").unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    limit_files(&service, open_files(&service));
    let connections: Vec<_> = (0..20).map(|_| TcpStream::connect(service.http).unwrap()).collect();
    until("the fault is logged", || match service.log() {
        log if log.contains("failed to accept a connection") => Ok(()),
        log => Err(log),
    })
    .unwrap();
    few_lines_during(&service, || {
        // A full backlog refuses the connection.
        let _connection = TcpStream::connect_timeout(&service.grpc, CONNECT_TIMEOUT);
    });
    let log = service.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("failed to accept")).collect();
    for port in ["http", "grpc"] {
        let of_port: Vec<_> = lines.iter().filter(|line| line.contains(port)).collect();
        assert!(of_port.len() == 1 && of_port[0].contains("ulimit -n"), "{log}");
    }
    drop(connections);
}
