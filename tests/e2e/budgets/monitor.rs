//! Reads the budgets of a fleet all the time, and keeps the usage of every period.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use serde_json::Value;
use sluicegate::edge::grpc::budgets::api::BudgetState;

use super::faults::{AMOUNT, MODEL_AMOUNT};
use super::{BudgetReader, MODELS};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::until;

/// What the reads found.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) reads: u64,
    /// Reads in which a budget was exceeded.
    pub(super) violations: Vec<String>,
    /// The usage of each period, by its start. The last read counts.
    pub(super) periods: BTreeMap<u64, Period>,
    pub(super) expired: u64,
    /// Open holds in the last read.
    pub(super) open_holds: u64,
}

/// The settled amounts of one period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Period {
    pub(super) org: u64,
    pub(super) models: [u64; 2],
    expired: u64,
}

/// The state of the last read.
#[derive(Debug, Default)]
pub(super) struct Seen {
    open_holds: AtomicU64,
    stop: AtomicBool,
}

impl Seen {
    /// Waits until this number of requests hold an amount.
    pub(super) fn wait_for_holds(&self, holds: u64) {
        until("holds", || match self.open_holds.load(SeqCst) {
            found if holds <= found => Ok(()),
            found => Err(found.to_string()),
        })
        .unwrap();
    }
}

/// A thread that reads the budgets.
pub(super) struct Monitor {
    seen: Arc<Seen>,
    thread: JoinHandle<Ledger>,
}

impl Monitor {
    pub(super) fn start(replica: &Service) -> Self {
        let (seen, admin) = (Arc::new(Seen::default()), replica.admin);
        let (shared, reader) = (Arc::clone(&seen), BudgetReader::new(replica));
        let thread = std::thread::spawn(move || watch(&shared, reader, admin));
        Self { seen, thread }
    }

    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Returns the ledger after one more read.
    pub(super) fn stop(self) -> Ledger {
        self.seen.stop.store(true, SeqCst);
        self.thread.join().unwrap()
    }
}

fn watch(seen: &Seen, mut reader: BudgetReader, admin: SocketAddr) -> Ledger {
    let mut ledger = Ledger::default();
    loop {
        let is_last = seen.stop.load(SeqCst);
        // While the store is down, reads fail.
        if let Ok(budgets) = reader.read(&MODELS) {
            ledger.add_read(&budgets);
            seen.open_holds.store(ledger.open_holds, SeqCst);
        }
        if let Ok(page) = periods_page(admin) {
            ledger.add_periods(&page);
        }
        if is_last {
            ledger.expired = ledger.periods.values().map(|period| period.expired).sum();
            return ledger;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn periods_page(admin: SocketAddr) -> std::io::Result<Value> {
    let descriptor = |model| format!("&descriptor=org=acme,model={model}");
    let path = format!("/budgets?domain=llm{}", MODELS.map(descriptor).concat());
    let reply = http1::get(admin, &path, &[])?;
    serde_json::from_slice(&reply.body).map_err(Into::into)
}

impl Ledger {
    fn add_read(&mut self, budgets: &[BudgetState]) {
        self.reads += 1;
        assert_eq!(budgets.len(), 1 + MODELS.len());
        self.open_holds = budgets.iter().map(|budget| u64::from(budget.open_holds)).max().unwrap();
        let amounts = [AMOUNT, MODEL_AMOUNT, MODEL_AMOUNT];
        for (budget, amount) in budgets.iter().zip(amounts) {
            assert_eq!(budget.amount, amount);
            if amount < budget.settled + budget.held || 0 < budget.excess {
                self.violations.push(format!("{budget:?}"));
            }
        }
    }

    fn add_periods(&mut self, page: &Value) {
        let number = |value: &Value| value.as_u64().unwrap();
        for (at, budget) in page["budgets"].as_array().into_iter().flatten().enumerate() {
            for period in budget["periods"].as_array().unwrap() {
                let start = number(&period["start_unix_ms"]);
                let known = self.periods.entry(start).or_default();
                let settled = number(&period["settled_number"]);
                match at.checked_sub(1) {
                    None => (known.org, known.expired) = (settled, number(&period["expired"])),
                    Some(model) => known.models[model] = settled,
                }
            }
        }
    }
}
