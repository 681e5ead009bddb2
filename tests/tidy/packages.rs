//! What a registry needs of the crates that are published: a version for each of them, and none for those
//! that stay here. And what the pages tell a user to depend on: the crates of this release.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::Tree;

/// The root manifest names a published crate with the version of the workspace. One that is not published has
/// none: then cargo leaves it out of the packages whose tests use it.
pub fn breaches(tree: &Tree) -> Vec<String> {
    let Some(root) = tree.get("Cargo.toml") else { return Vec::new() };
    let version = root.lines().find_map(|line| line.strip_prefix("version = ")).unwrap_or_default();
    let (mut found, mut asked) = (Vec::new(), BTreeMap::new());
    for line in root.lines().filter(|line| line.starts_with("rowlock-") && line.contains("path = ")) {
        let Some((name, said)) = line.split_once(" = ") else { continue };
        let Some(folder) = said.split("path = \"").nth(1).and_then(|rest| rest.split('"').next()) else {
            continue;
        };
        let Some(manifest) = tree.get(&format!("{folder}/Cargo.toml")) else { continue };
        let is_private = manifest.lines().any(|line| line == "publish = false");
        if !is_private && !said.contains(&format!("version = {version}")) {
            found.push(format!("Cargo.toml: {name} is published: say version = {version}"));
        }
        if is_private && said.contains("version = ") {
            found.push(format!("Cargo.toml: {name} is not published: say no version"));
        }
        asked.insert(name, asked_by_version(manifest));
    }
    for name in asked.keys().filter(|name| reaches(&asked, name)) {
        found
            .push(format!("{name} depends on itself, and is in no registry yet: say path alone in a test's"));
    }
    found.extend(other_releases(tree, version.trim_matches('"')));
    found.extend(untested_examples(tree));
    found
}

/// Examples in doc comments of crates whose doc tests are left out.
fn untested_examples(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (manifest, _) in tree.of_kind("toml").filter(|(_, text)| text.contains("\ndoctest = false\n")) {
        let sources = manifest.replace("Cargo.toml", "src/");
        for (path, text) in tree.sources().filter(|(path, _)| path.starts_with(&sources)) {
            let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix("//"));
            let fences = comments.filter(|line| line.trim_start_matches(['/', '!', ' ']).starts_with("```"));
            if fences.step_by(2).any(|fence| !fence.ends_with("text")) {
                found.push(format!("{path}: an example that is not tested: {manifest} leaves doc tests out"));
            }
        }
    }
    found
}

/// The crates of this project that a package asks the registry for. A package has no dependencies of tests
/// without a version.
fn asked_by_version(manifest: &str) -> Vec<&str> {
    let lines = manifest.lines().filter(|line| line.starts_with("rowlock-"));
    let asks = |line: &&str| line.contains("workspace = true") || line.contains("version");
    lines.filter(asks).filter_map(|line| line.split(['.', ' ', '=']).next()).collect()
}

/// Returns whether a crate asks the registry for itself, directly or through others.
fn reaches(asked: &BTreeMap<&str, Vec<&str>>, name: &str) -> bool {
    let (mut open, mut seen) = (vec![name], BTreeSet::new());
    while let Some(next) = open.pop() {
        open.extend(asked.get(next).into_iter().flatten().filter(|one| seen.insert(**one)));
    }
    seen.contains(name)
}

/// Dependency lines in pages that name another release than this one.
fn other_releases(tree: &Tree, version: &str) -> Vec<String> {
    let Some((release, _)) = version.rsplit_once('.') else { return Vec::new() };
    let mut found = Vec::new();
    for (path, text) in tree.of_kind("md") {
        for line in text.lines() {
            let Some((_, after)) = line.split_once("rowlock-") else { continue };
            let Some((name, said)) = after.split_once(" = \"") else { continue };
            let said = said.split('"').next().unwrap_or_default();
            if !name.contains(' ') && said != release {
                found.push(format!("{path}: rowlock-{name} = \"{said}\": this is release {release}"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stand_where_they_are_tested() {
        let text = "//! ```text\n//! a\n//! ```\n/// ```\n/// let a = 1;\n/// ```\n";
        let files = |manifest| Tree::with(&[("a/Cargo.toml", manifest), ("a/src/lib.rs", text)]);
        let found = untested_examples(&files("[lib]\ndoctest = false\n"));
        assert_eq!(found, ["a/src/lib.rs: an example that is not tested: a/Cargo.toml leaves doc tests out"]);
        assert!(untested_examples(&files("[lib]\n")).is_empty());
    }

    #[test]
    fn a_published_crate_without_the_version_and_a_private_one_with_it_are_found() {
        let root = "version = \"0.1.0\"\nrowlock-a = { path = \"a\" }\nrowlock-b = { version = \"0.1.0\", path = \
                    \"b\" }\nrowlock-c = { version = \"0.1.0\", path = \"c\" }\n";
        let private = "[package]\npublish = false\n";
        let files =
            [("Cargo.toml", root), ("a/Cargo.toml", ""), ("b/Cargo.toml", ""), ("c/Cargo.toml", private)];
        let want = [
            "Cargo.toml: rowlock-a is published: say version = \"0.1.0\"",
            "Cargo.toml: rowlock-c is not published: say no version",
        ];
        assert_eq!(breaches(&Tree::with(&files)), want);
    }

    #[test]
    fn crates_that_ask_the_registry_for_themselves_are_found() {
        let root = |name| format!("rowlock-{name} = {{ version = \"0.2.0\", path = \"{name}\" }}\n");
        let root = format!("version = \"0.2.0\"\n{}", ["a", "b", "c", "d"].map(root).concat());
        let by_version = "[dev-dependencies]\nrowlock-a = { workspace = true, features = [\"x\"] }\n";
        let by_path = "[dev-dependencies]\nrowlock-b = { path = \".\" }\nrowlock-c.workspace = true\n";
        let tree = Tree::with(&[
            ("Cargo.toml", &*root),
            ("a/Cargo.toml", by_version),
            ("b/Cargo.toml", by_path),
            ("c/Cargo.toml", "[dependencies]\nrowlock-d.workspace = true\n"),
            ("d/Cargo.toml", "[dev-dependencies]\nrowlock-c.workspace = true\n"),
        ]);
        let found = breaches(&tree).into_iter().map(|breach| breach[..9].to_owned());
        assert_eq!(found.collect::<Vec<_>>(), ["rowlock-a", "rowlock-c", "rowlock-d"]);
    }

    #[test]
    fn a_page_that_tells_of_another_release_is_found() {
        let page = "rowlock-a = \"0.1\"\nuse a; // rowlock-b = \"0.2\"\n";
        let tree = Tree::with(&[("Cargo.toml", "version = \"0.2.0\"\n"), ("a/README.md", page)]);
        assert_eq!(breaches(&tree), ["a/README.md: rowlock-a = \"0.1\": this is release 0.2"]);
    }
}
