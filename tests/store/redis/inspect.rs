//! Plain commands to Redis, with the connection options of the store.

use sluicegate::store::redis::inspect::{self, RedisValue};
use sluicegate::store::redis::{Password, RedisOptions, RedisTopology};

use crate::support::redis::Redis;

fn options_of(store: &Redis) -> RedisOptions {
    RedisOptions::new(RedisTopology::Unix(store.socket()))
}

#[tokio::test]
async fn plain_commands_return_the_redis_replies() {
    let store = Redis::start();
    let nodes = inspect::connect_all(&options_of(&store)).await.unwrap();
    let [node] = &nodes[..] else { panic!("{nodes:?}") };
    assert_eq!(node.address, store.socket().display().to_string());
    assert_eq!(node.run_command(&["PING"]).await, Ok(RedisValue::Text("PONG".to_owned())));
    assert_eq!(node.run_command(&["INCRBY", "n", "7"]).await, Ok(RedisValue::Int(7)));
    assert_eq!(node.run_command(&["GET", "nothing"]).await, Ok(RedisValue::Nil));
    let policy = ["maxmemory-policy", "noeviction"].map(|text| RedisValue::Text(text.to_owned()));
    let answer = node.run_command(&["CONFIG", "GET", "maxmemory-policy"]).await;
    assert_eq!(answer, Ok(RedisValue::List(policy.into())));
    let refused = node.run_command(&["LPUSH", "n", "x"]).await.unwrap_err();
    assert!(refused.0.contains("WRONGTYPE"), "{refused}");
}

#[tokio::test]
async fn connection_errors_are_prompt_and_hide_the_password() {
    let store = Redis::start();
    let password = Some(Password::Plain("sesame".to_owned()));
    let user = Some("nobody".to_owned());
    let refused = inspect::connect_all(&RedisOptions { user, password, ..options_of(&store) })
        .await
        .unwrap_err();
    assert!(refused.0.contains("WRONGPASS") && !refused.0.contains("sesame"), "{refused}");
    store.signal("STOP");
    let silent = inspect::connect_all(&options_of(&store)).await.unwrap_err();
    assert!(silent.0.contains("timed out: no reply within 1s"), "{silent}");
    store.signal("CONT");
    let nowhere = inspect::connect_all(&RedisOptions::new(RedisTopology::Unix("/nowhere".into())))
        .await
        .unwrap_err();
    assert!(nowhere.0.contains("/nowhere"), "{nowhere}");
}
