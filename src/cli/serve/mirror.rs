//! Creates the mirror, which sends a sample of checks to another rate limit service.

use std::sync::Arc;

use super::tasks::ServiceTasks;
use crate::config::settings::Settings;
use crate::edge::mirror::{CALL_TIMEOUT, Mirror, MirrorOptions};
use crate::engine::Engine;
use crate::source::xds;

/// Starts the mirror if `mirror.to` is set.
///
/// # Errors
/// The address is not usable.
pub(super) fn start(
    settings: &Settings,
    engine: &Arc<Engine>,
    parts: &mut ServiceTasks,
) -> Result<Option<Mirror>, String> {
    let Some(to) = &settings.mirror.to else { return Ok(None) };
    let tls = &settings.mirror.tls;
    let tls = xds::XdsTls {
        ca_file: tls.ca_file.clone(),
        trust_system_cas: false,
        client_identity: tls.cert_file.clone().zip(tls.key_file.clone()),
        server_name: tls.server_name.as_ref().map(|name| name.as_str().to_owned()),
    };
    let tls = settings.mirror.use_tls.then_some(tls);
    let server = xds::XdsServer { host: to.host.clone(), port: to.port, tls };
    let channel = xds::connect_lazily(&server)
        .map_err(|error| format!("{server}: {error} (setting mirror.to)"))?;
    let options = MirrorOptions {
        to: server.to_string(),
        sample: settings.mirror.sample,
        channel,
        call_timeout: CALL_TIMEOUT,
    };
    let (mirror, worker) = Mirror::new(options, Arc::clone(engine));
    parts.spawn_background(worker.run());
    Ok(Some(mirror))
}
