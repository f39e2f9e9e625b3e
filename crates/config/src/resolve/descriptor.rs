//! Adds one descriptor to the tree of its domain, with its rate limits, its concurrency limit and
//! its budget.
//!
//! Guarantees:
//! - A descriptor that cannot be added is validated too, and so are its children.
//!
//! Not covered:
//! - The fields of a limit (see [`super::rate_limit_block`] and [`super::concurrency_block`]).
//! - Budgets (see [`super::domain_budgets`]).

use std::sync::Arc;

use super::concurrency_block::ConcurrencyReader;
use super::domain::DomainReader;
use super::findings::FileSpan;
use super::from_table::FromFields;
use super::network_field::{InvalidNetwork, NetworkReader};
use super::overshoot;
use super::pace_block::PaceReader;
use super::rate_limit_block::RateLimitReader;
use super::rate_limit_list::{RateLimitListReader, limit_name};
use crate::diagnostic::{Code, Span, Spanned};
use crate::raw::{self, Descriptor};
use crate::tree::builder::AddNodeError;
use crate::tree::{NodeFlags, NodeId};
use crate::{Rule, RuleLimits, RuleNumber, lint};

impl DomainReader<'_, '_, '_> {
    /// Adds a descriptor to the tree and validates it. A descriptor that cannot be added becomes a
    /// node that lookups do not find, so that its children are validated too.
    pub(super) fn add_descriptor(
        &mut self,
        file: usize,
        parent: NodeId,
        raw: &Descriptor,
    ) -> NodeId {
        let key = FileSpan { file, span: key_span(raw) };
        let node = self.add_node(parent, raw, key);
        self.origins.push(key);
        self.check_share_threshold(file, raw);
        lint::lint_descriptor(raw, key, self.findings);
        if let Some(concurrency) = &raw.concurrency {
            self.add_concurrency_limit(file, node, raw, concurrency);
        }
        if let Some(budget) = &raw.budget {
            self.add_budget(file, node, raw, budget);
        }
        if let Some(list) = &raw.rate_limits {
            self.add_rule_with_list(file, node, raw, list);
        } else if let Some(rate_limit) = &raw.rate_limit {
            match rate_limit.pace_field() {
                Some(_) => self.add_pace(file, node, raw, rate_limit),
                None => self.add_rule(file, node, raw, rate_limit),
            }
        }
        node
    }

    fn add_node(&mut self, parent: NodeId, raw: &Descriptor, key: FileSpan) -> NodeId {
        let (share_threshold, value_to_metric) = (raw.share_threshold.value, raw.value_to_metric);
        let flags = NodeFlags { share_threshold, value_to_metric };
        let name = (raw.key.value.as_str(), raw.value.value.as_str());
        if raw.key.value.is_empty() && raw.is_incomplete {
            return self.builder.add_hidden(parent, name, flags);
        }
        if raw.key.value.is_empty() {
            let message = "the descriptor has no key".to_owned();
            let fix = "add `key: NAME`, the key of the entry that Envoy sends".to_owned();
            self.findings.add(Code::EmptyKey, key, message, fix);
            return self.builder.add_hidden(parent, name, flags);
        }
        let reader = NetworkReader { file: key.file, raw, findings: self.findings };
        let added = match reader.read() {
            Ok(Some(network)) => self.builder.add_network(parent, name.0, network, flags),
            Ok(None) => self.builder.add(parent, name, flags),
            Err(InvalidNetwork) => return self.builder.add_hidden(parent, hidden_name(raw), flags),
        };
        match added {
            Ok(node) => node,
            Err(refused) => {
                let node = self.builder.add_hidden(parent, hidden_name(raw), flags);
                if !raw.is_incomplete {
                    self.report_add_error(refused, node, raw, key);
                }
                node
            }
        }
    }

    fn report_add_error(
        &mut self,
        error: AddNodeError,
        node: NodeId,
        raw: &Descriptor,
        key: FileSpan,
    ) {
        let AddNodeError::Duplicate(first) = error else {
            let message = "the domain has too many descriptors".to_owned();
            self.findings.add(Code::TooMany, key, message, "split it into several domains");
            return;
        };
        if self.findings.count_if_full(Code::DuplicateDescriptor, key) {
            return;
        }
        let path = self.builder.path(self.group.domain, node);
        let place = self.findings.first_place(self.origins[first.index()], key);
        let message = format!("duplicate descriptor composite key `{path}`{place}");
        let tree = self.builder.tree();
        let has_limit = raw.rate_limit.is_some() || raw.rate_limits.is_some();
        let has_two_limits = has_limit && tree.rule(first).is_some();
        let help = if raw.network.is_some() {
            "write each network once on a level"
        } else if tree.key_and_value(first) != tree.key_and_value(node) {
            "rename a key: key and value are joined by `_`, then compared"
        } else if has_two_limits {
            raw::TWO_LIMITS_FIX
        } else {
            "merge the two descriptors"
        };
        self.findings.add(Code::DuplicateDescriptor, key, message, help.to_owned());
    }

    fn check_share_threshold(&mut self, file: usize, raw: &Descriptor) {
        let (key, value) = (&raw.key.value, &raw.value.value);
        let has_pattern = key.contains('*') || value.contains('*');
        if !raw.share_threshold.value || has_pattern || raw.is_incomplete {
            return;
        }
        let name = if value.is_empty() { key.clone() } else { format!("{key}_{value}") };
        let message = format!("`share_threshold` needs a `*` in the value, but `{name}` has none");
        let fix = match raw.network {
            Some(_) => "write `counter_per: network` for one counter of all addresses",
            None => "remove it, or add a `*` to the value",
        };
        let at = FileSpan { file, span: raw.share_threshold.span };
        self.findings.add(Code::ShareWithoutWildcard, at, message, fix);
    }

    fn add_rule(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        rate_limit: &raw::RateLimit,
    ) {
        let own_name = rate_limit.name.value.clone();
        let replaces = self.replaces(file, std::slice::from_ref(rate_limit), &[own_name]);
        let defaults = self.defaults;
        let block = RateLimitReader { file, raw: rate_limit, defaults, findings: self.findings };
        if let Ok(mut limit) = block.read() {
            let from = self.rate_column(file, node, rate_limit);
            if let Some(limit) = &mut limit {
                limit.from = from;
            }
            let name = Some(rate_limit.name.value.as_str()).filter(|name| !name.is_empty());
            let limits = limit.into_iter().collect();
            self.set_rule(node, raw, (name.map(Arc::from), limits), replaces);
        }
    }

    fn add_rule_with_list(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        list: &Spanned<Vec<raw::RateLimit>>,
    ) {
        let own_names: Vec<_> = list.value.iter().map(limit_name).collect();
        let replaces = self.replaces(file, &list.value, &own_names);
        let (descriptor, charge, defaults) = (raw, self.charge, self.defaults);
        let findings = &mut *self.findings;
        let reader = RateLimitListReader { file, descriptor, list, charge, defaults, findings };
        if let Ok(mut limits) = reader.read() {
            for (limit, raw) in limits.iter_mut().zip(&list.value) {
                limit.from = self.rate_column(file, node, raw);
            }
            self.set_rule(node, raw, (None, limits), replaces);
        }
    }

    fn note_lease_forecasts(&mut self, node: NodeId, limits: &RuleLimits) {
        for (expected_calls, bound) in limits.iter().filter_map(overshoot::forecast) {
            let at = self.origins[node.index()];
            self.findings.add(Code::LeaseForecast, at, expected_calls, bound);
        }
    }

    fn add_concurrency_limit(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        concurrency: &raw::Concurrency,
    ) {
        let reader = ConcurrencyReader {
            file,
            raw: concurrency,
            default_fallback: self.defaults.on_store_failure,
            shadow: raw.shadow_mode,
            path: self.builder.path(self.group.domain, node).into(),
            location: self.findings.line(self.origins[node.index()]).into(),
            findings: self.findings,
        };
        if let Some(mut limit) = reader.read() {
            let from = FromFields { from: concurrency.from.as_ref(), by: concurrency.by.as_ref() };
            limit.from = self.table_column(file, node, &from);
            self.builder.set_concurrency_limit(node, limit);
        }
    }

    /// Adds a rate limit with a pace, which is enforced in the place of a concurrency limit.
    fn add_pace(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        rate_limit: &raw::RateLimit,
    ) {
        let reader = PaceReader {
            file,
            raw: rate_limit,
            shadow: raw.shadow_mode,
            path: self.builder.path(self.group.domain, node).into(),
            location: self.findings.line(self.origins[node.index()]).into(),
            findings: self.findings,
        };
        let limit = reader.read();
        if let (Some((field, span)), Some(_)) = (rate_limit.pace_field(), &raw.concurrency) {
            let fix = "put the two limits into two rules, with a descriptor for each in the proxy";
            let at = FileSpan { file, span };
            self.findings.contradict(at, field, "concurrency", fix);
        } else if let Some(mut limit) = limit {
            let from = FromFields { from: rate_limit.from.as_ref(), by: rate_limit.by.as_ref() };
            limit.from = self.table_column(file, node, &from);
            self.builder.set_concurrency_limit(node, limit);
        }
    }

    /// Returns the names in `replaces` of all limits of a descriptor.
    fn replaces(
        &mut self,
        file: usize,
        limits: &[raw::RateLimit],
        own_names: &[String],
    ) -> Box<[Arc<str>]> {
        let replaces = || limits.iter().flat_map(|limit| &limit.replaces);
        for name in replaces() {
            let at = FileSpan { file, span: name.span };
            if name.value.is_empty() && self.files[file].0.is_incomplete {
                continue;
            }
            if name.value.is_empty() {
                let message = "an item of `replaces` has no name".to_owned();
                let fix = "write `- name: NAME` with the name of another rule".to_owned();
                self.findings.add(Code::EmptyReplaces, at, message, fix);
            } else if own_names.contains(&name.value) {
                let message = format!("`replaces` contains the rule's own name `{}`", name.value);
                let fix = "remove it: a rule cannot replace itself".to_owned();
                self.findings.add(Code::ReplacesItself, at, message, fix);
            }
        }
        let names =
            replaces().map(|name| (FileSpan { file, span: name.span }, name.value.as_str().into()));
        let first = self.replaces.len();
        self.replaces.extend(names);
        self.replaces[first..].iter().map(|(_, name)| Arc::clone(name)).collect()
    }

    fn set_rule(
        &mut self,
        node: NodeId,
        raw: &Descriptor,
        (name, limits): (Option<Arc<str>>, RuleLimits),
        replaces: Box<[Arc<str>]>,
    ) {
        self.note_lease_forecasts(node, &limits);
        let rule = Rule {
            number: RuleNumber::default(),
            limits,
            name,
            replaces,
            shadow: raw.shadow_mode,
            quota: raw.quota_mode,
            detailed_metric: raw.detailed_metric,
            metadata: raw.metadata.as_ref().map(|metadata| Arc::new(metadata.value.clone())),
            path: self.builder.path(self.group.domain, node).into(),
            location: self.findings.line(self.origins[node.index()]).into(),
            forced_decision: None,
            key_actions: Vec::new(),
        };
        self.builder.set_rule(node, rule);
    }
}

/// Returns the position of the descriptor's key, or of the whole descriptor if it has no key.
fn key_span(raw: &Descriptor) -> Span {
    let Spanned { span, .. } = raw.key;
    if span.end == 0 { raw.span } else { span }
}

/// Returns the key and the value, or else the network, of a descriptor for messages. An invalid
/// network stays as it is in the file.
fn hidden_name(raw: &Descriptor) -> (&str, &str) {
    let network = raw.network.as_ref().map_or("", |network| network.value.as_str());
    let value = raw.value.value.as_str();
    (raw.key.value.as_str(), if value.is_empty() { network } else { value })
}
