//! How densely the product is asserted: assertions per 1,000 lines of code, with a floor for each crate.

use std::collections::BTreeMap;

use super::tree::{Tree, product_lines};

/// Assertions per 1,000 lines at least, of all code below this folder. Raise a floor when a crate has got
/// more of them; never lower one.
const FLOORS: [(&str, f64); 6] = [
    ("client", 0.8),
    ("coordinator", 8.0),
    ("core/proto", 8.0),
    ("core/state", 26.0),
    ("coordinator/raft/consensus", 20.0),
    ("coordinator/storage/wal", 27.0),
];

/// What was counted in a crate, or in several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    assertions: usize,
    /// Neither blank nor comments.
    lines: usize,
}

impl Counted {
    fn per_thousand(self) -> f64 {
        self.assertions as f64 * 1000.0 / self.lines.max(1) as f64
    }
}

pub fn breaches(tree: &Tree) -> Vec<String> {
    let test_modules = test_modules(tree);
    let found: BTreeMap<&str, Counted> =
        FLOORS.iter().map(|&(name, _)| (name, count(tree, name, &test_modules))).collect();
    let is_low = |&(name, floor): &(&str, f64)| found[name].per_thousand() < floor;
    let figures = |&(name, floor): &(&str, f64)| {
        let Counted { assertions, lines } = found[name];
        let density = found[name].per_thousand();
        let mark = if is_low(&(name, floor)) { ": too few" } else { "" };
        format!(
            "{name}: {assertions} assertions in {lines} lines, {density:.1} per 1,000, at least {floor}{mark}"
        )
    };
    // Beside what is wrong, what the others have.
    if FLOORS.iter().any(is_low) { FLOORS.iter().map(figures).collect() } else { Vec::new() }
}

/// In the product files of all crates below a folder.
fn count(tree: &Tree, folder: &str, test_modules: &[String]) -> Counted {
    let mut counted = Counted::default();
    let inside = format!("{folder}/");
    let is_product = |path: &str| {
        path.starts_with(&inside)
            && path.contains("/src/")
            && !test_modules.iter().any(|module| {
                path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            })
    };
    for (_, text) in tree.product().filter(|(path, _)| is_product(path)) {
        for line in product_lines(text).map(str::trim_start) {
            if !line.is_empty() && !line.starts_with("//") {
                counted.lines += 1;
                counted.assertions += usize::from(asserts(line));
            }
        }
    }
    counted
}

/// Modules in files of their own that only tests have: their paths, without what tells a file from a folder.
fn test_modules(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.product() {
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]") {
            let name = pair[1].strip_suffix(';').and_then(|line| line.rsplit_once("mod "));
            found.extend(name.map(|(_, name)| format!("{}/{name}", folder_of_modules(path))));
        }
    }
    found
}

/// Where the modules lie that a file declares.
fn folder_of_modules(path: &str) -> &str {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if ["lib.rs", "main.rs", "mod.rs"].contains(&name) { folder } else { path.trim_end_matches(".rs") }
}

fn asserts(line: &str) -> bool {
    let words = ["assert!(", "assert_eq!(", "assert_ne!(", "unreachable!("];
    // `debug_assert` ends with these too.
    words.iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "#[cfg(test)]\nmod world;\nmod other;\n\n/// Text.\nfn a(b: u8) {\n    assert!(b > 1);\n    \
                        debug_assert_eq!(b, 2);\n    // assert!(true);\n}\n#[cfg(test)]\nmod tests {\n    \
                        assert!(true);\n}\n";

    #[test]
    fn assertions_of_the_product_count_and_those_of_tests_do_not() {
        let files = [
            ("state/src/a.rs", CODE),
            ("state/src/a/world.rs", "assert!(true);\n"),
            ("state/src/a/world/inner.rs", "assert!(true);\n"),
            ("state/src/a/other.rs", "let _ = 1;\n"),
            ("state/src/tests/b.rs", "assert!(true);\n"),
            ("state/benches/c.rs", "assert!(true);\n"),
        ];
        let tree = Tree::with(&files);
        let counted = count(&tree, "state", &test_modules(&tree));
        assert_eq!(counted, Counted { assertions: 2, lines: 8 });
    }

    #[test]
    fn a_crate_with_too_few_is_found_and_the_figures_of_all_are_said() {
        let sparse = format!("{}{}", "assert!(true);\n", "let _ = 1;\n".repeat(99));
        let dense = format!("{}{}", "assert!(true);\n".repeat(3), "let _ = 1;\n".repeat(97));
        let found = |text: &str| {
            let others = FLOORS.map(|(name, _)| (format!("{name}/src/lib.rs"), "assert!(true);\n"));
            let mut files: Vec<(&str, &str)> =
                others.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            files.retain(|(path, _)| *path != "core/state/src/lib.rs");
            files.push(("core/state/src/lib.rs", text));
            breaches(&Tree::with(&files))
        };
        assert!(found(&dense).is_empty());
        let breaches = found(&sparse);
        assert_eq!(breaches.len(), FLOORS.len());
        assert_eq!(
            breaches[3],
            "core/state: 1 assertions in 100 lines, 10.0 per 1,000, at least 26: too few"
        );
    }
}
