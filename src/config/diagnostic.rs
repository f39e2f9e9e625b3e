//! What is wrong with a text, where, and what would cure it.
//!
//! Guarantees: a diagnostic is self-contained (it carries the line it points at), has a code from
//! a closed list, and its severity follows from the code.
//! Leaves out: finding problems, which is for [`super::raw`], [`super::resolve`] and the lints.

mod found;

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Serialize, Serializer};

pub use found::{Counts, Diagnostics};

/// A stretch of a source text, in bytes of the decoded text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

/// A value and where it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub span: Span,
}

/// A named text, so that a span can be shown to a person.
#[derive(Debug)]
pub struct Source {
    /// The path as the person knows it, for example `limits/shop.yaml`.
    pub name: Arc<str>,
    /// The decoded text (UTF-8, no byte order mark).
    pub text: Arc<str>,
    /// Where each line starts. Counted at the first question only: a sound file asks none.
    lines: OnceLock<Box<[usize]>>,
}

/// Characters of a line that a place carries on either side of what it points at: JSON on one
/// line of many megabytes would else be repeated in every diagnostic.
const SHOWN: usize = 120;

impl Source {
    /// A text under a name.
    #[must_use]
    pub fn new(name: &str, text: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), text: text.into(), lines: OnceLock::new() }
    }

    /// Where `span` is, for a person. A span outside the text is moved to its end.
    ///
    /// Cost: the first call reads the whole text, each call its line.
    #[must_use]
    pub fn place(&self, span: Span) -> Place {
        let start = floor_char(&self.text, span.start);
        let lines = self.line_starts();
        let line = lines.partition_point(|first| *first <= start);
        let first = lines.get(line.saturating_sub(1)).copied().unwrap_or(0);
        let before = &self.text[first..start];
        let rest = until_line_end(&self.text[start..]);
        let meant = floor_char(rest, span.end.saturating_sub(start));
        Place {
            file: self.name.clone(),
            line,
            column: before.chars().count() + 1,
            width: rest[..meant].chars().take(SHOWN).count().max(1),
            shown: before.chars().count().saturating_sub(SHOWN),
            text: excerpt(before, rest),
        }
    }

    /// The line that byte `at` is on, from 1. Cost: the logarithm of the number of lines, after
    /// the first call.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        self.line_starts().partition_point(|first| *first <= at).max(1)
    }

    /// What stands on line `line`, from 1, without the blanks around it. A line that there is not is the text's end.
    #[must_use]
    pub fn line_span(&self, line: usize) -> Span {
        let first = self.line_starts().get(line.saturating_sub(1)).copied();
        let first = first.unwrap_or(self.text.len());
        let content = until_line_end(&self.text[first..]);
        let start = first + content.len() - content.trim_start().len();
        Span { start, end: start + content.trim().len() }
    }

    fn line_starts(&self) -> &[usize] {
        self.lines.get_or_init(|| {
            let bytes = self.text.as_bytes();
            let ends_line = |at: usize| {
                bytes[at] == b'\n' || (bytes[at] == b'\r' && bytes.get(at + 1) != Some(&b'\n'))
            };
            std::iter::once(0)
                .chain((0..bytes.len()).filter(|at| ends_line(*at)).map(|at| at + 1))
                .collect()
        })
    }
}

fn floor_char(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

fn until_line_end(text: &str) -> &str {
    text.split(['\n', '\r']).next().unwrap_or_default()
}

/// Control characters are replaced: a file must not steer a terminal.
fn harmless(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// The line around a place.
fn excerpt(before: &str, rest: &str) -> Box<str> {
    let skipped = before.chars().count().saturating_sub(SHOWN);
    before.chars().skip(skipped).chain(rest.chars().take(SHOWN)).map(harmless).collect()
}

/// A place that a person can go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file's name.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// How many characters of the line are meant; at least 1.
    pub width: usize,
    /// How many characters of a long line stand before `text`.
    pub shown: usize,
    /// The line itself; of a long one, the part around the column.
    pub text: Box<str>,
}

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Loads and is sound; says what it comes to.
    Note,
    /// Loads, but is probably not what was meant.
    Warning,
    /// Does not load.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What kind of finding, from the closed list.
    pub code: Code,
    /// Where.
    pub place: Place,
    /// What was wanted and what was got: one sentence, lower case, no full stop.
    pub message: String,
    /// What would cure it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// How bad it is; follows from the code.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }
}

/// The finding as `check` prints it: place and message, the line, a caret with the cure.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { file, line, column, width, shown, text } = &self.place;
        let (severity, code) = (self.severity(), self.code.name());
        writeln!(f, "{file}:{line}:{column} {severity}[{code}] {}", self.message)?;
        writeln!(f, "{line:>5} | {text}")?;
        let indent = column.saturating_sub(shown + 1);
        write!(f, "      | {:indent$}{:^<width$}", "", "")?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, " {help}"))
    }
}

impl Serialize for Diagnostic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Flat {
            severity: self.severity(),
            code: self.code.name(),
            file: &self.place.file,
            line: self.place.line,
            column: self.place.column,
            message: &self.message,
            help: self.help.as_deref(),
        }
        .serialize(serializer)
    }
}

/// A diagnostic as JSON: stable field names for other programs.
#[derive(Serialize)]
struct Flat<'a> {
    severity: Severity,
    code: &'a str,
    file: &'a str,
    line: usize,
    column: usize,
    message: &'a str,
    help: Option<&'a str>,
}

/// One line per code: the variant, its stable name and its title. Errors start with E.
macro_rules! codes {
    ($($variant:ident = $name:ident $title:literal,)*) => {
        /// The closed list of findings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = concat!(stringify!($name), ": ", $title, ".")] $variant,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The stable name, for example `E01`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name),)* }
            }

            /// The kind of finding in a few words.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }
        }
    };
}

codes! {
    Syntax = E01 "the text is not YAML",
    Encoding = E02 "the bytes are not text",
    TooLarge = E03 "the file is too large",
    TooDeep = E04 "the file is nested too deeply",
    EndlessAlias = E05 "an alias that contains itself or multiplies without measure",
    BadMerge = E06 "a merge key with something other than a mapping",
    TagMisfit = E07 "a tag that does not fit its text",
    KeyNotText = E08 "a key that is not text",
    UnknownKey = E09 "a key that the language does not have",
    MisplacedWord = E10 "a word in a block that it does not belong to",
    NotMappingInList = E11 "a list with something other than a mapping",
    FractionOrTooBig = E12 "a fraction, or an integer beyond 64 bits",
    TypeMismatch = E13 "a value of another type than wanted",
    MetadataNotText = E14 "metadata that cannot be expressed as JSON",

    IgnoredKey = W01 "a key without effect where it stands",
    RepeatedKey = W02 "a key written twice in one block",
    MergeOverwrites = W03 "a merge key that overwrites what stands before it",
    NotFinite = W04 "a number that JSON cannot express",
    BinaryNotText = W05 "binary that is not text",
    SecondDocument = W06 "another document, which is not read",

    EmptyDomain = E20 "a file without a domain",
    DuplicateDomain = E21 "a domain that another file has, with merging off",
    EmptyKey = E22 "a descriptor without a key",
    DuplicateDescriptor = E23 "two descriptors of one level under one composite key",
    UnknownUnit = E24 "no unit, or none of the seven",
    UnlimitedWithLimit = E25 "`unlimited` together with words that limit",
    EmptyReplaces = E26 "an empty name in `replaces`",
    ReplacesItself = E27 "a rule that replaces its own name",
    ShareWithoutWildcard = E28 "`share_threshold` on a descriptor without a `*`",
    UnknownWord = E29 "a word that is none of those expected",
    BadDuration = E31 "a duration that cannot be read or used",
    Contradiction = E32 "words that exclude each other",
    ZeroBurst = E33 "a burst that would deny everything",
    ZeroRequests = E34 "a limit of zero for a strategy that never admits with it",
    DoesNotFit = E35 "numbers that cannot be counted exactly",
    BadCalendar = E36 "a calendar without a known time zone or day",
    TooMany = E37 "more descriptors than one domain can hold",
    OutOfRange = E38 "a word that is missing, or a number that is too small or too large",

    ShadowedPattern = W20 "a pattern that an earlier one leaves nothing to",
    ShadowedKey = W21 "a bare key whose every entry a pattern takes",
    AmbiguousKey = W22 "a composite key that answers for another descriptor's key",
    StarInKey = W23 "a `*` in a key, which acts on key and value joined",
    LargeBurst = W24 "a burst of more than ten units' worth of hits",
    CoarseTick = W25 "one tick is worth more than a hundredth of the burst",
    NoEffect = W26 "a word without effect where it stands",
    UnknownReplaces = W27 "`replaces` names a rule that the domain does not have",
    DeniesAll = W28 "no `requests_per_unit`, which denies every hit",
    UnknownColocate = W29 "`colocate` names a key that the domain does not have",
    LongExposure = W30 "a ceiling that a fleet may hold, whose requests may last long, or nobody said how long",
    SmallShares = W31 "a ceiling too small to be held in shares",
    CostlyStrict = W32 "a large ceiling whose every request asks the store",

    SeveralSlots = N40 "how a Redis Cluster charges limits that are charged as one",
    LeaseForecast = N41 "how often a leased limit is expected to ask the store",
}

impl Code {
    /// How bad a finding with this code is.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self.name().as_bytes() {
            [b'N', ..] => Severity::Note,
            [b'W', ..] => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

/// Findings of one text while it is being read: spans now, places when all is known.
///
/// Of very many, the first thousand of each severity are kept, and the others counted.
#[derive(Debug, Default)]
pub struct Findings {
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
    notes: Vec<Finding>,
    beyond: Counts,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    span: Span,
    code: Code,
    message: String,
    help: Option<String>,
}

/// Findings of one severity that are kept: a generated file can hold millions.
const KEPT: usize = 1000;

/// Diagnostics shown of one file: nobody reads more.
const SHOWN_OF_ONE_FILE: usize = 200;

impl Findings {
    /// Takes down one finding.
    pub fn add(&mut self, code: Code, span: Span, message: impl Into<String>) {
        self.keep(Finding { span, code, message: message.into(), help: None });
    }

    /// Takes down one finding with its cure.
    pub fn add_with_help(
        &mut self,
        code: Code,
        span: Span,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let help = Some(help.into());
        self.keep(Finding { span, code, message: message.into(), help });
    }

    /// Counts one that is not kept, as where [`Self::is_full`]: its words cost nothing then.
    pub fn count(&mut self, code: Code) {
        self.beyond.add(code.severity());
    }

    fn keep(&mut self, finding: Finding) {
        if self.is_full(finding.code) {
            return self.count(finding.code);
        }
        match finding.code.severity() {
            Severity::Error => self.errors.push(finding),
            Severity::Warning => self.warnings.push(finding),
            Severity::Note => self.notes.push(finding),
        }
    }

    /// Whether one of them is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Whether so many as bad as `code` were found that no further one will be kept.
    #[must_use]
    pub fn is_full(&self, code: Code) -> bool {
        let kept = match code.severity() {
            Severity::Error => &self.errors,
            Severity::Warning => &self.warnings,
            Severity::Note => &self.notes,
        };
        KEPT <= kept.len()
    }

    /// The findings in the order of the text, each once; of very many the first two hundred, errors
    /// before warnings before notes, and the count of the others.
    #[must_use]
    pub fn into_diagnostics(self, source: &Source) -> Diagnostics {
        let Self { mut errors, mut warnings, mut notes, beyond: mut more } = self;
        for found in [&mut errors, &mut warnings, &mut notes] {
            found.sort_unstable();
            found.dedup();
        }
        let mut shown: Vec<_> = errors.into_iter().chain(warnings).chain(notes).collect();
        let cut = shown.drain(SHOWN_OF_ONE_FILE.min(shown.len())..);
        cut.for_each(|finding| more.add(finding.code.severity()));
        shown.sort_unstable();
        Diagnostics::new(shown.into_iter().map(|finding| finding.at(source)).collect(), more)
    }
}

impl Finding {
    fn at(self, source: &Source) -> Diagnostic {
        let Self { span, code, message, help } = self;
        // A text that is quoted in them may have had its escapes read: it can hold what no line of a file does.
        let harmless = |text: String| text.chars().map(harmless).collect();
        let (message, help) = (harmless(message), help.map(harmless));
        Diagnostic { code, place: source.place(span), message, help }
    }
}
