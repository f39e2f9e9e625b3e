//! The English of comments, documents and names is plain, measured by patterns.
//!
//! Guarantees:
//! - The measures of comments in `src`, `crates` and `tests` stay within bounds.
//! - The measures of the documents and of the comments in shipped YAML files stay within bounds.
//! - A type name is defined at most twice in `src` and `crates`.
//! - The name of a test has at most 12 words.
//! - A comment line has at most 120 columns.
//!
//! Not covered:
//! - Good English. No pattern finds that.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The patterns of unclear text.
struct Patterns {
    /// The beginning of a sentence without its subject.
    riddle: Regex,
    /// A relative clause without its noun.
    nounless: Regex,
    /// `who` without its noun, with the word before it.
    who: Regex,
    /// A verb of speech or possession for a thing that has a technical word.
    private: Regex,
    item: Regex,
    code: Regex,
    link: Regex,
    sentence_end: Regex,
}

impl Patterns {
    fn new() -> Self {
        let regex = |pattern: &str| Regex::new(pattern).unwrap();
        Self {
            riddle: regex(
                r"^(?:What|Who|Whom|Whose|Whoever|Whatever|Whether|How|Of|One that|That which)\b",
            ),
            nounless: regex(
                r"(?i)\b(?:what|whoever|whatever|whom|of which|of whom|one that|those that|those who|that which|all that|as who)\b",
            ),
            who: regex(r"(?i)(?:[,;:(] |for |to |by )who\b"),
            private: regex(
                r"(?i)\b(?:sa(?:y|ys|id|ying)|tell(?:s|ing)?|told|h(?:old|olds|eld|olding)|hear(?:s|d|ing)?|ask(?:s|ed|ing)?|sp(?:eak|eaks|oke|oken|eaking)|st(?:and|ands|ood)|gone|goes on|let go|lets go|heed(?:s|ed)?|cure(?:s|d)?|doors?|letters?)\b",
            ),
            item: regex(r"^(?:[*+-] |\d+\. |\|)"),
            code: regex("`[^`]*`"),
            link: regex(r"\[([^\]]*)\]\([^)]*\)"),
            sentence_end: regex(r"[.;:!?](\s+)[A-Z*`\[]"),
        }
    }

    /// The paragraphs of the comments of a file.
    fn paragraphs(&self, text: &str, mark: &str) -> Vec<String> {
        let (mut paragraphs, mut open) = (Vec::new(), Vec::new());
        for line in text.lines().map(str::trim) {
            let comment = line
                .strip_prefix(mark)
                .map(|rest| rest.trim_start_matches(&mark[..1]).trim_start_matches('!').trim());
            if comment.is_none_or(|text| text.is_empty() || self.item.is_match(text)) {
                paragraphs.push(self.clean(&open.join(" ")));
                open.clear();
            }
            open.extend(comment.filter(|text| !text.starts_with('|') && !text.starts_with("```")));
        }
        paragraphs.push(self.clean(&open.join(" ")));
        paragraphs.retain(|paragraph| 4 <= words(paragraph));
        paragraphs
    }

    /// The paragraphs, list items and table cells of a Markdown file, without code blocks.
    fn markdown(&self, text: &str) -> Vec<String> {
        let (mut paragraphs, mut open, mut is_code) = (Vec::new(), Vec::new(), false);
        let mut table_row = 0;
        for line in text.lines() {
            let line = line.trim();
            let is_fence = line.starts_with("```");
            is_code ^= is_fence;
            if is_fence || is_code {
                continue;
            }
            table_row = if line.starts_with('|') { table_row + 1 } else { 0 };
            let begins =
                line.is_empty() || line.starts_with(['#', '|']) || self.item.is_match(line);
            if begins {
                paragraphs.push(self.clean(&open.join(" ")));
                open.clear();
            }
            // The first two rows of a table are its header.
            if 2 < table_row {
                paragraphs.extend(line.trim_matches('|').split('|').map(|cell| self.clean(cell)));
            } else if !line.starts_with(['#', '|']) {
                open.push(line);
            }
        }
        paragraphs.push(self.clean(&open.join(" ")));
        paragraphs.retain(|paragraph| 4 <= words(paragraph));
        paragraphs
    }

    /// Replaces code, and removes link targets and emphasis.
    fn clean(&self, paragraph: &str) -> String {
        let without_code = self.code.replace_all(paragraph, "it");
        self.link.replace_all(&without_code, "$1").replace(['*', '_'], "").trim().to_owned()
    }

    fn sentences<'p>(&self, paragraph: &'p str) -> Vec<&'p str> {
        let (mut sentences, mut from) = (Vec::new(), 0);
        for end in self.sentence_end.captures_iter(paragraph) {
            let blank = end.get(1).unwrap();
            sentences.push(&paragraph[from..blank.start()]);
            from = blank.end();
        }
        sentences.push(&paragraph[from..]);
        sentences.retain(|sentence| 2 < words(sentence));
        sentences
    }

    /// The unclear places of a paragraph.
    fn marks(&self, paragraph: &str) -> usize {
        let is_riddle =
            |sentence: &&str| self.riddle.is_match(sentence) && !sentence.ends_with('?');
        self.nounless(paragraph)
            + self.sentences(paragraph).iter().filter(|sentence| is_riddle(sentence)).count()
    }

    fn nounless(&self, paragraph: &str) -> usize {
        self.nounless.find_iter(paragraph).count() + self.who.find_iter(paragraph).count()
    }
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// Measures of text. Well-liked code bases have 1 to 4 % marked, 0.4 to 1.2 nounless, 1 to 5 private
/// and 2 to 4 % long.
#[derive(Debug, Clone, Copy)]
struct Measures {
    /// Paragraphs with an unclear place, in %.
    marked: f64,
    /// Clauses without their noun, per 1,000 words.
    nounless: f64,
    /// Private words, per 1,000 words.
    private: f64,
    /// Sentences of more than 30 words, in %.
    long: f64,
}

const BOUNDS: Measures = Measures { marked: 5.0, nounless: 2.5, private: 6.0, long: 3.0 };

/// The bounds of documents, which quote more.
const DOCUMENT_BOUNDS: Measures = Measures { marked: 6.0, nounless: 2.5, private: 6.0, long: 5.0 };

impl Measures {
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn of(patterns: &Patterns, paragraphs: &[String]) -> Self {
        let sum = |count: &dyn Fn(&String) -> usize| paragraphs.iter().map(count).sum::<usize>();
        let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        let sentences = sum(&|paragraph| patterns.sentences(paragraph).len());
        let is_long = |sentence: &&str| 30 < words(sentence);
        let long = sum(&|p| patterns.sentences(p).iter().filter(|s| is_long(s)).count());
        let all = sum(&|paragraph| words(paragraph));
        let marked = sum(&|paragraph| usize::from(patterns.marks(paragraph) != 0));
        let private = sum(&|paragraph| patterns.private.find_iter(paragraph).count());
        Self {
            marked: 100.0 * share(marked, paragraphs.len()),
            nounless: 1000.0 * share(sum(&|paragraph| patterns.nounless(paragraph)), all),
            private: 1000.0 * share(private, all),
            long: 100.0 * share(long, sentences),
        }
    }

    fn is_within(&self, bounds: &Self) -> bool {
        self.marked <= bounds.marked
            && self.nounless <= bounds.nounless
            && self.private <= bounds.private
            && self.long <= bounds.long
    }
}

/// Every file below `roots` with one of the `extensions`.
fn sources(roots: &[&str], extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = roots.iter().map(PathBuf::from).collect();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|e| extensions.iter().any(|&known| e == known)) {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found.sort();
    found
}

fn comment_mark(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("lua") => "--",
        Some("yaml") => "#",
        _ => "//",
    }
}

fn paragraphs_of(patterns: &Patterns, path: &Path, text: &str) -> Vec<String> {
    if path.extension().is_some_and(|extension| extension == "md") {
        patterns.markdown(text)
    } else {
        patterns.paragraphs(text, comment_mark(path))
    }
}

fn assert_plain(roots: &[&str], extensions: &[&str], bounds: &Measures) {
    let patterns = Patterns::new();
    let files = sources(roots, extensions);
    let paragraphs: Vec<_> =
        files.iter().flat_map(|(path, text)| paragraphs_of(&patterns, path, text)).collect();
    assert!(20 < paragraphs.len(), "{roots:?}: {} paragraphs", paragraphs.len());
    let measures = Measures::of(&patterns, &paragraphs);
    let mut worst = paragraphs;
    worst.sort_by_key(|paragraph| usize::MAX - patterns.marks(paragraph));
    worst.truncate(10);
    assert!(
        measures.is_within(bounds),
        "{roots:?}: {measures:.1?} exceeds {bounds:?}; the least plain paragraphs:\n{}",
        worst.join("\n")
    );
}

#[test]
fn comments_of_the_source_are_plain() {
    assert_plain(&["src", "crates"], &["rs", "lua"], &BOUNDS);
}

#[test]
fn comments_of_the_tests_are_plain() {
    assert_plain(&["tests"], &["rs", "lua"], &BOUNDS);
}

#[test]
fn documents_are_plain() {
    assert_plain(&["docs", "README.md", "CHANGELOG.md"], &["md"], &DOCUMENT_BOUNDS);
}

#[test]
fn comments_of_shipped_yaml_files_are_plain() {
    assert_plain(&["config"], &["yaml"], &DOCUMENT_BOUNDS);
}

#[test]
fn a_type_name_is_defined_at_most_twice() {
    let definition =
        Regex::new(r"(?m)^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait) (\w+)").unwrap();
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for (path, text) in sources(&["src", "crates"], &["rs"]) {
        let is_test = path.ends_with("tests.rs") || path.iter().any(|part| part == "tests");
        for found in definition.captures_iter(&text).filter(|_| !is_test) {
            places.entry(found[1].to_owned()).or_default().push(path.display().to_string());
        }
    }
    places.retain(|_, places| 2 < places.len());
    assert!(places.is_empty(), "defined more than twice: {places:#?}");
}

#[test]
fn a_test_name_has_at_most_twelve_words() {
    let test = Regex::new(r"#\[(?:tokio::)?test[^\]]*\](?:\s*#\[[^\]]*\])*\s*(?:async )?fn (\w+)")
        .unwrap();
    let mut long = Vec::new();
    for (path, text) in sources(&["src", "crates", "tests"], &["rs"]) {
        let names = test.captures_iter(&text).map(|found| found[1].to_owned());
        long.extend(
            names
                .filter(|name| 12 < name.split('_').count())
                .map(|name| format!("{}: {name}", path.display())),
        );
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn comment_lines_have_at_most_120_columns() {
    let mut long = Vec::new();
    for (path, text) in sources(&["src", "crates", "tests", "benches"], &["rs", "lua"]) {
        let mark = comment_mark(&path);
        for (line, text) in text.lines().enumerate() {
            let is_comment = text.trim_start().starts_with(mark);
            if is_comment && 120 < text.chars().count() {
                long.push(format!("{}:{}", path.display(), line + 1));
            }
        }
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// The measures find unclear text, and only that.
#[test]
fn the_measures_find_unclear_text() {
    let patterns = Patterns::new();
    let unclear = patterns.paragraphs("/// What is held is told to whoever asks for it.\n", "//");
    let measures = Measures::of(&patterns, &unclear);
    assert!(measures.marked > 99.0 && measures.nounless > 100.0, "{measures:?}");
    assert!(measures.private > 200.0 && !measures.is_within(&BOUNDS), "{measures:?}");
    let clear = patterns.paragraphs("//! Returns the hits left in the window.\n", "//");
    assert!(Measures::of(&patterns, &clear).is_within(&BOUNDS));
    let long = format!("// The{}\n", " word".repeat(30));
    let measures = Measures::of(&patterns, &patterns.paragraphs(&long, "//"));
    assert!(measures.long > 99.0, "{measures:?}");
    let page = "# What\n\n```sh\nwhat is held\n```\n\n| a | b |\n|---|---|\n| What is held is told. | x |\n";
    assert_eq!(patterns.markdown(page), ["What is held is told."]);
    let split = patterns.sentences("First part here. Second part here; Third part here.");
    assert_eq!(split.len(), 3);
}
