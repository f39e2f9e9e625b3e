//! Connects the engine's events with their delivery.

use std::sync::Arc;
use std::time::Duration;

use super::store::replica_name;
use super::tasks::ServiceTasks;
use crate::config::settings::{HttpUrl, Settings};
use crate::engine::events::EventOptions;
use crate::engine::{Engine, Membership};
use crate::telemetry::cloud_events::{EventDelivery, EventDrain, EventQueue, WebhookOptions};

/// The timeout for delivering events at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The delivery of events, which starts after the engine is complete.
pub(super) struct EventSetup {
    queue: Arc<EventQueue>,
    delivery: EventDelivery,
}

/// The running delivery; `None` if events are off.
pub(super) struct RunningEvents(Option<EventDrain>);

/// Lets the engine send events if `events.url` is set.
///
/// # Errors
/// A file of the settings is not usable.
pub(super) fn with_events(
    settings: &Settings,
    engine: Engine,
) -> Result<(Engine, Option<EventSetup>), String> {
    let Some(url) = &settings.events.url else { return Ok((engine, None)) };
    let (queue, delivery) =
        EventDelivery::new(webhook_options(settings, url)).map_err(|error| error.to_string())?;
    let member = engine.membership().map(Membership::replica_name).map(str::to_owned);
    let options = EventOptions {
        queue: Arc::clone(&queue),
        kinds: settings.events.kinds,
        near_limit: settings.telemetry.near_limit,
        descriptor_values: settings.telemetry.descriptor_values,
        shadow_mode: settings.answers.shadow_mode,
        replica: member.unwrap_or_else(|| replica_name(settings)),
    };
    Ok((engine.with_events(options), Some(EventSetup { queue, delivery })))
}

fn webhook_options(settings: &Settings, url: &HttpUrl) -> WebhookOptions {
    WebhookOptions {
        url: url.as_str().to_owned(),
        shown_url: url.to_string(),
        source: settings.events.source.clone(),
        secret_file: settings.events.secret_file.clone(),
        ca_file: settings.events.ca_file.clone(),
    }
}

/// Starts the delivery, and the watch over the store and the shares.
pub(super) fn start(
    setup: Option<EventSetup>,
    engine: &Arc<Engine>,
    parts: &mut ServiceTasks,
) -> RunningEvents {
    let Some(EventSetup { queue, delivery }) = setup else { return RunningEvents(None) };
    let (watched, timed) = (Arc::clone(engine), Arc::clone(engine));
    parts.spawn_background(async move { watched.watch_incidents().await });
    RunningEvents(Some(delivery.start(queue, Arc::new(move || timed.clock().now()))))
}

impl RunningEvents {
    /// Delivers the queued events for at most [`DRAIN_TIMEOUT`].
    pub(super) async fn drain(self) {
        if let Some(events) = self.0 {
            events.finish(DRAIN_TIMEOUT).await;
        }
    }
}
