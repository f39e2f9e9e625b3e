//! Files do not import each other in circles.
//!
//! A file imports another if it uses an item that the other defines. A re-export alone is no use.
//! Modules that list and use their children may lend them no items in return.
//!
//! Guarantees:
//! - A circle is found, also through re-exports and several files.
//!
//! Not covered:
//! - Uses of methods and fields, which name no path.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use super::{entries, files, is_word, tokens};

type ModulePath = Vec<String>;

type Pattern = LazyLock<Regex>;

/// A path after `use`, with the name that it gets and whether it is re-exported.
struct Import {
    path: Vec<String>,
    name: String,
    is_public: bool,
}

/// One file: its imports, and the names that it defines and uses.
#[derive(Default)]
struct SourceFile {
    imports: Vec<Import>,
    defined: BTreeSet<String>,
    words: BTreeSet<String>,
    paths: Vec<Vec<String>>,
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let mut all = Vec::new();
    let crates = entries(Path::new("crates")).into_iter().map(|path| path.join("src"));
    for root in std::iter::once(PathBuf::from("src")).chain(crates) {
        let sources = files(&root).into_iter().map(|file| {
            let module = module_path(file.strip_prefix(&root).unwrap());
            (module, fs::read_to_string(&file).unwrap())
        });
        let found = circles(sources);
        all.extend(found.iter().map(|circle| format!("{}: {}", root.display(), circle.join(", "))));
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn circles_are_found() {
    let found = |sources: &[(&str, &str)]| {
        let split = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
        circles(sources.iter().map(|&(path, code)| (split(path), code.to_owned())))
    };
    let parent = ("a", "mod b; pub use b::Item; pub struct Parent;");
    assert!(found(&[parent, ("a::b", "use super::Parent; pub struct Item;")]).is_empty());
    let uses = ("a", "mod b; pub use b::Item; pub struct Parent(Item);");
    assert_eq!(found(&[uses, ("a::b", "use super::Parent; pub struct Item;")]), [["a", "a::b"]]);
    let parent = ("a", "mod b; mod c; mod d; mod e; pub use e::Runner;");
    let first = ("a::b", "use super::{c::{self, Text}}; pub fn run() { c::run() }");
    let long = [
        parent,
        first,
        ("a::c", "pub struct Text; pub fn run() { crate::a::d::run() }"),
        ("a::d", "use super::Runner; pub fn run() { Runner::new() }"),
        ("a::e", "pub struct Runner(super::b::Gone);"),
    ];
    assert_eq!(found(&long), [["a::b", "a::c", "a::d", "a::e"]]);
    let method = ("a", "use other as text;\nimpl b::Item {\n    fn text() {}\n}");
    let uses = ("a::b", "use super::text::Text;\npub struct Item(Text);");
    assert!(found(&[method, uses]).is_empty(), "`text` is another crate, and not the method");
    let tests = "pub struct Text; mod tests { use super::super::b::run; }";
    assert!(found(&[parent, first, ("a::c", tests)]).is_empty(), "tests in a file do not count");
}

fn module_path(file: &Path) -> ModulePath {
    let file = file.with_extension("");
    let parts = file.iter().map(|part| part.to_str().unwrap().to_owned());
    parts.filter(|part| part != "mod" && part != "lib").collect()
}

/// Returns each set of two or more files that import each other, directly or through others.
fn circles(sources: impl Iterator<Item = (ModulePath, String)>) -> Vec<Vec<String>> {
    let files: HashMap<_, _> =
        sources.map(|(path, code)| (path, SourceFile::read(&code))).collect();
    let tree = Modules(files);
    let edges: HashMap<_, _> = tree.0.keys().map(|file| (file, tree.imports_of(file))).collect();
    let reachable = |file: &ModulePath| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![file.clone()]);
        while let Some(next) = open.pop() {
            open.extend(edges[&next].iter().filter(|file| seen.insert((*file).clone())).cloned());
        }
        seen
    };
    let reached: BTreeMap<_, _> = tree.0.keys().map(|file| (file, reachable(file))).collect();
    let circle_of = |file: &ModulePath| {
        let others = reached[file].iter().filter(|other| reached[other].contains(file));
        others.map(|other| other.join("::")).collect::<Vec<_>>()
    };
    let found: BTreeSet<_> = tree.0.keys().map(circle_of).filter(|found| found.len() > 1).collect();
    found.into_iter().collect()
}

struct Modules(HashMap<ModulePath, SourceFile>);

impl Modules {
    fn imports_of(&self, file: &ModulePath) -> BTreeSet<ModulePath> {
        let source = &self.0[file];
        let is_use = |import: &&Import| !import.is_public || source.words.contains(&import.name);
        let imported = source.imports.iter().filter(is_use).map(|import| &import.path);
        let definers = imported.chain(&source.paths).filter_map(|path| self.definer(file, path));
        definers.filter(|other| other != file).collect()
    }

    /// Returns the file that defines the item at `path`, as `file` names it.
    fn definer(&self, file: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let (mut module, mut rest) = self.start(file, path)?;
        while let [name, after @ ..] = rest {
            let below = [&module[..], std::slice::from_ref(name)].concat();
            if !self.0.contains_key(&below) {
                break;
            }
            (module, rest) = (below, after);
        }
        let name = rest.first()?;
        let source = self.0.get(&module)?;
        let import = source.imports.iter().find(|import| import.name == *name);
        match import.filter(|_| !source.defined.contains(name)) {
            Some(import) => self.definer(&module, &[&import.path, &rest[1..]].concat()),
            None => Some(module),
        }
    }

    /// Returns the module in which a path begins, and the rest of the path.
    fn start<'p>(
        &self,
        file: &ModulePath,
        path: &'p [String],
    ) -> Option<(ModulePath, &'p [String])> {
        match path.first()?.as_str() {
            "crate" => Some((Vec::new(), &path[1..])),
            "self" => Some((file.clone(), &path[1..])),
            "super" => {
                let up = path.iter().take_while(|name| *name == "super").count();
                Some((file[..file.len().checked_sub(up)?].to_vec(), &path[up..]))
            }
            first => {
                let child = [&file[..], &[first.to_owned()]].concat();
                let imports = &self.0[file].imports;
                let is_imported =
                    || imports.iter().any(|one| one.name == first && one.path[0] != first);
                (self.0.contains_key(&child) || is_imported()).then(|| (file.clone(), path))
            }
        }
    }
}

/// A comment, a string or a character.
static TEXT: Pattern =
    LazyLock::new(|| regex(r##"//[^\n]*|r#+"(?s:.*?)"#+|'(?:\\.|[^'\\])'|"(?s:\\.|[^"\\])*""##));
static USE: Pattern = LazyLock::new(|| regex(r"(pub(?:\s*\([^)]*\))?\s+)?\buse\s+([^;<]+);"));
static NO_USE: Pattern = LazyLock::new(|| regex(r"\bmod\s+\w+\s*;|pub\s*\([^)]*\)"));
/// An item of a file. A function within a block is a method.
static ITEM: Pattern = LazyLock::new(|| {
    let types = r"\b(?:struct|enum|trait|type|const|static|macro_rules!)\s+(?:mut\s+)?(\w+)";
    regex(&format!(r"(?m){types}|^\S[^\n]*?\bfn\s+(\w+)"))
});
static PATH: Pattern = LazyLock::new(|| regex(r"\w+(?:\s*::\s*\w+)+"));
static INNER_MODULE: Pattern = LazyLock::new(|| regex(r"\bmod\s+\w+\s*\{"));

impl SourceFile {
    fn read(code: &str) -> Self {
        let code = without_inner_modules(&TEXT.replace_all(code, " "));
        let mut file = Self::default();
        for found in USE.captures_iter(&code) {
            let words: Vec<&str> = tokens(&found[2]).collect();
            read_imports(&mut words.iter().copied().peekable(), &[], &mut |path, name| {
                file.imports.push(Import { path, name, is_public: found.get(1).is_some() });
            });
        }
        let body = USE.replace_all(&code, " ");
        let body = NO_USE.replace_all(&body, " ");
        let name =
            |found: regex::Captures<'_>| found.iter().flatten().last().unwrap().as_str().to_owned();
        file.defined = ITEM.captures_iter(&body).map(name).collect();
        file.words = tokens(&body).filter(|token| is_word(token)).map(str::to_owned).collect();
        let split = |path: &str| path.split("::").map(|name| name.trim().to_owned()).collect();
        file.paths = PATH.find_iter(&body).map(|found| split(found.as_str())).collect();
        file
    }
}

/// Calls `add` for each path of a `use` with the name that it gets.
fn read_imports<'t>(
    words: &mut std::iter::Peekable<impl Iterator<Item = &'t str>>,
    prefix: &[String],
    add: &mut impl FnMut(Vec<String>, String),
) {
    let mut path = prefix.to_vec();
    while let Some(word) = words.next_if(|word| !matches!(*word, "," | "}")) {
        match word {
            "::" | "*" => {}
            "as" => return add(path, words.next().unwrap_or_default().to_owned()),
            "{" => {
                while words.next_if_eq(&"}").is_none() && words.peek().is_some() {
                    read_imports(&mut *words as &mut _, &path, add);
                    words.next_if_eq(&",");
                }
                return;
            }
            "self" if !path.is_empty() => {}
            word => path.push(word.to_owned()),
        }
    }
    if let Some(name) = path.last().cloned() {
        add(path, name);
    }
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap()
}

/// Removes modules that are written within the file, such as its tests.
fn without_inner_modules(code: &str) -> String {
    let (mut kept, mut rest) = (String::new(), code);
    while let Some(found) = INNER_MODULE.find(rest) {
        kept.push_str(&rest[..found.start()]);
        let mut depth = 1;
        let end = rest[found.end()..].find(|letter| {
            depth += i32::from(letter == '{') - i32::from(letter == '}');
            depth == 0
        });
        rest = end.map_or("", |end| &rest[found.end() + end + 1..]);
    }
    kept + rest
}
