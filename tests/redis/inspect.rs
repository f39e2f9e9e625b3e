//! Plain commands to Redis, with the connection options of the store.

use std::time::Duration;

use sluicegate::backend::redis::inspect::{self, Said};
use sluicegate::backend::redis::{Options, Password, Place};

use super::Store;
use crate::waiting::now;

fn at(store: &Store) -> Options {
    Options::at(Place::Unix(store.socket()))
}

#[tokio::test]
async fn plain_commands_return_the_redis_replies() {
    let store = Store::running();
    let nodes = inspect::open(&at(&store)).await.unwrap();
    let [node] = &nodes[..] else { panic!("{nodes:?}") };
    assert_eq!(node.at, store.socket().display().to_string());
    assert_eq!(node.ask(&["PING"]).await, Ok(Said::Text("PONG".to_owned())));
    assert_eq!(node.ask(&["INCRBY", "n", "7"]).await, Ok(Said::Int(7)));
    assert_eq!(node.ask(&["GET", "nothing"]).await, Ok(Said::Nil));
    let policy = ["maxmemory-policy", "noeviction"].map(|text| Said::Text(text.to_owned()));
    let answer = node.ask(&["CONFIG", "GET", "maxmemory-policy"]).await;
    assert_eq!(answer, Ok(Said::List(policy.into())));
    let refused = node.ask(&["LPUSH", "n", "x"]).await.unwrap_err();
    assert!(refused.0.contains("WRONGTYPE"), "{refused}");
}

#[tokio::test]
async fn connection_errors_are_prompt_and_hide_the_password() {
    let store = Store::running();
    let password = Some(Password::Plain("sesame".to_owned()));
    let user = Some("nobody".to_owned());
    let refused = inspect::open(&Options { user, password, ..at(&store) }).await.unwrap_err();
    assert!(refused.0.contains("WRONGPASS") && !refused.0.contains("sesame"), "{refused}");
    store.signal("STOP");
    let began = now();
    let silent = inspect::open(&at(&store)).await.unwrap_err();
    assert!(silent.0.contains("no answer within a second"), "{silent}");
    assert!(began.elapsed() < Duration::from_secs(5));
    store.signal("CONT");
    let nowhere = inspect::open(&Options::at(Place::Unix("/nowhere".into()))).await.unwrap_err();
    assert!(nowhere.0.contains("/nowhere"), "{nowhere}");
}
