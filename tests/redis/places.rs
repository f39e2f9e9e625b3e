//! Where a Redis is, as whom it is spoken to, and that nobody reads the password.

use std::net::TcpListener;

use super::{Store, ask, limits, ready, serve, wait_until_whole};
use crate::waiting::{for_a_day_with_a_minute_left, until};

const PASSWORD: &str = "open%2Fsesame";
const PLAIN: &str = "open/sesame";

/// A port that nobody had a moment ago; whoever takes it in between makes the next one be tried.
fn over_tcp() -> (Store, u16) {
    let started = || {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut store = Store::absent();
        store.start(&["--port", &port.to_string()]);
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
    // The folder above is watched as well, and must not be the one that the log grows in.
    let inner = limits.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::rename(limits.path().join("d.yaml"), inner.join("d.yaml")).unwrap();
    let service = serve(&inner, &url, &flags);
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
    until("the refusal is logged", || match service.log() {
        log if log.contains("redis cannot be had") => Ok(()),
        log => Err(log),
    })
    .unwrap();
    for text in [service.log(), service.said.clone()] {
        assert!(!text.contains("sesame"), "{text}");
    }
    store.tell(&["ACL", "SETUSER", "gate", "on"]);
    wait_until_whole(&service);
    assert_eq!(ask(&service, "error", "k"), 200);
}
