//! Implements `sluicegate fleet start`: an operator states that no request is in flight under an
//! earlier state of the store. Then shared concurrency limits need not wait on the first day.
//!
//! Guarantees:
//! - Without `--yes`, nothing changes unless the store has no state of a fleet.
//! - A start is in the audit log before it happens.
//! - Exits with 0 (started, or nothing to start), 1 (the store has a state) or 2 (could not say).

use std::io;
use std::time::Duration;

use super::args::FleetStartArgs;
use super::serve::store;
use super::{CommandOutcome, Terminal};
use crate::clock::Clock;
use crate::config::settings::Settings;
use crate::engine::actions::{AuditEntry, validate_reason};
use crate::kernel::units::Nanos;
use crate::store::StoreFailure;
use crate::store::audit::AuditRecord;
use crate::store::fleet_start::{FleetState, StartFleet, StartMode};
use crate::store::postgres::{self, PostgresStore};
use crate::store::redis::{self, RedisStore};

/// The timeout of one store call. No request waits for it, so it may exceed `store.timeout`.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The time in which the store must reply for the first time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) fn start(
    args: &FleetStartArgs,
    settings: &Settings,
    clock: &Clock,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    if let Err(error) = validate_reason(&args.reason) {
        writeln!(terminal.err, "error: {error} (--reason)")?;
        return Ok(CommandOutcome::Failed);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let store = connect(settings).await?;
        start_in(&*store, args, clock).await.map_err(|cause| store_error(settings, cause))
    });
    let url = &settings.store.url;
    match result {
        Ok(StartResult::Started) => {
            writeln!(terminal.out, "started the fleet of {url}: limits need not wait")?;
            Ok(CommandOutcome::Success)
        }
        Ok(StartResult::Settled) => {
            writeln!(terminal.out, "nothing to start: {url} knows all requests in flight")?;
            Ok(CommandOutcome::Success)
        }
        Ok(StartResult::Refused) if args.if_new => {
            writeln!(terminal.out, "nothing started: {url} is not new, so its limits wait")?;
            Ok(CommandOutcome::Success)
        }
        Ok(StartResult::Refused) => {
            writeln!(
                terminal.out,
                "not started: {url} is not new, and requests may be in flight. If none is in flight \
                 anywhere, repeat with --yes; otherwise the fleet exceeds its limits"
            )?;
            Ok(CommandOutcome::Negative)
        }
        Err(error) => {
            writeln!(terminal.err, "error: {error}")?;
            Ok(CommandOutcome::Failed)
        }
    }
}

enum StartResult {
    Started,
    Settled,
    Refused,
}

/// Returns the store of the settings, after its first reply.
async fn connect(settings: &Settings) -> Result<Box<dyn StartFleet>, String> {
    let store = open(settings).await?;
    let first_reply = async {
        loop {
            match store.start_fleet(StartMode::Inspect).wait().await {
                Err(StoreFailure::Unreachable | StoreFailure::ConnectionLost) => {}
                reply => return reply.map(drop),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let replied = tokio::time::timeout(CONNECT_TIMEOUT, first_reply).await;
    match replied.unwrap_or(Err(StoreFailure::Unreachable)) {
        Ok(()) => Ok(store),
        Err(cause) => Err(connect_error(settings, cause).await),
    }
}

/// Returns the store of the settings, which connects in the background.
async fn open(settings: &Settings) -> Result<Box<dyn StartFleet>, String> {
    let url = &settings.store.url;
    if let Some(mut options) = store::all_postgres_options(settings) {
        let verified = postgres::verify_schema(&options).await;
        verified.map_err(|error| format!("{url}: {error} (setting store.url)"))?;
        options.call_timeout = options.call_timeout.max(CALL_TIMEOUT);
        let (store, connections) = PostgresStore::new(options);
        tokio::spawn(connections);
        return Ok(Box::new(store));
    }
    let Some(mut options) = store::main_redis_options(settings) else {
        return Err(
            "only Redis and PostgreSQL have a fleet; set --store-url to redis://… or postgres://…"
                .to_owned(),
        );
    };
    options.call_timeout = options.call_timeout.max(CALL_TIMEOUT);
    let (store, connections) = RedisStore::new(options);
    tokio::spawn(connections);
    Ok(Box::new(store))
}

/// Returns the error of a store without a first reply: that of one more connection, which names the
/// address and the fix.
async fn connect_error(settings: &Settings, cause: StoreFailure) -> String {
    let options = store::main_redis_options(settings);
    let error = match options {
        Some(options) => redis::inspect::connect_all(&options).await.err(),
        None => None,
    };
    error.map_or_else(
        || store_error(settings, cause),
        |error| format!("{error} (setting store.url)"),
    )
}

async fn start_in(
    store: &dyn StartFleet,
    args: &FleetStartArgs,
    clock: &Clock,
) -> Result<StartResult, StoreFailure> {
    let mode = match store.start_fleet(StartMode::Inspect).wait().await? {
        FleetState::Settled => return Ok(StartResult::Settled),
        FleetState::New => StartMode::IfNew,
        FleetState::Unsettled if args.yes => StartMode::Forced,
        FleetState::Unsettled => return Ok(StartResult::Refused),
    };
    let now = clock.now();
    store.append_audit(now, &audit_record(args, mode, now)).wait().await?;
    let before = store.start_fleet(mode).wait().await?;
    Ok(match before {
        FleetState::Settled => StartResult::Settled,
        state if state.is_started_by(mode) => StartResult::Started,
        _ => StartResult::Refused,
    })
}

fn audit_record(args: &FleetStartArgs, mode: StartMode, now: Nanos) -> AuditRecord {
    let operator = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let value = if mode == StartMode::Forced { "yes" } else { "new store" };
    let entry = AuditEntry {
        by: operator.unwrap_or_else(|| "command line".to_owned()).into(),
        action: "fleet_start".into(),
        value: Some(value.into()),
        reason: args.reason.as_str().into(),
        ..AuditEntry::default()
    };
    let id = format!("fleet_start-{}-{}", std::process::id(), now.0);
    AuditRecord { id: id.into(), text: serde_json::to_string(&entry).unwrap_or_default().into() }
}

fn store_error(settings: &Settings, cause: StoreFailure) -> String {
    let (url, cause) = (&settings.store.url, cause.as_str());
    format!("{url}: the store failed: {cause}; `sluicegate doctor` examines it (setting store.url)")
}
