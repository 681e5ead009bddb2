//! What a registry needs of the crates that are published: a version for each of them, and none for those
//! that stay here. And what the pages tell a user to depend on: the crates of this release.

use super::tree::Tree;

/// The root manifest names a published crate with the version of the workspace. One that is not published has
/// none: then cargo leaves it out of the packages whose tests use it.
pub fn breaches(tree: &Tree) -> Vec<String> {
    let Some(root) = tree.get("Cargo.toml") else { return Vec::new() };
    let version = root.lines().find_map(|line| line.strip_prefix("version = ")).unwrap_or_default();
    let mut found = Vec::new();
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
        if depends_on_itself_by_version(name, manifest) {
            found.push(format!("{folder}/Cargo.toml: {name} is in no registry yet: say path = \".\" alone"));
        }
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

/// A crate's tests may need it with a feature. With a version, packing it asks the registry for a release
/// that is not there yet.
fn depends_on_itself_by_version(name: &str, manifest: &str) -> bool {
    let own = |line: &&str| line.split(['.', ' ', '=']).next() == Some(name);
    manifest.lines().find(own).is_some_and(|line| line.contains("workspace") || line.contains("version"))
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
    fn a_crate_that_asks_the_registry_for_itself_is_found() {
        let root = "version = \"0.2.0\"\nrowlock-a = { version = \"0.2.0\", path = \"a\" }\nrowlock-b = { version = \
                    \"0.2.0\", path = \"b\" }\n";
        let asks = "[dev-dependencies]\nrowlock-a = { workspace = true, features = [\"x\"] }\n";
        let by_path = "[dev-dependencies]\nrowlock-b = { path = \".\", features = [\"x\"] }\n";
        let tree = Tree::with(&[("Cargo.toml", root), ("a/Cargo.toml", asks), ("b/Cargo.toml", by_path)]);
        assert_eq!(
            breaches(&tree),
            ["a/Cargo.toml: rowlock-a is in no registry yet: say path = \".\" alone"]
        );
    }

    #[test]
    fn a_page_that_tells_of_another_release_is_found() {
        let page = "rowlock-a = \"0.1\"\nuse a; // rowlock-b = \"0.2\"\n";
        let tree = Tree::with(&[("Cargo.toml", "version = \"0.2.0\"\n"), ("a/README.md", page)]);
        assert_eq!(breaches(&tree), ["a/README.md: rowlock-a = \"0.1\": this is release 0.2"]);
    }
}
