//! Redis addresses, users, passwords and databases. Passwords never appear in any output.

use std::os::unix::fs::symlink;

use sluicegate::cli::CommandOutcome;

use super::{check, failures, limits, move_to_subfolder, ready, serve, wait_until_ready};
use crate::cli::doctor::doctor_at;
use crate::support::ports;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const PASSWORD: &str = "open%2Fsesame";

const PLAIN: &str = "open/sesame";

fn redis_over_tcp() -> (Redis, u16) {
    redis_over_tcp_with(&[])
}

/// Starts Redis on a free TCP port, and retries if another process took the port first.
fn redis_over_tcp_with(flags: &[&str]) -> (Redis, u16) {
    let started = || {
        let port = ports::free().port();
        let mut store = Redis::absent();
        store.launch(&[&["--port", &port.to_string()], flags].concat());
        let answers = std::net::TcpStream::connect(("127.0.0.1", port));
        answers.map(|_| (store, port)).map_err(|error| error.to_string())
    };
    until("a redis on a free port", started).unwrap()
}

#[test]
fn url_credentials_and_database_are_used_but_never_shown() {
    for_a_day_with_a_minute_left();
    let ((store, port), limits) = (redis_over_tcp(), limits(10));
    let rule = format!(">{PLAIN}");
    store.command(&["ACL", "SETUSER", "gate", "on", &rule, "~sluicegate*", "+@all"]);
    let url = format!("redis://gate:{PASSWORD}@127.0.0.1:{port}/3");
    let flags = ["--store-timeout", "5s", "--telemetry-log-level", "trace"];
    let service = serve(&move_to_subfolder(&limits), &url, &flags);
    wait_until_ready(&service);
    assert_eq!(check(&service, "error", "k"), 200);
    assert!(service.said.contains(&format!("counters in redis://127.0.0.1:{port}\n")));
    let space = store.command(&["INFO", "keyspace"]).text();
    assert!(space.contains("db3:keys=") && !space.contains("db0:"), "{space}");
    store.command(&["ACL", "SETUSER", "gate", "off"]);
    store.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let refused = || match ready(&service).text() {
        text if text.contains("is unavailable") => Ok(()),
        text => Err(text),
    };
    until("the user is refused", refused).unwrap();
    until("the refusal is logged", || {
        let (log, at) = (service.log(), format!("addr=127.0.0.1:{port}"));
        let is_refusal = |line: &str| line.contains("redis unavailable") && line.contains(&at);
        if log.lines().any(is_refusal) { Ok(()) } else { Err(log) }
    })
    .unwrap();
    for text in [service.log(), service.said.clone()] {
        assert!(!text.contains("sesame"), "{text}");
    }
    store.command(&["ACL", "SETUSER", "gate", "on"]);
    wait_until_ready(&service);
    assert_eq!(check(&service, "error", "k"), 200);
}

#[test]
fn a_rotated_password_file_needs_no_restart() {
    for_a_day_with_a_minute_left();
    let ((store, port), limits) = (redis_over_tcp(), limits(10));
    let set = |password: &str| {
        let rule = format!(">{password}");
        store.command(&[
            "ACL",
            "SETUSER",
            "gate",
            "on",
            "resetpass",
            &rule,
            "~sluicegate*",
            "+@all",
        ]);
    };
    let mounted = MountedSecret::new();
    mounted.swap("one", "sesame-one\n");
    set("sesame-one");
    let flags = ["--store-password-file", &mounted.path(), "--telemetry-log-level", "trace"];
    let flags = [&["--store-timeout", "5s"], &flags[..]].concat();
    let url = format!("redis://gate@127.0.0.1:{port}");
    let service = serve(&move_to_subfolder(&limits), &url, &flags);
    wait_until_ready(&service);
    assert!(service.said.contains(&format!("counters in redis://gate@127.0.0.1:{port}")));
    // Changes the password in the file first and in Redis second, the correct order: open
    // connections stay.
    mounted.swap("two", "sesame-two");
    assert_eq!(check(&service, "error", "k"), 200);
    set("sesame-two");
    store.command(&["CLIENT", "KILL", "USER", "gate"]);
    wait_until_counting(&service);
    // Changes the password in Redis first: checks fail until the file has the new password, too.
    set("sesame-three");
    store.command(&["CLIENT", "KILL", "USER", "gate"]);
    let wait_for_log = |what: &str| {
        let said = || match service.log() {
            log if log.contains(what) => Ok(()),
            log => Err(log),
        };
        until(what, said).unwrap();
    };
    wait_for_log("WRONGPASS");
    let is_reported = || match ready(&service).text() {
        text if text.contains("is unavailable (not_permitted)") => Ok(()),
        text => Err(text),
    };
    until("the probe says that it is the password", is_reported).unwrap();
    assert_eq!(check(&service, "allow", "k"), 200);
    assert!(failures(&service, "not_permitted") > 0);
    mounted.swap("three", "sesame-three\r\n");
    wait_until_counting(&service);
    mounted.swap("four", "");
    store.command(&["CLIENT", "KILL", "USER", "gate"]);
    wait_for_log("must contain one line with the password");
    mounted.swap("five", "sesame-three");
    wait_until_counting(&service);
    for text in [service.log(), service.said.clone()] {
        assert!(!text.contains("sesame"), "{text}");
    }
}

#[test]
fn open_connections_survive_a_password_rotation() {
    for_a_day_with_a_minute_left();
    let ((store, port), limits) = (redis_over_tcp(), limits(10));
    let set = |password: &str| {
        let rule = format!(">{password}");
        store.command(&[
            "ACL",
            "SETUSER",
            "gate",
            "on",
            "resetpass",
            &rule,
            "~sluicegate*",
            "+@all",
        ]);
    };
    let mounted = MountedSecret::new();
    mounted.swap("one", "sesame-one");
    set("sesame-one");
    let flags = ["--store-password-file", &mounted.path(), "--telemetry-log-level", "trace"];
    let flags = [&["--store-timeout", "5s"], &flags[..]].concat();
    let service =
        serve(&move_to_subfolder(&limits), &format!("redis://gate@127.0.0.1:{port}"), &flags);
    wait_until_ready(&service);
    let wait_for_log = |what: &str| {
        let said = || match service.log() {
            log if log.contains(what) => Ok(()),
            log => Err(log),
        };
        until(what, said).unwrap();
    };
    let connections = || store.command(&["INFO", "stats"]).text();
    let made = |stats: String| {
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    // The service inspects its store once, over a connection of its own.
    wait_for_log("persistence is off");
    let before = made(connections());
    mounted.swap("two", "sesame-two");
    wait_for_log("redis rejected the new password");
    assert_eq!(check(&service, "error", "k"), 200);
    set("sesame-two");
    wait_for_log("redis accepted the new password");
    assert_eq!(check(&service, "error", "k"), 200);
    // The test itself opened both new connections, and the service none.
    assert_eq!(made(connections()) - before, 2);
    for text in [service.log(), service.said.clone()] {
        assert!(!text.contains("sesame"), "{text}");
    }
}

/// Redis repeats the arguments of an unknown command in its error, here the password. Log level
/// `trace` includes the log of the Redis client.
#[test]
fn unknown_auth_command_is_reported_without_the_password() {
    let ((_store, port), limits) =
        (redis_over_tcp_with(&["--rename-command", "AUTH", ""]), limits(10));
    let limits = move_to_subfolder(&limits);
    let plain = format!("redis://gate:{PASSWORD}@127.0.0.1:{port}");
    let sentinel = format!("redis+sentinel://127.0.0.1:{port}/shop");
    let for_sentinels =
        ["--store-sentinel-user", "gate", "--compat-store-sentinel-password", PLAIN];
    for (url, more) in [(plain, &[][..]), (sentinel, &for_sentinels)] {
        let service = serve(&limits, &url, &[more, &["--telemetry-log-level", "trace"]].concat());
        let is_reported = || match service.log() {
            log if log.lines().any(names_the_command) => Ok(()),
            log => Err(log),
        };
        until("the log says what failed", is_reported).unwrap();
        let (outcome, out, err) = doctor_at(&url, more);
        assert_eq!((outcome, out.as_str()), (CommandOutcome::Failed, ""));
        assert!(err.contains("ERR unknown command 'AUTH'"), "{err}");
        for text in [service.log(), service.said.clone(), err] {
            assert!(!text.contains("sesame"), "{text}");
        }
    }
}

fn names_the_command(line: &str) -> bool {
    line.contains("redis unavailable") && line.contains("ERR unknown command 'AUTH'")
}

/// Waits until Redis decides a check. Sends checks repeatedly, because the service may notice a
/// closed connection only at the next check.
fn wait_until_counting(service: &Service) {
    until("redis answers again", || match check(service, "error", "k") {
        200 | 429 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    })
    .unwrap();
}

/// A secret as Kubernetes mounts it: the file is a symbolic link through a folder link, which an
/// update replaces.
struct MountedSecret(tempfile::TempDir);

impl MountedSecret {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        symlink("..data/password", dir.path().join("password")).unwrap();
        Self(dir)
    }

    fn path(&self) -> String {
        self.0.path().join("password").display().to_string()
    }

    fn swap(&self, version: &str, password: &str) {
        let real = self.0.path().join(format!("..{version}"));
        std::fs::create_dir(&real).unwrap();
        std::fs::write(real.join("password"), password).unwrap();
        let next = self.0.path().join("..next");
        symlink(real, &next).unwrap();
        std::fs::rename(next, self.0.path().join("..data")).unwrap();
    }
}
