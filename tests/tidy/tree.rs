//! The text of all files of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Folders of builds, data and other people's code.
const NOT_OURS: [&str; 2] = ["target", "data"];
/// Settings of tools that pages name.
const SETTINGS: &str = ".cargo";
const KINDS: [&str; 7] = ["rs", "md", "toml", "snap", "yml", "json", "txt"];

/// Path from the root -> text.
#[derive(Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

impl Tree {
    pub fn of_the_repository() -> Tree {
        let root = root();
        let mut tree = Tree::default();
        tree.add(root, root);
        assert!(
            tree.get("README.md").is_some() && tree.sources().count() > 100,
            "this is not the repository"
        );
        tree
    }

    /// For a check's own test.
    pub fn with(files: &[(&str, &str)]) -> Tree {
        let own = |&(path, text): &(&str, &str)| (path.to_owned(), text.to_owned());
        Tree { files: files.iter().map(own).collect() }
    }

    fn add(&mut self, root: &Path, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                if (!name.starts_with('.') || name == SETTINGS) && !NOT_OURS.contains(&name.as_str()) {
                    self.add(root, &path);
                }
            } else {
                let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
                let text =
                    if KINDS.contains(&kind) { fs::read_to_string(&path).unwrap() } else { String::new() };
                self.files.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), text);
            }
        }
    }

    pub fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether there is a file or a folder of this path.
    pub fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.contains_key(path) || self.files.keys().any(|file| file.starts_with(&folder))
    }

    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = (&str, &str)> {
        let end = format!(".{kind}");
        self.files
            .iter()
            .filter(move |(path, _)| path.ends_with(&end))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn sources(&self) -> impl Iterator<Item = (&str, &str)> {
        self.of_kind("rs")
    }

    /// The Rust files of the product, without their tests.
    pub fn product(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_test = |path: &str| {
            let part = |part: &str| ["tests", "benches", "examples", "fuzz", "testdata"].contains(&part);
            path.split('/').any(part) || path.ends_with("/tests.rs") || path.ends_with("/test_util.rs")
        };
        self.sources().filter(move |(path, _)| !is_test(path))
    }
}

/// The lines of a file's product part: what stands before its unit tests. A module of tests in a file of its
/// own may be declared among them.
pub fn product_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let ends = line.starts_with("#[cfg(test)]") && lines.peek().is_none_or(|next| !next.ends_with(';'));
        (!ends).then_some(line)
    })
}
