//! The limiters of this process: one for each Sluicegate.
//!
//! Guarantees:
//! - All filters and routes with one service share one limiter, with one connection and one balance
//!   of each key.
//! - A limiter stays until the process ends, so a new filter config continues its counts.
//! - The memory of the first filter config of a service stays, too. Another value is logged.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use sluicegate_descriptors::filter_config::{FailureMode, FilterConfig, ServiceConfig};
pub(crate) use sluicegate_proxy::answer::{Answer, PermitRejection, ReportedLimit};
pub(crate) use sluicegate_proxy::kernel::concurrency::RejectReply;
pub(crate) use sluicegate_proxy::kernel::decision::RuleVerdict;
use sluicegate_proxy::kernel::decision::Verdict;
use sluicegate_proxy::kernel::units::Hits;
use sluicegate_proxy::settings::{
    LimiterSettings, ProxyIdentity, ServiceSettings, TlsSettings, WaitSettings,
};
pub(crate) use sluicegate_proxy::{Admission, Check, Limiter, PendingAnswer, Permits, Started};
use sluicegate_proxy::{LeaseEvent, StartError};

use crate::log::{self, LogLevel};

/// The hits that were borrowed and are not counted yet.
static BORROWED_HITS: AtomicU64 = AtomicU64::new(0);

static LIMITERS: Mutex<Option<HashMap<ServiceSettings, StartedLimiter>>> = Mutex::new(None);

struct StartedLimiter {
    limiter: Limiter,
    memory_bytes: usize,
}

/// Returns the limiter of the filter's service, and connects if it is new. Never blocks on the
/// network. `name` is the name of this proxy for operators; the first name of a service stays.
///
/// # Errors
/// The operating system refuses a thread.
pub(crate) fn limiter_for(config: &FilterConfig, name: &str) -> Result<Limiter, StartError> {
    let service = service_settings(&config.service);
    let memory_bytes = config.memory;
    let mut limiters = LIMITERS.lock().unwrap_or_else(PoisonError::into_inner);
    let limiters = limiters.get_or_insert_default();
    if let Some(started) = limiters.get(&service) {
        if started.memory_bytes != memory_bytes {
            log_other_memory(started.memory_bytes, memory_bytes);
        }
        return Ok(started.limiter.clone());
    }
    let software = concat!("envoy-module/", env!("CARGO_PKG_VERSION")).to_owned();
    let identity = ProxyIdentity { name: name.to_owned(), software };
    let log = |line: &str| log::write(LogLevel::Warn, line);
    let settings = LimiterSettings { service: service.clone(), identity, memory_bytes };
    let limiter = Limiter::start_thread(settings, log, count_borrowed)?;
    limiters.insert(service, StartedLimiter { limiter: limiter.clone(), memory_bytes });
    Ok(limiter)
}

fn log_other_memory(used: usize, configured: usize) {
    let message = format!(
        "sluicegate: `memory` is {configured} bytes, but the first filter of this service has \
         {used}, which stay; restart Envoy to apply a change, and write one value in all filters"
    );
    log::write(LogLevel::Warn, &message);
}

/// Returns the hits that were borrowed since the last call.
pub(crate) fn take_borrowed_hits() -> u64 {
    // Most requests only read: a write would move the cache line between the cores.
    if BORROWED_HITS.load(Relaxed) == 0 { 0 } else { BORROWED_HITS.swap(0, Relaxed) }
}

/// Returns the wait of a filter for the service.
pub(crate) const fn wait_settings(config: &FilterConfig) -> WaitSettings {
    let failure = match config.failure {
        FailureMode::Allow => Verdict::Allow,
        FailureMode::Deny => Verdict::Deny,
    };
    WaitSettings { deadline: config.deadline, failure }
}

fn count_borrowed(event: LeaseEvent, hits: Hits) {
    if event == LeaseEvent::Borrowed {
        BORROWED_HITS.fetch_add(hits.0, Relaxed);
    }
}

fn service_settings(service: &ServiceConfig) -> ServiceSettings {
    let (host, port) = (&service.address.host, service.address.port);
    let address =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let files = service.tls.clone().unwrap_or_default();
    let tls = service.address.has_tls.then(|| TlsSettings {
        ca_file: files.ca_file,
        identity: files.certificate_file.zip(files.key_file),
        server_name: files.server_name,
    });
    ServiceSettings { address, tls }
}
