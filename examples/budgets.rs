//! A program without a proxy: reserves tokens before a request, and settles what it used.
//!
//! Run `sluicegate serve --limits-paths config/budgets`, then `cargo run --example budgets`.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use ring::rand::{SystemRandom, generate};
use sluicegate::edge::grpc::budgets::api::{
    BudgetState, CancelRequest, ReserveRequest, SettleRequest, TokenUsage,
    budgets_client::BudgetsClient, reserve_response::Verdict,
};
use sluicegate::edge::grpc::permits::api::{Descriptor, Entry};
use tonic::transport::{Channel, Endpoint};

type Failure = Box<dyn std::error::Error>;

const ATTEMPTS: usize = 3;

fn target() -> (String, Vec<Descriptor>) {
    let entry = |(key, value): (&str, &str)| Entry { key: key.into(), value: value.into() };
    let entries = [("org", "acme"), ("model", "large")].map(entry).into();
    ("llm".into(), vec![Descriptor { entries, hits: None }])
}

fn within<T>(seconds: u64, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(Duration::from_secs(seconds));
    request
}

/// Returns the id of a new hold.
async fn reserve(budgets: &mut BudgetsClient<Channel>, tokens: u64) -> Result<String, Failure> {
    for _ in 0..ATTEMPTS {
        // Hard to guess: a client that knows the id can settle the request.
        let random: [u8; 16] = generate(&SystemRandom::new()).map_err(|_| "no random")?.expose();
        let (id, (domain, descriptors)) =
            (format!("{:032x}", u128::from_be_bytes(random)), target());
        let request = ReserveRequest { id: id.clone(), domain, descriptors, tokens: Some(tokens) };
        match budgets.reserve(within(2, request)).await.map(tonic::Response::into_inner) {
            Ok(reply) if reply.verdict() == Verdict::Allow => return Ok(id),
            Ok(reply) => return Err(format!("denied: {}", reply.reason).into()),
            Err(_) => println!("no reply to the reserve: canceling its id"),
        }
        // After the cancel, the id has ended: a hold is gone, and a reserve that arrives later is denied. So
        // the next attempt has another id. If the cancel fails, a hold ends after `time_limit`.
        budgets.cancel(within(30, cancel_of(id))).await?;
    }
    Err("no reply to any reserve".into())
}

fn cancel_of(id: String) -> CancelRequest {
    let (domain, descriptors) = target();
    CancelRequest { id, domain, descriptors }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect_lazy();
    let mut budgets = BudgetsClient::new(channel);
    let (id, (domain, descriptors)) = (reserve(&mut budgets, 500).await?, target());
    // Here the program calls the provider. Without a usage, the held tokens are charged.
    let usage = Some(TokenUsage { input: 100, output: 20, ..TokenUsage::default() });
    let request = SettleRequest { id, domain, descriptors, usage };
    // A repeated settle changes nothing, so a lost reply is no problem.
    let (mut settled, mut attempts) = (budgets.settle(within(2, request.clone())).await, 1);
    while settled.is_err() && attempts < ATTEMPTS {
        (settled, attempts) = (budgets.settle(within(2, request.clone())).await, attempts + 1);
    }
    for BudgetState { path, unit, amount, settled, held, .. } in settled?.into_inner().budgets {
        println!("{path}: {settled} of {amount} {unit} settled, {held} held");
    }
    // If the provider never got the request, it costs nothing.
    let id = reserve(&mut budgets, 500).await?;
    budgets.cancel(within(2, cancel_of(id))).await?;
    println!("canceled");
    Ok(())
}
