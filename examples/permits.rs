//! A program without a proxy: acquires a permit before its work and releases it afterwards.
//!
//! Run `sluicegate serve --limits-paths config/concurrency`, then `cargo run --example permits`.
#![allow(clippy::print_stdout)]

use sluicegate::edge::grpc::permits::api::acquire_response::Verdict;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::session_request::Request as StreamRequest;
use sluicegate::edge::grpc::permits::api::session_response::Response as StreamResponse;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, Descriptor, Entry, Outcome, ReleaseRequest, SessionRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = Endpoint::from_static("http://127.0.0.1:8081").connect().await?;
    let (ask, asked) = mpsc::channel(16);
    let stream = PermitsClient::new(channel).session(ReceiverStream::new(asked)).await?;
    let mut answers = stream.into_inner();

    // Use a random id: any client that knows the id can release its permit.
    let id = "example-0123456789".to_owned();
    let entries = vec![Entry { key: "upstream".into(), value: "all".into() }];
    let descriptors = vec![Descriptor { entries, hits: None }];
    let (domain, max_wait_us) = ("edge".into(), Some(500_000));
    let acquire = AcquireRequest { id: id.clone(), domain, descriptors, max_wait_us };
    ask.send(SessionRequest { request: Some(StreamRequest::Acquire(acquire)) }).await?;

    while let Some(answer) = answers.message().await? {
        match answer.response {
            Some(StreamResponse::Acquire(answer)) if answer.verdict() == Verdict::Allow => {
                println!("allowed; the work is done here");
                let outcome = Outcome::Success.into();
                let owner = String::new();
                let release =
                    ReleaseRequest { id: id.clone(), outcome, owner, ..ReleaseRequest::default() };
                ask.send(SessionRequest { request: Some(StreamRequest::Release(release)) }).await?;
            }
            Some(StreamResponse::Acquire(answer)) => {
                println!("denied: {}; retry after {:?} us", answer.reason, answer.retry_after_us);
                break;
            }
            Some(StreamResponse::Fenced(fenced)) => {
                println!("abort work that takes longer than {} us", fenced.abort_within_us);
            }
            other => {
                println!("{other:?}");
                break;
            }
        }
    }
    Ok(())
}
