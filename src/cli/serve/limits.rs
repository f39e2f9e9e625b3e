//! From the source of limits to the engine, and what admin shows of it.

use std::collections::HashSet;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::config::diagnostic::{Code, Diagnostic, Severity};
use crate::config::hooks::{Hook, Hooks};
use crate::config::settings::{Address, CounterKeys, Settings};
use crate::config::{Config, Mode, Rule, Window, load};
use crate::edge::health::{Health, Ready};
use crate::edge::http::admin::{LastError, Loads};
use crate::engine::Engine;
use crate::kernel::rate::Strategy;
use crate::source::file::{self, Options, Tree};
use crate::source::xds;
use crate::source::{Load, Published, Refused, Source, Why};
use crate::telemetry::event;
use crate::telemetry::stats::{Stat, Stats};

use super::drain::Ends;

/// Starts watching the limits; the first load is done when this returns.
///
/// # Errors
/// A sentence, where a management server cannot be asked so.
pub(super) async fn watch(settings: &Settings, engine: &Arc<Engine>) -> Result<Source, String> {
    let merge_domains = settings.merge_domains;
    let shared_keys = settings.counter_keys == CounterKeys::Envoyproxy;
    let loader: Arc<Load> = Arc::new(move |texts, revision| {
        let texts = texts.iter().map(|text| (&*text.name, text.bytes.as_slice()));
        let (config, mut warnings) = load(texts, revision, merge_domains)?;
        let refused = if shared_keys { not_leased(&config, &warnings) } else { Vec::new() };
        if !refused.is_empty() {
            return Err(refused);
        }
        warnings.retain(|one| one.severity() != Severity::Note);
        Ok((config, warnings))
    });
    let engine = Arc::clone(engine);
    let now = move || engine.clock().now();
    if let Some(server) = &settings.xds_server {
        let options = xds_of(settings, server);
        return xds::start(options, loader, now).map_err(|error| format!("`xds_headers`: {error}"));
    }
    let options = Options {
        tree: Tree {
            prefix: settings.limits_prefix.clone(),
            dot_files: settings.limits_dot_files,
            optional: settings.limits_optional,
        },
        ..Options::new(settings.limits.clone(), settings.reload_debounce)
    };
    Ok(file::start(options, loader, now).await)
}

fn xds_of(settings: &Settings, server: &Address) -> xds::Options {
    let identity = settings.xds_tls_cert_file.clone().zip(settings.xds_tls_key_file.clone());
    let name = settings.xds_tls_server_name.as_ref();
    let tls = xds::Tls {
        ca: settings.xds_tls_ca_file.clone(),
        system_roots: settings.xds_tls_system_roots,
        identity,
        server_name: name.map(|name| name.as_str().to_owned()),
    };
    xds::Options {
        server: xds::Server {
            host: server.host.clone(),
            port: server.port,
            tls: settings.xds_tls.then_some(tls),
        },
        node_id: settings.xds_node_id.clone(),
        node_metadata: settings.xds_node_metadata.0.clone(),
        headers: settings.xds_headers.0.clone(),
        max_message: usize::try_from(settings.xds_max_message).unwrap_or(usize::MAX),
        backoff: xds::Bounds {
            least: settings.xds_backoff_min.into(),
            most: settings.xds_backoff_max.into(),
            jitter: settings.xds_backoff_jitter,
            seed: std::hash::RandomState::new().hash_one(3_u8),
        },
    }
}

impl Source {
    /// Waits for the first limits. False when it is told to stop before.
    pub(super) async fn is_first_here(&mut self, ends: &mut Ends) -> bool {
        tracing::info!("waiting for the first limits of the management server");
        tokio::select! {
            _ = ends.next() => false,
            first = self.published.wait_for(|published| published.config.is_some()) => first.is_ok(),
        }
    }
}

/// The leased limits that cannot be: the reference service asks the same counters, and knows of no
/// leases. Each has a note of its forecast, which stands where the rule does.
fn not_leased(config: &Config, notes: &[Diagnostic]) -> Vec<Diagnostic> {
    let is_shared = |rule: &&Rule| {
        rule.limit.as_ref().is_some_and(|limit| {
            let in_units = matches!(limit.window, Window::Unit(_));
            in_units
                && matches!(
                    (limit.strategy, limit.mode),
                    (Strategy::FixedWindow(_), Mode::Leased(_))
                )
        })
    };
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let places: HashSet<&str> = rules.filter(is_shared).map(|rule| &*rule.place).collect();
    let forecasts = notes.iter().filter(|note| note.code == Code::LeaseForecast);
    let shared = forecasts
        .filter(|note| places.contains(&*format!("{}:{}", note.place.file, note.place.line)));
    let refusal = |note: &Diagnostic| {
        Diagnostic {
        code: Code::Contradiction,
        message: "`mode: leased` while `counter_keys` is `envoyproxy`, whose counters are asked for each hit"
            .to_owned(),
        help: Some("`mode: strict` or `cached_deny`; another strategy, or `per`, may be leased".to_owned()),
        ..note.clone()
    }
    };
    shared.map(refusal).collect()
}

/// The most domains that a warning names.
const MOST_NAMED: usize = 8;

/// Puts every accepted load in force, and only then shows it: whoever reads on admin that a load was
/// accepted is answered by it.
pub(super) struct Follower {
    published: watch::Receiver<Published>,
    engine: Arc<Engine>,
    /// Where health follows the limits: no domain at all is as good as none.
    judged: Option<Health>,
    hooks: Hooks,
    /// The hooks whose domain is in no file, as they were last told of.
    astray: Vec<Hook>,
    shown: watch::Sender<Published>,
    counted: Counted,
}

impl Follower {
    /// Puts the first load in force.
    pub(super) fn start(
        published: watch::Receiver<Published>,
        engine: Arc<Engine>,
        judged: Option<Health>,
        hooks: Hooks,
    ) -> Self {
        let (shown, counted) = (watch::Sender::default(), Counted::default());
        let astray = Vec::new();
        let mut follower = Self { published, engine, judged, hooks, astray, shown, counted };
        follower.put_in_force();
        follower
    }

    /// What is in force, as it is now and will be.
    pub(super) fn shown(&self) -> watch::Receiver<Published> {
        self.shown.subscribe()
    }

    /// Goes on until the source ends.
    pub(super) async fn follow(mut self) {
        while self.published.changed().await.is_ok() {
            self.put_in_force();
        }
    }

    fn put_in_force(&mut self) {
        let latest = self.published.borrow_and_update().clone();
        if let Some(config) = &latest.config {
            let had = self.engine.config().is_some_and(|config| !config.domains.is_empty());
            if had && config.domains.is_empty() {
                tracing::warn!("no file names a domain any more: nothing is limited");
            }
            self.tell_astray(config);
            let ready = if config.domains.is_empty() { Ready::NoConfig } else { Ready::Yes };
            self.engine.publish(Arc::clone(config));
            if let Some(health) = &self.judged {
                health.set(ready);
            }
        }
        self.counted.count(&latest, self.engine.stats().map(|stats| &**stats));
        self.shown.send_replace(latest);
    }

    /// What is asked in a domain that no file has meets no limit, and nobody would notice.
    fn tell_astray(&mut self, config: &Config) {
        let is_astray = |hook: &&Hook| !config.domains.contains_key(&*hook.domain);
        let astray: Vec<Hook> = self.hooks.0.iter().filter(is_astray).cloned().collect();
        if astray != self.astray {
            let domains = named(config);
            for Hook { name, domain, .. } in &astray {
                tracing::warn!(
                    hook = name,
                    domain,
                    domains,
                    "no file has this hook's domain: all pass"
                );
            }
            self.astray = astray;
        }
    }
}

/// The first names of the domains that there are.
fn named(config: &Config) -> String {
    let mut names: Vec<&str> = config.domains.keys().map(|name| &**name).collect();
    names.sort_unstable();
    names.truncate(MOST_NAMED);
    names.join(", ")
}

/// Loads that metrics have been told of.
#[derive(Default)]
struct Counted {
    loads: u64,
    refused: u64,
}

impl Counted {
    fn count(&mut self, latest: &Published, told: Option<&Stats>) {
        let status = &latest.status;
        for _ in self.loads..status.loads {
            let at = status.loaded_at.unwrap_or_default();
            event::Loaded { revision: status.revision, at }.emit();
        }
        for _ in self.refused..status.refused {
            event::LoadRefused.emit();
        }
        if let Some(stats) = told {
            let (taken, refused) = (status.loads - self.loads, status.refused - self.refused);
            stats.add(Stat::ConfigLoadSuccess, taken);
            stats.add(Stat::RuntimeLoadAttempts, taken + refused);
            let is_unread = |error: &Arc<Refused>| matches!(error.why, Why::Source(_));
            if status.last_error.as_ref().is_some_and(is_unread) {
                stats.add(Stat::RuntimeLoadFailures, refused);
            } else {
                stats.add(Stat::ConfigLoadError, refused);
            }
        }
        (self.loads, self.refused) = (status.loads, status.refused);
    }
}

/// What admin shows.
pub(super) fn loads(published: &watch::Receiver<Published>) -> Loads {
    let Published { status, .. } = published.borrow().clone();
    Loads {
        loads: status.loads,
        refused: status.refused,
        loaded_at: status.loaded_at,
        files: status.files.to_vec(),
        warnings: status.warnings.iter().map(json).collect(),
        last_error: status.last_error.as_deref().map(last_error),
    }
}

fn last_error(refused: &Refused) -> LastError {
    let diagnostics = match &refused.why {
        Why::Diagnostics(found) => found.iter().map(json).collect(),
        why => vec![json!({"severity": "error", "message": sentence(why)})],
    };
    LastError { at: refused.at, diagnostics }
}

fn json(diagnostic: &Diagnostic) -> Value {
    serde_json::to_value(diagnostic).unwrap_or_default()
}

/// The refusal of a load, as a person reads it.
pub(super) fn in_words(refused: &Refused) -> String {
    match &refused.why {
        Why::Diagnostics(found) => {
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
        why => sentence(why),
    }
}

fn sentence(why: &Why) -> String {
    match why {
        Why::Source(error) => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
        Why::Diagnostics(found) => format!("{} findings", found.len()),
        Why::Words(words) => words.clone(),
        Why::Broke => "the loader broke, which is a defect of this program".to_owned(),
    }
}
