//! Passes limits from the source to the engine, and reports successful and failed loads on the
//! admin port.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::diagnostic::{Diagnostic, Diagnostics, Findings, SeverityCounts};
use crate::config::hooks::{Hook, Hooks};
use crate::config::raw::source;
use crate::config::settings::{HostPort, Settings};
use crate::config::{Config, load};
use crate::edge::health::{Health, Readiness};
use crate::edge::http::admin::{ConfigDiff, ConfigLoads, LoadError};
use crate::engine::Engine;
use crate::kernel::units::Nanos;
use crate::source::file::{self, FileFilter, FileSourceOptions};
use crate::source::xds;
use crate::source::{
    ConfigParser, ConfigSource, FailedLoad, LoadFailure, PublishedConfig, TextFile,
};
use crate::telemetry::event::{self, Event as _};
use crate::telemetry::stats::{StatCounter, Stats};

use super::drain::ShutdownSignals;
use super::startup_probes;
use super::store_conflicts::store_conflicts;
use crate::cli::table_conflicts::{Conflict, table_conflicts};

/// Starts the source of limits: xDS or files. With files, returns after the first load has
/// finished.
///
/// # Errors
/// The setting `compat.xds.headers` contains an invalid header.
pub(super) async fn start_source(
    settings: &Settings,
    engine: &Arc<Engine>,
) -> Result<ConfigSource, String> {
    let merge_domains = settings.limits.merge_domains;
    let all_settings = settings.clone();
    let loader: Arc<ConfigParser> = Arc::new(move |texts, revision| {
        let named = texts.iter().map(|text| (&*text.name, text.bytes.as_slice()));
        let (config, warnings) = load(named, revision, merge_domains)?;
        let findings = find_conflicts(&config, &all_settings, texts);
        if !findings.is_empty() {
            return Err(findings);
        }
        Ok((config, warnings.without_notes()))
    });
    let engine = Arc::clone(engine);
    let now = move || engine.clock().now();
    if let Some(server) = &settings.limits.xds.server {
        let options = xds_options(settings, server);
        return xds::start(options, loader, now)
            .map_err(|error| format!("`compat.xds.headers`: {error}"));
    }
    let options = FileSourceOptions {
        filter: FileFilter {
            prefix: settings.compat.limits.file_prefix.clone(),
            dot_files: settings.compat.limits.dot_files,
            optional: settings.compat.limits.optional_paths,
        },
        ..FileSourceOptions::new(settings.limits.paths.clone(), RELOAD_DEBOUNCE)
    };
    Ok(file::start(options, loader, now).await)
}

/// The time for which changed limits files must stay the same before they are reloaded.
const RELOAD_DEBOUNCE: Nanos = Nanos(100 * Nanos::MILLI.0);

fn xds_options(settings: &Settings, server: &HostPort) -> xds::XdsOptions {
    let identity =
        settings.limits.xds.tls.cert_file.clone().zip(settings.limits.xds.tls.key_file.clone());
    let name = settings.limits.xds.tls.server_name.as_ref();
    let tls = xds::XdsTls {
        ca_file: settings.limits.xds.tls.ca_file.clone(),
        trust_system_cas: settings.compat.system_cas,
        client_identity: identity,
        server_name: name.map(|name| name.as_str().to_owned()),
    };
    xds::XdsOptions {
        server: xds::XdsServer {
            host: server.host.clone(),
            port: server.port,
            tls: settings.limits.xds.use_tls.then_some(tls),
        },
        node_id: settings.limits.xds.node_id.clone(),
        node_metadata: settings.compat.xds.node_metadata.0.clone(),
        headers: settings.compat.xds.headers.0.clone(),
        max_message_bytes: settings
            .compat
            .xds
            .max_message
            .get()
            .map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
        backoff: xds::BackoffBounds {
            min: settings.compat.xds.backoff_min.into(),
            max: settings.compat.xds.backoff_max.into(),
            jitter: settings.compat.xds.backoff_jitter,
            seed: std::hash::RandomState::new().hash_one(3_u8),
        },
        allow_empty: settings.limits.xds.allow_empty,
    }
}

impl ConfigSource {
    /// Waits for the first limits, and meanwhile answers health probes on `http`. Returns `false`
    /// if a shutdown signal arrives first.
    pub(super) async fn wait_for_first_limits(
        &mut self,
        http: Option<&TcpListener>,
        signals: &mut ShutdownSignals,
    ) -> bool {
        tracing::info!("waiting for the first limits from the xDS server");
        tokio::select! {
            never = startup_probes::answer_probes(http, Readiness::NoConfig) => match never {},
            _ = signals.next() => false,
            first = self.published.wait_for(|published| published.config.is_some()) => first.is_ok(),
        }
    }
}

/// Finds limits that need something which the settings do not have.
fn find_conflicts(config: &Config, settings: &Settings, texts: &[TextFile]) -> Diagnostics {
    let mut conflicts = table_conflicts(config, &settings.tables);
    conflicts.extend(store_conflicts(config, settings));
    let mut findings = Diagnostics::default();
    for text in texts {
        findings.append(conflict_findings(text, &conflicts));
    }
    findings
}

fn conflict_findings(text: &TextFile, conflicts: &[Conflict]) -> Diagnostics {
    let (source, mut findings) = (source(&text.name, &text.bytes), Findings::default());
    for Conflict { location, code, message, help } in conflicts {
        let Some((file, line)) = location.rsplit_once(':') else { continue };
        if file == &*text.name {
            let span = source.line_span(line.parse().unwrap_or(1));
            findings.add_with_help(*code, span, message, help);
        }
    }
    findings.into_diagnostics(&source)
}

const MAX_NAMED_DOMAINS: usize = 8;

/// Passes each loaded configuration to the engine, and then shows it on the admin port. So the
/// engine already enforces every revision that the admin port shows.
pub(super) struct LimitsFollower {
    published: watch::Receiver<PublishedConfig>,
    engine: Arc<Engine>,
    /// `Some` if readiness requires limits. A configuration without domains does not make the
    /// service ready.
    readiness: Option<Health>,
    hooks: Hooks,
    /// The hooks of the last warning, whose domains the configuration lacks.
    unknown_domain_hooks: Vec<Hook>,
    applied: watch::Sender<PublishedConfig>,
    counted_loads: CountedLoads,
    /// The difference between the last two configurations, for the admin port.
    config_diff: Arc<ConfigDiff>,
}

impl LimitsFollower {
    pub(super) fn start(
        published: watch::Receiver<PublishedConfig>,
        engine: Arc<Engine>,
        readiness: Option<Health>,
        hooks: Hooks,
    ) -> Self {
        let (applied, counted) = (watch::Sender::default(), CountedLoads::default());
        let unknown_domain_hooks = Vec::new();
        let mut follower = Self {
            published,
            engine,
            readiness,
            hooks,
            unknown_domain_hooks,
            applied,
            counted_loads: counted,
            config_diff: Arc::default(),
        };
        follower.apply_latest();
        follower
    }

    pub(super) const fn config_diff(&self) -> &Arc<ConfigDiff> {
        &self.config_diff
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<PublishedConfig> {
        self.applied.subscribe()
    }

    pub(super) async fn follow(mut self) {
        while self.published.changed().await.is_ok() {
            self.apply_latest();
        }
    }

    fn apply_latest(&mut self) {
        let latest = self.published.borrow_and_update().clone();
        if let Some(config) = &latest.config {
            let had_domains = self.engine.config().is_some_and(|config| !config.domains.is_empty());
            if had_domains && config.domains.is_empty() {
                tracing::warn!("the new limits have no domains, nothing is limited");
            }
            self.warn_unknown_domains(config);
            let ready =
                if config.domains.is_empty() { Readiness::NoConfig } else { Readiness::Ready };
            if let Some(old) = self.engine.config() {
                self.config_diff.record(&old, config);
            }
            self.engine.publish(Arc::clone(config));
            if let Some(health) = &self.readiness {
                health.set_readiness(ready);
            }
        }
        self.counted_loads.count(&latest, self.engine.stats().map(|stats| &**stats));
        self.applied.send_replace(latest);
    }

    /// Warns about hooks whose domain the configuration lacks, because their checks match no limit.
    fn warn_unknown_domains(&mut self, config: &Config) {
        let has_unknown_domain = |hook: &&Hook| !config.domains.contains_key(&*hook.domain);
        let unknown_domain_hooks: Vec<Hook> =
            self.hooks.0.iter().filter(has_unknown_domain).cloned().collect();
        if unknown_domain_hooks != self.unknown_domain_hooks {
            let domains = first_domain_names(config);
            for Hook { name, domain, .. } in &unknown_domain_hooks {
                tracing::warn!(
                    hook = name,
                    domain,
                    domains,
                    "no file has this hook's domain, allowing all its requests"
                );
            }
            self.unknown_domain_hooks = unknown_domain_hooks;
        }
    }
}

fn first_domain_names(config: &Config) -> String {
    let mut names: Vec<&str> = config.domains.keys().map(|name| &**name).collect();
    names.sort_unstable();
    names.truncate(MAX_NAMED_DOMAINS);
    names.join(", ")
}

/// The numbers of loads that the metrics already include.
#[derive(Default)]
struct CountedLoads {
    loads: u64,
    refused: u64,
}

impl CountedLoads {
    fn count(&mut self, latest: &PublishedConfig, stats: Option<&Stats>) {
        let loads = &latest.status;
        for _ in self.loads..loads.successful_loads {
            let at = loads.loaded_at.unwrap_or_default();
            event::ConfigLoaded { revision: loads.revision, loaded_at: at }.emit();
        }
        for _ in self.refused..loads.failed_loads {
            event::ConfigRejected.emit();
        }
        if let Some(stats) = stats {
            let (accepted, refused) =
                (loads.successful_loads - self.loads, loads.failed_loads - self.refused);
            stats.add(StatCounter::ConfigLoadSuccess, accepted);
            stats.add(StatCounter::RuntimeLoadAttempts, accepted + refused);
            let is_unread =
                |error: &Arc<FailedLoad>| matches!(error.reason, LoadFailure::Unreadable(_));
            if loads.last_error.as_ref().is_some_and(is_unread) {
                stats.add(StatCounter::RuntimeLoadFailures, refused);
            } else {
                stats.add(StatCounter::ConfigLoadError, refused);
            }
        }
        (self.loads, self.refused) = (loads.successful_loads, loads.failed_loads);
    }
}

pub(super) fn admin_loads(published: &watch::Receiver<PublishedConfig>) -> ConfigLoads {
    let PublishedConfig { status, .. } = published.borrow().clone();
    ConfigLoads {
        successful: status.successful_loads,
        failed: status.failed_loads,
        loaded_at: status.loaded_at,
        files: status.files.to_vec(),
        warnings: status.warnings.iter().map(to_json).collect(),
        omitted_warnings: status.warnings.not_shown().warnings,
        last_error: status.last_error.as_deref().map(last_error),
    }
}

fn last_error(failure: &FailedLoad) -> LoadError {
    let (diagnostics, more) = match &failure.reason {
        LoadFailure::Invalid(found) => (found.iter().map(to_json).collect(), found.not_shown()),
        why => (
            vec![json!({"severity": "error", "message": reason_text(why)})],
            SeverityCounts::default(),
        ),
    };
    LoadError { at: failure.at, diagnostics, omitted: more }
}

fn to_json(diagnostic: &Diagnostic) -> Value {
    serde_json::to_value(diagnostic).unwrap_or_default()
}

pub(super) fn error_text(failure: &FailedLoad) -> String {
    match &failure.reason {
        LoadFailure::Invalid(found) => found.to_string(),
        why => reason_text(why),
    }
}

fn reason_text(failure: &LoadFailure) -> String {
    match failure {
        LoadFailure::Unreadable(error) => error.with_cause(),
        LoadFailure::Invalid(found) => format!("{} findings", found.counts().total()),
        LoadFailure::Unconvertible(words) => words.clone(),
        LoadFailure::ParserPanicked => {
            "the limits parser crashed, which is a bug in Sluicegate".to_owned()
        }
    }
}
