//! Runs the guide "Limit LLM tokens" with a real Envoy: the limits and the route of the page.

use std::net::SocketAddr;

use axum::response::AppendHeaders;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::serve;
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::until;

const GUIDE: &str = include_str!("../../docs/guides/limit-llm-tokens.md");

/// The first code block of the guide in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = GUIDE.split_once(&format!("\n```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

/// An upstream whose responses have 40 tokens.
fn start_upstream() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let app = axum::Router::new()
                .fallback(async || (AppendHeaders([("x-tokens", "40")]), "text"));
            axum::serve(listener, app).await.unwrap();
        });
    });
    address
}

/// The shipped configuration with the `rate_limits` of the guide.
fn configuration(upstream: SocketAddr, replica: SocketAddr) -> String {
    let mut text = configured(Shipped::Rls, upstream, &[replica], WhenDown::Deny);
    let begin = text.find("                      rate_limits:\n").unwrap();
    let end = text.find("                http_filters:").unwrap();
    let shipped = text[begin..end].to_owned();
    let lines = block("text").lines().map(|line| format!("                      {line}\n"));
    replace_once(&mut text, &shipped, &lines.collect::<String>());
    text
}

/// The number of checks that the service has answered.
fn answered(service: &Service) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let series = "sluicegate_edge_requests_total{protocol=\"grpc\"";
    let counts = page.lines().filter(|line| line.starts_with(series));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
fn tokens_of_three_responses_exhaust_the_limit_of_the_guide() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("shop.yaml"), block("yaml")).unwrap();
    let service = serve(limits.path(), &[]);
    let envoy = Envoy::start_with(configuration(start_upstream(), service.grpc), 1);
    let request = |number: u64| {
        let status = http1::get(envoy.ingress, "/", &[("x-api-key", "me")]).unwrap().status;
        if status == 200 {
            // Envoy sends the report after the response.
            until("the report of the tokens", || match answered(&service) {
                checks if 2 * number <= checks => Ok(()),
                checks => Err(checks.to_string()),
            })
            .unwrap();
        }
        status
    };
    let statuses: Vec<u16> = (1..=6).map(request).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429], "{}", envoy.log());
    let other = http1::get(envoy.ingress, "/", &[("x-api-key", "another")]).unwrap();
    assert_eq!(other.status, 200);
}
