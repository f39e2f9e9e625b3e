//! Recognizes files beside limits files that contain no limits, such as a README.
//!
//! Guarantees:
//! - A file with a line that starts with `domain:` is a limits file, whatever its name.

use crate::diagnostic::{Code, Findings, Span};

/// The endings of files that are never limits files.
const ENDINGS: &[&str] = &[
    "adoc", "cfg", "css", "csv", "gif", "go", "html", "ini", "jpg", "js", "lock", "log", "lua",
    "markdown", "md", "mdx", "pdf", "pem", "png", "py", "rst", "sh", "svg", "swp", "tf", "tmpl",
    "toml", "tpl", "txt", "xml", "zip",
];

/// The names of such files without an ending.
const NAMES: &[&str] = &[
    "changelog",
    "codeowners",
    "contributing",
    "copying",
    "dockerfile",
    "gemfile",
    "license",
    "makefile",
    "notice",
    "owners",
    "readme",
    "todo",
    ".gitattributes",
    ".gitignore",
    ".gitkeep",
];

/// Returns `true` for a file that its name and its text show to be no limits file.
pub(super) fn is_document(name: &str, text: &str) -> bool {
    let name = name.rsplit(['/', '\\']).next().unwrap_or(name).to_lowercase();
    let has_ending = name.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending));
    (has_ending || NAMES.contains(&name.as_str()))
        && !text.lines().any(|line| line.starts_with("domain:"))
}

/// Returns the only finding in such a file.
pub(super) fn finding() -> Findings {
    let mut findings = Findings::default();
    let fix = "move it out of the directory of limits, where every file is read";
    findings.add_with_help(Code::EmptyDomain, Span::default(), "this is not a limits file", fix);
    findings
}
