//! Converts parsed limits files to a [`Config`], or reports all their problems.
//!
//! Guarantees:
//! - Applies all rules of envoyproxy/ratelimit for valid files, within and across files.
//! - Reports all problems of all files; never returns a partial configuration.
//! - The cost is linear in the size of the files.
//! - No recursion, so deeply nested files are safe.

mod calendar_block;
mod concurrency_block;
pub(crate) mod duration;
pub(crate) mod findings;
pub(crate) mod keywords;
pub(crate) mod overshoot;
mod rate_limit_block;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::concurrency::ConcurrencyLimit;
use super::diagnostic::{Code, Diagnostics, SourceText, Span};
use super::lint::{self, ChargeSettings, DomainLint};
use super::raw::{self, Descriptor, File};
use super::tree::builder::{AddNodeError, TreeBuilder};
use super::tree::{NodeFlags, NodeId};
use super::{ChargePolicy, Config, Domain, Limit, Rule};
use crate::kernel::units::Revision;
use concurrency_block::ConcurrencyReader;
use findings::{FileFindings, FileSpan};
use rate_limit_block::{DomainDefaults, KeywordReader, RateLimitReader};

/// Converts `files` to a configuration and its warnings.
///
/// With `merge_domains`, several files may contain rules of one domain. Their `charge`, `colocate`
/// and `defaults` must be equal.
///
/// # Errors
/// Returns the errors and warnings of all files, by file and position.
pub fn resolve(
    files: &[(File, SourceText)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = FileFindings::new(files.iter().map(|(_, source)| source));
    let groups = group_by_domain(files, merge_domains, &mut findings);
    read_domains(files, revision, &groups, findings)
}

/// Validates the readable files if other files could not be parsed. With `merge_domains`, an
/// unreadable file may belong to any domain, so validations of whole domains are skipped.
pub(super) fn resolve_readable(
    files: &[(File, SourceText)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = FileFindings::new(files.iter().map(|(_, source)| source));
    let mut groups = group_by_domain(files, merge_domains, &mut findings);
    for group in &mut groups {
        group.is_complete = !merge_domains;
    }
    read_domains(files, revision, &groups, findings)
}

fn read_domains<'a>(
    files: &'a [(File, SourceText)],
    revision: Revision,
    groups: &[DomainFiles<'a>],
    mut findings: FileFindings<'a>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let domains = groups.iter().map(|group| DomainReader::new(files, group, &mut findings).read());
    let domains = domains.map(|domain| (domain.name.clone(), domain)).collect();
    let warnings = findings.finish()?;
    Ok((Config { revision, domains }, warnings))
}

struct DomainFiles<'r> {
    domain: &'r str,
    files: Vec<usize>,
    /// `false` if an unreadable file may belong to the domain.
    is_complete: bool,
}

/// Groups files by domain. Without `merge_domains`, reports a second file of a domain as an error,
/// and validates the file as a domain of its own.
fn group_by_domain<'r>(
    files: &'r [(File, SourceText)],
    merge_domains: bool,
    findings: &mut FileFindings<'_>,
) -> Vec<DomainFiles<'r>> {
    let mut groups: Vec<DomainFiles<'r>> = Vec::new();
    let mut group_by_name: HashMap<&str, usize> = HashMap::new();
    for (index, (file, _)) in files.iter().enumerate() {
        let domain = file.domain.value.as_str();
        let span = FileSpan { file: index, span: file.domain.span };
        if domain.is_empty() {
            let message = "a file may not have an empty domain".to_owned();
            let help = "put `domain: NAME` at its top, the domain that Envoy's filter asks for";
            findings.add(Code::EmptyDomain, span, message, help);
        } else if let Some(&group) = group_by_name.get(domain) {
            if merge_domains {
                groups[group].files.push(index);
                continue;
            }
            report_duplicate_domain(domain, span, groups[group].files[0], files, findings);
        } else {
            group_by_name.insert(domain, groups.len());
        }
        groups.push(DomainFiles { domain, files: vec![index], is_complete: true });
    }
    groups
}

fn report_duplicate_domain(
    domain: &str,
    span: FileSpan,
    first_file: usize,
    files: &[(File, SourceText)],
    findings: &mut FileFindings<'_>,
) {
    let first = FileSpan { file: first_file, span: files[first_file].0.domain.span };
    let message =
        format!("duplicate domain `{domain}`, first in {}", findings.format_position(first));
    let help = "put both into one file, or allow it with `merge_domains: true`";
    findings.add(Code::DuplicateDomain, span, message, help);
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeOrigin {
    pub(crate) key: FileSpan,
}

struct FileLevel<'r> {
    file: usize,
    parent: NodeId,
    descriptors: &'r [Descriptor],
}

struct DomainReader<'r, 'f, 'a> {
    files: &'r [(File, SourceText)],
    group: &'r DomainFiles<'r>,
    findings: &'f mut FileFindings<'a>,
    builder: TreeBuilder,
    /// The position of each node in the files, by the node's number.
    origins: Vec<NodeOrigin>,
    defaults: DomainDefaults,
    replaces: Vec<(FileSpan, Arc<str>)>,
}

impl<'r, 'f, 'a> DomainReader<'r, 'f, 'a> {
    fn new(
        files: &'r [(File, SourceText)],
        group: &'r DomainFiles<'r>,
        findings: &'f mut FileFindings<'a>,
    ) -> Self {
        let (builder, origins) = (TreeBuilder::new(), vec![NodeOrigin::default()]);
        Self {
            files,
            group,
            findings,
            builder,
            origins,
            defaults: DomainDefaults::default(),
            replaces: Vec::new(),
        }
    }

    fn read(mut self) -> Domain {
        let (charge, colocate) = (self.read_charge(), self.read_colocate());
        let default_overshoot = self.default_overshoot_span();
        self.defaults = self.read_defaults();
        let first_levels = self.group.files.iter().map(|&file| FileLevel {
            file,
            parent: NodeId::ROOT,
            descriptors: &self.files[file].0.descriptors,
        });
        let mut levels: VecDeque<FileLevel<'r>> = first_levels.collect();
        while let Some(level) = levels.pop_front() {
            for descriptor in level.descriptors {
                let node = self.add_descriptor(level.file, level.parent, descriptor);
                let (file, descriptors) = (level.file, &descriptor.descriptors);
                if !descriptors.is_empty() {
                    levels.push_back(FileLevel { file, parent: node, descriptors });
                }
            }
        }
        let tree = self.builder.finish();
        // Nodes that are missing in an incomplete tree would cause false warnings.
        if self.group.is_complete && !self.findings.has_errors() {
            DomainLint {
                tree: &tree,
                origins: &self.origins,
                replaces: &self.replaces,
                charge_settings: ChargeSettings { charge, colocate: colocate.as_ref() },
                default_overshoot,
                findings: self.findings,
            }
            .run();
        }
        Domain {
            name: self.group.domain.into(),
            charge: charge.map(|(charge, _)| charge).unwrap_or_default(),
            colocate: colocate.map(|(key, _)| key),
            on_backend_failure: self.defaults.on_backend_failure,
            tree,
        }
    }

    fn read_charge(&mut self) -> Option<(ChargePolicy, FileSpan)> {
        self.read_agreed("charge", |file, index, findings| {
            let value = file.charge.as_ref()?;
            let mut reader = KeywordReader { file: index, findings };
            let charge = reader.read("charge", keywords::CHARGE_POLICIES, Some(value))?;
            Some((charge, value.span))
        })
    }

    fn read_colocate(&mut self) -> Option<(Box<str>, FileSpan)> {
        self.read_agreed("colocate", |file, _, _| {
            let key = file.colocate.as_ref().filter(|key| !key.value.is_empty())?;
            Some((key.value.as_str().into(), key.span))
        })
    }

    fn read_defaults(&mut self) -> DomainDefaults {
        let defaults = self.read_agreed("defaults", |file, index, findings| {
            let raw = file.defaults.as_ref()?;
            Some((rate_limit_block::read_defaults(raw, index, findings), raw.span))
        });
        match defaults {
            Some((defaults, _)) => defaults,
            None if self.group.is_complete => DomainDefaults::default(),
            None => DomainDefaults::unknown(),
        }
    }

    fn default_overshoot_span(&self) -> Option<FileSpan> {
        self.group.files.iter().find_map(|&file| {
            let value = self.files[file].0.defaults.as_ref()?.max_overshoot.as_ref()?;
            Some(FileSpan { file, span: value.span })
        })
    }

    /// Reads a field, and its first position. The field must be equal in all files of the domain.
    fn read_agreed<T: PartialEq>(
        &mut self,
        field: &str,
        read: impl Fn(&File, usize, &mut FileFindings<'a>) -> Option<(T, Span)>,
    ) -> Option<(T, FileSpan)> {
        let mut agreed: Option<(T, FileSpan)> = None;
        for &file in &self.group.files {
            let Some((value, span)) = read(&self.files[file].0, file, self.findings) else {
                continue;
            };
            let span = FileSpan { file, span };
            match &agreed {
                Some((first_value, first_span)) if *first_value != value => {
                    self.report_disagreement(field, span, *first_span);
                }
                _ => agreed = Some((value, span)),
            }
        }
        agreed
    }

    fn report_disagreement(&mut self, field: &str, span: FileSpan, first: FileSpan) {
        let first = self.findings.format_position(first);
        let message = format!("`{field}` of one domain differs from that in {first}");
        let help = "merged files are one domain: say it once, or the same in each";
        self.findings.add(Code::Contradiction, span, message, help);
    }

    fn add_descriptor(&mut self, file: usize, parent: NodeId, raw: &Descriptor) -> NodeId {
        let key = FileSpan { file, span: key_span(raw) };
        let node = self.add_node(parent, raw, key);
        self.origins.push(NodeOrigin { key });
        self.check_share_threshold(file, raw);
        lint::lint_descriptor(raw, key, self.findings);
        if let Some(concurrency) = &raw.concurrency {
            self.add_concurrency_limit(file, node, raw, concurrency);
        }
        if let Some(rate_limit) = &raw.rate_limit {
            self.add_rule(file, node, raw, rate_limit);
        }
        node
    }

    /// Adds a node. An invalid descriptor becomes a hidden node, so that its children are
    /// validated.
    fn add_node(&mut self, parent: NodeId, raw: &Descriptor, key: FileSpan) -> NodeId {
        let (share_threshold, value_to_metric) = (raw.share_threshold.value, raw.value_to_metric);
        let flags = NodeFlags { share_threshold, value_to_metric };
        let name = (raw.key.value.as_str(), raw.value.value.as_str());
        if raw.key.value.is_empty() {
            let message = "descriptor has an empty key".to_owned();
            let help = "put `key: NAME`, the key that Envoy's action sends";
            self.findings.add(Code::EmptyKey, key, message, help);
            return self.builder.add_hidden(parent, name, flags);
        }
        match self.builder.add(parent, name, flags) {
            Ok(node) => node,
            Err(error) => {
                let node = self.builder.add_hidden(parent, name, flags);
                self.report_add_error(error, node, key);
                node
            }
        }
    }

    fn report_add_error(&mut self, error: AddNodeError, node: NodeId, key: FileSpan) {
        let AddNodeError::Duplicate(first) = error else {
            let message = "this domain has more descriptors than can be numbered".to_owned();
            self.findings.add(Code::TooMany, key, message, "split it into several domains");
            return;
        };
        if self.findings.count_if_full(Code::DuplicateDescriptor, key) {
            return;
        }
        let path = self.builder.path(self.group.domain, node);
        let place = self.findings.format_position(self.origins[first.index()].key);
        let message = format!("duplicate descriptor composite key `{path}`, first in {place}");
        let tree = self.builder.tree();
        let help = if tree.key_and_value(first) == tree.key_and_value(node) {
            "put both into one descriptor"
        } else {
            "key and value are joined by `_`, so that these two are one: rename a key"
        };
        self.findings.add(Code::DuplicateDescriptor, key, message, help);
    }

    fn check_share_threshold(&mut self, file: usize, raw: &Descriptor) {
        let (key, value) = (&raw.key.value, &raw.value.value);
        if !raw.share_threshold.value || key.contains('*') || value.contains('*') {
            return;
        }
        let name = if value.is_empty() { key.clone() } else { format!("{key}_{value}") };
        let message =
            format!("`share_threshold` is only for wildcard values, and `{name}` has no `*`");
        let help = "leave it out, or put a `*` into the value";
        let span = FileSpan { file, span: raw.share_threshold.span };
        self.findings.add(Code::ShareWithoutWildcard, span, message, help);
    }

    fn add_rule(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        rate_limit: &raw::RateLimit,
    ) {
        let replaces = self.read_replaces(file, rate_limit);
        let defaults = self.defaults;
        let reader = RateLimitReader { file, raw: rate_limit, defaults, findings: self.findings };
        if let Ok(limit) = reader.read() {
            self.note_lease_forecast(node, limit.as_ref());
            let rule = self.build_rule(node, raw, rate_limit, limit, replaces);
            self.builder.set_rule(node, rule);
        }
    }

    fn note_lease_forecast(&mut self, node: NodeId, limit: Option<&Limit>) {
        if let Some((expected_calls, bound)) = limit.and_then(overshoot::lease_forecast) {
            let key = self.origins[node.index()].key;
            self.findings.add(Code::LeaseForecast, key, expected_calls, bound);
        }
    }

    fn add_concurrency_limit(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        concurrency: &raw::Concurrency,
    ) {
        let path = self.builder.path(self.group.domain, node);
        let location = self.findings.format_line(self.origins[node.index()].key);
        let reader = ConcurrencyReader { file, raw: concurrency, findings: self.findings };
        if let Some(settings) = reader.read() {
            let limit = ConcurrencyLimit {
                rules: settings.rules,
                mode: settings.mode,
                on_backend_failure: settings.on_backend_failure,
                max_duration: settings.max_duration,
                reject: settings.reject,
                shadow: raw.shadow_mode,
                path: path.into(),
                location: location.into(),
            };
            self.builder.set_concurrency_limit(node, limit);
        }
    }

    fn read_replaces(&mut self, file: usize, raw: &raw::RateLimit) -> Box<[Arc<str>]> {
        for name in &raw.replaces {
            let span = FileSpan { file, span: name.span };
            if name.value.is_empty() {
                let message = "`replaces` has an empty entry".to_owned();
                let help = "`- name: NAME`, the name of another rule";
                self.findings.add(Code::EmptyReplaces, span, message, help);
            } else if name.value == raw.name.value {
                let message = format!("`replaces` holds the rule's own name `{}`", name.value);
                let help = "leave it out; a rule cannot replace itself";
                self.findings.add(Code::ReplacesItself, span, message, help);
            }
        }
        let names = raw
            .replaces
            .iter()
            .map(|name| (FileSpan { file, span: name.span }, name.value.as_str().into()));
        let first = self.replaces.len();
        self.replaces.extend(names);
        self.replaces[first..].iter().map(|(_, name)| Arc::clone(name)).collect()
    }

    fn build_rule(
        &self,
        node: NodeId,
        raw: &Descriptor,
        rate_limit: &raw::RateLimit,
        limit: Option<Limit>,
        replaces: Box<[Arc<str>]>,
    ) -> Rule {
        let name = Some(rate_limit.name.value.as_str()).filter(|name| !name.is_empty());
        Rule {
            limit,
            name: name.map(Arc::from),
            replaces,
            shadow: raw.shadow_mode,
            quota: raw.quota_mode,
            detailed_metric: raw.detailed_metric,
            metadata: raw.metadata.as_ref().map(|metadata| Arc::new(metadata.value.clone())),
            path: self.builder.path(self.group.domain, node).into(),
            location: self.findings.format_line(self.origins[node.index()].key).into(),
            forced_decision: None,
        }
    }
}

/// Returns the position of the descriptor's key, or of the whole descriptor if it has no key.
fn key_span(raw: &Descriptor) -> Span {
    if raw.key.span.end == 0 { raw.span } else { raw.key.span }
}
