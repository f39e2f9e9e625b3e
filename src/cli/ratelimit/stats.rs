//! Reads the environment variables of envoyproxy/ratelimit for statistics: StatsD, DogStatsD,
//! Prometheus or the log.

use super::env_reader::EnvReader;
use super::parse::{VariableKind, VariableValue, parse_variable};
use crate::config::settings::{Absent, Mogrifier, Mogrifiers, StatsSink, Value as _, Word as _};

pub(super) fn read(reader: &mut EnvReader<'_>) {
    let [statsd, dogstatsd, prometheus] =
        ["USE_STATSD", "USE_DOG_STATSD", "USE_PROMETHEUS"].map(|variable| reader.flag(variable));
    // Conflicting `USE_*` variables are no error if Sluicegate's own settings select the sink.
    let are_sinks_from_environment = !["compat.stats.sink", "listen.metrics_port"]
        .iter()
        .any(|setting| reader.is_setting_overridden(setting));
    let (variable, sink) = match () {
        () if reader.flag("DISABLE_STATS") => return disable_stats(reader),
        () if are_sinks_from_environment && dogstatsd && (statsd || prometheus) => {
            let why = "excludes USE_STATSD, which is true by default, and USE_PROMETHEUS: set both \
                       to false";
            return reader.add_error("USE_DOG_STATSD", why);
        }
        () if are_sinks_from_environment && prometheus && statsd => {
            let why = "excludes USE_STATSD, which is true by default: set USE_STATSD to false";
            return reader.add_error("USE_PROMETHEUS", why);
        }
        () if dogstatsd => ("USE_DOG_STATSD", "dogstatsd"),
        () if prometheus => ("USE_PROMETHEUS", "none"),
        () if statsd && reader.text("STATSD_PROTOCOL") == "udp" => {
            ("STATSD_PROTOCOL", StatsSink::StatsdUdp.word())
        }
        () if statsd => ("USE_STATSD", "statsd"),
        () => ("USE_STATSD", "log"),
    };
    reader.put(variable, "compat.stats.sink", sink.to_owned());
    reader.put_flag("SANITIZE_DESCRIPTOR_METRIC_DOTS", "compat.stats.replace_dots");
    if prometheus {
        read_prometheus(reader);
    } else {
        reader.put("USE_PROMETHEUS", "listen.metrics_port", Absent::WORD.to_owned());
    }
    if reader.is_setting_overridden("compat.stats.sink") {
        // The selected sink is unknown here, so this reads the variables of both. Settings of the
        // other sink have no effect.
        read_sinks(reader, &["statsd", "dogstatsd"]);
    } else if sink != "none" {
        read_sinks(reader, &[sink]);
    }
}

fn disable_stats(reader: &mut EnvReader<'_>) {
    reader.put("DISABLE_STATS", "compat.stats.sink", "none".to_owned());
    reader.put("DISABLE_STATS", "listen.metrics_port", Absent::WORD.to_owned());
}

fn read_prometheus(reader: &mut EnvReader<'_>) {
    reader.put("USE_PROMETHEUS", "compat.metrics.names", "all".to_owned());
    let address = reader.text("PROMETHEUS_ADDR").to_owned();
    match address.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()) {
        Some((host, port)) => {
            reader.put_host("PROMETHEUS_ADDR", "compat.listen.metrics_host", host);
            reader.put("PROMETHEUS_ADDR", "listen.metrics_port", port.to_owned());
        }
        None => reader.add_error("PROMETHEUS_ADDR", "must be host:port or :port"),
    }
    if reader.text("PROMETHEUS_PATH").starts_with('/') {
        reader.put_text("PROMETHEUS_PATH", "compat.metrics.path");
    } else {
        reader.add_error("PROMETHEUS_PATH", "must be a path that begins with `/`");
    }
    reader.put_text("PROMETHEUS_MAPPER_YAML", "compat.metrics.mapping");
    reader.put_flag("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "compat.metrics.milliseconds");
    if reader.is_setting_overridden("compat.stats.sink") {
        return;
    }
    let why = "no effect: USE_PROMETHEUS is true, so Prometheus scrapes the metrics";
    reader.note_unused(
        &["STATSD_HOST", "STATSD_PORT", "STATSD_PROTOCOL", "STATS_FLUSH_INTERVAL"],
        why,
    );
    let why = "no effect: USE_PROMETHEUS is true, so set the labels of the target in Prometheus";
    reader.note_unused(&["EXTRA_TAGS"], why);
}

fn read_sinks(reader: &mut EnvReader<'_>, sinks: &[&str]) {
    let interval = reader.nanos("STATS_FLUSH_INTERVAL");
    if interval == 0 {
        reader.add_error("STATS_FLUSH_INTERVAL", "must be longer than 0");
    }
    reader.put_nanos("STATS_FLUSH_INTERVAL", "compat.stats.interval");
    let tags = reader.map("EXTRA_TAGS");
    let tags: Vec<_> =
        tags.into_iter().filter(|(name, text)| !name.is_empty() && !text.is_empty()).collect();
    reader.put_pairs("EXTRA_TAGS", "compat.stats.tags", &tags);
    if sinks == ["log"] {
        return;
    }
    let host = reader.text("STATSD_HOST");
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    match u16::try_from(reader.int("STATSD_PORT")) {
        Ok(port @ 1..) => {
            reader.put("STATSD_HOST", "compat.stats.address", format!("{host}:{port}"));
        }
        _ => reader.add_error("STATSD_PORT", "must be a port from 1 to 65535"),
    }
    if sinks.contains(&"dogstatsd") {
        read_mogrifiers(reader);
    }
}

fn read_mogrifiers(reader: &mut EnvReader<'_>) {
    if reader.is_setting_overridden("compat.stats.mogrifiers") {
        return;
    }
    let mut rules = Vec::new();
    for name in reader.list("USE_DOG_STATSD_MOGRIFIERS") {
        match read_mogrifier(reader, &name) {
            Ok(rule) => rules.push(rule),
            Err((variable, why)) => reader.add_error(&variable, &why),
        }
    }
    let text = Mogrifiers(rules).show();
    reader.put("USE_DOG_STATSD_MOGRIFIERS", "compat.stats.mogrifiers", text);
}

fn read_mogrifier(reader: &EnvReader<'_>, name: &str) -> Result<Mogrifier, (String, String)> {
    let variable = |part: &str| format!("DOG_STATSD_MOGRIFIER_{name}_{part}");
    let text = |part: &str| match reader.raw(&variable(part)) {
        "" => Err((variable(part), "must not be empty".to_owned())),
        text => Ok(text.to_owned()),
    };
    let (pattern, name) = (text("PATTERN")?, text("NAME")?);
    if let Err(error) = regex::Regex::new(&pattern) {
        return Err((variable("PATTERN"), format!("is not a regular expression: {error}")));
    }
    let Some(VariableValue::Map(tags)) =
        parse_variable(VariableKind::Map, reader.raw(&variable("TAGS")))
    else {
        return Err((variable("TAGS"), format!("must be {}", VariableKind::Map.accepts())));
    };
    if tags.iter().any(|(name, text)| name.is_empty() || text.is_empty()) {
        return Err((variable("TAGS"), "must not contain empty names or values".to_owned()));
    }
    Ok(Mogrifier { pattern, name, tags })
}
