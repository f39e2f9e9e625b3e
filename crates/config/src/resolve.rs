//! Converts parsed limits files to a [`Config`], or reports all their problems.
//!
//! Guarantees:
//! - Applies all rules of envoyproxy/ratelimit for valid files, within and across files.
//! - Reports all problems of all files; never returns a partial configuration.
//! - The cost is linear in the size of the files. No recursion, so deeply nested files are safe.
//!
//! Not covered:
//! - The syntax and the keys of a file (see [`super::raw`]).

mod adaptive_block;
mod calendar_block;
mod concurrency_block;
pub mod duration;
pub(crate) mod findings;
pub(crate) mod keywords;
mod network_field;
pub(crate) mod overload_answers;
pub(crate) mod overshoot;
mod rate_limit_block;
mod rate_limit_list;
mod time_zone_name;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::concurrency::ConcurrencyLimit;
use super::diagnostic::{Code, Diagnostics, SourceText, Span, Spanned};
use super::lint::{self, ChargeSettings, DomainLint};
use super::raw::{self, Descriptor, File};

use super::tree::builder::{AddNodeError, TreeBuilder};
use super::tree::{NodeFlags, NodeId};
use super::{ChargePolicy, Config, Domain, Rule, RuleLimits, RuleNumber};
use crate::kernel::units::Revision;
use findings::{FileFindings, FileSpan};
use network_field::{InvalidNetwork, NetworkReader};
use rate_limit_block::{DomainDefaults, KeywordReader, RateLimitReader};
use rate_limit_list::{RateLimitListReader, limit_name};

/// Converts `files` to a configuration and its warnings.
///
/// With `merge_domains`, several files may contain one domain. Their first levels of rules are
/// combined, with patterns in the order of `files`. Each of `charge`, `colocate` and `defaults` may
/// be in any of the files; if several have it, the values must be equal.
///
/// # Errors
///
/// Returns all findings of all files, errors and warnings, by file and position.
pub fn resolve(
    files: &[(File, SourceText)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = FileFindings::new(files.iter().map(|(_, source)| source));
    let groups = group_by_domain(files, merge_domains, &mut findings);
    read_domains(files, revision, &groups, findings)
}

/// Validates what could be read, if some files or fields could not. Validations that need a whole
/// domain are skipped for domains that may lack a part: with `merge_domains` for all of them,
/// because an unreadable file may contain any domain.
pub(super) fn resolve_readable(
    files: &[(File, SourceText)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = FileFindings::new(files.iter().map(|(_, source)| source));
    let mut groups = group_by_domain(files, merge_domains, &mut findings);
    for group in &mut groups {
        let has_all_fields = group.files.iter().all(|&file| !files[file].0.is_incomplete);
        group.is_complete = !merge_domains && has_all_fields;
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
    let mut next = RuleNumber::default();
    let numbered = domains.map(|mut domain| {
        domain.tree.number_rules(&mut next);
        (domain.name.clone(), domain)
    });
    let domains = numbered.collect();
    let warnings = findings.finish()?;
    Ok((Config { revision, domains }, warnings))
}

/// The files that contain one domain, as indexes into the list of files.
struct DomainFiles<'r> {
    domain: &'r str,
    files: Vec<usize>,
    /// `true` if all files of the domain are known, `false` if an unreadable file may belong to it.
    is_complete: bool,
}

/// Groups files by domain. Without `merge`, a second file of a domain is an error. It forms its own
/// group, so that the rest of it is validated too.
fn group_by_domain<'r>(
    files: &'r [(File, SourceText)],
    merge: bool,
    findings: &mut FileFindings<'_>,
) -> Vec<DomainFiles<'r>> {
    let mut groups: Vec<DomainFiles<'r>> = Vec::new();
    let mut group_by_name: HashMap<&str, usize> = HashMap::new();
    for (number, (file, _)) in files.iter().enumerate() {
        let domain = file.domain.value.as_str();
        let at = FileSpan { file: number, span: file.domain.span };
        if domain.is_empty() && !file.is_incomplete {
            let message = "the file has no domain".to_owned();
            let fix = "add `domain: NAME` at the top, with the domain of Envoy's rate limit filter";
            findings.add(Code::EmptyDomain, at, message, fix.to_owned());
        } else if domain.is_empty() {
            // The file has an unreadable field, which may be the domain.
        } else if let Some(&group) = group_by_name.get(domain) {
            if merge {
                groups[group].files.push(number);
                continue;
            }
            report_duplicate_domain(domain, at, groups[group].files[0], files, findings);
        } else {
            group_by_name.insert(domain, groups.len());
        }
        groups.push(DomainFiles { domain, files: vec![number], is_complete: true });
    }
    groups
}

fn report_duplicate_domain(
    domain: &str,
    at: FileSpan,
    first: usize,
    files: &[(File, SourceText)],
    findings: &mut FileFindings<'_>,
) {
    let first = FileSpan { file: first, span: files[first].0.domain.span };
    let message = format!("duplicate domain `{domain}`, first in {}", findings.place(first));
    let fix = "merge the two files, or set `limits.merge_domains: true`".to_owned();
    findings.add(Code::DuplicateDomain, at, message, fix);
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
    /// The positions of the nodes in the files. The index is the node's number.
    origins: Vec<FileSpan>,
    defaults: DomainDefaults,
    charge: ChargePolicy,
    replaces: Vec<(FileSpan, Arc<str>)>,
}

impl<'r, 'f, 'a> DomainReader<'r, 'f, 'a> {
    fn new(
        files: &'r [(File, SourceText)],
        group: &'r DomainFiles<'r>,
        findings: &'f mut FileFindings<'a>,
    ) -> Self {
        let (builder, origins) = (TreeBuilder::new(), vec![FileSpan::default()]);
        Self {
            files,
            group,
            findings,
            builder,
            origins,
            defaults: DomainDefaults::default(),
            charge: ChargePolicy::default(),
            replaces: Vec::new(),
        }
    }

    fn read(mut self) -> Domain {
        let (charge, colocate, overshoot) =
            (self.charge(), self.colocate(), self.default_overshoot_span());
        self.defaults = self.defaults();
        self.charge = charge.map(|(charge, _)| charge).unwrap_or_default();
        let first = self.group.files.iter().map(|&file| FileLevel {
            file,
            parent: NodeId::ROOT,
            descriptors: &self.files[file].0.descriptors,
        });
        let mut levels: VecDeque<FileLevel<'r>> = first.collect();
        while let Some(level) = levels.pop_front() {
            for descriptor in level.descriptors {
                let node = self.add_descriptor(level.file, level.parent, descriptor);
                let (file, descriptors) = (level.file, &descriptor.descriptors);
                if !descriptors.is_empty() {
                    levels.push_back(FileLevel { file, parent: node, descriptors });
                }
            }
        }
        let policy = self.charge;
        let tree = self.builder.finish();
        // Nodes that are missing in an incomplete tree would cause false warnings.
        if self.group.is_complete && !self.findings.has_errors() {
            let (origins, replaces) = (&self.origins, &self.replaces);
            let slots = ChargeSettings { charge, colocate: colocate.as_ref() };
            DomainLint {
                tree: &tree,
                origins,
                replaces,
                charge_settings: slots,
                default_overshoot: overshoot,
                findings: self.findings,
            }
            .run();
        }
        Domain {
            name: self.group.domain.into(),
            charge: policy,
            colocate: colocate.map(|(key, _)| key),
            on_store_failure: self.defaults.on_store_failure,
            tree,
        }
    }

    fn charge(&mut self) -> Option<(ChargePolicy, FileSpan)> {
        self.read_agreed("charge", |file, at, findings| {
            let word = file.charge.as_ref()?;
            let charge = KeywordReader { file: at, findings }.keyword(
                keywords::CHARGE_POLICIES,
                "charge",
                Some(word),
            )?;
            Some((charge, word.span))
        })
    }

    fn colocate(&mut self) -> Option<(Box<str>, FileSpan)> {
        self.read_agreed("colocate", |file, _, _| {
            let key = file.colocate.as_ref().filter(|key| !key.value.is_empty())?;
            Some((key.value.as_str().into(), key.span))
        })
    }

    fn defaults(&mut self) -> DomainDefaults {
        let defaults = self.read_agreed("defaults", |file, at, findings| {
            let raw = file.defaults.as_ref()?;
            Some((rate_limit_block::read_defaults(raw, at, findings), raw.span))
        });
        let otherwise =
            if self.group.is_complete { DomainDefaults::default } else { DomainDefaults::unknown };
        defaults.map_or_else(otherwise, |(defaults, _)| defaults)
    }

    /// Returns the position of `max_overshoot` in the `defaults` of the domain, if it is there.
    fn default_overshoot_span(&self) -> Option<FileSpan> {
        self.group.files.iter().find_map(|&file| {
            let word = self.files[file].0.defaults.as_ref()?.max_overshoot.as_ref()?;
            Some(FileSpan { file, span: word.span })
        })
    }

    /// Reads a field that must be equal in all files of the domain, and its first position.
    fn read_agreed<T: PartialEq>(
        &mut self,
        word: &str,
        read: impl Fn(&File, usize, &mut FileFindings<'a>) -> Option<(T, Span)>,
    ) -> Option<(T, FileSpan)> {
        let mut agreed: Option<(T, FileSpan)> = None;
        for &file in &self.group.files {
            let Some((value, span)) = read(&self.files[file].0, file, self.findings) else {
                continue;
            };
            let at = FileSpan { file, span };
            match &agreed {
                Some((first, first_at)) if *first != value => {
                    self.report_disagreement(word, at, *first_at);
                }
                _ => agreed = Some((value, at)),
            }
        }
        agreed
    }

    fn report_disagreement(&mut self, word: &str, at: FileSpan, first: FileSpan) {
        let first = self.findings.place(first);
        let message = format!("`{word}` differs from `{word}` of the same domain in {first}");
        let fix = "write it in one file of the domain, or the same in all of them".to_owned();
        self.findings.add(Code::Contradiction, at, message, fix);
    }

    /// Adds a descriptor to the tree and validates it. A descriptor that cannot be added becomes a
    /// node that lookups do not find, so that its children are validated too.
    fn add_descriptor(&mut self, file: usize, parent: NodeId, raw: &Descriptor) -> NodeId {
        let key = FileSpan { file, span: key_span(raw) };
        let node = self.add_node(parent, raw, key);
        self.origins.push(key);
        self.check_share_threshold(file, raw);
        lint::lint_descriptor(raw, key, self.findings);
        if let Some(concurrency) = &raw.concurrency {
            self.add_concurrency_limit(file, node, raw, concurrency);
        }
        if let Some(list) = &raw.rate_limits {
            self.add_rule_with_list(file, node, raw, list);
        } else if let Some(rate_limit) = &raw.rate_limit {
            self.add_rule(file, node, raw, rate_limit);
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
        if let Ok(limit) = block.read() {
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
        let list = RateLimitListReader { file, descriptor, list, charge, defaults, findings };
        if let Ok(limits) = list.read() {
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
        let path = self.builder.path(self.group.domain, node);
        let place = self.findings.line(self.origins[node.index()]);
        let read = concurrency_block::ConcurrencyReader {
            file,
            raw: concurrency,
            default_fallback: self.defaults.on_store_failure,
            findings: self.findings,
        }
        .read();
        if let Some(settings) = read {
            let concurrency_block::ConcurrencySettings {
                rules,
                aggregate,
                mode,
                on_store_failure,
                max_duration,
                reject,
            } = settings;
            let (shadow, path, place) = (raw.shadow_mode, path.into(), place.into());
            let concurrency_limit = ConcurrencyLimit {
                number: RuleNumber::default(),
                has_rate_limit: false,
                rules,
                aggregate,
                mode,
                on_store_failure,
                max_duration,
                reject,
                shadow,
                path,
                location: place,
            };
            self.builder.set_concurrency_limit(node, concurrency_limit);
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

/// Returns the key and value of a descriptor for messages. Of an invalid network, the value is the
/// text in the file.
fn hidden_name(raw: &Descriptor) -> (&str, &str) {
    let network = raw.network.as_ref().map_or("", |network| network.value.as_str());
    let value = raw.value.value.as_str();
    (raw.key.value.as_str(), if value.is_empty() { network } else { value })
}
