//! Finds the limits files in Kubernetes manifests, for the commands `validate` and `explain`.
//!
//! Guarantees:
//! - Limits files are the texts under `data` of each `ConfigMap`, also in a `List`.
//! - A text in a literal block (`|`) keeps the lines and columns of its manifest.
//! - Beyond 64 MiB of such texts, line numbers count from the start of a text.
//!
//! Not covered:
//! - `binaryData`, Secrets and Helm templates.

use std::ops::Range;

use super::diagnostic::Findings;
use super::yaml::{YamlId, YamlKind, YamlTree, decode, parse};

/// The largest total size of the texts that keep the lines of their manifest. Each is preceded by
/// as many line ends as there are lines above it.
const MAX_PLACED_BYTES: usize = 64 << 20;

/// A limits file in a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedFile {
    /// The name for findings: the manifest, with the key under `data` if the text has its own line
    /// numbers.
    pub name: String,
    /// The text of the limits file.
    pub text: String,
}

/// Returns the limits files in the Kubernetes manifest `bytes`, or `None` if it is not a manifest.
///
/// A manifest may have several documents. A document without `kind`, or with a syntax error, is
/// returned as a limits file itself.
#[must_use]
pub fn embedded_files(name: &str, bytes: &[u8]) -> Option<Vec<EmbeddedFile>> {
    let manifest = decode(bytes, &mut Findings::default());
    if !manifest.contains("apiVersion") {
        return None;
    }
    let mut reader =
        ManifestReader { name, manifest: &manifest, files: Vec::new(), placed_bytes: 0 };
    let kinds: Vec<_> =
        document_ranges(&manifest).into_iter().map(|range| reader.read_document(range)).collect();
    kinds.contains(&DocumentKind::Manifest).then_some(reader.files)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DocumentKind {
    Manifest,
    Other,
}

/// Returns the position of each document of a YAML text, with its `---`.
pub(super) fn document_ranges(text: &str) -> Vec<Range<usize>> {
    let mut starts = vec![0];
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if 0 < at && line.split_whitespace().next() == Some("---") && line.starts_with('-') {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().copied().skip(1).chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| *start..end).collect()
}

struct ManifestReader<'t> {
    name: &'t str,
    manifest: &'t str,
    files: Vec<EmbeddedFile>,
    placed_bytes: usize,
}

impl ManifestReader<'_> {
    fn read_document(&mut self, range: Range<usize>) -> DocumentKind {
        let document = &self.manifest[range.clone()];
        let mut findings = Findings::default();
        let tree = parse(document, &mut findings);
        let root = tree.root.filter(|_| !findings.has_errors());
        let kind = root.and_then(|root| text_field(&tree, root, "kind"));
        let (Some(root), Some(kind)) = (root, kind) else {
            // An empty document is no limits file.
            if findings.has_errors() || root.is_some_and(|root| !tree.children(root).is_empty()) {
                self.add_at_line(self.lines_before(range.start), document.lines().collect());
            }
            return DocumentKind::Other;
        };
        if kind.ends_with("List") {
            let items = field(&tree, root, "items").map(|items| tree.children(items));
            for item in items.unwrap_or_default() {
                self.read_object(&tree, *item, range.start);
            }
        }
        self.read_object(&tree, root, range.start);
        DocumentKind::Manifest
    }

    /// Adds the limits files of one Kubernetes object, if it is a `ConfigMap`.
    fn read_object(&mut self, tree: &YamlTree<'_>, object: YamlId, document_start: usize) {
        let is_config_map = text_field(tree, object, "kind") == Some("ConfigMap");
        let data = field(tree, object, "data").filter(|_| is_config_map);
        for (key, value) in data.into_iter().flat_map(|data| pairs(tree, data)) {
            let Some((text, _)) = tree.scalar(value).filter(|(text, _)| is_limits_file(text))
            else {
                continue;
            };
            let content_start = document_start + tree.span(value).start;
            let key = tree.scalar(key).map_or("", |(key, _)| key);
            self.add_text(key, text, content_start);
        }
    }

    /// Adds a text whose first content character is at byte `content_start`.
    fn add_text(&mut self, key: &str, text: &str, content_start: usize) {
        let blank_lines = text.len() - text.trim_start_matches('\n').len();
        let line_ends = self.manifest[..content_start].rmatch_indices('\n');
        let start = line_ends.map(|(at, _)| at + 1).nth(blank_lines).unwrap_or_default();
        let above = self.lines_before(start);
        match literal_lines(&self.manifest[start..], text) {
            Some(lines) if self.placed_bytes + above < MAX_PLACED_BYTES => {
                self.add_at_line(above, lines);
            }
            _ => {
                let name = format!("{} (data.{key})", self.name);
                self.files.push(EmbeddedFile { name, text: text.to_owned() });
            }
        }
    }

    /// Adds the lines of the manifest that follow its first `above` lines as a limits file.
    fn add_at_line(&mut self, above: usize, lines: Vec<&str>) {
        let mut text = "\n".repeat(above);
        for line in lines {
            text.push_str(&with_marker_at_start(line));
            text.push('\n');
        }
        self.placed_bytes += text.len();
        self.files.push(EmbeddedFile { name: self.name.to_owned(), text });
    }

    fn lines_before(&self, at: usize) -> usize {
        self.manifest[..at].matches('\n').count()
    }
}

/// Moves an indented document marker (`---` or `...`) to the start of its line, where it is one.
fn with_marker_at_start(line: &str) -> String {
    let content = line.trim_start_matches(' ');
    match content.trim_end() {
        "---" | "..." => format!("{content}{}", &line[..line.len() - content.len()]),
        _ => line.to_owned(),
    }
}

/// Returns the first lines of `block`, if they are the lines of `text` with one indentation. For a
/// text in quotes or in a folded block (`>`), returns `None`.
fn literal_lines<'t>(block: &'t str, text: &str) -> Option<Vec<&'t str>> {
    let mut indent = None;
    let mut found = Vec::new();
    let mut lines = block.lines();
    for wanted in text.lines() {
        let line = lines.next()?;
        let before = line.strip_suffix(wanted)?;
        let is_indented = before.bytes().all(|byte| byte == b' ')
            && (wanted.is_empty() || *indent.get_or_insert(before.len()) == before.len());
        if !is_indented {
            return None;
        }
        found.push(line);
    }
    Some(found)
}

/// Returns `true` if a text has a key of a limits file, or if it contains `descriptors` and cannot be
/// parsed.
fn is_limits_file(text: &str) -> bool {
    let mut findings = Findings::default();
    let tree = parse(text, &mut findings);
    if findings.has_errors() {
        return text.contains("descriptors");
    }
    let Some(root) = tree.root else { return false };
    ["domain", "descriptors"].iter().any(|name| field(&tree, root, name).is_some())
}

/// Returns the keys and values of a mapping; none for other nodes, also for an alias.
fn pairs(tree: &YamlTree<'_>, node: YamlId) -> impl Iterator<Item = (YamlId, YamlId)> {
    let is_mapping = matches!(tree.kind(node), YamlKind::Mapping(_));
    tree.pairs(node).filter(move |_| is_mapping)
}

pub(super) fn field(tree: &YamlTree<'_>, mapping: YamlId, name: &str) -> Option<YamlId> {
    let is_key = |key| tree.scalar(key).is_some_and(|(text, _)| text == name);
    pairs(tree, mapping).find(|(key, _)| is_key(*key)).map(|(_, value)| value)
}

fn text_field<'t>(tree: &'t YamlTree<'_>, mapping: YamlId, name: &str) -> Option<&'t str> {
    let value = field(tree, mapping, name)?;
    tree.scalar(value).map(|(text, _)| text)
}
