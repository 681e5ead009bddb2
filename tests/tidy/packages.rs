//! What a registry needs of the crates that are published: a version for each of them, and none for those
//! that stay here.

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
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
