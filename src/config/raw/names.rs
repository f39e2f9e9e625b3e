//! The first pass: checks every key and every leaf of a file, regardless of its position.
//!
//! Guarantees:
//! - Keys are checked against one flat list, as in envoyproxy/ratelimit.
//! - Of repeated keys the last one counts. Merged keys count as well.
//! - The content of `metadata` is not checked.
//! - List items are mappings. Leaves are text, integers, booleans or null.
//!
//! Not covered:
//! - The type that each key requires: see [`super::typed`].

use std::collections::{HashSet, VecDeque};

use super::word::{Block, Word};
use crate::config::diagnostic::{Code, Findings, Span};
use crate::config::yaml::{Id, Kind, Tree, Value};

/// Checks the keys and leaves of a tree. Nodes in `blamed` already have a finding. Returns
/// them together with the newly reported nodes, so that no node is reported twice.
pub(super) fn check(tree: &Tree<'_>, blamed: HashSet<Id>, findings: &mut Findings) -> HashSet<Id> {
    let mut names = Names { tree, findings, blamed, seen: HashSet::new() };
    let mut todo = VecDeque::new();
    if let Some(root) = tree.root {
        todo.push_back((root, Block::File));
    }
    while let Some((mapping, block)) = todo.pop_front() {
        names.mapping(mapping, block, &mut todo);
    }
    names.blamed
}

/// A key and its effective value.
#[derive(Clone, Copy)]
struct Entry {
    key: Id,
    value: Id,
    /// The mapping that contains the key directly, without a merge.
    home: Id,
}

/// The mappings to check, in the order of the text on each level.
type Todo = VecDeque<(Id, Block)>;

type Entries = [Option<Entry>; Word::ALL.len()];

struct Names<'a, 's> {
    tree: &'a Tree<'s>,
    findings: &'a mut Findings,
    blamed: HashSet<Id>,
    /// The blocks that were reached through an alias. Each
    /// is checked once, even with a thousand aliases.
    seen: HashSet<(Id, Block)>,
}

impl Names<'_, '_> {
    fn mapping(&mut self, mapping: Id, block: Block, todo: &mut Todo) {
        let mut entries: Entries = [None; Word::ALL.len()];
        self.collect(mapping, block, &mut entries);
        for (word, entry) in Word::ALL.into_iter().zip(entries) {
            let Some(entry) = entry else { continue };
            self.place(word, entry, block);
            if word != Word::Metadata {
                self.value(word, entry.value, block.inside(word), todo);
            }
        }
    }

    fn collect(&mut self, mapping: Id, block: Block, entries: &mut Entries) {
        let tree = self.tree;
        for (key, value) in tree.pairs(mapping) {
            if tree.is_merge(key) {
                for merged in tree.merged(value) {
                    self.merge(mapping, key, tree.target(merged), block, entries);
                }
            } else if let Some(word) = self.word(key, block) {
                let entry = Entry { key, value, home: mapping };
                let slot = &mut entries[word as usize];
                if slot.replace(entry).is_some_and(|earlier| earlier.home == mapping) {
                    self.repeated(word, key);
                }
            }
        }
    }

    /// Inserts the entries of a merged mapping at the merge key. They overwrite earlier entries.
    fn merge(&mut self, into: Id, key: Id, from: Id, block: Block, entries: &mut Entries) {
        let mut merged: Entries = [None; Word::ALL.len()];
        self.collect(from, block, &mut merged);
        for ((word, slot), entry) in Word::ALL.into_iter().zip(entries).zip(merged) {
            let Some(entry) = entry else { continue };
            if slot.replace(entry).is_some_and(|earlier| earlier.home == into) {
                let message = format!("`<<` overwrites `{}` above it", word.name());
                let help = "move `<<` to the top of the block; what is below it wins";
                self.warn(Code::MergeOverwrites, key, message, help);
            }
        }
    }

    fn repeated(&mut self, word: Word, key: Id) {
        let message =
            format!("`{}` is written twice in one block; the last one counts", word.name());
        self.warn(Code::RepeatedKey, key, message, "take one of them out");
    }

    fn word(&mut self, key: Id, block: Block) -> Option<Word> {
        let key = self.tree.target(key);
        let (text, value) = self.tree.scalar(key)?;
        let name = match &value {
            Value::Text => Some(text),
            Value::Binary(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        };
        let Some(name) = name else {
            let message = format!("the key `{text}` is not text but {}", kind_of(&value));
            let help = "every key is one of the language's words";
            self.blame(Code::KeyNotText, key, message, Some(help.to_owned()));
            return None;
        };
        let word = Word::named(name);
        if word.is_none() && self.findings.is_full(Code::UnknownKey) {
            self.findings.count(Code::UnknownKey);
        } else if word.is_none() {
            let message = format!("there is no key `{name}`");
            let help = match Word::nearest(name, block) {
                Some(nearest) => format!("did you mean `{}`?", nearest.name()),
                None if block == Block::Nowhere => "take it out".to_owned(),
                None => block.listing(),
            };
            self.blame(Code::UnknownKey, key, message, Some(help));
        }
        word
    }

    fn place(&mut self, word: Word, entry: Entry, block: Block) {
        let parked = word == Word::Metadata && block == Block::File;
        if block.words().contains(&word) || parked {
            return;
        }
        let help = format!("it belongs in {}", Block::of(word));
        if word.is_ours() {
            let message = format!("`{}` has no place in {}", word.name(), block.title());
            self.blame(Code::MisplacedWord, entry.key, message, Some(help));
        } else if block != Block::Nowhere {
            let message = format!("`{}` is ignored in {}", word.name(), block.title());
            self.warn(Code::IgnoredKey, entry.key, message, &help);
        }
    }

    fn value(&mut self, word: Word, value: Id, inside: Block, todo: &mut Todo) {
        let target = self.tree.target(value);
        match self.tree.kind(target) {
            Kind::Mapping(_) => self.later(value, inside, todo),
            Kind::Sequence(_) => {
                for item in self.tree.children(target) {
                    self.item(word, *item, target, inside, todo);
                }
            }
            Kind::Scalar { .. } => self.leaf(word, target),
            Kind::Alias(_) => {}
        }
    }

    fn item(&mut self, word: Word, item: Id, list: Id, inside: Block, todo: &mut Todo) {
        let target = self.tree.target(item);
        if matches!(self.tree.kind(target), Kind::Mapping(_)) {
            return self.later(item, inside, todo);
        }
        self.blamed.insert(list);
        let got = describe(self.tree, target);
        let message = format!("an item of `{}` is not a mapping but {got}", word.name());
        let help = match inside {
            Block::Descriptor => Some("an item looks like this: `- key: …`".to_owned()),
            Block::Replaces => Some("an item looks like this: `- name: …`".to_owned()),
            _ => None,
        };
        self.blame(Code::NotMappingInList, item, message, help);
    }

    fn later(&mut self, mapping: Id, block: Block, todo: &mut Todo) {
        let target = self.tree.target(mapping);
        if target == mapping || self.seen.insert((target, block)) {
            todo.push_back((target, block));
        }
    }

    fn leaf(&mut self, word: Word, leaf: Id) {
        let Some((text, value)) = self.tree.scalar(leaf) else { return };
        let what = match value {
            Value::Float(_) => "a number with a fraction or exponent",
            Value::Big(_) => "an integer beyond 64 bits",
            _ => return,
        };
        let message =
            format!("`{}` is {what}, which a limits file cannot hold: {text}", word.name());
        let help = format!("quote it if it is meant as text: '{text}'");
        self.blame(Code::FractionOrTooBig, leaf, message, Some(help));
    }

    fn blame(&mut self, code: Code, node: Id, message: String, help: Option<String>) {
        self.blamed.insert(node);
        let span = self.tree.span(node);
        match help {
            Some(help) => self.findings.add_with_help(code, span, message, help),
            None => self.findings.add(code, span, message),
        }
    }

    fn warn(&mut self, code: Code, node: Id, message: String, help: &str) {
        self.findings.add_with_help(code, self.tree.span(node), message, help);
    }
}

/// Describes a node for messages, with its text if it has one.
pub(super) fn describe(tree: &Tree<'_>, node: Id) -> String {
    match tree.scalar(node) {
        Some((_, Value::Null)) => "nothing".to_owned(),
        Some((text, Value::Text)) => format!("the text `{}`", shortened(text)),
        Some((text, value)) => format!("{}: `{}`", kind_of(&value), shortened(text)),
        None if matches!(tree.kind(node), Kind::Mapping(_)) => "a mapping".to_owned(),
        None => "a list".to_owned(),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Int(_) | Value::Big(_) => "an integer",
        Value::Float(_) => "a number",
        Value::Text => "text",
        Value::Binary(_) => "binary",
    }
}

fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let start: String = line.chars().take(40).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}

/// Returns the span of a block's first key. The whole block may be a page long.
pub(super) fn head(tree: &Tree<'_>, mapping: Id) -> Span {
    tree.pairs(mapping).next().map_or_else(|| tree.span(mapping), |(key, _)| tree.span(key))
}
