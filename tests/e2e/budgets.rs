//! Tests of budgets behind a real Envoy, with a provider that streams and reports its usage at the end.
//!
//! Guarantees:
//! - Both ways are tested: two rate limit filters, and `ext_proc`.
//! - Settled and held amounts are exact after each way to end a request.
//! - The estimate is an upper bound of each cost, so that every overshoot is a fault.

mod disconnects;
mod endings;
mod faults;
mod monitor;
mod provider;
mod traffic;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use sluicegate::edge::grpc::budgets::api::budgets_client::BudgetsClient;
use sluicegate::edge::grpc::budgets::api::{BudgetState, GetBudgetsRequest};
use sluicegate::edge::grpc::permits::api::{Descriptor, Entry};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::envoy::{Envoy, Shipped, WhenDown, configured};
use crate::support::http1::{self, Reply};
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, until};
use provider::Provider;

const WAYS: [Shipped; 2] = [Shipped::Budgets, Shipped::BudgetsExtProc];

/// The models of the organization.
const MODELS: [&str; 2] = ["large", "small"];

/// The tokens that each request reserves.
const ESTIMATE: u64 = 500;

/// Budgets of which ten requests may reserve for an organization, and six for a model.
const LIMITS: &str = "
domain: llm
colocate: org
usage: {estimate: max_tokens, at_most: 500 tokens, time_limit: 10m}
descriptors:
- key: org
  budget: {amount: 5k tokens, unit: day}
  descriptors:
  - {key: model, budget: {amount: 3k tokens, unit: day}}
";

/// The amounts of a budget, without those that depend on time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amounts {
    settled: u64,
    held: u64,
    open_holds: u32,
}

impl Amounts {
    const fn settled(settled: u64) -> Self {
        Self { settled, held: 0, open_holds: 0 }
    }
}

/// A provider, Envoy and one replica.
struct LlmScene {
    way: Shipped,
    envoy: Envoy,
    service: Service,
    provider: Provider,
    _limits: TempDir,
}

impl LlmScene {
    fn start(way: Shipped) -> Self {
        Self::changed(way, |_| {})
    }

    /// Starts a scene with an edited shipped configuration of Envoy.
    fn changed(way: Shipped, change: impl FnOnce(&mut String)) -> Self {
        for_a_day_with_a_minute_left();
        let limits = limits_directory(LIMITS);
        let (service, provider) = (serve(limits.path(), &[]), Provider::start());
        let mut text = configured(way, provider.address, &[service.grpc], WhenDown::Deny);
        change(&mut text);
        let envoy = Envoy::start_with(text, 1);
        Self { way, envoy, service, provider, _limits: limits }
    }

    /// Sends a request for this path to the provider.
    fn ask(&self, path: &str) -> Reply {
        http1::get(self.envoy.ingress, path, &HEADERS).unwrap()
    }

    /// Sends a request without reading the response.
    fn connect(&self, path: &str) -> TcpStream {
        connect(self.envoy.ingress, path)
    }

    /// Waits until the organization and the model have these amounts.
    fn expect(&self, wanted: Amounts, what: &str) {
        let state = || match amounts_of(&self.service) {
            found if found == [wanted, wanted] => Ok(()),
            found => Err(format!("{:?}: {what}: {found:?}, wanted {wanted:?}", self.way)),
        };
        until("the amounts", state).unwrap_or_else(|why| panic!("{why}\n{}", self.envoy.log()));
    }
}

const HEADERS: [(&str, &str); 3] =
    [("x-org", "acme"), ("x-model", "large"), ("accept-encoding", "gzip, br")];

fn connect(ingress: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(ingress).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: llm\r\nx-org: acme\r\nx-model: large\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn limits_directory(text: &str) -> TempDir {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("llm.yaml"), text).unwrap();
    limits
}

/// Starts a replica with the shipped hook.
fn serve(limits: &Path, flags: &[&str]) -> Service {
    let settings = concat!(env!("CARGO_MANIFEST_DIR"), "/config/hooks_budgets.yaml");
    let flags = [&["--settings", settings], flags].concat();
    let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
    Service::start(limits, &flags).unwrap()
}

/// The amounts of the organization and of its model.
fn amounts_of(service: &Service) -> [Amounts; 2] {
    let budgets = BudgetReader::new(service).read(&["large"]).unwrap();
    let amounts = |state: &BudgetState| {
        assert_eq!(state.excess, 0, "{state:?}");
        Amounts { settled: state.settled, held: state.held, open_holds: state.open_holds }
    };
    let [org, model] = &budgets[..] else { panic!("{budgets:?}") };
    [amounts(org), amounts(model)]
}

/// Reads budgets with `Budgets.Get`.
struct BudgetReader {
    runtime: Runtime,
    client: BudgetsClient<tonic::transport::Channel>,
}

impl BudgetReader {
    fn new(service: &Service) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = {
            let _entered = runtime.enter();
            BudgetsClient::new(service.door().connect_lazy())
        };
        Self { runtime, client }
    }

    /// Returns the budget of the organization, then those of these models.
    fn read(&mut self, models: &[&str]) -> Result<Vec<BudgetState>, String> {
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let descriptor = |model: &&str| Descriptor {
            entries: vec![entry("org", "acme"), entry("model", model)],
            hits: None,
        };
        let descriptors = models.iter().map(descriptor).collect();
        let request = GetBudgetsRequest { domain: "llm".into(), descriptors };
        let reply = self.runtime.block_on(self.client.get(request));
        reply.map(|reply| reply.into_inner().budgets).map_err(|status| status.to_string())
    }
}
