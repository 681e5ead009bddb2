//! Circles of files that import each other. A person who wants to understand one file of a circle has to read
//! all of them, so the longest circle of each crate has a ceiling.
//!
//! Counted are the `use` declarations of a file's own module, outside its tests, that name an item of the
//! same crate: an edge leads to the file that defines the item, through re-exports. A circle is a strongly
//! connected component of that graph.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{Tree, product_lines};

/// A crate's folder, and the most files in one circle. Other crates have no circle.
const CEILINGS: [(&str, usize); 16] = [
    ("cli", 7),
    ("client/rust", 5),
    ("coordinator", 7),
    ("coordinator/access/history", 3),
    ("coordinator/raft/consensus", 4),
    ("coordinator/storage/wal", 3),
    ("core/env", 2),
    ("core/proto", 6),
    ("core/state", 3),
    ("lab/bench", 3),
    ("lab/compat", 2),
    ("lab/frames", 4),
    ("sim", 5),
    ("sim/designs", 2),
    ("sim/model", 1),
    ("sim/world", 7),
];

/// Path of a module from the crate's root; the root is empty.
type Module = Vec<String>;

/// The crate's folder and its circles, the longest first.
fn measured(tree: &Tree) -> Vec<(String, Vec<Vec<String>>)> {
    let mut crates = BTreeMap::<&str, BTreeMap<Module, (&str, &str)>>::new();
    for (path, text) in tree.product() {
        let Some((folder, file)) = path.split_once("/src/") else { continue };
        let mut module: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            module.pop();
        }
        if !file.contains("tests") {
            crates.entry(folder).or_default().insert(module, (path, text));
        }
    }
    crates.into_iter().map(|(folder, files)| (folder.to_owned(), circles(&files))).collect()
}

pub fn table(tree: &Tree) -> String {
    let row = |(name, circles): (String, Vec<Vec<String>>)| {
        let lengths: Vec<_> = circles.iter().map(Vec::len).collect();
        format!("{name:30} {lengths:?}\n")
    };
    measured(tree).into_iter().map(row).collect()
}

pub fn breaches(tree: &Tree) -> Vec<String> {
    let ceiling = |name: &str| CEILINGS.iter().find(|(of, _)| *of == name).map_or(1, |(_, most)| *most);
    let longest =
        measured(tree).into_iter().filter_map(|(name, circles)| Some((name, circles.into_iter().next()?)));
    longest
        .filter(|(name, circle)| circle.len() > ceiling(name))
        .map(|(name, circle)| {
            format!("{name}: {} files import each other: {}", circle.len(), circle.join(" "))
        })
        .collect()
}

fn circles(files: &BTreeMap<Module, (&str, &str)>) -> Vec<Vec<String>> {
    let uses: BTreeMap<&Module, Vec<Vec<String>>> =
        files.iter().map(|(module, (_, text))| (module, imports(text))).collect();
    let graph: BTreeMap<&Module, BTreeSet<&Module>> = uses
        .iter()
        .map(|(module, paths)| {
            let targets = paths.iter().filter_map(|path| defining(&uses, module, path, &mut BTreeSet::new()));
            (*module, targets.filter(|target| target != module).collect())
        })
        .collect();
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        graph.keys().map(|from| (*from, reachable(&graph, from))).collect();
    let mut found = BTreeSet::new();
    for (from, to) in &reach {
        let circle: Vec<_> = to.iter().filter(|other| reach[*other].contains(from)).collect();
        if circle.len() > 1 {
            found.insert(circle.into_iter().map(|module| files[*module].0.to_owned()).collect::<Vec<_>>());
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    found
}

fn reachable<'a>(graph: &BTreeMap<&'a Module, BTreeSet<&'a Module>>, from: &Module) -> BTreeSet<&'a Module> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(module) = open.pop() {
        for next in graph.get(module).into_iter().flatten() {
            if seen.insert(*next) {
                open.push(next);
            }
        }
    }
    seen
}

/// The module whose file defines what `path` names in `module`; `None` outside the crate.
fn defining<'a>(
    uses: &BTreeMap<&'a Module, Vec<Vec<String>>>,
    module: &Module,
    path: &[String],
    seen: &mut BTreeSet<(Module, String)>,
) -> Option<&'a Module> {
    let mut at = match path.first()?.as_str() {
        "crate" => Module::new(),
        "super" | "self" => module.clone(),
        first => {
            let mut child = module.clone();
            child.push(first.to_owned());
            uses.contains_key(&child).then(|| module.clone())?
        }
    };
    for (index, part) in path.iter().enumerate() {
        let mut child = at.clone();
        child.push(part.clone());
        match part.as_str() {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            _ if uses.contains_key(&child) => at = child,
            _ => {
                let named = |of: &&Vec<String>| of.last() == Some(part);
                for other in uses.get(&at).into_iter().flatten().filter(named) {
                    if seen.insert((at.clone(), part.clone())) {
                        let whole = [&other[..], &path[index + 1..]].concat();
                        if let Some(found) = defining(uses, &at, &whole, seen) {
                            return Some(found);
                        }
                    }
                }
                break;
            }
        }
    }
    uses.get_key_value(&at).map(|(module, _)| *module)
}

/// The paths of a file's own `use` declarations.
fn imports(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut lines = product_lines(text).map(|line| line.split("//").next().unwrap_or_default());
    while let Some(line) = lines.next() {
        let scoped = line.strip_prefix("pub(").and_then(|rest| Some(rest.split_once(") ")?.1));
        let rest = scoped.or(line.strip_prefix("pub ")).unwrap_or(line);
        let Some(begin) = rest.strip_prefix("use ") else { continue };
        let mut whole = begin.to_owned();
        while !whole.contains(';') {
            let Some(next) = lines.next() else { break };
            whole.push_str(next.trim());
        }
        expand("", whole.trim_end_matches(';'), &mut found);
    }
    found
}

/// Adds the paths of a tree like `a::{b, c::{d, e}}`.
fn expand(before: &str, tree: &str, found: &mut Vec<Vec<String>>) {
    let Some((start, inner)) = tree.split_once('{') else {
        let path = format!("{before}{tree}");
        let parts = path.split(" as ").next().unwrap_or_default().split("::");
        found.push(parts.map(|part| part.trim().to_owned()).collect());
        return;
    };
    let (mut depth, mut item) = (0, String::new());
    let before = format!("{before}{}", start.trim());
    for letter in inner.rsplit_once('}').map_or(inner, |(inner, _)| inner).chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        if letter == ',' && depth == 0 {
            expand(&before, item.trim(), found);
            item.clear();
        } else {
            item.push(letter);
        }
    }
    if !item.trim().is_empty() {
        expand(&before, item.trim(), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_a_circle_are_found_through_a_reexport_and_tests_do_not_count() {
        let files = [
            ("lab/x/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use b::Thing;\n"),
            ("lab/x/src/a.rs", "use std::fmt;\n\nuse crate::{\n    Thing, // of b\n    c::Other,\n};\n"),
            ("lab/x/src/b.rs", "pub(crate) use super::a::{self, Third};\npub struct Thing;\n"),
            ("lab/x/src/c.rs", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
        ];
        assert_eq!(
            breaches(&Tree::with(&files)),
            ["lab/x: 2 files import each other: lab/x/src/a.rs lab/x/src/b.rs"]
        );
    }

    #[test]
    fn a_chain_of_imports_is_no_circle() {
        let files = [
            ("lab/x/src/lib.rs", "pub mod a;\npub mod b;\n"),
            ("lab/x/src/a.rs", "use crate::b::Thing;\n"),
            ("lab/x/src/b.rs", "// use crate::a;\npub struct Thing;\n"),
        ];
        assert_eq!(breaches(&Tree::with(&files)), [] as [&str; 0]);
    }
}
