//! Loads limits from the source into the engine, and reports the loads on the admin port.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::diagnostic::{Code, Counts, Diagnostic, Diagnostics, Findings};
use crate::config::hooks::{Hook, Hooks};
use crate::config::raw::source;
use crate::config::settings::{Address, CounterKeys, Settings};
use crate::config::{Config, Limit, Mode, Window, load};
use crate::edge::health::{Health, Ready};
use crate::edge::http::admin::{LastError, Loads};
use crate::engine::Engine;
use crate::kernel::rate::Strategy;
use crate::source::file::{self, Options, Tree};
use crate::source::xds;
use crate::source::{Load, Published, Refused, Source, TextFile, Why};
use crate::telemetry::event;
use crate::telemetry::stats::{Stat, Stats};

use super::drain::Ends;
use super::waiting;

/// Starts the source. For files, the first load has finished when this returns.
///
/// # Errors
/// The xDS headers are invalid.
pub(super) async fn watch(settings: &Settings, engine: &Arc<Engine>) -> Result<Source, String> {
    let merge_domains = settings.merge_domains;
    let shared_keys = settings.counter_keys == CounterKeys::Envoyproxy;
    let loader: Arc<Load> = Arc::new(move |texts, revision| {
        let named = texts.iter().map(|text| (&*text.name, text.bytes.as_slice()));
        let (config, found) = load(named, revision, merge_domains)?;
        if shared_keys {
            let refused = not_leased(&config, texts);
            if !refused.is_empty() {
                return Err(refused);
            }
        }
        Ok((config, found.without_notes()))
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
    /// Waits for the first limits, and answers probes at `http`
    /// meanwhile. Returns `false` if a signal arrives first.
    pub(super) async fn is_first_here(
        &mut self,
        http: Option<&TcpListener>,
        ends: &mut Ends,
    ) -> bool {
        tracing::info!("waiting for the first limits of the management server");
        tokio::select! {
            never = waiting::say_alive(http) => match never {},
            _ = ends.next() => false,
            first = self.published.wait_for(|published| published.config.is_some()) => first.is_ok(),
        }
    }
}

/// Finds leased limits that conflict with `counter_keys: envoyproxy`.
/// envoyproxy/ratelimit uses the same counters, and ignores leases.
fn not_leased(config: &Config, texts: &[TextFile]) -> Diagnostics {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let mut lines: BTreeMap<&str, Vec<(usize, &str)>> = BTreeMap::new();
    for rule in rules.filter(|rule| rule.limit.as_ref().is_some_and(is_shared_and_leased)) {
        if let Some((file, line)) = rule.place.rsplit_once(':') {
            lines.entry(file).or_default().push((line.parse().unwrap_or(1), &rule.path));
        }
    }
    let mut refused = Diagnostics::default();
    for text in texts {
        if let Some(lines) = lines.get(&*text.name) {
            refused.append(refusals(text, lines));
        }
    }
    refused
}

fn is_shared_and_leased(limit: &Limit) -> bool {
    let is_leased = matches!(limit.mode, Mode::Leased(_));
    let is_shared = matches!(limit.strategy, Strategy::FixedWindow(_));
    is_leased && is_shared && matches!(limit.window, Window::Unit(_))
}

fn refusals(text: &TextFile, lines: &[(usize, &str)]) -> Diagnostics {
    let (source, mut findings) = (source(&text.name, &text.bytes), Findings::default());
    for (line, path) in lines {
        let message = format!(
            "`{path}` has `mode: leased` while `counter_keys` is `envoyproxy`, whose counters are asked for each hit"
        );
        let help = "`mode: strict` or `cached_deny`; another strategy, or `per`, may be leased";
        findings.add_with_help(Code::Contradiction, source.line_span(*line), message, help);
    }
    findings.into_diagnostics(&source)
}

const MOST_NAMED: usize = 8;

/// Applies each accepted load before admin shows it. A
/// client that sees a load on admin is limited by that load.
pub(super) struct Follower {
    published: watch::Receiver<Published>,
    engine: Arc<Engine>,
    /// Set if readiness requires limits. A configuration without domains does not satisfy it.
    judged: Option<Health>,
    hooks: Hooks,
    /// The hooks with unknown domains, as last logged.
    astray: Vec<Hook>,
    shown: watch::Sender<Published>,
    counted: Counted,
}

impl Follower {
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

    pub(super) fn shown(&self) -> watch::Receiver<Published> {
        self.shown.subscribe()
    }

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

    /// Warns about hooks with unknown domains. Their checks match no limit.
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

fn named(config: &Config) -> String {
    let mut names: Vec<&str> = config.domains.keys().map(|name| &**name).collect();
    names.sort_unstable();
    names.truncate(MOST_NAMED);
    names.join(", ")
}

/// The loads that metrics already include.
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

pub(super) fn loads(published: &watch::Receiver<Published>) -> Loads {
    let Published { status, .. } = published.borrow().clone();
    Loads {
        loads: status.loads,
        refused: status.refused,
        loaded_at: status.loaded_at,
        files: status.files.to_vec(),
        warnings: status.warnings.iter().map(json).collect(),
        more_warnings: status.warnings.more().warnings,
        last_error: status.last_error.as_deref().map(last_error),
    }
}

fn last_error(refused: &Refused) -> LastError {
    let (diagnostics, more) = match &refused.why {
        Why::Diagnostics(found) => (found.iter().map(json).collect(), found.more()),
        why => (vec![json!({"severity": "error", "message": sentence(why)})], Counts::default()),
    };
    LastError { at: refused.at, diagnostics, more }
}

fn json(diagnostic: &Diagnostic) -> Value {
    serde_json::to_value(diagnostic).unwrap_or_default()
}

pub(super) fn in_words(refused: &Refused) -> String {
    match &refused.why {
        Why::Diagnostics(found) => found.to_string(),
        why => sentence(why),
    }
}

fn sentence(why: &Why) -> String {
    match why {
        Why::Source(error) => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
        Why::Diagnostics(found) => format!("{} findings", found.counts().sum()),
        Why::Words(words) => words.clone(),
        Why::Broke => "the loader broke, which is a defect of this program".to_owned(),
    }
}
