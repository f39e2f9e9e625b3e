//! Where a Redis is, as whom it is spoken to, and that nobody reads the password.

use std::os::unix::fs::symlink;

use sluicegate::cli::Outcome;

use super::doctor::doctor_at;
use super::{Store, apart, ask, failures, limits, ready, serve, wait_until_whole};
use crate::service::Service;
use crate::support::ports;
use crate::waiting::{for_a_day_with_a_minute_left, until};

const PASSWORD: &str = "open%2Fsesame";
const PLAIN: &str = "open/sesame";

fn over_tcp() -> (Store, u16) {
    over_tcp_with(&[])
}

/// Whoever takes its port first makes the next one be tried.
fn over_tcp_with(flags: &[&str]) -> (Store, u16) {
    let started = || {
        let port = ports::free().port();
        let mut store = Store::absent();
        store.start(&[&["--port", &port.to_string()], flags].concat());
        let answers = std::net::TcpStream::connect(("127.0.0.1", port));
        answers.map(|_| (store, port)).map_err(|error| error.to_string())
    };
    until("a redis on a free port", started).unwrap()
}

#[test]
fn a_user_a_password_and_a_database_are_used_and_the_password_is_shown_nowhere() {
    for_a_day_with_a_minute_left();
    let ((store, port), limits) = (over_tcp(), limits(10));
    let rule = format!(">{PLAIN}");
    store.tell(&["ACL", "SETUSER", "gate", "on", &rule, "~sluicegate*", "+@all"]);
    let url = format!("redis://gate:{PASSWORD}@127.0.0.1:{port}/3");
    let flags = ["--backend-deadline", "5s", "--log-level", "trace"];
    let service = serve(&apart(&limits), &url, &flags);
    wait_until_whole(&service);
    assert_eq!(ask(&service, "error", "k"), 200);
    assert!(service.said.contains(&format!("counters in redis://gate:***@127.0.0.1:{port}/3")));
    let space = store.tell(&["INFO", "keyspace"]).text();
    assert!(space.contains("db3:keys=") && !space.contains("db0:"), "{space}");
    store.tell(&["ACL", "SETUSER", "gate", "off"]);
    store.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    let refused = || match ready(&service).text() {
        text if text.contains("does not answer") => Ok(()),
        text => Err(text),
    };
    until("the user is refused", refused).unwrap();
    until("the refusal is logged", || {
        let (log, at) = (service.log(), format!("at=127.0.0.1:{port}"));
        let says = |line: &str| line.contains("redis cannot be had") && line.contains(&at);
        if log.lines().any(says) { Ok(()) } else { Err(log) }
    })
    .unwrap();
    for text in [service.log(), service.said.clone()] {
        assert!(!text.contains("sesame"), "{text}");
    }
    store.tell(&["ACL", "SETUSER", "gate", "on"]);
    wait_until_whole(&service);
    assert_eq!(ask(&service, "error", "k"), 200);
}

#[test]
fn a_password_that_is_rotated_in_its_file_is_used_without_a_restart_and_shown_nowhere() {
    for_a_day_with_a_minute_left();
    let ((store, port), limits) = (over_tcp(), limits(10));
    let set = |password: &str| {
        let rule = format!(">{password}");
        store.tell(&["ACL", "SETUSER", "gate", "on", "resetpass", &rule, "~sluicegate*", "+@all"]);
    };
    let mounted = Mounted::new();
    mounted.swap("one", "sesame-one\n");
    set("sesame-one");
    let flags = ["--backend-password-file", &mounted.path(), "--log-level", "trace"];
    let flags = [&["--backend-deadline", "5s"], &flags[..]].concat();
    let url = format!("redis://gate@127.0.0.1:{port}");
    let service = serve(&apart(&limits), &url, &flags);
    wait_until_whole(&service);
    assert!(service.said.contains(&format!("counters in redis://gate@127.0.0.1:{port}")));
    // First the file, as a rotation should: what is open goes on.
    mounted.swap("two", "sesame-two");
    assert_eq!(ask(&service, "error", "k"), 200);
    set("sesame-two");
    store.tell(&["CLIENT", "KILL", "USER", "gate"]);
    answers_again(&service);
    // First Redis: nothing is answered until the file follows.
    set("sesame-three");
    store.tell(&["CLIENT", "KILL", "USER", "gate"]);
    let says = |what: &str| {
        let said = || match service.log() {
            log if log.contains(what) => Ok(()),
            log => Err(log),
        };
        until(what, said).unwrap();
    };
    says("WRONGPASS");
    let is_named = || match ready(&service).text() {
        text if text.contains("does not answer (not_permitted)") => Ok(()),
        text => Err(text),
    };
    until("the probe says that it is the password", is_named).unwrap();
    assert_eq!(ask(&service, "allow", "k"), 200);
    assert!(failures(&service, "not_permitted") > 0);
    mounted.swap("three", "sesame-three\r\n");
    answers_again(&service);
    mounted.swap("four", "");
    store.tell(&["CLIENT", "KILL", "USER", "gate"]);
    says("does not hold one line with a password");
    mounted.swap("five", "sesame-three");
    answers_again(&service);
    for text in [service.log(), service.said.clone()] {
        assert!(!text.contains("sesame"), "{text}");
    }
}

#[test]
fn a_connection_that_is_open_is_told_a_rotated_password_and_lives_on_where_it_is_refused() {
    for_a_day_with_a_minute_left();
    let ((store, port), limits) = (over_tcp(), limits(10));
    let set = |password: &str| {
        let rule = format!(">{password}");
        store.tell(&["ACL", "SETUSER", "gate", "on", "resetpass", &rule, "~sluicegate*", "+@all"]);
    };
    let mounted = Mounted::new();
    mounted.swap("one", "sesame-one");
    set("sesame-one");
    let flags = ["--backend-password-file", &mounted.path(), "--log-level", "trace"];
    let flags = [&["--backend-deadline", "5s"], &flags[..]].concat();
    let service = serve(&apart(&limits), &format!("redis://gate@127.0.0.1:{port}"), &flags);
    wait_until_whole(&service);
    let says = |what: &str| {
        let said = || match service.log() {
            log if log.contains(what) => Ok(()),
            log => Err(log),
        };
        until(what, said).unwrap();
    };
    let connections = || store.tell(&["INFO", "stats"]).text();
    let made = |stats: String| {
        let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = made(connections());
    mounted.swap("two", "sesame-two");
    says("redis does not take the new password");
    assert_eq!(ask(&service, "error", "k"), 200);
    set("sesame-two");
    says("redis was told the new password");
    assert_eq!(ask(&service, "error", "k"), 200);
    // Those that told the store, this one, and none of the service.
    assert_eq!(made(connections()) - before, 2);
    for text in [service.log(), service.said.clone()] {
        assert!(!text.contains("sesame"), "{text}");
    }
}

/// It repeats the arguments of a command that it does not know. At level `trace`, where the client speaks too.
#[test]
fn a_store_that_does_not_know_how_to_be_told_the_password_is_named_and_the_password_shown_nowhere()
{
    let ((_store, port), limits) = (over_tcp_with(&["--rename-command", "AUTH", ""]), limits(10));
    let limits = apart(&limits);
    let plain = format!("redis://gate:{PASSWORD}@127.0.0.1:{port}");
    let sentinel = format!("redis+sentinel://127.0.0.1:{port}/shop");
    let for_sentinels = ["--backend-sentinel-user", "gate", "--backend-sentinel-password", PLAIN];
    for (url, more) in [(plain, &[][..]), (sentinel, &for_sentinels)] {
        let service = serve(&limits, &url, &[more, &["--log-level", "trace"]].concat());
        let is_told = || match service.log() {
            log if log.lines().any(names_the_command) => Ok(()),
            log => Err(log),
        };
        until("the log says what failed", is_told).unwrap();
        let (outcome, out, err) = doctor_at(&url, more);
        assert_eq!((outcome, out.as_str()), (Outcome::CouldNotSay, ""));
        assert!(err.contains("ERR unknown command 'AUTH'"), "{err}");
        for text in [service.log(), service.said.clone(), err] {
            assert!(!text.contains("sesame"), "{text}");
        }
    }
}

fn names_the_command(line: &str) -> bool {
    line.contains("redis cannot be had") && line.contains("ERR unknown command 'AUTH'")
}

/// Waits until it does: a connection that was closed may be missed only with the next question.
fn answers_again(service: &Service) {
    until("redis answers again", || match ask(service, "error", "k") {
        200 | 429 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    })
    .unwrap();
}

/// A secret as Kubernetes mounts it: the file is a link through a link that is swapped.
struct Mounted(tempfile::TempDir);

impl Mounted {
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
