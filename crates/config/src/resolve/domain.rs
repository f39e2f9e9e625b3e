//! Reads one domain: its fields, and the descriptors of all its files, level by level.
//!
//! Guarantees:
//! - Fields that several files have must be equal in all of them.
//! - No recursion, so deeply nested files are safe.
//!
//! Not covered:
//! - One descriptor (see [`super::descriptor`]).

use std::collections::VecDeque;
use std::sync::Arc;

use super::budget_block::PlacedBudget;
use super::domain_defaults::{DomainDefaults, read_defaults};
use super::domain_files::DomainFiles;
use super::findings::{FileFindings, FileSpan};
use super::keyword_reader::KeywordReader;
use super::keywords;
use super::usage_block::read_usage;
use crate::budget::UsageRules;
use crate::diagnostic::{Code, SourceText, Span};
use crate::lint::{ChargeSettings, DomainLint};
use crate::raw::{Descriptor, File};
use crate::tree::NodeId;
use crate::tree::builder::TreeBuilder;
use crate::{ChargePolicy, Domain};

struct FileLevel<'r> {
    file: usize,
    parent: NodeId,
    descriptors: &'r [Descriptor],
}

pub(super) struct DomainReader<'r, 'f, 'a> {
    pub(super) files: &'r [(File, SourceText)],
    pub(super) group: &'r DomainFiles<'r>,
    pub(super) findings: &'f mut FileFindings<'a>,
    pub(super) builder: TreeBuilder,
    /// The positions of the nodes in the files. The index is the node's number.
    pub(super) origins: Vec<FileSpan>,
    pub(super) defaults: DomainDefaults,
    pub(super) charge: ChargePolicy,
    pub(super) replaces: Vec<(FileSpan, Arc<str>)>,
    pub(super) budgets: Vec<PlacedBudget>,
}

impl<'r, 'f, 'a> DomainReader<'r, 'f, 'a> {
    pub(super) fn new(
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
            budgets: Vec::new(),
        }
    }

    pub(super) fn read(mut self) -> Domain {
        let (charge, colocate, overshoot) =
            (self.charge(), self.colocate(), self.default_overshoot_span());
        let usage = self.usage();
        self.defaults = self.defaults();
        self.charge = charge.map(|(charge, _)| charge).unwrap_or_default();
        self.add_descriptors();
        let rules = usage.as_ref().map(|(rules, _)| rules.clone()).unwrap_or_default();
        if let Some((key, _)) = &colocate {
            self.check_colocated(key);
        }
        self.check_budgets(&rules);
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
                usage: usage.as_ref().map(|(rules, at)| (rules, *at)),
                findings: self.findings,
            }
            .run();
        }
        Domain {
            name: self.group.domain.into(),
            charge: policy,
            colocate: colocate.map(|(key, _)| key),
            on_store_failure: self.defaults.on_store_failure,
            usage: rules,
            tree,
        }
    }

    /// Adds the descriptors of all files, level by level.
    fn add_descriptors(&mut self) {
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

    fn usage(&mut self) -> Option<(UsageRules, FileSpan)> {
        self.read_agreed("usage", |file, at, findings| {
            let raw = file.usage.as_ref()?;
            Some((read_usage(raw, at, findings), raw.span))
        })
    }

    fn defaults(&mut self) -> DomainDefaults {
        let defaults = self.read_agreed("defaults", |file, at, findings| {
            let raw = file.defaults.as_ref()?;
            Some((read_defaults(raw, at, findings), raw.span))
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
}
