//! The script of the store against the kernel and the memory backend: the same questions at the
//! same instants have the same answers, in every field.
//!
//! A difference prints the seed; `SLUICEGATE_SEED` has the same run again.

mod limits;
mod model;
mod one_counter;
mod questions;
mod store;

use sluicegate::backend::Charges;
use sluicegate::backend::redis::CHARGE;
use sluicegate::backend::redis::codec::{Answers, decode, encode};
use sluicegate::kernel::units::Nanos;

use crate::support::redis::Redis;
use crate::support::resp::{Client, Value};

const PREFIX: &[u8] = b"test:";

/// A connection that has the script.
struct Scripted {
    client: Client,
    sha: String,
}

impl Scripted {
    fn new(redis: &Redis) -> Self {
        let mut client = redis.connect();
        let sha = client.call(&["SCRIPT", "LOAD", CHARGE]).text();
        Self { client, sha }
    }

    fn queue(&mut self, charges: &Charges, at: Option<Nanos>) {
        let call = encode(charges, PREFIX, at);
        let count = call.keys.len().to_string();
        let head = [b"EVALSHA".to_vec(), self.sha.clone().into_bytes(), count.into_bytes()];
        let parts: Vec<_> = head.into_iter().chain(call.keys).chain(call.args).collect();
        self.client.queue(&parts);
    }

    fn charge(&mut self, charges: &Charges, at: Option<Nanos>) -> Answers {
        self.queue(charges, at);
        self.client.flush();
        answers(charges, &self.client.receive())
    }
}

fn answers(charges: &Charges, reply: &Value) -> Answers {
    match reply {
        Value::Array(_) => decode(charges, &reply.ints()).unwrap(),
        other => panic!("{other:?}"),
    }
}
