//! Tests of the book that `scripts/book.sh` builds from `docs/` with the real mdBook, in a real
//! browser (Chromium without a window).
//!
//! Guarantees:
//! - The build prints no warnings.
//! - Every page of `docs/SUMMARY.md` opens in the browser.
//! - Every link and picture inside the book resolves in the browser, including the anchor.
//! - The search finds pages by a word of their text.
//! - The first page has the commands of the README, which `scripts/walk.sh` runs.
//!
//! Not covered:
//! - Appearance.
//! - Links to other hosts.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use regex::Regex;

use super::{page, pages, root};

fn build_book() -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let out = Command::new(root().join("scripts/book.sh")).arg(to.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    to
}

#[test]
fn every_book_page_exists_and_links_resolve() {
    let (book, browser) = (build_book(), Browser::new());
    let docs = book.path().join("docs");
    let names =
        pages().into_iter().filter_map(|page| Some(page.name.strip_prefix("docs/")?.to_owned()));
    let wanted: Vec<_> = names.filter(|name| name != "SUMMARY.md").collect();
    assert!(20 < wanted.len());
    let mut read = Targets { browser: &browser, anchors: BTreeMap::new() };
    let mut dead = BTreeSet::new();
    let mut followed = 0;
    for name in wanted.iter().map(String::as_str).chain(["index.md"]) {
        let file = docs.join(name).with_extension("html");
        assert!(file.exists(), "{name}");
        let text = browser.open(&file, "");
        for link in links(&text) {
            followed += 1;
            if !read.has(&file, &link) {
                dead.insert(format!("{name}: {link}"));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
    assert!(1_000 < followed, "{followed} links");
}

/// Targets of all links and pictures of a page, without links to other hosts.
fn links(text: &str) -> Vec<String> {
    let named = Regex::new(r#"(?:href|src)="([^"]*)""#).unwrap();
    let elsewhere = Regex::new(r"^[a-z]+:").unwrap();
    let found = named.captures_iter(text).map(|found| found[1].replace("&amp;", "&"));
    found.filter(|link| !link.is_empty() && !elsewhere.is_match(link)).collect()
}

/// Chromium without a window, with an empty profile.
struct Browser {
    profile: tempfile::TempDir,
    /// Documents by address: most pages are opened for their links and as targets.
    documents: RefCell<BTreeMap<String, String>>,
}

impl Browser {
    fn new() -> Self {
        Self { profile: tempfile::tempdir().unwrap(), documents: RefCell::default() }
    }

    /// Opens a file and returns its document after its scripts ran. `query` is empty or such as
    /// `?search=word`.
    fn open(&self, file: &Path, query: &str) -> String {
        let address = format!("file://{}{query}", normalize(file).display());
        let mut documents = self.documents.borrow_mut();
        documents.entry(address).or_insert_with_key(|address| self.load(address)).clone()
    }

    fn load(&self, address: &str) -> String {
        let mut chromium = Command::new("chromium");
        chromium.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
        chromium.args(["--virtual-time-budget=5000", "--disable-dev-shm-usage"]);
        chromium.arg(format!("--user-data-dir={}", self.profile.path().display()));
        let out = chromium.arg(address).output().unwrap();
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && !out.stdout.is_empty(), "{address}: {errors}");
        String::from_utf8(out.stdout).unwrap()
    }
}

/// The anchors of each linked file, or `None` if the file is missing.
struct Targets<'b> {
    browser: &'b Browser,
    anchors: BTreeMap<PathBuf, Option<BTreeSet<String>>>,
}

impl Targets<'_> {
    fn has(&mut self, from: &Path, link: &str) -> bool {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let path =
            if path.is_empty() { from.to_owned() } else { from.parent().unwrap().join(path) };
        let anchors = self.anchors.entry(normalize(&path));
        let anchors = anchors.or_insert_with_key(|path| anchors_of(self.browser, path));
        anchors.as_ref().is_some_and(|known| anchor.is_empty() || known.contains(anchor))
    }
}

fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

fn anchors_of(browser: &Browser, path: &Path) -> Option<BTreeSet<String>> {
    let named = Regex::new(r#"\bid="([^"]*)""#).unwrap();
    let is_page = path.extension().is_some_and(|extension| extension == "html");
    let text = if is_page && path.exists() {
        browser.open(path, "")
    } else {
        String::from_utf8_lossy(&fs::read(path).ok()?).into_owned()
    };
    Some(named.captures_iter(&text).map(|found| found[1].to_owned()).collect())
}

#[test]
fn book_search_finds_pages_by_a_word() {
    let (book, browser) = (build_book(), Browser::new());
    let found = browser.open(&book.path().join("docs/index.html"), "?search=overshoot");
    let results = found.split("id=\"mdbook-searchresults\"").nth(1).unwrap_or_default();
    assert!(results.contains("lease-limits.html"), "{results}");
}

#[test]
fn commands_on_the_first_page_match_the_readme() {
    let (readme, start) = (page("README.md"), page("docs/start.md"));
    let mut open = false;
    let mut compared = 0;
    for line in start.lines() {
        match line.strip_prefix("```") {
            Some(_) => open = !open,
            None if open => {
                assert!(readme.lines().any(|known| known == line), "{line}");
                compared += 1;
            }
            None => {}
        }
    }
    assert!(4 < compared, "{compared} commands");
}
