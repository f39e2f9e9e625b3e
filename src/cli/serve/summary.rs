//! The lines that `serve` prints before it is ready: ports, store and domains.

use crate::cli::Terminal;
use crate::config::settings::{Settings, StoreUrl};
use crate::edge::http::admin::AdminAccess;
use crate::source::PublishedConfig;

use super::connections;
use super::listeners::Listeners;

/// The maximum number of domains in the startup output: one screen.
const MAX_DOMAINS_PRINTED: usize = 20;

pub(super) fn print_summary(
    settings: &Settings,
    (listeners, access): (&Listeners, &AdminAccess),
    first: &PublishedConfig,
    terminal: &mut Terminal<'_>,
) -> std::io::Result<()> {
    let console = connections::console_line(settings, access, listeners.admin.local_addr().ok());
    for line in listeners.summary_lines().into_iter().chain(console) {
        writeln!(terminal.out, "{line}")?;
    }
    if let StoreUrl::File(_) | StoreUrl::Postgres(_) = &settings.store.url {
        writeln!(terminal.out, "counters in {}", settings.store.url)?;
    }
    if let StoreUrl::Redis(url) = &settings.store.url {
        writeln!(terminal.out, "counters in {url}")?;
        if let Some(url) = &settings.compat.store.per_second_url {
            writeln!(terminal.out, "counters of limits per second in {url}")?;
        }
    }
    let Some(config) = &first.config else {
        return writeln!(
            terminal.out,
            "no limits are loaded; see the log, or /config on the admin port"
        );
    };
    let mut domains: Vec<_> = config.domains.values().collect();
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    for domain in domains.iter().take(MAX_DOMAINS_PRINTED) {
        let tree = &domain.tree;
        let limits = count_text(tree.concurrency_limits().len(), "concurrency limit");
        let budgets = count_text(tree.budgets().len(), "budget");
        let rules = tree.rules().len();
        writeln!(terminal.out, "domain {}: {rules} rules{limits}{budgets}", domain.name)?;
    }
    if let more @ 1.. = domains.len().saturating_sub(MAX_DOMAINS_PRINTED) {
        writeln!(terminal.out, "and {more} more domains")?;
    }
    Ok(())
}

/// Returns `, 1 budget`, `, 2 budgets`, or nothing for 0.
fn count_text(count: usize, noun: &str) -> String {
    match count {
        0 => String::new(),
        1 => format!(", 1 {noun}"),
        some => format!(", {some} {noun}s"),
    }
}
