//! Converts parsed files to a [`Config`], or reports all problems.
//!
//! Guarantees:
//! - Applies envoyproxy/ratelimit's checks, within and across files.
//! - Reports all problems of all files; never returns a partial configuration.
//! - Linear in the size of the files, without recursion, so deep nesting is safe.
//!
//! Not covered:
//! - Text and keys of a file (see [`super::raw`]).

mod calendar_of;
mod ceiling;
pub(crate) mod duration;
pub(crate) mod findings;
mod limit;
pub(crate) mod overshoot;
pub(crate) mod words;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::concurrency::Ceiling;
use super::diagnostic::{Code, Diagnostics, Source, Span, Spanned};
use super::lint::{self, Lint, Slots};
use super::raw::{self, Descriptor, File};
use super::tree::builder::{Builder, Refused};
use super::tree::{Marks, NodeId};
use super::{Charging, Config, Domain, Limit, Rule};
use crate::kernel::units::Revision;
use findings::{At, Findings};
use limit::{Ask, Block, Defaults};

/// Resolves `files` to a configuration and its warnings.
///
/// With `merge_domains`, the files of one domain are merged. Their first levels are
/// combined, with patterns in the order of `files`. `charge`, `colocate` and
/// `defaults` may be in any file. If several files have one, the values must be equal.
///
/// # Errors
///
/// All findings of all files, by file and position, including the warnings.
pub fn resolve(
    files: &[(File, Source)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = Findings::new(files.iter().map(|(_, source)| source));
    let groups = by_domain(files, merge_domains, &mut findings);
    read(files, revision, &groups, findings)
}

/// Resolves the readable files if others are unreadable. With
/// `merge_domains`, checks that an unreadable file could affect are skipped.
pub(super) fn resolve_rest(
    files: &[(File, Source)],
    revision: Revision,
    merge_domains: bool,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let mut findings = Findings::new(files.iter().map(|(_, source)| source));
    let mut groups = by_domain(files, merge_domains, &mut findings);
    for group in &mut groups {
        group.is_whole = !merge_domains;
    }
    read(files, revision, &groups, findings)
}

fn read<'a>(
    files: &'a [(File, Source)],
    revision: Revision,
    groups: &[Group<'a>],
    mut findings: Findings<'a>,
) -> Result<(Config, Diagnostics), Diagnostics> {
    let domains = groups.iter().map(|group| DomainReader::new(files, group, &mut findings).read());
    let domains = domains.map(|domain| (domain.name.clone(), domain)).collect();
    let warnings = findings.finish()?;
    Ok((Config { revision, domains }, warnings))
}

/// The files of one domain, as indexes.
struct Group<'r> {
    domain: &'r str,
    files: Vec<usize>,
    /// No other file can belong to this domain.
    is_whole: bool,
}

/// Groups files by domain. Without merging, a file with a duplicate
/// domain forms its own group, so that the rest of it is checked too.
fn by_domain<'r>(
    files: &'r [(File, Source)],
    merge: bool,
    findings: &mut Findings<'_>,
) -> Vec<Group<'r>> {
    let mut groups: Vec<Group<'r>> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (number, (file, _)) in files.iter().enumerate() {
        let domain = file.domain.value.as_str();
        let at = At { file: number, span: file.domain.span };
        if domain.is_empty() {
            let message = "a file may not have an empty domain".to_owned();
            let cure = "put `domain: NAME` at its top, the domain that Envoy's filter asks for";
            findings.add(Code::EmptyDomain, at, message, cure.to_owned());
        } else if let Some(&group) = known.get(domain) {
            if merge {
                groups[group].files.push(number);
                continue;
            }
            duplicate_domain(domain, at, groups[group].files[0], files, findings);
        } else {
            known.insert(domain, groups.len());
        }
        groups.push(Group { domain, files: vec![number], is_whole: true });
    }
    groups
}

fn duplicate_domain(
    domain: &str,
    at: At,
    first: usize,
    files: &[(File, Source)],
    findings: &mut Findings<'_>,
) {
    let first = At { file: first, span: files[first].0.domain.span };
    let message = format!("duplicate domain `{domain}`, first in {}", findings.place(first));
    let cure = "put both into one file, or allow it with `merge_domains: true`".to_owned();
    findings.add(Code::DuplicateDomain, at, message, cure);
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) key: At,
}

struct Level<'r> {
    file: usize,
    parent: NodeId,
    descriptors: &'r [Descriptor],
}

struct DomainReader<'r, 'f, 'a> {
    files: &'r [(File, Source)],
    group: &'r Group<'r>,
    findings: &'f mut Findings<'a>,
    builder: Builder,
    /// Indexed by node.
    origins: Vec<Origin>,
    defaults: Defaults,
    replaces: Vec<(At, Arc<str>)>,
}

impl<'r, 'f, 'a> DomainReader<'r, 'f, 'a> {
    fn new(
        files: &'r [(File, Source)],
        group: &'r Group<'r>,
        findings: &'f mut Findings<'a>,
    ) -> Self {
        let (builder, origins) = (Builder::new(), vec![Origin::default()]);
        Self {
            files,
            group,
            findings,
            builder,
            origins,
            defaults: Defaults::default(),
            replaces: Vec::new(),
        }
    }

    fn read(mut self) -> Domain {
        let (charge, colocate, overshoot) = (self.charge(), self.colocate(), self.overshoot());
        self.defaults = self.defaults();
        let first = self.group.files.iter().map(|&file| Level {
            file,
            parent: NodeId::ROOT,
            descriptors: &self.files[file].0.descriptors,
        });
        let mut levels: VecDeque<Level<'r>> = first.collect();
        while let Some(level) = levels.pop_front() {
            for descriptor in level.descriptors {
                let node = self.descriptor(level.file, level.parent, descriptor);
                let (file, descriptors) = (level.file, &descriptor.descriptors);
                if !descriptors.is_empty() {
                    levels.push_back(Level { file, parent: node, descriptors });
                }
            }
        }
        let tree = self.builder.finish();
        // An incomplete tree would cause false warnings about missing nodes.
        if self.group.is_whole && !self.findings.has_errors() {
            let (origins, replaces) = (&self.origins, &self.replaces);
            let slots = Slots { charge, colocate: colocate.as_ref() };
            Lint { tree: &tree, origins, replaces, slots, overshoot, findings: self.findings }
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

    fn charge(&mut self) -> Option<(Charging, At)> {
        self.agreed("charge", |file, at, findings| {
            let word = file.charge.as_ref()?;
            let charge = Ask { file: at, findings }.word(words::CHARGES, "charge", Some(word))?;
            Some((charge, word.span))
        })
    }

    fn colocate(&mut self) -> Option<(Box<str>, At)> {
        self.agreed("colocate", |file, _, _| {
            let key = file.colocate.as_ref().filter(|key| !key.value.is_empty())?;
            Some((key.value.as_str().into(), key.span))
        })
    }

    fn defaults(&mut self) -> Defaults {
        let said = self.agreed("defaults", |file, at, findings| {
            let raw = file.defaults.as_ref()?;
            Some((limit::defaults(raw, at, findings), raw.span))
        });
        let otherwise = if self.group.is_whole { Defaults::default } else { Defaults::unknown };
        said.map_or_else(otherwise, |(defaults, _)| defaults)
    }

    /// Returns the position of `max_overshoot` in the domain's `defaults`.
    fn overshoot(&self) -> Option<At> {
        self.group.files.iter().find_map(|&file| {
            let word = self.files[file].0.defaults.as_ref()?.max_overshoot.as_ref()?;
            Some(At { file, span: word.span })
        })
    }

    /// Reads a setting that must be equal in all files of the domain, with its position.
    fn agreed<T: PartialEq>(
        &mut self,
        word: &str,
        read: impl Fn(&File, usize, &mut Findings<'a>) -> Option<(T, Span)>,
    ) -> Option<(T, At)> {
        let mut said: Option<(T, At)> = None;
        for &file in &self.group.files {
            let Some((value, span)) = read(&self.files[file].0, file, self.findings) else {
                continue;
            };
            let at = At { file, span };
            match &said {
                Some((first, first_at)) if *first != value => self.disagree(word, at, *first_at),
                _ => said = Some((value, at)),
            }
        }
        said
    }

    fn disagree(&mut self, word: &str, at: At, first: At) {
        let first = self.findings.place(first);
        let message = format!("`{word}` of one domain differs from that in {first}");
        let cure = "merged files are one domain: say it once, or the same in each".to_owned();
        self.findings.add(Code::Contradiction, at, message, cure);
    }

    /// Adds and checks a descriptor. A descriptor that cannot be added
    /// becomes a hidden node, so that its children are checked too.
    fn descriptor(&mut self, file: usize, parent: NodeId, raw: &Descriptor) -> NodeId {
        let key = At { file, span: place_of(raw) };
        let node = self.node(parent, raw, key);
        self.origins.push(Origin { key });
        self.share_threshold(file, raw);
        lint::descriptor(raw, key, self.findings);
        if let Some(concurrency) = &raw.concurrency {
            self.ceiling(file, node, raw, concurrency);
        }
        if let Some(rate_limit) = &raw.rate_limit {
            self.rule(file, node, raw, rate_limit);
        }
        node
    }

    fn node(&mut self, parent: NodeId, raw: &Descriptor, key: At) -> NodeId {
        let (share_threshold, value_to_metric) = (raw.share_threshold.value, raw.value_to_metric);
        let marks = Marks { share_threshold, value_to_metric };
        let name = (raw.key.value.as_str(), raw.value.value.as_str());
        if raw.key.value.is_empty() {
            let message = "descriptor has an empty key".to_owned();
            let cure = "put `key: NAME`, the key that Envoy's action sends".to_owned();
            self.findings.add(Code::EmptyKey, key, message, cure);
            return self.builder.hide(parent, name, marks);
        }
        match self.builder.add(parent, name, marks) {
            Ok(node) => node,
            Err(refused) => {
                let node = self.builder.hide(parent, name, marks);
                self.refuse(refused, node, key);
                node
            }
        }
    }

    fn refuse(&mut self, refused: Refused, node: NodeId, key: At) {
        let Refused::Duplicate(first) = refused else {
            let message = "this domain has more descriptors than can be numbered".to_owned();
            self.findings.add(Code::TooMany, key, message, "split it into several domains");
            return;
        };
        if self.findings.only_counts(Code::DuplicateDescriptor, key) {
            return;
        }
        let path = self.builder.path(self.group.domain, node);
        let place = self.findings.place(self.origins[first.index()].key);
        let message = format!("duplicate descriptor composite key `{path}`, first in {place}");
        let tree = self.builder.tree();
        let help = if tree.parts(first) == tree.parts(node) {
            "put both into one descriptor"
        } else {
            "key and value are joined by `_`, so that these two are one: rename a key"
        };
        self.findings.add(Code::DuplicateDescriptor, key, message, help.to_owned());
    }

    fn share_threshold(&mut self, file: usize, raw: &Descriptor) {
        let (key, value) = (&raw.key.value, &raw.value.value);
        if !raw.share_threshold.value || key.contains('*') || value.contains('*') {
            return;
        }
        let name = if value.is_empty() { key.clone() } else { format!("{key}_{value}") };
        let message =
            format!("`share_threshold` is only for wildcard values, and `{name}` has no `*`");
        let cure = "leave it out, or put a `*` into the value".to_owned();
        let at = At { file, span: raw.share_threshold.span };
        self.findings.add(Code::ShareWithoutWildcard, at, message, cure);
    }

    fn rule(&mut self, file: usize, node: NodeId, raw: &Descriptor, rate_limit: &raw::RateLimit) {
        let replaces = self.replaces(file, rate_limit);
        let defaults = self.defaults;
        let block = Block { file, raw: rate_limit, defaults, findings: self.findings };
        if let Ok(limit) = block.read() {
            self.forecast(node, limit.as_ref());
            let rule = self.assemble(node, raw, rate_limit, limit, replaces);
            self.builder.impose(node, rule);
        }
    }

    fn forecast(&mut self, node: NodeId, limit: Option<&Limit>) {
        if let Some((said, bound)) = limit.and_then(overshoot::forecast) {
            let at = self.origins[node.index()].key;
            self.findings.add(Code::LeaseForecast, at, said, bound);
        }
    }

    fn ceiling(
        &mut self,
        file: usize,
        node: NodeId,
        raw: &Descriptor,
        concurrency: &raw::Concurrency,
    ) {
        let path = self.builder.path(self.group.domain, node);
        let place = self.findings.line(self.origins[node.index()].key);
        let read = ceiling::Block { file, raw: concurrency, findings: self.findings }.read();
        if let Some(said) = read {
            let ceiling::Said { rules, mode, on_backend_failure, max_duration, reject } = said;
            let (shadow, path, place) = (raw.shadow_mode, path.into(), place.into());
            let ceiling = Ceiling {
                rules,
                mode,
                on_backend_failure,
                max_duration,
                reject,
                shadow,
                path,
                place,
            };
            self.builder.cover(node, ceiling);
        }
    }

    fn replaces(&mut self, file: usize, raw: &raw::RateLimit) -> Box<[Arc<str>]> {
        for name in &raw.replaces {
            let at = At { file, span: name.span };
            if name.value.is_empty() {
                let message = "`replaces` has an empty entry".to_owned();
                let cure = "`- name: NAME`, the name of another rule".to_owned();
                self.findings.add(Code::EmptyReplaces, at, message, cure);
            } else if name.value == raw.name.value {
                let message = format!("`replaces` holds the rule's own name `{}`", name.value);
                let cure = "leave it out; a rule cannot replace itself".to_owned();
                self.findings.add(Code::ReplacesItself, at, message, cure);
            }
        }
        let names = raw
            .replaces
            .iter()
            .map(|name| (At { file, span: name.span }, name.value.as_str().into()));
        let first = self.replaces.len();
        self.replaces.extend(names);
        self.replaces[first..].iter().map(|(_, name)| Arc::clone(name)).collect()
    }

    fn assemble(
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
            place: self.findings.line(self.origins[node.index()].key).into(),
            frozen: None,
        }
    }
}

/// Returns the span of the descriptor's key, or of the descriptor if it has no key.
fn place_of(raw: &Descriptor) -> Span {
    let Spanned { span, .. } = raw.key;
    if span.end == 0 { raw.span } else { span }
}
